"""Convert trees of arrays to Arrow columns and back; types come from the space or the array's dtype, never from values.

Scalar leaves are primitive columns, 1-D leaves fixed_size_list, 2-D and more arrow.fixed_shape_tensor; a Dict is a struct by
key, a Tuple a struct by '0', '1', ... with a mark in its field's metadata. Leaves without elements, which Parquet cannot hold,
and nulls raise. Data moves as whole buffers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import UnsupportedSpace
from offline_cli.spaces import Space
from offline_cli.trees import Tree

MARK = {b"offline_cli": b"tuple"}  # field metadata of a struct that represents a tuple
FIX = "use the episodes format, which stores any array"


def space_field(name: str, space: Space, *, where: str = "") -> Any:
    """The column (pa.Field) called `name` for values of `space`. Raises UnsupportedSpace, naming the part."""
    return tree_field(name, zero_rows(space, 0), where=where, like=space)


def tree_field(name: str, tree: Tree, *, where: str = "", like: Space | None = None) -> Any:
    """The column (pa.Field) called `name` for leaves (N, ...) of `tree`, with their dtypes. Raises UnsupportedSpace.

    `like`: a space that sets the order of a Dict's parts, if it has the same parts; otherwise they are sorted.
    """
    path = f"{where}.{name}" if where else name
    parts: Any = like.spaces if isinstance(like, (spaces.Dict, spaces.Tuple)) else {}
    if isinstance(tree, dict):
        known = parts if isinstance(parts, dict) and parts.keys() == tree.keys() else dict.fromkeys(sorted(tree))
        fields = [tree_field(str(key), tree[key], where=path, like=part) for key, part in known.items()]
        return _struct(name, fields, path)
    if isinstance(tree, tuple):
        each = parts if isinstance(parts, tuple) and len(parts) == len(tree) else (None,) * len(tree)
        fields = [tree_field(str(i), part, where=path, like=each[i]) for i, part in enumerate(tree)]
        return _struct(name, fields, path, MARK)
    return pa.field(name, _leaf_type(tree.dtype, tree.shape[1:], path))


def _struct(name: str, fields: Sequence[Any], path: str, metadata: dict[bytes, bytes] | None = None) -> Any:
    if not fields:
        raise UnsupportedSpace("an empty Dict or Tuple cannot be a column", where=path, fix=FIX)
    return pa.field(name, pa.struct(fields), metadata=metadata)


def _leaf_type(dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> Any:
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise UnsupportedSpace(f"values of type {dtype} cannot be a column", where=path, fix=FIX)
    if 0 in shape:
        raise UnsupportedSpace(f"arrays of shape {shape} have no elements and cannot be a column", where=path, fix=FIX)
    element = pa.from_numpy_dtype(dtype.newbyteorder("="))
    if not shape:
        return element
    return pa.list_(element, shape[0]) if len(shape) == 1 else pa.fixed_shape_tensor(element, shape)


def is_numeric(kind: Any) -> bool:
    """Whether `from_arrow` supports an Arrow type (pa.DataType): numbers and bools, in the types of `tree_field`."""
    if pa.types.is_struct(kind):
        return bool(kind.num_fields) and all(is_numeric(kind.field(i).type) for i in range(kind.num_fields))
    if isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


# ---- values ----


def to_arrow(tree: Tree, kind: Any) -> Any:
    """Leaves (N, ...) of `tree` as one pa.Array of type `kind`; contiguous arrays are not copied."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        parts = tree if isinstance(tree, tuple) else [tree[field.name] for field in fields]
        children = [to_arrow(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields)
    flat = pa.array(np.ascontiguousarray(tree).reshape(-1))
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(kind.shape))
        return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size).cast(kind)
    return flat


def from_arrow(array: Any, field: Any) -> Tree:
    """Leaves (N, ...) of a pa.Array of type `field`. Raises ValueError for null values."""
    kind = field.type
    if array.null_count:
        raise ValueError(f"{array.null_count} values of column {field.name!r} are null")
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        parts = [from_arrow(array.field(i), part) for i, part in enumerate(fields)]
        if (field.metadata or {}).items() >= MARK.items():
            return tuple(parts)
        return {part.name: value for part, value in zip(fields, parts, strict=True)}
    if isinstance(kind, pa.BaseExtensionType):
        return _numbers(array.storage.flatten(), field).reshape(-1, *kind.shape)
    if pa.types.is_fixed_size_list(kind):
        return _numbers(array.flatten(), field).reshape(-1, kind.list_size)
    return _numbers(array, field)


def _numbers(array: Any, field: Any) -> NDArray[Any]:
    if array.null_count:
        raise ValueError(f"{array.null_count} elements in column {field.name!r} are null")
    if pa.types.is_boolean(array.type) and len(array):  # Arrow unpacks bits one by one
        bits = np.frombuffer(array.buffers()[1], np.uint8)[array.offset // 8 : (array.offset + len(array) + 7) // 8]
        first = array.offset % 8
        return np.unpackbits(bits, bitorder="little")[first : first + len(array)].view(np.bool_)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def without_dictionaries(table: Any, names: Collection[str] | None = None) -> Any:
    """Decode dictionary-encoded columns (`names`, or all) of a pa.Table: chunks may have different dictionaries."""
    for place, field in enumerate(table.schema):
        if (names is None or field.name in names) and pa.types.is_dictionary(field.type):
            kind, column = field.type.value_type, table.column(place)
            is_empty = column.null_count == len(column)
            plain = pa.nulls(len(column), kind) if is_empty else column.cast(kind)
            table = table.set_column(place, field.with_type(kind), plain)
    return table
