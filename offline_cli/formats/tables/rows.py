"""Tables of our own columns as arrays, and the relations between one row and the next; bad rows are gone by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.step_rows import END_FLAGS, chained
from offline_cli.formats.tables.column_layout import Layout, Leaf
from offline_cli.formats.tables.key_runs import joined
from offline_cli.formats.tables.mapping import EXTRA
from offline_cli.formats.tables.numeric import Shape
from offline_cli.formats.tables.reading import FILE, ROW
from offline_cli.trees import Tree

__all__ = ["Rows"]

ShapeOf = Callable[[Leaf], Shape]


@dataclass
class Rows:
    """N rows of a table as `ChunkReader` makes them."""

    table: pa.Table
    layout: Layout
    shape_of: ShapeOf

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def filtered(self, kept: NDArray[np.bool_]) -> Rows:
        """The rows where `kept` is true."""
        return Rows(self.table.filter(pa.array(kept)), self.layout, self.shape_of)

    @cached_property
    def leaves(self) -> Mapping[str, NDArray[Any]]:
        """(N, *shape) by leaf."""
        return {leaf.name: _array(self.table.column(leaf.name), self.shape_of(leaf)) for leaf in self.layout.leaves}

    def tree(self, role: str) -> Tree | None:
        """The leaves of one role; None where there is none."""
        leaves = self.layout.of(role)
        return _tree([(leaf.path, self.leaves[leaf.name]) for leaf in leaves]) if leaves else None

    @cached_property
    def obs(self) -> Tree:
        """Leaves (N, *obs_shape)."""
        return self.tree(Columns.OBS)

    @cached_property
    def next_obs(self) -> Tree | None:
        """Leaves (N, *obs_shape)."""
        return self.tree(Columns.NEXT_OBS)

    @property
    def extra(self) -> dict[str, NDArray[Any]]:
        """Leaves (N, ...) by name, dots for those of structs."""
        return {".".join(leaf.path): self.leaves[leaf.name] for leaf in self.layout.of(EXTRA)}

    @property
    def flags(self) -> dict[str, NDArray[np.bool_]]:
        """(N,) by name, those of `END_FLAGS` that the table has."""
        return {name: self.leaves[name] for name in END_FLAGS if name in self.leaves}

    @property
    def t(self) -> NDArray[Any] | None:
        """(N,) the order within an episode."""
        return self.leaves.get(Columns.T)

    @cached_property
    def file(self) -> NDArray[np.int32]:
        """(N,) number of the file."""
        return np.asarray(joined(self.table.column(FILE)).to_numpy(), np.int32)

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """(N,) number of the row in its file."""
        return np.asarray(joined(self.table.column(ROW)).to_numpy(), np.int64)

    # ---- one row and the next ----

    def same(self, columns: Iterable[str]) -> NDArray[np.bool_]:
        """(N-1,) whether a row and the next have equal values in these columns of keys."""
        same = np.ones(max(0, len(self) - 1), np.bool_)
        for name in columns:
            column = joined(self.table.column(name))
            if column.null_count:
                column = column.dictionary_encode(null_encoding="encode").indices
            same &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        return same

    def chains(self) -> NDArray[np.bool_] | None:
        """(N-1,) whether a row led to the observation that the next one acted on; None where that is not known."""
        return None if self.next_obs is None else chained(self.obs, self.next_obs)

    def repeats(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each of `pairs`, whether the row of that number equals the next one in everything; NaN equals NaN."""
        equal = np.ones(len(pairs), np.bool_)
        for leaf in self.leaves.values():
            equal &= _equal_rows(leaf[pairs], leaf[pairs + 1])
        if Columns.INFOS in self.table.column_names:
            infos = self.table.column(Columns.INFOS)
            mine, theirs = (infos.take(pa.array(rows)).to_pylist() for rows in (pairs, pairs + 1))
            equal &= np.array([one == other for one, other in zip(mine, theirs, strict=True)], np.bool_)
        return equal


def _equal_rows(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    equal = left == right
    if left.dtype.kind == "f":
        equal |= np.isnan(left) & np.isnan(right)
    return np.asarray(equal.reshape(len(left), -1).all(axis=1))


def _array(column: pa.ChunkedArray, shape: Shape) -> NDArray[Any]:
    array = joined(column)
    if pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(len(column), *shape)


def _tree(leaves: list[tuple[tuple[str, ...], NDArray[Any]]]) -> Tree:
    """Nested dicts by path; the empty path is the array itself."""
    if not leaves[0][0]:
        return leaves[0][1]
    parts: dict[str, list[tuple[tuple[str, ...], NDArray[Any]]]] = {}
    for path, values in leaves:
        parts.setdefault(path[0], []).append((path[1:], values))
    return {name: _tree(inner) for name, inner in parts.items()}
