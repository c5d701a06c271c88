"""Arrow messages that take too much are refused before anything is made room for; all others are read as they stand."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from offline_cli.errors import BadData, MemoryLimitExceeded, UnsafeData
from offline_cli.files.locations import open_location
from offline_cli.formats.tables.arrow_messages import ArrowBound, arrow_batches
from offline_cli.formats.tables.files import TableFile
from offline_cli.formats.tables.mapping import CsvForm

MANY = 12 << 20  # numbers: 96 MiB


def packed_stream(*arguments: Any, **options: Any) -> Any:
    return pa.ipc.new_stream(*arguments, **options)


KINDS = pytest.mark.parametrize(
    "new", [pa.ipc.new_file, pa.ipc.new_stream, packed_stream], ids=["file", "stream", "packed stream"]
)
PACKED = pytest.mark.parametrize("codec", [None, "zstd", "lz4"])


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


@KINDS
@PACKED
def test_what_is_no_bomb_is_read_as_it_stands(new: Any, codec: str | None) -> None:
    texts = pa.array(["a", None, "b"] * 1000).dictionary_encode()
    table = pa.table({"x": np.arange(3000.0), "list": [[1], [], None] * 1000, "text": texts})
    found = read(written(new, table, codec, max_chunksize=700), new)
    assert found.equals(table.unify_dictionaries())


@KINDS
def test_zeros_that_unfold_beyond_the_bound_are_refused_and_leave_nothing_allocated(new: Any) -> None:
    data = written(new, pa.table({"x": np.zeros(MANY)}), "zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(UnsafeData, match="unfold to at least 96 MiB"):
        read(data, new)
    assert pa.total_allocated_bytes() - before < 1 << 20


@KINDS
def test_a_dictionary_that_unfolds_beyond_the_bound_is_refused(new: Any) -> None:
    text = pa.DictionaryArray.from_arrays(np.zeros(3, np.int8), ["x" * (96 << 20)])
    with pytest.raises(UnsafeData, match="unfold to at least 96 MiB"):
        read(written(new, pa.table({"text": text}), "zstd"), new)


@KINDS
def test_a_length_that_lies_is_not_asked_for(new: Any) -> None:
    data = written(new, pa.table({"x": np.zeros(1000)}), "zstd")
    lying = data.replace(struct.pack("<q", 8000), struct.pack("<q", 33 << 30))
    assert lying != data
    with pytest.raises(UnsafeData, match="unfold to at least 33792 MiB"):
        read(lying, new)


def test_a_body_that_lies_takes_what_is_there() -> None:
    data = written(pa.ipc.new_stream, pa.table({"x": np.zeros(1000)}), None)
    lying = data.replace(struct.pack("<q", 8000), struct.pack("<q", 1 << 40))
    tracemalloc.start()
    with pytest.raises((BadData, pa.ArrowException, OSError)):
        read(lying, pa.ipc.new_stream)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@KINDS
@PACKED
def test_a_batch_beyond_the_memory_limit_names_the_limit(new: Any, codec: str | None, tmp_path: Path) -> None:
    noise = pa.table({"x": np.random.default_rng(0).random(1 << 20)})
    (tmp_path / "x.arrow").write_bytes(written(new, noise, codec))
    table = TableFile(open_location(tmp_path / "x.arrow"), "arrow", memory_limit=4 << 20)
    with pytest.raises(MemoryLimitExceeded, match="raise `memory_limit`"):
        list(table.chunks(None, CsvForm(), chunk_bytes=1 << 20, temp_dir=None))


EVERY_KIND = pa.table(
    {
        "number": np.arange(3.0),
        "nothing": pa.nulls(3),
        "bit": [True, None, False],
        "text": ["a", None, "c"],
        "bytes": pa.array([b"", b"b", b"c"], pa.large_binary()),
        "fixed": pa.array([b"ab"] * 3, pa.binary(2)),
        "list": [[1], [], None],
        "lists": [[["a"]], [], None],
        "pair": pa.FixedSizeListArray.from_arrays(np.arange(6), 2),
        "struct": [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "category": pa.array(["a", "b", "a"]).dictionary_encode(),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6).reshape(3, 2)),
        "day": pa.array([1, 2, 3], pa.date32()),
        "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(20)),
    }
)


@PACKED
def test_columns_that_are_not_read_do_not_count(codec: str | None) -> None:
    for place in range(EVERY_KIND.num_columns + 1):
        table = EVERY_KIND.add_column(place, "large", [pa.array([[*range(3000)]] * 3)])
        data = written(pa.ipc.new_file, table, codec)
        for name in EVERY_KIND.column_names:
            assert read(data, pa.ipc.new_file, 16 << 10, [name]).column(name).to_pylist() == EVERY_KIND[name].to_pylist()
        with pytest.raises(MemoryLimitExceeded):
            read(data, pa.ipc.new_file, 16 << 10, ["large"])


@KINDS
def test_metadata_cut_or_changed_anywhere_is_damage_and_nothing_worse(new: Any) -> None:
    data = written(new, pa.table({"x": np.arange(10), "t": pa.array(["a"] * 10).dictionary_encode()}), "zstd")
    rng = np.random.default_rng(0)
    for _ in range(1500):
        at, value = int(rng.integers(len(data))), int(rng.integers(256))
        changed = data[:at] + bytes([value]) + data[at + 1 :]
        try:
            read(changed, new)
        except (BadData, MemoryLimitExceeded, pa.ArrowException, OSError, UnicodeDecodeError):
            continue
