"""Where a table is cut into row groups so that readers accept the file, and how its columns are stored.

* `Cuts`, `cuts_of`: readers refuse a file that unfolds beyond the bound of `safety`, as one of frames in which nothing
  moves does. A table that would bring a shard there begins another one, where it may unfold to more. A table beyond the bound
  by itself, an episode of hundreds of MiB, is cut into more row groups, each of which adds some bytes to the file. Where that
  is not enough, because single cells are that large, its shard is written without compression and dictionaries (`alone`): no
  manifest is needed then to know that it is no bomb. All other tables are cut, and written, as they always were.
* `parquet_options`: floats are stored plain, text and integers with a dictionary; `item` never has one. Every page carries a
  checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_cli.columns import Columns
from offline_cli.parquet import safety
from offline_cli.parquet.safety import in_memory_bytes

__all__ = ["BLOCK_BYTES", "Cuts", "Held", "alone", "cuts_of", "parquet_options"]

BLOCK_BYTES: Final = 8 << 20  # of raw arrays in a row group, about
SURE: Final = 2  # so many times the wanted bytes, packed in parts, are never fewer packed as a whole
PIECE: Final = 1 << 20  # bytes packed at a time
LIMITED: Final = ("lz4", "snappy", "none")  # these unfold to at most 255 times their bytes
LIMIT: Final = 255


def parquet_options(schema: Any, compression: str, *, is_plain: bool) -> dict[str, Any]:
    """For a pa.Schema. `is_plain`: without compression and dictionaries, so that the file is as large as what it holds."""
    return {
        "compression": "none" if is_plain else compression,
        "use_dictionary": False if is_plain else _repeating(schema),
        "write_statistics": [name for name in schema.names if name != Columns.ITEM] if Columns.ITEM in schema.names else True,
        "write_batch_size": 1 << 20,
        "write_page_checksum": True,
    }


def _repeating(schema: Any) -> list[str]:
    """Paths of Parquet columns worth a dictionary: text and integers, wherever they are.

    Parquet has no 8-bit numbers: an image's bytes take four each. As indices into a dictionary they take one again.
    """
    return [path for field in schema for path in _paths(field.type, field.name) if path != Columns.ITEM]


def _paths(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _paths(kind.field(index).type, f"{path}.{kind.field(index).name}")
    elif pa.types.is_fixed_size_list(kind):
        yield from _paths(kind.value_type, f"{path}.list.element")
    elif pa.types.is_string(kind) or pa.types.is_integer(kind):
        yield path


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a table is written."""

    rows: tuple[int, ...]  # of each row group, in order
    is_plain: bool = False  # without compression and dictionaries, alone in its shard


@dataclass(frozen=True, slots=True)
class Held:
    """What is in a shard before a table."""

    in_memory: int = 0  # bytes, as readers count them
    by_now: int = 0  # bytes of the file that are certainly written
    stored: Callable[[], int] = int  # bytes of the file, once all is written: waits for it


NOTHING: Final = Held()


def cuts_of(table: Any, compression: str, held: Held = NOTHING) -> Cuts | None:
    """The row groups of a pa.Table after what is `held`; None: it belongs into another shard. The same for the same tables."""
    if not table.num_rows:
        return Cuts((0,))
    usual = _groups(table.num_rows, _usual_rows(table))
    total = held.in_memory + in_memory_bytes(table)
    ratio = safety.MAX_RATIO
    if total <= max(safety.MAX_BYTES, ratio * held.by_now):
        return Cuts(usual)
    wanted = -(-total // ratio) - held.stored()
    size = _size_if_less(table, usual, compression, wanted)
    if size is None:
        return Cuts(usual)
    if held.in_memory:
        return None
    finer = _finer(table, len(usual), compression, wanted, wanted - size)
    return Cuts(_groups(table.num_rows, 1), is_plain=True) if finer is None else Cuts(finer)


def alone(table: Any, compression: str) -> Cuts:
    """The row groups of a pa.Table that is a file by itself."""
    cuts = cuts_of(table, compression)
    assert cuts is not None, "a file of its own takes any table"
    return cuts


def _usual_rows(table: Any) -> int:
    """All rows of a pa.Table in one group, unless it is large, as one of a single long episode or of images may be."""
    return max(1, table.num_rows if table.nbytes <= 2 * BLOCK_BYTES else int(table.num_rows * BLOCK_BYTES / table.nbytes))


def _groups(rows: int, each: int) -> tuple[int, ...]:
    return (each,) * (rows // each) + ((rows % each,) if rows % each else ())


def _finer(table: Any, usual: int, compression: str, wanted: int, missing: int) -> tuple[int, ...] | None:
    """More than the `usual` number of row groups, for `missing` bytes of those `wanted`; None where one a row does not do."""
    if usual == table.num_rows:
        return None
    count = usual - (-SURE * missing // _bytes_of_group(table, compression))
    while count < table.num_rows:
        finer = _groups(table.num_rows, table.num_rows // count)
        if _size(table, finer, compression) >= wanted:
            return finer
        count *= SURE
    each = _groups(table.num_rows, 1)
    return each if _size(table, each, compression) >= wanted else None


def _bytes_of_group(table: Any, compression: str) -> int:
    """What a row group adds to a file at least, headers of pages and its part of the footer."""
    pairs = (table.slice(first, 2) for first in (0, table.num_rows // 2 - 1, table.num_rows - 2))
    return max(1, min(_size(pair, (1, 1), compression) - _size(pair, (2,), compression) for pair in pairs))


def _size_if_less(table: Any, groups: Sequence[int], compression: str, wanted: int) -> int | None:
    """Bytes of a file of the pa.Table; None where they are `wanted` or more, which its first rows may tell."""
    if wanted <= 0 or (compression in LIMITED and _item_bytes(table) // LIMIT > wanted):
        return None
    packs_one = table.num_rows == 1 and Columns.ITEM in table.column_names and compression not in LIMITED
    if packs_one and _packs_to(table.column(Columns.ITEM), compression, SURE * wanted) > SURE * wanted:
        return None
    for share in (64, 16):
        count = table.num_rows // share
        if count and _size(table.slice(0, count), _groups(count, groups[0]), compression) > SURE * wanted:
            return None
    size = _size(table, groups, compression)
    return None if size >= wanted else size


def _item_bytes(table: Any) -> int:
    return int(table.column(Columns.ITEM).nbytes) if Columns.ITEM in table.column_names else 0


def _packs_to(item: Any, compression: str, enough: int) -> int:
    """Bytes that the one value of a pa.ChunkedArray becomes, no longer counted once they are more than `enough`."""
    (chunk,) = (chunk for chunk in item.chunks if len(chunk))
    _, offsets, data = chunk.buffers()
    first, last = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + 2].tolist()
    sink = pa.MockOutputStream()
    with pa.CompressedOutputStream(sink, compression) as packed:
        for at in range(first, last, PIECE):
            packed.write(data.slice(at, min(PIECE, last - at)))
            if sink.size() > enough:
                break
    return int(sink.size())


def _size(table: Any, groups: Sequence[int], compression: str) -> int:
    """Bytes of a file of the pa.Table alone."""
    sink, first = pa.MockOutputStream(), 0
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema, compression, is_plain=False)) as parquet:
        whole = table.combine_chunks()
        for count in groups:
            parquet.write_table(whole.slice(first, count), row_group_size=count)
            first += count
    return int(sink.size())
