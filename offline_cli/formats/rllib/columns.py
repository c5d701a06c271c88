"""RLlib's column recordings in Parquet, one row per step; `eps_id`, `obs`, `actions` and `rewards` are required.

Reads everything that RLlib's recorder and our own `columns` format write: packed cells, pickled objects, tensor types, null
columns, rows without timesteps, and rows of several agents. Unknown columns are extra model outputs. Columns of nulls count as
missing. Extra columns without numbers are dropped, named and counted (`dropped-column`), and so are infos that are not dicts;
missing numbers in extra columns become NaN, and are counted (`null-as-nan`).

Unreadable rows, and rows whose shapes differ from the first, are rejected, and their episodes are marked incomplete. So are the
episodes next to a row without `eps_id` or a damaged file, unless `t` shows which steps are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.arrow_leaves import (
    infos_of,
    is_text,
    tree_of,
    unpacked_size,
    why_no_infos,
    why_no_numbers,
)
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.parquet_files import Chunk, chunks
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.step_rows import END_FLAGS, Keys, SharedIds, SourceRows, end_flags, fragments_of_rows, timesteps
from offline_cli.parquet.arrow_trees import without_dictionaries
from offline_cli.tally import Lost, OnError, Rejects, Tally
from offline_cli.trees import Tree, flatten

NEEDED: Final = (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
KEYS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
SCALARS: Final = (Columns.REWARDS, *END_FLAGS, Columns.T)
VALUES: Final = (*TREES, *SCALARS)
"""Columns that need a value in every row if they exist."""
INFOS: Final = (Columns.INFOS, Columns.RESET_INFOS)
FIX: Final = "fill in the value, or skip the episode with --on-error skip"

Rows = NDArray[np.int64]
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]  # shapes of one step, by column and dotted path of the leaf


@dataclass(slots=True)
class RllibColumnsSource(FileSource):
    """Parquet files of step rows, in the order given."""

    format: ClassVar = "rllib-columns"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: runs of rows in stored order; `t_started` is from column `t` if it exists."""
        self.done = 0
        reading = ColumnsReading(tally, rejects)
        most = EpisodeLimit.within(self.read_options.memory_limit).most
        for chunk in chunks(
            self.files,
            rejects,
            workers=self.read_options.workers,
            first_rows=self.read_options.limit,
            on_cut=reading.cut,
            scope=self.scope,
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            unfolded = sum(map(unpacked_size, chunk.table.columns))  # bytes of the packed cells of one row
            for part in chunk.parts(max(1, most // unfolded)) if unfolded else (chunk,):
                yield from reading.of_chunk(part)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a chunk, in reading order."""

    chunk: Chunk
    table: pa.Table
    keys: Keys
    numbers: Rows  # (N,) row numbers in the chunk
    is_sorted: bool  # sorted, so not in the order of the chunk

    def where(self, row: int) -> str:
        return self.chunk.where(int(self.numbers[row]))

    def take(self, rows: Rows) -> _Rows:
        keys = replace(self.keys, code=self.keys.code[rows])
        return replace(self, table=self.table.take(rows), keys=keys, numbers=self.numbers[rows])

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Ids of the episodes of rows."""
        return [self.keys.eps_ids[int(self.keys.code[row])] for row in rows]


@dataclass(slots=True)
class ColumnsReading:
    """The state of one reading of a source, from chunk to chunk."""

    tally: Tally
    rejects: Rejects
    _ids: SharedIds = field(default_factory=SharedIds)
    _shapes: Shapes | None = None
    _dropped: set[str] = field(default_factory=set)  # columns
    _counted: set[str] = field(default_factory=set)  # assumptions that are counted once
    _open: list[str] = field(default_factory=list)  # episodes without an end so far
    _follows: bool = False  # whether the next row directly follows the last one, which did not end its episode
    _lost: str = ""  # place of a lost row of an unknown episode, right before the next row

    def cut(self, place: str) -> None:
        """The last chunk's file is damaged from `place` on: mark open episodes as incomplete."""
        for name in self._open:
            self.rejects.lose(name, place)

    def of_chunk(self, chunk: Chunk) -> Iterator[Fragments]:
        """Runs of the rows of a chunk; bad rows are rejected."""
        if chunk.lost_before:
            self._follows, self._lost = False, chunk.lost_before
        try:
            table = without_dictionaries(chunk.table)
            _check_columns(table, chunk.files[0])
        except BadData as error:
            self.rejects.add(error, rows=chunk.table.num_rows)
            self.rejects.lose_episodes(Lost.UNREADABLE)
            self._follows, self._lost = False, error.where
            return
        table = self._wanted_columns(table)
        first = 0
        for row in [*np.flatnonzero(table[Columns.EPS_ID].is_null().to_numpy()).tolist(), table.num_rows]:
            if row > first:
                yield from self._of_named(chunk, table.slice(first, row - first), first)
            if row < table.num_rows:
                self._reject_nameless(chunk.where(row), table.slice(row, 1))
            first = row + 1

    def _reject_nameless(self, place: str, row: pa.Table) -> None:
        """Reject a row without an id. It may belong to an open episode or the next one, which only timesteps would show."""
        error = BadEpisode(f"column {Columns.EPS_ID} has no value", where=place, fix=FIX)
        self.rejects.add(error, raw=_quoted(row, self.rejects))
        self._follows, self._lost = False, place
        if Columns.T not in row.column_names:
            self.cut(place)

    def _of_named(self, chunk: Chunk, table: pa.Table, first: int) -> Iterator[Fragments]:
        """Runs of rows with ids. `first`: number of the first row in the chunk."""
        numbers = np.arange(first, first + table.num_rows)
        ready = _Rows(chunk, table, self._ids.named(_keys_of(table)), numbers, is_sorted=False)
        if self._lost and Columns.T not in table.column_names:
            self.rejects.lose(ready.names_of([0])[0], self._lost)
        self._lost = ""
        order = _order_of(table, ready.keys)
        ready = ready if order is None else replace(ready.take(order), is_sorted=True)
        opened: list[str] = []
        following = first  # the number of the row right after the last one read
        for rows, trees in self._readable(ready):
            numbers = rows.numbers
            if rows.is_sorted or numbers[0] != following:
                self._follows = False
            file = chunk.file_of(numbers)
            if not rows.is_sorted:  # the file ends with lost rows
                file += np.cumsum(np.diff(numbers, prepend=numbers[0]) > 1)
            steps = self._steps(rows, trees, file)
            self._follows = bool(not (steps.terminateds[-1] or steps.truncateds[-1]))
            opened = opened + _open_runs(steps) if rows.is_sorted else rows.names_of([-1] if self._follows else [])
            self._open = opened
            batch, starts = fragments_of_rows(steps, self.tally)
            yield Fragments(batch, Origins.of_rows(chunk.files, chunk.file_of(numbers), chunk.row_in_file(numbers), starts))
            following = int(numbers[-1]) + 1
        if ready.is_sorted or following != first + table.num_rows:
            self._follows = False

    # ---- columns and rows ----

    def _wanted_columns(self, table: pa.Table) -> pa.Table:
        """Drop useless columns, and those dropped from earlier rows."""
        for index, column in reversed(list(enumerate(table.schema))):
            name, values = column.name, table.column(index)
            has_role = name in (*VALUES, *INFOS, *KEYS, *CUSTOM_COLUMNS)
            reason = why_no_infos(column.type) if name in INFOS else "" if has_role else why_no_numbers(values, column)
            if pa.types.is_null(column.type) or name in self._dropped:
                table = table.remove_column(index)
            elif reason:
                table = table.remove_column(index)
                self.tally.drop_column(name, reason)
                self._dropped.add(name)
            elif not has_role and values.null_count and (_is_number(column.type) or pa.types.is_boolean(column.type)):
                self.tally.assume("null-as-nan", values.null_count)
                kind = column.type if pa.types.is_floating(column.type) else pa.float64()
                table = table.set_column(index, column.with_type(kind), pc.fill_null(values.cast(kind), float("nan")))
        return table

    # ---- rows as arrays ----

    def _readable(self, rows: _Rows) -> list[tuple[_Rows, dict[str, Any]]]:
        """The readable rows, in parts separated by bad rows, with the values of their columns.

        All have the shapes of earlier rows; for the first rows, the most common shapes.
        """
        parts = list(self._read(rows))
        if self._shapes is None and parts:
            votes = Counter[str]()
            for part, trees in parts:
                votes[repr(_shapes_of(trees))] += len(part.numbers)
            most = votes.most_common(1)[0][0]
            self._shapes = next(shapes for shapes in (_shapes_of(trees) for _, trees in parts) if repr(shapes) == most)
        return [(part, trees) for part, trees in parts if self._agrees(part, trees)]

    def _read(self, rows: _Rows) -> Iterator[tuple[_Rows, dict[str, Any]]]:
        """Read all rows at once; if that fails, halve them until the bad rows are isolated."""
        count = len(rows.numbers)
        if not count:
            return
        try:
            yield rows, _trees(rows.table, rows.where)
        except BadData as error:
            if count == 1 or self.rejects.on_error is OnError.FAIL:
                self._reject(rows, error, 1)
                return
            yield from self._read(rows.take(np.arange(count // 2)))
            yield from self._read(rows.take(np.arange(count // 2, count)))

    def _agrees(self, rows: _Rows, trees: Mapping[str, Any]) -> bool:
        problem = _difference(_shapes_of(trees), self._shapes or {})
        if problem:
            fix = "pad or cut the values to one shape, or convert the files of each shape into separate datasets"
            self._reject(rows, BadEpisode(problem, where=rows.where(0), fix=fix), len(rows.numbers))
        return not problem

    def _reject(self, rows: _Rows, error: BadData, count: int) -> None:
        self.rejects.add(error, raw=_quoted(rows.table, self.rejects), rows=count)
        for name in set(rows.names_of(range(len(rows.numbers)))):
            self.rejects.lose(name, error.where)

    def _steps(self, rows: _Rows, trees: Mapping[str, Any], file: Rows) -> SourceRows:
        self._count_once("missing-end-flags", trees.keys().isdisjoint(END_FLAGS))
        self._count_once("missing-t", Columns.T not in trees and Columns.NEXT_OBS not in trees)
        terminateds, truncateds = end_flags(trees, len(rows.numbers), self.tally)
        return SourceRows(
            keys=rows.keys,
            obs=trees[Columns.OBS],
            next_obs=trees.get(Columns.NEXT_OBS),
            actions=trees[Columns.ACTIONS],
            rewards=np.asarray(trees[Columns.REWARDS], np.float64),
            terminateds=terminateds,
            truncateds=truncateds,
            t=trees.get(Columns.T),
            extra={name: tree for name, tree in trees.items() if name not in (*VALUES, *INFOS, *CUSTOM_COLUMNS)},
            infos=trees.get(Columns.INFOS),
            reset_infos=trees.get(Columns.RESET_INFOS),
            file=file,
            follows=self._follows and self._open[-1:] == rows.names_of([0]),
            where=rows.where,
            final_assumed=trees.get(Columns.FINAL_OBS_ASSUMED),
        )

    def _count_once(self, kind: str, holds: bool) -> None:
        if holds and kind not in self._counted:
            self._counted.add(kind)
            self.tally.assume(kind)


# ---- keys ----


def _keys_of(table: pa.Table) -> Keys:
    """The keys of all rows, with ids as text; every row must have an `eps_id`."""
    codes, names = zip(*(_codes(table, name) for name in KEYS), strict=True)
    if len(names[1]) == len(names[2]) == 1:
        return Keys(codes[0], tuple(map(str, names[0])), names[1] * len(names[0]), names[2] * len(names[0]))
    distinct, code = np.unique(np.stack(codes), axis=1, return_inverse=True)
    ids, agents, modules = (tuple(known[i] for i in row) for known, row in zip(names, distinct.tolist(), strict=True))
    return Keys(code.reshape(-1).astype(np.int64), tuple(map(str, ids)), agents, modules)


def _codes(table: pa.Table, name: str) -> tuple[Rows, tuple[str | None, ...]]:
    """(N,) Indexes into the distinct values, as text; a missing column has the single value None."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64), (None,)
    encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    return encoded.indices.to_numpy().astype(np.int64), tuple(None if value is None else str(value) for value in values)


def _order_of(table: pa.Table, keys: Keys) -> Rows | None:
    """Row order by episode, then timestep or file order; None if rows are mostly in order already."""
    t = table[Columns.T].to_numpy() if Columns.T in table.column_names else None
    breaks = keys.code[1:] != keys.code[:-1]
    if t is not None:
        breaks |= t[1:] != t[:-1] + 1
    if int(breaks.sum()) <= len(breaks) // 2:
        return None
    return np.argsort(keys.code, kind="stable") if t is None else np.lexsort((np.arange(len(t)), t, keys.code))


def _open_runs(rows: SourceRows) -> list[str]:
    """The episodes of runs that do not end with an end flag."""
    codes = rows.keys.code
    last = np.append(np.flatnonzero(np.diff(codes)), len(codes) - 1)
    is_open = ~(rows.terminateds | rows.truncateds)[last]
    return [rows.keys.eps_ids[code] for code in codes[last[is_open]].tolist()]


# ---- columns ----


def _check_columns(table: pa.Table, where: str) -> None:
    """Raise BadData, naming the columns, if `table` has missing or unsuitable columns."""
    present = {column.name: column.type for column in table.schema if not pa.types.is_null(column.type)}
    missing = [name for name in NEEDED if name not in present]
    if missing:
        fix = f"give files of steps with the columns {', '.join(NEEDED)}"
        raise BadData(f"no column {' or '.join(missing)}", where=where, fix=fix)
    odd = [name for name in KEYS if name in present and not (is_text(present[name]) or _is_number(present[name]))]
    odd += [name for name in (Columns.T,) if name in present and not _is_number(present[name])]
    if odd:
        fix = "write ids as text or integers, and t as the number of the step in its episode, or leave t out"
        raise BadData(f"column {odd[0]} holds {present[odd[0]]}", where=where, fix=fix)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _quoted(rows: pa.Table, rejects: Rejects) -> bytes:
    """The rows as text, if the rejects keep it."""
    return repr(rows.to_pylist()).encode() if rejects.on_error is OnError.QUARANTINE else b""


def _trees(table: pa.Table, where: Callable[[int], str]) -> dict[str, Any]:
    """Columns as trees with leaves (N, ...), and infos as lists. Raises BadData, naming the row."""
    trees: dict[str, Any] = {}
    for column in table.schema:
        name, values = column.name, table[column.name]
        if name in INFOS:
            infos = infos_of(values, column, where=where)
            if infos is not None:
                trees[name] = infos
        elif name not in (*KEYS, Columns.SOURCE_ID):
            trees[name] = tree_of(values, column, where=where)
    for name in SCALARS:
        if name in trees:
            trees[name] = _one_per_step(trees[name], name, where(0))
    if Columns.T in trees:
        trees[Columns.T] = timesteps(trees[Columns.T], where=where)
    return trees


def _one_per_step(tree: Tree, name: str, place: str) -> NDArray[Any]:
    """A column of one value per step, (N,), which may be stored as lists of length 1."""
    if isinstance(tree, np.ndarray) and tree.size == len(tree):
        return tree.reshape(len(tree))
    raise BadEpisode(f"column {name} holds more than one value per step", where=place, fix="write one number per step")


# ---- shapes ----


def _shapes_of(trees: Mapping[str, Any]) -> Shapes:
    return {name: {path: leaf.shape[1:] for path, leaf in flatten(trees[name])} for name in trees if name not in INFOS}


def _difference(have: Shapes, want: Shapes) -> str:
    """Why steps of the two shapes cannot share an episode; columns in only one of them are ignored."""
    for name, shapes in have.items():
        if name == Columns.NEXT_OBS and shapes != have.get(Columns.OBS, shapes):
            return f"column {name} has shapes {shapes}, and column {Columns.OBS} {have[Columns.OBS]}"
        if shapes != want.get(name, shapes):
            return f"column {name} has shapes {shapes}, and other rows {want[name]}"
    return ""
