"""Columns of Arrow as DuckDB takes them: structs flattened, and types that it lacks as numbers or text.

Times are integers of one unit, decimals and half floats are floats, dictionaries are their values, tensors are lists. Ids are
text: whole floats without a point, bytes as hex where they are no text, UUIDs as people write them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from offline_cli.formats.arrow_leaves import is_text, tree_of

__all__ = ["as_id", "dtype_of", "flat", "flat_fields", "holding", "is_bytes", "is_list", "is_tensor", "plain", "plain_type"]
__all__ += ["unified"]


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists."""
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether cells hold bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_tensor(column: pa.Field) -> bool:
    """Whether a column holds arrays of one shape by its extension type, or a tensor of Ray's by its metadata."""
    name = (column.metadata or {}).get(b"ARROW:extension:name", b"").decode("utf-8", "replace").lower()
    named = getattr(column.type, "extension_name", "") or name
    return isinstance(column.type, pa.FixedShapeTensorType) or str(named).lower().startswith("ray.data.arrow")


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Of the numbers in a column of that type; None where it holds none."""
    types, kind = pa.types, _stored(kind)
    if is_list(kind):
        return dtype_of(kind.value_type)
    if types.is_struct(kind):  # a ragged tensor of Ray's
        return dtype_of(kind.field("data").type) if "data" in [part.name for part in kind] else None
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(str(np.dtype(kind.to_pandas_dtype())))
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if types.is_temporal(kind) and not types.is_interval(kind) else None


# ---- structs ----


def flat_fields(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Columns by dotted path, dictionaries as their values."""
    if pa.types.is_struct(kind) and kind.num_fields:
        for part in kind:
            yield from flat_fields(f"{name}.{part.name}", part.type)
    else:
        yield name, kind.value_type if pa.types.is_dictionary(kind) else kind


def flat(table: pa.Table, whole: str | None) -> pa.Table:
    """`table` without structs; the struct `whole` becomes JSON text."""
    if whole in table.column_names and pa.types.is_struct(table.schema.field(whole).type):
        rows = table.column(whole).to_pylist()
        present = [None if row is None else {key: item for key, item in row.items() if item is not None} for row in rows]
        table = table.set_column(table.column_names.index(whole), whole, _texts(present))
    while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
        table = table.flatten()
    return table


def _texts(values: Iterable[Any]) -> pa.Array:
    return pa.array([None if value is None else json.dumps(value, default=str) for value in values], pa.large_string())


def holding(names: Iterable[str], flat_names: Collection[str]) -> list[str]:
    """Those of `names` that hold any of the flat columns: themselves, or as structs."""
    wholes = {name[:end] for name in flat_names for end in (*(i for i, letter in enumerate(name) if letter == "."), None)}
    return [name for name in names if name in wholes]


# ---- types ----


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that DuckDB is given for `kind`."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.list_(kind.value_type)
    if isinstance(kind, pa.UuidType) or is_text(kind):
        return pa.large_string()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_list(kind):
        inner = plain_type(kind.value_type)
        return pa.list_(inner, kind.list_size) if types.is_fixed_size_list(kind) and not is_list(inner) else pa.list_(inner)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind):
        return pa.float64()
    return pa.int64() if types.is_temporal(kind) and not types.is_interval(kind) else kind


def unified(kinds: Iterable[pa.DataType], unit: str) -> pa.DataType:
    """The one type of a column that files hold as several: text where they have no other in common."""
    known = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(known) <= 1:
        return known[0] if known else pa.null()
    if all(pa.types.is_temporal(kind) for kind in known):
        return pa.timestamp(unit)
    with suppress(pa.ArrowException):
        fields = [pa.schema([pa.field("c", plain_type(kind))]) for kind in known]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    return pa.string()


def plain(column: pa.ChunkedArray, field: pa.Field, kind: pa.DataType, unit: str) -> tuple[pa.Array, tuple[int, ...]]:
    """A column as `kind`, times in `unit`, and the shape of its tensors, () where it has none. Raises as Arrow does."""
    if not is_tensor(field):
        return _cast(_whole(column), kind, unit), ()
    values = tree_of(column.drop_null(), field, where=lambda row: "a row")
    shape = values.shape[1:]
    array = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), int(np.prod(shape)))
    if column.null_count:
        places = np.cumsum(column.is_valid().to_numpy()) - 1
        array = array.take(pa.array(places, mask=column.is_null().to_numpy(zero_copy_only=False)))
    return array.cast(kind), shape


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _cast(array: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    if isinstance(array.type, pa.UuidType):
        return as_id(pa.chunked_array([array]))
    if isinstance(array.type, pa.BaseExtensionType):
        return _cast(array.storage, kind, unit)
    if pa.types.is_dictionary(array.type):
        return _cast(array.dictionary, kind, unit).take(array.indices)
    if kind == pa.int64() and pa.types.is_temporal(array.type):
        return _in_unit(array, unit)
    if is_text(kind) and not is_text(array.type) and not pa.types.is_null(array.type):  # files differ in its type
        return _texts(array.to_pylist())
    return array if array.type == kind else array.cast(kind, safe=not pa.types.is_floating(kind))


def _in_unit(array: pa.Array, unit: str) -> pa.Array:
    """Dates, times and durations as int64 of `unit`, since 1970 or midnight."""
    kind, types = array.type, pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        to = pa.timestamp(unit, kind.tz if types.is_timestamp(kind) else None)
    else:
        to = pa.duration(unit) if types.is_duration(kind) else pa.time64(unit)
    return array.cast(to, safe=False).cast(pa.int64())


def as_id(column: pa.ChunkedArray) -> pa.Array:
    """A column as the texts of ids."""
    array, types = _whole(column), pa.types
    kind = array.type
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    if types.is_dictionary(kind):
        return as_id(pa.chunked_array([array.dictionary])).take(array.indices)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.large_string())
    if not (is_binary or types.is_floating(kind)):
        return array.cast(pa.large_string())
    known = array.dictionary_encode()
    return pa.array([None if one is None else _id(one) for one in known.dictionary.to_pylist()]).take(known.indices)


def _id(value: bytes | float) -> str | None:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return text if text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text else value.hex()
    return None if value != value else str(int(value)) if value.is_integer() else str(value)
