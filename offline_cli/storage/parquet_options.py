"""How the columns of a shard are stored, as `pq.ParquetWriter` takes it.

Floats are stored plain, text and integers with a dictionary; `item` never has one. Every page carries a checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from offline_cli.columns import Columns

__all__ = ["parquet_options"]


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
    """Paths of Parquet columns worth a dictionary: text and integers, wherever they stand.

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
