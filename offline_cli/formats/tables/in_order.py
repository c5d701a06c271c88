"""Rows of a table as episodes: without ids, in the order of their files, numbered from 0; or by the ids of a column.

* `EpisodesInOrder`: an option says what ends an episode. `flags`: after a row with an end flag. `t`: also before a row whose
  `t` is not larger. `chain`: also after a row that did not lead to the observation of the next one. Between two files an
  episode continues unless one of these ends it; under `flags` the chain decides, where there is `new_obs`. Doubtful ends are
  counted.
* `KeyedEpisodes`: rows whose episode a column names, brought together. An end flag before the end is rejected by its place.
* `Footprint`: the memory that one episode takes until it is written, and the limit on it; an episode beyond it raises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import PROBLEM, BadEpisode, MemoryLimitExceeded
from offline_cli.formats.memory_limits import WRITTEN
from offline_cli.formats.source import Fragments
from offline_cli.formats.tables.claims import Losses, place_of, position_of
from offline_cli.formats.tables.column_layout import Layout
from offline_cli.formats.tables.episodes import EpisodeMaker, Named, runs_of
from offline_cli.formats.tables.ids import episode_name, id_text
from offline_cli.formats.tables.key_runs import put_together
from offline_cli.formats.tables.reading import FILE, ROW
from offline_cli.formats.tables.rows import Rows, ShapeOf
from offline_cli.tally import T_FALLS, Lost, Tally

__all__ = ["CHAIN", "FLAGS", "ORDER", "EpisodesInOrder", "Footprint", "KeyedEpisodes", "goes_on"]

FLAGS = "flags"
ORDER = "t"
CHAIN = "chain"

JOINED: Final = 2  # times the bytes of its rows: as they were read, and joined


def goes_on(rows: Rows, ends: str, tally: Tally, urls: Sequence[str] = ()) -> NDArray[np.bool_]:
    """(N-1,) whether a row is of the same episode as the one before it; `urls`: of the files, for places."""
    ended = np.logical_or.reduce([np.zeros(len(rows), np.bool_), *rows.flags.values()])
    joined: NDArray[np.bool_] = ~ended[:-1]
    if ends == ORDER and rows.t is not None:
        joined &= rows.t[1:] > rows.t[:-1]
    chains = rows.chains() if ends == CHAIN or (ends == FLAGS and rows.next_obs is not None) else None
    files_end = rows.file[1:] != rows.file[:-1]
    if chains is not None:
        joined &= chains if ends == CHAIN else chains | ~files_end
    if ends != ORDER and rows.t is not None:
        falls = np.flatnonzero(joined & (rows.t[1:] < rows.t[:-1])) + 1
        tally.assume(T_FALLS, len(falls), places=lambda: (f"{urls[int(rows.file[row])]} row {rows.row[row]}" for row in falls))
    tally.fragments_stitched += int((joined & files_end).sum())
    return joined


@dataclass(slots=True)
class Footprint:
    """Bytes that the rows of one episode take, counted as they come."""

    limit: int
    kept: Collection[str] = ()  # columns that become arrays of the episode
    rows: int = 0  # bytes of the rows so far
    taken: int = 0  # with all that is made of them

    def add(self, rows: pa.Table) -> None:
        """Count these rows too."""
        kept = sum(int(rows.column(name).nbytes) for name in self.kept if name in rows.column_names)
        self.rows += int(rows.nbytes)
        self.taken += max(JOINED * int(rows.nbytes), WRITTEN * kept)

    @property
    def is_too_large(self) -> bool:
        """Whether they are all that fits, and more."""
        return self.taken > self.limit

    def begun(self) -> Footprint:
        """That of the next episode, before its first row."""
        return Footprint(self.limit, self.kept)

    def error(self, *, where: str, fix: str) -> MemoryLimitExceeded:
        """For rows that are too large."""
        return MemoryLimitExceeded(
            f"the rows of one episode take more than {self.rows / 1e6:,.0f} MB, which is too much for the memory limit",
            where=where,
            fix=f"raise --memory-limit, or {fix}",
        )


@dataclass(slots=True)
class EpisodesInOrder:
    """Makes the episodes of tables whose rows are in order; only the last episode is held."""

    maker: EpisodeMaker
    layout: Layout
    shape_of: ShapeOf
    losses: Losses
    prefix: str  # of ids, with its hyphen
    ends: str | None  # None: each row is an episode
    footprint: Footprint
    _begun: list[pa.Table] = field(default_factory=list)  # rows of the last episode, which may continue
    _passed: int = 0  # episodes made

    def episodes(self, tables: Iterable[pa.Table]) -> Iterator[Fragments]:
        """The episodes of all `tables`, which follow each other."""
        for table in tables:
            if table.num_rows:
                yield from self._taken(table)
        if self._begun:
            yield from self._made(self._begun, before=None)
        elif self.ends is not None and len(self.losses.upto(None)):  # no row could be read
            self.maker.rejects.lose_episodes(Lost.BAD_ROW)
        if self.ends is None:
            self.maker.rejects.lose_episodes(Lost.BAD_ROW, self.losses.count)  # each row was an episode

    def _taken(self, table: pa.Table) -> Iterator[Fragments]:
        if self.ends is None:
            yield from self._made([table], before=None)
            return
        before = [self._begun[-1].slice(self._begun[-1].num_rows - 1)] if self._begun else []
        rows = Rows(pa.concat_tables([*before, table]), self.layout, self.shape_of)
        joined = goes_on(rows, self.ends, self.maker.tally, self.maker.urls)
        begins = np.flatnonzero(~joined) + 1 - len(before)  # rows of `table` that begin an episode
        if len(begins):
            last = int(begins[-1])
            done, self._begun = [*self._begun, table.slice(0, last)], []
            yield from self._made([part for part in done if part.num_rows], before=_position(table.slice(last)))
            table = table.slice(last)
        self._begun.append(table)
        self._check_length()

    def _check_length(self) -> None:
        """Raise BadData where the open episode is too long for the memory limit."""
        self.footprint = self.footprint.begun() if len(self._begun) == 1 else self.footprint
        self.footprint.add(self._begun[-1])
        if self.footprint.is_too_large:
            raise self.footprint.error(
                where=f"the episode that begins at {place_of(_position(self._begun[0]), self.maker.urls)}",
                fix="choose another end of episodes: --episode-ends, or a column of ids in the mapping",
            )

    def _made(self, tables: list[pa.Table], *, before: int | None) -> Iterator[Fragments]:
        """A batch of the episodes of rows that belong to no other; `before`: the position of the row after them."""
        rows = Rows(put_together(tables), self.layout, self.shape_of)
        joined = np.zeros(len(rows) - 1, np.bool_)
        if self.ends is not None:
            joined = goes_on(rows, self.ends, Tally())  # counted before
        first = runs_of(joined, len(rows))
        names = [f"{self.prefix}{number}" for number in range(self._passed, self._passed + len(first))]
        self._passed += len(first)
        if self.ends is None:
            self.losses.forget(_position(rows.table))
            made = self.maker.batch(rows, first, Named(names, self._theirs(rows)))
        else:
            self.maker.tally.assume("missing-eps-id", len(first))
            self._tell_losses(rows, first, names, before)
            made = self.maker.batch(rows, first, Named(names))
        if made is not None:
            yield made

    def _theirs(self, rows: Rows) -> list[str] | None:
        """The ids that rows have, where each of them is an episode all the same."""
        if Columns.EPS_ID not in rows.table.column_names:
            return None
        return [id_text(value) for value in rows.table.column(Columns.EPS_ID).to_pylist()]

    def _tell_losses(self, rows: Rows, first: NDArray[np.int64], names: list[str], before: int | None) -> None:
        """A lost row was of the episode before it, unless a flag had ended that, or of the one after it."""
        position = position_of(rows.file.astype(np.int64), rows.row)
        lost = self.losses.upto(before)
        if len(lost):
            after = np.searchsorted(position, lost)
            ended = np.logical_or.reduce([np.zeros(len(rows), np.bool_), *rows.flags.values()])
            has_next, has_previous = after < len(rows), (after > 0) & ~ended[after - 1]
            if before is None and (~has_next & ~has_previous).any():  # after the end of the last episode: one of their own
                self.maker.rejects.lose_episodes(Lost.BAD_ROW)
            near = np.concatenate([after[has_next], after[has_previous] - 1])
            episodes, of_loss = np.unique(np.searchsorted(first, near, side="right") - 1, return_inverse=True)
            places = np.full(len(episodes), np.iinfo(np.int64).max)
            np.minimum.at(places, of_loss, np.concatenate([lost[has_next], lost[has_previous]]))
            for episode, place in zip(episodes.tolist(), places.tolist(), strict=True):
                self.maker.rejects.lose(names[episode], place_of(place, self.maker.urls))
        self.losses.forget(int(position[-1]))


def _position(table: pa.Table) -> int:
    """Of the first row among those of all files."""
    return int(position_of(table.column(FILE)[0].as_py(), table.column(ROW)[0].as_py()))


@dataclass(slots=True)
class KeyedEpisodes:
    """Makes the episodes of tables in which all rows of a key are contiguous and in order."""

    maker: EpisodeMaker
    layout: Layout
    shape_of: ShapeOf
    losses: Losses
    prefix: str  # of ids, with its hyphen; "": they stay as they are
    ids_per_file: bool
    ends: str | None  # how the rows of one key are cut into several episodes; None: they are one
    _damaged: set[tuple[Any, ...]] = field(default_factory=set)  # keys that lost rows and have others

    @property
    def by(self) -> list[str]:
        """The columns of a key."""
        agents = [name for name in (Columns.AGENT_ID, Columns.MODULE_ID) if name in self.layout.keys and self._has_agents]
        return [Columns.EPS_ID, *agents, *([FILE] if self.ids_per_file else [])]

    @property
    def order(self) -> str | None:
        """The column that rows of a key are sorted by; None: they are in order."""
        return Columns.T if self.layout.has_t and self.ends != Columns.T else None

    @property
    def _has_agents(self) -> bool:
        return Columns.AGENT_ID in self.layout.keys

    def key_of(self, table: pa.Table, row: int) -> tuple[Any, ...]:
        """The key of one row, as losses name it."""
        return tuple(table.column(name)[row].as_py() for name in self.by)

    def episodes(self, table: pa.Table) -> Fragments | None:
        """The episodes of whole keys, which hold no more of the table than they need; None where none is left."""
        rows = Rows(table, self.layout, self.shape_of)
        same = rows.same(self.by)
        self._see_losses(rows, same)
        if self.order is not None:
            rows, changed = self.maker.without_ties(rows, same)
            same = rows.same(self.by) if changed else same
        if not len(rows):
            return None
        self._count_files(rows, same)
        if self.ends is not None:
            joined = same & goes_on(rows, self.ends, self.maker.tally, self.maker.urls)
        else:
            rows, joined = self._without_early_ends(rows, same)
            if not len(rows):
                return None
        first = runs_of(joined, len(rows))
        return self.maker.batch(rows, first, self._named(rows, first, same))

    def finish(self) -> None:
        """Count the episodes of which every row was lost, once all keys have been seen."""
        self.maker.rejects.lose_episodes(Lost.BAD_ROW, len(self.losses.keys.keys() - self._damaged))

    def _see_losses(self, rows: Rows, same: NDArray[np.bool_]) -> None:
        if self.losses.keys:
            heads = rows.table.take(pa.array(runs_of(same, len(rows))))
            keys = zip(*(heads.column(name).to_pylist() for name in self.by), strict=True)
            self._damaged.update(key for key in keys if key in self.losses.keys)

    def _count_files(self, rows: Rows, same: NDArray[np.bool_]) -> None:
        """An episode that lies in k files counts k - 1 joints; `goes_on` counts those of rows in file order itself."""
        if self.ends is None and (rows.file != rows.file[0]).any():
            code = np.concatenate([[0], np.cumsum(~same)])
            last = int(code[-1])
            code = code * (int(rows.file.max()) + 1) + rows.file
            self.maker.tally.fragments_stitched += len(np.unique(code)) - last - 1

    def _without_early_ends(self, rows: Rows, same: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.bool_]]:
        """Without the keys that continue after an end flag, where `t` gives their

        order. Without `t` an episode that is there twice looks like this, which stitching reports.
        """
        if self.order is None or not rows.flags:
            return rows, same
        ended = np.logical_or.reduce(list(rows.flags.values()))
        early = np.flatnonzero(ended[:-1] & same)
        if not len(early):
            return rows, same
        first = runs_of(same, len(rows))
        runs = np.searchsorted(first, early, side="right") - 1
        kept = np.ones(len(rows), np.bool_)
        for run, row in dict(zip(runs[::-1].tolist(), early[::-1].tolist(), strict=True)).items():
            stop = int(first[run + 1]) if run + 1 < len(first) else len(rows)
            kept[int(first[run]) : stop] = False
            self.maker.rejects.add(self._early_end(rows, row), rows=stop - int(first[run]))
            self.maker.rejects.lose_episodes(Lost.STEPS_AFTER_END)
        rows = rows.filtered(kept)
        return rows, rows.same(self.by)

    def _early_end(self, rows: Rows, row: int) -> BadEpisode:
        theirs = id_text(rows.table.column(Columns.EPS_ID)[row].as_py())
        return BadEpisode(
            f"episode {theirs} has an end flag at t = {rows.t_text(row)} and continues at t = {rows.t_text(row + 1)}",
            where=f"{self.maker.urls[int(rows.file[row])]} row {int(rows.row[row])}",
            fix='`episode_ends = "flags"` in the mapping, where an id names more than an episode (a user, a robot); else'
            " correct the flag",
            details={PROBLEM: "steps-after-end"},
        )

    # ---- names ----

    def _named(self, rows: Rows, first: NDArray[np.int64], same: NDArray[np.bool_]) -> Named:
        heads = rows.table.take(pa.array(first))
        eps = heads.column(Columns.EPS_ID).to_pylist()
        agents, modules = (self._column(heads, name) for name in (Columns.AGENT_ID, Columns.MODULE_ID))
        files = heads.column(FILE).to_pylist() if self.ids_per_file else [None] * len(eps)
        if not self._has_agents and not self.ids_per_file:
            texts = _texts(eps)
            names = [f"{self.prefix}{text}" for text in texts]
        else:
            texts = [id_text(value) for value in eps]
            keys = zip(eps, files, agents or eps, modules or eps, strict=True)
            names = [
                episode_name(self.prefix, value, file=file, agent=agent, module=modules and module, has_agents=self._has_agents)
                for value, file, agent, module in keys
            ]
        if self.ends is not None:
            names = [f"{name}-{number}" for name, number in zip(names, self._numbers(first, same), strict=True)]
        self._tell_losses(heads, names)
        shared = self._shared(names, texts, files, agents) if self._has_agents else None
        return Named(names, texts if self.prefix else None, agents, modules, shared)

    def _column(self, heads: pa.Table, name: str) -> list[str | None] | None:
        if name not in self.layout.keys:
            return None
        return [None if value is None else id_text(value) for value in heads.column(name).to_pylist()]

    def _numbers(self, first: NDArray[np.int64], same: NDArray[np.bool_]) -> list[int]:
        """Of each episode among those of its key."""
        begins = np.concatenate([[True], ~same])[first]
        count = np.arange(len(first))
        numbers: list[int] = (count - np.maximum.accumulate(np.where(begins, count, 0))).tolist()
        return numbers

    def _shared(
        self, names: Sequence[str], texts: Sequence[str], files: Sequence[int | None], agents: Sequence[str | None] | None
    ) -> list[str | None]:
        return [
            None if agent is None else f"{self.prefix}{text}" if file is None else f"{self.prefix}{file}-{text}"
            for text, file, agent in zip(texts, files, agents or [None] * len(names), strict=True)
        ]

    def _tell_losses(self, heads: pa.Table, names: Sequence[str]) -> None:
        """Which of these episodes lost a row on the way."""
        if self.losses.keys:
            for row, name in enumerate(names):
                place = self.losses.keys.get(self.key_of(heads, row))
                if place is not None:
                    self.maker.rejects.lose(name, place)


def _texts(values: list[Any]) -> list[str]:
    if values and isinstance(values[0], str):
        return values
    return list(map(str if values and isinstance(values[0], int) else id_text, values))
