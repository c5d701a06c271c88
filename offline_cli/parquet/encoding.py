"""How a table is stored in Parquet: the rows of a row group, compression, dictionaries, checksums.

Floats are stored plain, text and integers with a dictionary; `item` never has one. Every page carries a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from offline_cli.columns import Columns

__all__ = ["BLOCK_BYTES", "parquet_options", "rows_of_group"]

BLOCK_BYTES: Final = 8 << 20  # of raw arrays in a row group, about


def rows_of_group(table: Any) -> int:
    """All rows of a pa.Table, unless it is large, as one of a single long episode or of images may be."""
    return max(1, table.num_rows if table.nbytes <= 2 * BLOCK_BYTES else int(table.num_rows * BLOCK_BYTES / table.nbytes))


def parquet_options(schema: Any, compression: str) -> dict[str, Any]:
    """What pq.ParquetWriter takes, for a pa.Schema."""
    return {
        "compression": compression,
        "use_dictionary": _repeating(schema),
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
