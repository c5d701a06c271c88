"""Tables in memory as sources: frames of Polars and pandas, tables of pyarrow."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import fsspec
import pyarrow as pa

__all__ = ["placed"]

FOLDER: Final = "/offline-cli-frames"


def placed(sources: Any) -> Any:
    """`sources` with each table in memory as the URL of an Arrow file in memory, called by its content; others as they are."""
    if hasattr(sources, "__arrow_c_stream__"):
        return _placed(sources)
    if isinstance(sources, list | tuple):
        return [_placed(one) if hasattr(one, "__arrow_c_stream__") else one for one in sources]
    return sources


def _placed(frame: Any) -> str:
    reader = pa.RecordBatchReader.from_stream(frame)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)
    data = sink.getvalue()
    path = f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:16]}.arrow"
    fsspec.filesystem("memory").pipe_file(path, data.to_pybytes())
    return f"memory:/{path}"
