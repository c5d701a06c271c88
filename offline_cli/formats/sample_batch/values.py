"""One column of a SampleBatch as arrays: plain lists, packed text, nested parts; rows without a common shape raise.

* `arrays_of`: plain lists of numbers of several lines in one go, where all are of one type and shape. Others go the general
  way, list by list. The result is what `numpy.asarray` gives for each list by itself: a list that begins with a decimal and
  holds numbers only is float64, one of integers is int64, one of booleans is bool. Packing numbers by `struct` is many times
  faster than `asarray`, which asks each value what it is, and as strict. Where the caller allows it, decimals that float32
  holds exactly come as float32: the same numbers in half the bytes.
* `column_of`: RLlib writes a Dict or Tuple column as one array per part (`{"a": [n rows], "b": [n rows]}`, `[[n rows], [n
  rows]]`), other programs as one dict or list per row. Both are read. Where a list could be either, it is taken as rows if it
  has as many items as the line has steps; with the space given, a Tuple is known to be one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, chain, pairwise
from operator import iconcat
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import PROBLEM, BadEpisode
from offline_cli.formats.packed import KnownPatterns, looks_packed, unpack, unpack_cells
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten

__all__ = ["Column", "arrays_of", "column_of", "infos_of"]

MAX_NDIM: Final = 8
PACKED: Final[dict[type, tuple[str, Any]]] = {float: ("d", np.float64), int: ("q", np.int64)}

MAX_DEPTH: Final = 16
NUMERIC: Final = "biufc"
MAX_TEXT: Final = 8 << 20  # letters of a column as an array, of four bytes each


def arrays_of(lists: Sequence[list[Any]], *, narrow: bool) -> list[NDArray[Any]] | None:
    """(n_i, *shape) of each of the lists, none of which is empty; None where they have no shape or no type in common.

    `narrow`: give float32 where no value changes by it.
    """
    kinds = {_first(rows) for rows in lists}
    if len(kinds) != 1:
        return None
    kind, shape = kinds.pop()
    try:
        flat = _numbers(lists, kind, shape)
    except (
        TypeError,
        OverflowError,
        struct.error,
    ):  # of a row that is not a list, of a number too large, of what is not a number
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column as arrays, and whether these came with dtypes of their own."""

    tree: Tree  # leaves (n, ...)
    typed: bool  # packed columns say their dtype; JSON knows only float64, int64 and bool
    nulls: int = 0  # values that were null, and are NaN here

    @property
    def is_numeric(self) -> bool:
        """Whether every leaf holds numbers or booleans, and there is one."""
        if isinstance(self.tree, np.ndarray):
            return self.tree.dtype.kind in NUMERIC
        leaves = list(flatten(self.tree))
        return bool(leaves) and all(leaf.dtype.kind in NUMERIC for _, leaf in leaves)


def column_of(
    value: Any, rows: int | None, *, where: str, space: Space | None = None, patterns: KnownPatterns | None = None
) -> Column:
    """The column of `rows` steps (None: as many as it has) in `value`: a JSON list or dict, packed text, an array.

    `patterns`: of the packed texts read before this one. Raises BadEpisode where rows have no common shape, or are not as many
    as the line's steps; UnsafeData for hostile text.
    """
    if isinstance(value, np.ndarray) and value.ndim and rows in (None, len(value)):
        return Column(value, typed=False)
    reader = _Reader(rows, where, patterns or KnownPatterns())
    tree = reader.tree(value, space, 0)
    for path, leaf in flatten(tree):
        have = len(leaf) if leaf.ndim else 1
        if not leaf.ndim or have != (have if rows is None else rows):
            part = f", part {path}" if path else ""
            raise _bad(f"{have} rows in a line of {rows} steps", where + part, problem="length-mismatch")
    return Column(tree, reader.typed, reader.nulls)


@dataclass(slots=True)
class _Reader:
    """Reads one column, and records what was seen on the way."""

    rows: int | None
    where: str
    patterns: KnownPatterns
    typed: bool = False
    nulls: int = 0

    def tree(self, value: Any, space: Space | None, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise _bad(f"parts nested deeper than {MAX_DEPTH}", self.where)
        if isinstance(value, (str, bytes)):
            value = self.patterns.unpack(value, where=self.where)
            self.typed = True
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, dict):
            return {str(key): self.tree(part, _part(space, key), depth + 1) for key, part in value.items()}
        if isinstance(value, tuple) or self._is_by_part(value, space):
            return tuple(self.tree(part, _part(space, i), depth + 1) for i, part in enumerate(value))
        if isinstance(value, list):
            return self._of_rows(value, space, depth)
        raise _bad(f"{type(value).__name__} instead of a list of rows", self.where)

    def _is_by_part(self, value: Any, space: Space | None) -> bool:
        """Whether a list holds one column per part of a Tuple."""
        if not isinstance(value, list) or not value or self.rows is None:
            return False
        if isinstance(space, spaces.Tuple):
            return len(value) == len(space.spaces) and all(self._is_column(part) for part in value)
        return len(value) != self.rows and all(self._is_column(part) for part in value)

    def _is_column(self, part: Any) -> bool:
        return isinstance(part, dict) or looks_packed(part) or (isinstance(part, list) and len(part) == self.rows)

    def _of_rows(self, value: list[Any], space: Space | None, depth: int) -> Tree:
        first = value[0] if value else None
        if isinstance(first, dict):
            return self._of_dicts(value, space, depth)
        if isinstance(space, spaces.Tuple):
            return self._of_tuples(value, space, depth)
        if looks_packed(first):
            return self._of_cells(value)
        if _has_long_text(value):
            return np.array(value, object)  # numpy would give each of them the room of the longest
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different shapes: parts of different shapes, or no column at all
            return self._of_tuples(value, space, depth)
        return self._with_nulls(value, array) if array.dtype == object else array

    def _of_dicts(self, value: list[Any], space: Space | None, depth: int) -> Tree:
        keys = value[0].keys()
        if any(not isinstance(row, dict) or row.keys() != keys for row in value):
            raise _bad("rows with different keys", self.where)
        return {key: self.tree([row[key] for row in value], _part(space, key), depth + 1) for key in keys}

    def _of_tuples(self, value: list[Any], space: Space | None, depth: int) -> Tree:
        sizes = {len(row) if isinstance(row, list) else -1 for row in value}
        if len(sizes) != 1 or min(sizes) < 1:
            raise _bad("rows of different shapes", self.where)
        parts = range(sizes.pop())
        return tuple(self.tree([row[i] for row in value], _part(space, i), depth + 1) for i in parts)

    def _of_cells(self, value: list[Any]) -> NDArray[Any]:
        self.typed = True
        return unpack_cells(value, where=lambda row: f"{self.where}, row {row}")

    def _with_nulls(self, value: list[Any], array: NDArray[Any]) -> NDArray[Any]:
        """A null among numbers is a NaN, which JSON cannot express."""
        try:
            numbers = np.array(value, np.float64)
        except (TypeError, ValueError):
            return array
        self.nulls += int(np.isnan(numbers).sum())
        return numbers


def _has_long_text(rows: list[Any]) -> bool:
    """Whether texts in `rows` would take far more memory as an array than their length."""
    level = rows
    for _ in range(MAX_DEPTH):
        kinds = set(map(type, level))
        if str in kinds:
            longest = max(len(item) for item in level if type(item) is str)
            return longest * len(level) > MAX_TEXT
        if list not in kinds:
            return False
        level = list(chain.from_iterable(level if kinds == {list} else (item for item in level if type(item) is list)))
    return False


def _part(space: Space | None, key: Any) -> Space | None:
    if isinstance(space, spaces.Dict):
        return space.spaces.get(key)
    if isinstance(space, spaces.Tuple) and isinstance(key, int) and key < len(space.spaces):
        return space.spaces[key]
    return None


def infos_of(value: Any, rows: int, *, where: str) -> tuple[list[Any] | None, int]:
    """The info of each step (None: all empty), and how many were not dicts and are now under the key `info`."""
    if isinstance(value, (str, bytes)):
        value = unpack(value, where=where, object_lists=True)
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise _bad(f"infos as {type(value).__name__} instead of a list", where)
    if len(value) != rows:
        raise _bad(f"{len(value)} infos in a line of {rows} steps", where, problem="length-mismatch")
    if not any(value):
        return None, 0
    if set(map(type, value)) == {dict}:
        return list(value), 0
    infos = [info or {} for info in value]
    strange = [row for row, info in enumerate(infos) if not isinstance(info, dict)]
    for row in strange:
        infos[row] = {"info": infos[row]}
    return infos, len(strange)


def _bad(what: str, where: str, *, problem: str | None = None) -> BadEpisode:
    fix = "write the line again from its source, or --on-error skip to leave it out"
    return BadEpisode(what, where=where, fix=fix, details={PROBLEM: problem} if problem else None)
