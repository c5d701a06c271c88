"""Tables of our own columns as arrays, and the relations between one row and the next; bad rows are gone by now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.step_rows import END_FLAGS, chained, equal_rows
from offline_cli.formats.tables.column_layout import Layout, Leaf
from offline_cli.formats.tables.key_runs import joined
from offline_cli.formats.tables.mapping import EXTRA
from offline_cli.formats.tables.numeric import Shape
from offline_cli.formats.tables.reading import FILE, ROW
from offline_cli.formats.tables.values import GAP, mark_of
from offline_cli.trees import Tree

__all__ = ["Rows", "ShapeOf", "Whole"]


class ShapeOf(Protocol):
    """What the rows read so far have settled."""

    def __call__(self, leaf: Leaf) -> Shape:
        """Of one value of a leaf."""

    def widths(self, leaf: Leaf) -> list[int]:
        """How many numbers each column of a stacked leaf has."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Rows without missing cells, cut into E' episodes."""

    rows: Rows
    first: NDArray[np.int64]  # (E',) first row of each
    of: NDArray[np.int64]  # (E',) number of the episode before cutting
    number: NDArray[np.int64]  # (E',) of each among those of that one, from 0
    gaps: int  # rows left out because a cell is missing
    unfilled: NDArray[np.int64]  # rows, before any was left out, with a missing cell that nothing fills: bad ones
    filled: Mapping[str, int]  # cells that took the value before them, by column


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

    def t_text(self, row: int) -> str:
        """Of one row, as people write it: a date and time in UTC where the table has these."""
        if self.t is None:
            return "None"
        if self.layout.of(Columns.T)[0].columns[0].cells != "time":
            return str(self.t[row])
        return str(np.datetime64(int(self.t[row]), "ns")).rstrip("0").rstrip(".").replace("T", " ")

    @cached_property
    def file(self) -> NDArray[np.int32]:
        """(N,) number of the file."""
        return np.asarray(joined(self.table.column(FILE)).to_numpy(), np.int32)

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """(N,) number of the row in its file."""
        return np.asarray(joined(self.table.column(ROW)).to_numpy(), np.int64)

    # ---- missing cells ----

    @cached_property
    def marks(self) -> Mapping[tuple[str, int], NDArray[np.bool_]]:
        """(N,) missing cells that take the value before them, by leaf and number of its column."""
        return {(leaf.name, i): self._mark(mark_of(leaf, i)) for leaf, i in self.layout.missing}

    def _mark(self, name: str) -> NDArray[np.bool_]:
        return np.asarray(joined(self.table.column(name)).to_numpy(zero_copy_only=False))

    @cached_property
    def gap(self) -> NDArray[np.bool_] | None:
        """(N,) rows with a missing cell at which episodes are split; None: no episode is."""
        return self._mark(GAP) if GAP in self.table.column_names else None

    def whole(self, first: NDArray[np.int64]) -> Whole:
        """The episodes that begin at `first` (E,), their missing cells filled, and split where one is not.

        A value never comes from another episode. So an episode begins with the first row that needs none.
        """
        count = len(self)
        begins = np.zeros(count, np.bool_)
        begins[first] = True
        gap = np.zeros(count, np.bool_) if self.gap is None else self.gap
        begins[1:] |= gap[:-1]
        runs = _latest(begins)  # (N,) first row of the run of each
        if self.gap is not None and self.marks:
            ready = np.cumsum(~gap & ~np.logical_or.reduce(list(self.marks.values())))
            before = np.concatenate([[0], ready])[runs]
            gap = gap | (ready == before)
            begins[1:] |= gap[:-1]
            runs = _latest(begins)
        unfilled, filled = self._fill(runs, gap)
        kept = ~(gap | unfilled)
        episode = np.cumsum(np.isin(np.arange(count), first)) - 1
        begins = np.concatenate([[True], (runs[kept][1:] != runs[kept][:-1])])[: int(kept.sum())]
        start = np.flatnonzero(begins)
        of = episode[kept][start]
        number = np.arange(len(of)) - np.searchsorted(of, of)
        rows = self if kept.all() else self._only(kept)
        return Whole(rows, start, of, number, int(gap.sum()), np.flatnonzero(unfilled), filled)

    def _fill(self, runs: NDArray[np.int64], gap: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Mapping[str, int]]:
        """Fill all marked cells within their runs; (N,) rows where there is nothing to fill one with, and counts by column."""
        unfilled, counts = np.zeros(len(self), np.bool_), dict[str, int]()
        leaves = dict(self.leaves)
        for leaf, number in self.layout.missing:
            missing = self.marks[leaf.name, number]
            if not missing.any():
                continue
            source = _latest(~missing)
            found = missing & ~gap & (source >= runs)
            values = leaves[leaf.name] if leaves[leaf.name] is not self.leaves[leaf.name] else self.leaves[leaf.name].copy()
            if leaf.stacked:
                widths = self.shape_of.widths(leaf)
                part = slice(sum(widths[:number]), sum(widths[: number + 1]))
                values[found, part] = values[source[found], part]
            else:
                values[found] = values[source[found]]
            leaves[leaf.name] = values
            column = leaf.columns[number].column
            counts[column] = counts.get(column, 0) + int(found.sum())
            unfilled |= missing & ~gap & ~found
        self.leaves = leaves
        return unfilled, counts

    def why_unfilled(self, row: int) -> str:
        """What is wrong with a row with a missing cell that no row of its episode before it fills."""
        columns = [leaf.columns[i].column for leaf, i in self.layout.missing if self.marks[leaf.name, i][row]]
        return f"column {', '.join(columns)} has no value, and no row before it in the episode has one"

    def quoted(self, row: int) -> str:
        """A row as JSON text, by our columns; null for what is missing."""
        missing = {leaf.name for leaf, i in self.layout.missing if self.marks[leaf.name, i][row]}
        one = self.table.slice(row, 1).to_pylist()[0]
        return json.dumps(
            {ours: None if ours in missing else value for ours, value in one.items() if ours[:2] != "__"}, default=str
        )

    def _only(self, kept: NDArray[np.bool_]) -> Rows:
        """Some rows, with values as they are by now."""
        rows = self.filtered(kept)
        rows.leaves = {name: values[kept] for name, values in self.leaves.items()}
        return rows

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
        if self.next_obs is None:
            return None
        chains = chained(self.obs, self.next_obs)
        for mark in (*self.marks.values(), *(() if self.gap is None else (self.gap,))):
            chains = chains | mark[1:] | mark[:-1]  # a missing cell breaks none
        return chains

    def repeats(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each of `pairs`, whether the row of that number equals the next one in everything; NaN equals NaN."""
        equal = np.ones(len(pairs), np.bool_)
        for leaf in self.leaves.values():
            equal &= equal_rows(leaf[pairs], leaf[pairs + 1])
        for mark in (*self.marks.values(), *(() if self.gap is None else (self.gap,))):
            equal &= mark[pairs] == mark[pairs + 1]
        if Columns.INFOS in self.table.column_names:
            infos = self.table.column(Columns.INFOS)
            mine, theirs = (infos.take(pa.array(rows)).to_pylist() for rows in (pairs, pairs + 1))
            equal &= np.array([one == other for one, other in zip(mine, theirs, strict=True)], np.bool_)
        return equal


def _latest(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) for each row the last one up to it that is `chosen`; -1: there is none."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1)) if len(chosen) else np.zeros(0, np.int64)


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
