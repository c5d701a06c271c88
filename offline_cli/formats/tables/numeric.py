"""Arrow columns of numbers and lists as arrays, whole columns at a time, with the rows that are bad.

Rows are bad that have no value, or one of another shape than the others have; the caller rejects them. The types: booleans,
integers, floats, decimals, dates and times (int64: microseconds since 1970, or of a duration), lists of these to any depth,
fixed-size lists, and tensors.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.formats.arrow_leaves import tree_of

__all__ = ["array_of", "dtype_of", "fixed_lists", "is_temporal", "nanoseconds"]

FARTHEST: Final = 9_200_000_000  # seconds before and after 1970 that int64 counts in nanoseconds
Shape = tuple[int, ...]
Bad = NDArray[np.bool_]


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Of the numbers in a column of that type; None where it holds none."""
    kind = _innermost(kind)
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(str(kind.to_pandas_dtype().__name__))
    if pa.types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(np.int64) if is_temporal(kind) else None  # microseconds


def is_temporal(kind: pa.DataType) -> bool:
    """Whether values are dates, times or durations."""
    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def is_one_number(kind: pa.DataType) -> bool:
    """Whether a value is a single number, and no list or tensor of them."""
    return not (isinstance(kind, pa.BaseExtensionType) or _is_list(kind))


def _innermost(kind: pa.DataType) -> pa.DataType:
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif _is_list(kind):
            kind = kind.value_type
        else:
            return kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def array_of(
    column: pa.ChunkedArray | pa.Array, dtype: np.dtype[Any] | None, shape: Shape | None
) -> tuple[NDArray[Any], Bad | None]:
    """(N, *shape) values with 0 in rows that are bad, and (N,) the mask of these, None where none is.

    `dtype`: None: the column's own. `shape`: of one value; None: that of most rows.
    """
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # extension arrays stay in chunks in some versions of Arrow
        array = pa.concat_arrays(array.chunks)
    values, bad = _array(array, shape)
    if shape is not None and values.shape[1:] != shape:
        return np.zeros((len(array), *shape), dtype), np.ones(len(array), np.bool_)
    return values if dtype is None else values.astype(dtype, copy=False), bad


def _array(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Bad | None]:
    if isinstance(array.type, pa.BaseExtensionType):
        return _tensors(array)
    if _is_list(array.type):
        return _lists(array, shape)
    if shape:  # numbers where vectors are wanted
        return np.zeros((len(array), *shape)), np.ones(len(array), np.bool_)
    return _scalars(array)


def _scalars(array: pa.Array) -> tuple[NDArray[Any], Bad | None]:
    bad = None
    if array.null_count:
        bad = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
    if pa.types.is_null(array.type):
        return np.zeros(len(array)), bad
    if is_temporal(array.type):
        array = _as_int64(array)
    elif pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    if bad is not None:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    return np.asarray(array.to_numpy(zero_copy_only=False)), bad


def _as_int64(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        unit = pa.timestamp("us", kind.tz)
    elif pa.types.is_date(kind):
        unit = pa.timestamp("us")
    else:
        unit = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    return array.cast(unit, safe=False).cast(pa.int64())


def nanoseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates, times or durations as exact int64, for order only; null for dates before 1678 and after 2261."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        unit = pa.timestamp("ns", kind.tz if pa.types.is_timestamp(kind) else None)
        far = pc.greater(pc.abs(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())), FARTHEST)
        column = pc.if_else(far, pa.scalar(None, kind), column)
    else:
        unit = pa.duration("ns") if pa.types.is_duration(kind) else pa.time64("ns")
    return column.cast(unit).cast(pa.int64())


def _lists(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], Bad | None]:
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size)
        if array.null_count:
            lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    else:
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    size = shape[0] if shape else _most(lengths)
    bad = lengths != size
    if not bad.any():
        return _regular(array, size, shape)
    kept, kept_bad = _regular(array.filter(pa.array(~bad)), size, shape)
    values = np.zeros((len(array), *kept.shape[1:]), kept.dtype)
    values[~bad] = kept
    if kept_bad is not None:
        bad[np.flatnonzero(~bad)[kept_bad]] = True
    return values, bad


def _most(lengths: NDArray[Any]) -> int:
    known = lengths[lengths >= 0]
    return int(np.bincount(known).argmax()) if len(known) else 0


def _regular(array: pa.Array, size: int, shape: Shape | None) -> tuple[NDArray[Any], Bad | None]:
    """Of lists that all have `size` items."""
    values, bad = _array(array.flatten(), None if shape is None else shape[1:])
    whole = None if bad is None else np.asarray(bad.reshape(len(array), size).any(axis=1))
    return values.reshape(len(array), size, *values.shape[1:]), whole


def _tensors(array: pa.ExtensionArray) -> tuple[NDArray[Any], Bad | None]:
    bad = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
    known = array.filter(pa.array(~bad)) if bad.any() else array
    tensors = tree_of(known, pa.field("tensor", array.type), where=str)
    if not bad.any():
        return tensors, None
    values = np.zeros((len(array), *tensors.shape[1:]), tensors.dtype)
    values[~bad] = tensors
    return values, bad


def fixed_lists(values: NDArray[Any]) -> pa.Array:
    """(N, *shape) as an Arrow column: plain numbers, or fixed-size lists of the flattened rest; a copy only where needed."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 1:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))
