"""Arrow messages that take too much are refused before anything is made room for; all others are read as they stand."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from offline_cli.errors import BadData, MemoryLimitExceeded, UnsafeData
from offline_cli.formats.tables.arrow_messages import ArrowBound, arrow_batches

MANY = 12 << 20  # numbers: 96 MiB


def packed_stream(*arguments: Any, **options: Any) -> Any:
    return pa.ipc.new_stream(*arguments, **options)


KINDS = pytest.mark.parametrize(
    "new", [pa.ipc.new_file, pa.ipc.new_stream, packed_stream], ids=["file", "stream", "packed stream"]
)


def written(new: Any, table: pa.Table, codec: str | None, **options: Any) -> bytes:
    made = io.BytesIO()
    with new(made, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, **options)
    return made.getvalue()


class Once(io.BytesIO):
    """A stream that comes out of a packed file."""

    def seekable(self) -> bool:
        return False


def read(data: bytes, new: Any, memory_limit: int = 1 << 30, columns: Any = None) -> pa.Table:
    bound = ArrowBound("test", len(data), memory_limit)
    is_stream = new is not pa.ipc.new_file
    source = Once(data) if new is packed_stream else io.BytesIO(data)
    batches = arrow_batches(source, columns, 1 << 20, 1 << 16, is_stream=is_stream, bound=bound)
    found = [batch for batch, _ in batches]
    return pa.Table.from_batches(found) if found else pa.table({})


@pytest.mark.parametrize(
    ("new", "codec"), [(pa.ipc.new_file, None), (pa.ipc.new_file, "lz4"), (pa.ipc.new_stream, "zstd"), (packed_stream, "zstd")]
)
def test_what_is_no_bomb_is_read_as_it_stands(new: Any, codec: str | None) -> None:
    texts = pa.array(["a", None, "b"] * 1000).dictionary_encode()
    table = pa.table({"x": np.arange(3000.0), "list": [[1], [], None] * 1000, "text": texts})
    found = read(written(new, table, codec, max_chunksize=700), new)
    assert found.equals(table.unify_dictionaries())


@KINDS
def test_zeros_that_unfold_beyond_the_bound_are_refused_and_leave_nothing_allocated(new: Any) -> None:
    data = written(new, pa.table({"x": np.zeros(MANY)}), "zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(UnsafeData):
        read(data, new)
    assert pa.total_allocated_bytes() - before < 1 << 20


@KINDS
def test_metadata_cut_or_changed_anywhere_is_damage_and_nothing_worse(new: Any) -> None:
    data = written(new, pa.table({"x": np.arange(10), "t": pa.array(["a"] * 10).dictionary_encode()}), "zstd")
    rng = np.random.default_rng(0)
    for _ in range(150):
        at, value = int(rng.integers(len(data))), int(rng.integers(256))
        changed = data[:at] + bytes([value]) + data[at + 1 :]
        try:
            read(changed, new)
        except (BadData, MemoryLimitExceeded, pa.ArrowException, OSError, UnicodeDecodeError):
            continue
