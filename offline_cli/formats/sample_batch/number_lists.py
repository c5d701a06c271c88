"""Plain lists of numbers of several lines as arrays, in one go; refuses lists that are not of one type and shape throughout.

What it refuses goes the general way, list by list. What it takes comes out as `numpy.asarray` gives it for each list by itself:
a list that begins with a decimal and holds numbers only is float64, one of integers is int64, one of booleans is bool. Packing
numbers by `struct` is many times faster than `asarray`, which asks each value what it is, and as strict. Where the caller
allows it, decimals that float32 holds exactly come as float32: the same numbers in half the bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, chain, pairwise
from operator import iconcat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["arrays_of"]

MAX_NDIM: Final = 8
PACKED: Final[dict[type, tuple[str, Any]]] = {float: ("d", np.float64), int: ("q", np.int64)}


def arrays_of(lists: Sequence[list[Any]], *, narrow: bool) -> list[NDArray[Any]] | None:
    """(n_i, *shape) of each of the lists, none of which is empty; None where they have no shape or no type in common.

    `narrow`: give float32 where no value loses by it.
    """
    kinds = {_first(rows) for rows in lists}
    if len(kinds) != 1:
        return None
    kind, shape = kinds.pop()
    try:
        flat = _numbers(lists, kind, shape)
    except (TypeError, OverflowError, struct.error):  # of a row that is no list, of a number too large, of what is no number
        return None
    if flat is None:
        return None
    array = (_narrowed(flat) if narrow and kind is float else flat).reshape(-1, *shape)
    return [array[start:stop] for start, stop in pairwise(accumulate(map(len, lists), initial=0))]


def _first(rows: Any) -> tuple[type, tuple[int, ...]]:
    """Type of the first number, and shape of the first row, of rows of which there is one at least."""
    shape: list[int] = []
    value = rows[0]
    while type(value) is list and value and len(shape) < MAX_NDIM:
        shape.append(len(value))
        value = value[0]
    return type(value), tuple(shape)


def _numbers(lists: Sequence[list[Any]], kind: type, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The flat array of all values. Raises struct.error, TypeError or OverflowError where they are not all of that kind."""
    if kind is bool:
        values = list(chain.from_iterable([_flat(rows, shape) for rows in lists]))
        return np.frombuffer(bytes(values), np.bool_) if set(map(type, values)) == {bool} else None
    if kind not in PACKED:
        return None
    letter, dtype = PACKED[kind]
    each = math.prod(shape)
    parts = [struct.pack(f"{len(rows) * each}{letter}", *_flat(rows, shape)) for rows in lists]
    return np.frombuffer(b"".join(parts), dtype)


def _flat(rows: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """The values of all rows; of an object these are its keys. Raises TypeError where a row is of another shape."""
    level = rows
    for size in shape:
        if set(map(len, level)) != {size}:
            raise TypeError("rows of different shapes")
        level = reduce(iconcat, level, [])
    return level


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    same = narrow == values
    return narrow if bool(same.all()) or bool((same | (values != values)).all()) else values
