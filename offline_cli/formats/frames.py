"""Tables in memory as sources: frames of Polars and pandas, tables of pyarrow."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import fsspec
import pyarrow as pa

FOLDER: Final = "/offline-cli-frames"


def placed(sources: Any) -> Any:
    """`sources` with each table in memory as the URL of an Arrow file in memory, called by its content; others as they are."""
    if isinstance(sources, list | tuple):
        return [placed(one) for one in sources]
    if not hasattr(sources, "__arrow_c_stream__"):
        return sources
    reader = pa.RecordBatchReader.from_stream(sources)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)
    data = sink.getvalue()
    path = f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:16]}.arrow"
    fsspec.filesystem("memory").pipe_file(path, data.to_pybytes())
    return f"memory:/{path}"
