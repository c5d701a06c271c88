"""Parquet files of step rows as a source of fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, Columns
from offline_cli.errors import BadData, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import unpacked_size
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.parquet_files import Chunk, chunks
from offline_cli.formats.rllib_columns.tables import (
    INFOS,
    VALUES,
    Part,
    Shapes,
    check_columns,
    first_of_each_agent,
    keys_of,
    missing_values,
    order_of,
    parts_of,
    taken,
    wanted_columns,
)
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.step_rows import END_FLAGS, Keys, SharedIds, StepRows, end_flags, fragments_of_rows
from offline_cli.parquet.arrow_trees import without_dictionaries
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["ColumnsReading", "RllibColumnsSource"]


@dataclass(slots=True)
class RllibColumnsSource(FileSource):
    """Parquet files of step rows, in the order given."""

    format: ClassVar = "rllib-columns"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows as they stand; `t_started` from column `t` where there is one."""
        self.done = 0
        reading = ColumnsReading(tally, rejects)
        most = EpisodeLimit.within(self.read_options.memory_limit).most
        for chunk in chunks(
            self.files,
            rejects,
            workers=self.read_options.workers,
            first_rows=self.read_options.limit,
            own_limit=self.own_limit,
            on_cut=reading.cut,
            scope=self.scope,
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            for part in _within(chunk, most):
                yield from reading.of_chunk(part)


def _within(chunk: Chunk, most: int) -> Iterator[Chunk]:
    """`chunk` in parts whose packed cells unfold to `most` bytes. Raises MemoryLimitExceeded where one row takes more."""
    row = sum(map(unpacked_size, chunk.table.columns))
    if row > most:
        what = f"the packed cells of one step unfold to {row / 1e6:,.0f} MB, too much for the memory limit"
        raise MemoryLimitExceeded(what, where=chunk.where(0), fix="raise --memory-limit")
    return chunk.parts(most // row) if row else iter((chunk,))


@dataclass(frozen=True, slots=True)
class _Ready:
    """The rows of a chunk that have all values, in the order in which they are read."""

    table: pa.Table
    keys: Keys
    numbers: NDArray[np.int64]  # (N,) of each row in its chunk
    sorted: bool  # not in the order of the chunk


@dataclass(slots=True)
class ColumnsReading:
    """The state of one reading of a source, from chunk to chunk."""

    tally: Tally
    rejects: Rejects
    _ids: SharedIds = field(default_factory=SharedIds)
    _shapes: Shapes | None = None
    _dropped: set[str] = field(default_factory=set)  # columns
    _counted: set[str] = field(default_factory=set)  # kinds of assumptions that are counted once
    _unfinished: tuple[str, ...] | None = None  # key of the row right before, where it did not end its episode
    _lost: str = ""  # where rows of unknown episodes were lost, none of which has been read since
    _open: list[str] = field(default_factory=list)  # episodes that the last chunk leaves open

    def cut(self, place: str) -> None:
        """The file of the last chunk is damaged from there on, at `place`: what is open is not whole."""
        for name in self._open:
            self.rejects.lose(name, place)

    def of_chunk(self, chunk: Chunk) -> Iterator[Fragments]:
        if chunk.lost_before:
            self._unfinished, self._lost = None, chunk.lost_before
        try:
            ready = self._ready(chunk)
        except BadData as error:
            self.rejects.add(error, rows=chunk.table.num_rows)
            self.rejects.lose_episodes(Lost.UNREADABLE)
            self._unfinished, self._lost = None, error.where
            return
        self._open = []
        following = 0  # the number of the row right after the last one read
        for part in self._parts(ready, chunk):
            numbers = ready.numbers[part.rows]
            if ready.sorted or numbers[0] != following:
                self._unfinished = None
            file = chunk.file_of(numbers)
            if not ready.sorted:  # lost rows end a file here
                file += np.cumsum(np.diff(numbers, prepend=numbers[0]) > 1)
            rows = self._rows(part, taken(ready.keys, part.rows), file, _places(chunk, numbers))
            if ready.sorted:
                self._open += _open_runs(rows)
            else:
                self._open = [] if self._unfinished is None else [self._unfinished[0]]
            batch, first = fragments_of_rows(rows, self.tally)
            yield Fragments(batch, Origins.of_rows(chunk.files, chunk.file_of(numbers), chunk.row_in_file(numbers), first))
            following = int(numbers[-1]) + 1
        if ready.sorted or following != chunk.table.num_rows:
            self._unfinished = None

    def _ready(self, chunk: Chunk) -> _Ready:
        """Raises BadData where a step cannot be read from these columns."""
        table = without_dictionaries(chunk.table)
        check_columns(table, chunk.files[0])
        table = wanted_columns(table, self.tally, self._dropped)
        missing = missing_values(table, self.rejects, chunk.where)
        named = np.flatnonzero(table[Columns.EPS_ID].is_valid().to_numpy())
        keys = self._ids.named(keys_of(table.take(named) if len(named) < len(missing) else table))
        self._tell_losses(keys, named, missing, chunk, has_t=Columns.T in table.column_names)
        numbers = np.flatnonzero(~missing)
        if len(numbers) < len(missing):
            table, keys = table.take(numbers), taken(keys, np.flatnonzero(~missing[named]))
        order = order_of(table, keys)
        if order is None:
            return _Ready(table, keys, numbers, sorted=False)
        return _Ready(table.take(order), taken(keys, order), numbers[order], sorted=True)

    def _tell_losses(
        self, keys: Keys, named: NDArray[np.int64], missing: NDArray[np.bool_], chunk: Chunk, *, has_t: bool
    ) -> None:
        """Which episodes lost rows; `keys` are those of the rows `named` of the chunk, the others have no `eps_id`.

        A lost row of unknown episode may have started the next one, of each agent, unless `t` would show it.
        """
        for row in np.flatnonzero(missing[named]).tolist():
            self.rejects.lose(keys.eps_ids[int(keys.code[row])], chunk.where(int(named[row])))
        if has_t:
            self._lost = ""
            return
        nameless = np.setdiff1d(np.arange(len(missing)), named, assume_unique=True)
        losses = {int(before): int(row) for before, row in zip(np.searchsorted(named, nameless), nameless, strict=True)}
        places = {before: chunk.where(row) for before, row in losses.items()}
        if self._lost:
            places[0] = self._lost
        for before, place in places.items():
            for first in first_of_each_agent(keys, before).tolist():
                self.rejects.lose(keys.eps_ids[int(keys.code[first])], place)
        self._lost = places.get(len(named), "")

    def _parts(self, ready: _Ready, chunk: Chunk) -> list[Part]:
        def lost(rows: NDArray[np.int64], place: str) -> None:
            for code in np.unique(ready.keys.code[rows]).tolist():
                self.rejects.lose(ready.keys.eps_ids[code], place)

        where = _places(chunk, ready.numbers)
        parts, self._shapes = parts_of(ready.table, self._shapes, self.rejects, where=where, on_lost=lost)
        return parts

    def _rows(self, part: Part, keys: Keys, file: NDArray[np.int64], where: Callable[[int], str]) -> StepRows:
        trees = part.trees
        self._count_once("missing-end-flags", trees.keys().isdisjoint(END_FLAGS))
        self._count_once("missing-t", Columns.T not in trees and Columns.NEXT_OBS not in trees)
        terminateds, truncateds = end_flags(trees, len(part.rows), self.tally)
        follows = self._unfinished is not None and self._unfinished == _key(keys, 0)
        self._unfinished = None if terminateds[-1] or truncateds[-1] else _key(keys, -1)
        return StepRows(
            keys=keys,
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
            follows=follows,
            where=where,
            final_assumed=trees.get(Columns.FINAL_OBS_ASSUMED),
        )

    def _count_once(self, kind: str, holds: bool) -> None:
        if holds and kind not in self._counted:
            self._counted.add(kind)
            self.tally.assume(kind)


def _places(chunk: Chunk, numbers: NDArray[np.int64]) -> Callable[[int], str]:
    """In words, of the rows of a chunk that have these numbers in it."""
    return lambda row: chunk.where(int(numbers[row]))


def _open_runs(rows: StepRows) -> list[str]:
    """The episodes of runs of rows whose last one is no end."""
    codes = rows.keys.code
    last = np.append(np.flatnonzero(np.diff(codes)), len(codes) - 1)
    is_open = ~(rows.terminateds | rows.truncateds)[last]
    return [rows.keys.eps_ids[code] for code in codes[last[is_open]].tolist()]


def _key(keys: Keys, row: int) -> tuple[str, ...]:
    code = int(keys.code[row])
    return keys.eps_ids[code], str(keys.agent_ids[code]), str(keys.module_ids[code])
