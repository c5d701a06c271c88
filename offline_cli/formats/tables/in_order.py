"""Where episodes end in rows that stand in order; refuses nothing, what was doubtful is counted.

* `flags`: after a row with an end flag.
* `t`: also before a row whose `t` is not larger.
* `chain`: also after a row that did not lead to the observation of the next one.

Between two files an episode goes on unless one of these ends it; under `flags` the chain decides, where there is `new_obs`.

What one episode of a table takes in memory until it is written, and the limit on it; refuses one that takes more.

Rows in the order of their files, without ids, as episodes numbered from 0; refuses nothing: options say what ends one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import MemoryLimitExceeded
from offline_cli.formats.memory import WRITTEN
from offline_cli.formats.source import Fragments
from offline_cli.formats.tables.episodes import EpisodeMaker, Named, runs_of
from offline_cli.formats.tables.ids import id_text
from offline_cli.formats.tables.key_runs import put_together
from offline_cli.formats.tables.layout import Layout
from offline_cli.formats.tables.reading import FILE, ROW, Losses, place_of, position_of
from offline_cli.formats.tables.rows import Rows, ShapeOf
from offline_cli.tally import Lost, Tally

__all__ = ["CHAIN", "FLAGS", "ORDER", "EpisodesInOrder", "Footprint", "goes_on"]

FLAGS = "flags"
ORDER = "t"
CHAIN = "chain"


def goes_on(rows: Rows, ends: str, tally: Tally) -> NDArray[np.bool_]:
    """(N-1,) whether a row is of the same episode as the one before it."""
    ended = np.logical_or.reduce([np.zeros(len(rows), np.bool_), *rows.flags.values()])
    joined: NDArray[np.bool_] = ~ended[:-1]
    if ends == ORDER and rows.t is not None:
        joined &= rows.t[1:] > rows.t[:-1]
    chains = rows.chains() if ends == CHAIN or (ends == FLAGS and rows.next_obs is not None) else None
    files_end = rows.file[1:] != rows.file[:-1]
    if chains is not None:
        joined &= chains if ends == CHAIN else chains | ~files_end
    if ends != ORDER and rows.t is not None:
        tally.assume("t-falls-back", int((joined & (rows.t[1:] < rows.t[:-1])).sum()))
    tally.fragments_stitched += int((joined & files_end).sum())
    return joined


JOINED: Final = 2  # times the bytes of its rows: as they were read, and joined


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
    """Makes the episodes of tables whose rows stand in order; only the last episode is held."""

    maker: EpisodeMaker
    layout: Layout
    shape_of: ShapeOf
    losses: Losses
    prefix: str  # of ids, with its hyphen
    ends: str | None  # None: each row is an episode
    footprint: Footprint
    _begun: list[pa.Table] = field(default_factory=list)  # rows of the last episode, which may go on
    _passed: int = 0  # episodes made

    def episodes(self, tables: Iterable[pa.Table]) -> Iterator[Fragments]:
        """The episodes of all `tables`, which follow each other."""
        for table in tables:
            if table.num_rows:
                yield from self._taken(table)
        if self._begun:
            yield self._made(self._begun, before=None)
        elif self.ends is not None and len(self.losses.upto(None)):  # no row could be read
            self.maker.rejects.lose_episodes(Lost.BAD_ROW)
        if self.ends is None:
            self.maker.rejects.lose_episodes(Lost.BAD_ROW, self.losses.count)  # each row was an episode

    def _taken(self, table: pa.Table) -> Iterator[Fragments]:
        if self.ends is None:
            yield self._made([table], before=None)
            return
        before = [self._begun[-1].slice(self._begun[-1].num_rows - 1)] if self._begun else []
        rows = Rows(pa.concat_tables([*before, table]), self.layout, self.shape_of)
        joined = goes_on(rows, self.ends, self.maker.tally)
        begins = np.flatnonzero(~joined) + 1 - len(before)  # rows of `table` that begin an episode
        if len(begins):
            last = int(begins[-1])
            done, self._begun = [*self._begun, table.slice(0, last)], []
            yield self._made([part for part in done if part.num_rows], before=_position(table.slice(last)))
            table = table.slice(last)
        self._begun.append(table)
        self._check_length()

    def _check_length(self) -> None:
        """Raise BadData where the episode that has begun is too long for the memory limit."""
        self.footprint = self.footprint.begun() if len(self._begun) == 1 else self.footprint
        self.footprint.add(self._begun[-1])
        if self.footprint.is_too_large:
            raise self.footprint.error(
                where=f"the episode that begins at {place_of(_position(self._begun[0]), self.maker.urls)}",
                fix="say where episodes end in another way: --episode-ends, or a column of ids in the mapping",
            )

    def _made(self, tables: list[pa.Table], *, before: int | None) -> Fragments:
        """The episodes of rows that belong to no other; `before`: the position of the row after them."""
        rows = Rows(put_together(tables), self.layout, self.shape_of)
        joined = np.zeros(len(rows) - 1, np.bool_)
        if self.ends is not None:
            joined = goes_on(rows, self.ends, type(self.maker.tally)())  # counted before
        first = runs_of(joined, len(rows))
        names = [f"{self.prefix}{number}" for number in range(self._passed, self._passed + len(first))]
        self._passed += len(first)
        if self.ends is None:
            self.losses.forget(_position(rows.table))
            return self.maker.batch(rows, first, Named(names, self._theirs(rows)))
        self.maker.tally.assume("missing-eps-id", len(first))
        self._tell_losses(rows, first, names, before)
        return self.maker.batch(rows, first, Named(names))

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
