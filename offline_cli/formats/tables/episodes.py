"""Rows of whole episodes as a batch, whole arrays at a time; contradictions within an episode raise: two rows for one `t`.

Every assumption is counted: a missing reward is 0, an episode without a flag at its end is truncated there, a gap in a `t` that
counts steps is left open, equal rows for one `t` are one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch, Infos
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.arrow_leaves import infos_of
from offline_cli.formats.source import Fragments, Origins
from offline_cli.formats.step_rows import Keys, StepRows, end_flags, fragments_of_rows
from offline_cli.formats.tables.rows import Rows, Whole
from offline_cli.tally import MISSING_REWARDS, UNFINISHED, EpisodePlace, Lost, OnError, Rejects, Tally

__all__ = ["EpisodeMaker", "Named", "runs_of"]

UNFILLED = "fill it with zero, mean or a number; split_at_gaps = true; or --on-error skip to leave out the episode"
LONG_GAP: Final = 10  # times the median step of an episode, from which on a step is a gap in a `t` that is no counter
PART: Final = re.compile(r"-gap[0-9]+$", re.ASCII)  # the end of the id of a part


@dataclass(frozen=True, slots=True)
class Named:
    """The names of the episodes of a batch, one entry each."""

    ids: Sequence[str]
    theirs: Sequence[str] | None = None  # the ids of the source
    agents: Sequence[str | None] | None = None
    modules: Sequence[str | None] | None = None
    shared: Sequence[str | None] | None = None  # ids of multi-agent episodes

    def taken(self, of: NDArray[np.int64], number: NDArray[np.int64]) -> Named:
        """Those of parts, by the episodes that they are parts of: the first has its name, the n-th after it `-gap<n>` too."""

        def every(names: Sequence[Any] | None) -> list[Any] | None:
            return None if names is None else [names[e] for e in of.tolist()]

        parts = list(zip(of.tolist(), number.tolist(), strict=True))
        ids = [f"{self.ids[e]}-gap{n}" if n else self.ids[e] for e, n in parts]
        shared = None if self.shared is None else [None if n else self.shared[e] for e, n in parts]  # agents' gaps differ
        return Named(ids, every(self.theirs), every(self.agents), every(self.modules), shared)

    def of(self, kept: NDArray[np.bool_]) -> Named:
        """Those of some of the (E,) episodes."""
        chosen = kept.tolist()

        def some(names: Sequence[Any] | None) -> list[Any] | None:
            return None if names is None else list(compress(names, chosen))

        others = map(some, (self.theirs, self.agents, self.modules, self.shared))
        return Named(list(compress(self.ids, chosen)), *others)


def runs_of(joined: NDArray[np.bool_], rows: int) -> NDArray[np.int64]:
    """(E,) first rows of the runs, where `joined` (N-1,) marks rows that continue the one before."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, rows), np.bool_), ~joined]))


def gaps_in(steps: NDArray[Any], run: NDArray[np.int64], *, counted: bool) -> NDArray[np.bool_]:
    """(K,) which of the differences `steps` (K,) of `t` are gaps; `run` (K,), sorted: the episode of each.

    Where `t` is `counted` and most steps of an episode are 1: all others. Where most lie within a half of their median: those
    of more than LONG_GAP times that. Where steps are irregular, none is.
    """
    pairs = np.bincount(run)
    ones = np.bincount(run[steps == 1], minlength=len(pairs))
    counts = (counted & (2 * ones >= pairs))[run]
    if counts.all():
        return np.asarray(steps != 1)
    middle = np.cumsum(pairs) - pairs + np.maximum(pairs - 1, 0) // 2
    median = steps[np.lexsort((steps, run))][np.minimum(middle, len(steps) - 1)]
    near = np.abs(steps - median[run]) <= median[run] / 2
    regular = (2 * np.bincount(run[near], minlength=len(pairs)) >= pairs) & (median > 0)
    return np.asarray(np.where(counts, steps != 1, regular[run] & (steps > LONG_GAP * median[run])))


@dataclass(slots=True)
class EpisodeMaker:
    """Makes batches of one source; `urls` are its files."""

    urls: tuple[str, ...]
    tally: Tally
    rejects: Rejects
    _said: set[str] = field(default_factory=set)  # what is counted once for a source
    _parts: set[str] = field(default_factory=set)  # ids of parts of episodes that were split at gaps
    _like_parts: set[str] = field(default_factory=set)  # ids of the table that look like these

    def batch(self, rows: Rows, first: NDArray[np.int64], named: Named) -> Fragments | None:
        """The runs of rows that begin at `first`; each is an episode, or several where a flag is set within it, or a cell is
        missing. None where no row is left.
        """
        if rows.gap is not None or rows.marks:
            rows, first, named = self._whole(rows, first, named)
            if not len(rows):
                return None
        flags = rows.flags
        if not flags and "missing-end-flags" not in self._said:
            self._said.add("missing-end-flags")
            self.tally.assume("missing-end-flags")
        terminateds, truncateds = end_flags(flags, len(rows), self.tally)
        lengths = np.diff(first, append=len(rows))
        code = np.repeat(np.arange(len(first)), lengths)
        steps = StepRows(
            keys=Keys(
                code,
                tuple(named.ids),
                _or_none(named.agents, len(first)),
                _or_none(named.modules, len(first)),
                None if named.shared is None else tuple(named.shared),
            ),
            obs=rows.obs,
            next_obs=rows.next_obs,
            actions=rows.tree(Columns.ACTIONS),
            rewards=self._rewards(rows),
            terminateds=terminateds,
            truncateds=truncateds,
            t=None,
            extra=rows.extra,
            infos=self._infos(rows, code, named),
            reset_infos=None,
            file=np.zeros(len(rows), np.int64),
            follows=False,
            where=partial(self._where, rows),
        )
        batch, begun = fragments_of_rows(steps, self.tally, lost=self.rejects.incomplete)
        if rows.t is not None:
            self._count_gaps(rows, rows.t, first, named.ids)
        origins = Origins.of_rows(self.urls, rows.file.astype(np.int64), rows.row, begun)
        last = np.append(begun[1:], len(rows)) - 1
        return Fragments(self._finished(batch, code[begun], named, rows, last), origins)

    def _whole(self, rows: Rows, first: NDArray[np.int64], named: Named) -> tuple[Rows, NDArray[np.int64], Named]:
        """Without missing cells: what was filled and left out is counted, and a row that cannot be is a bad one."""
        whole = rows.whole(first)
        for column, times in whole.filled.items():
            self.tally.assume(f"filled-previous:{column}", times)
        self.tally.assume("split-at-gap", whole.gaps)
        parts = named.taken(whole.of, whole.number)
        incomplete = self.rejects.incomplete
        for e, name in zip(whole.of.tolist(), parts.ids, strict=True):
            if named.ids[e] in incomplete:  # whose row that was is not known
                self.rejects.lose(name, incomplete[named.ids[e]])
        left = set(whole.of.tolist())
        bad = (np.searchsorted(first, whole.unfilled, side="right") - 1).tolist()
        for row, e in zip(whole.unfilled.tolist(), bad, strict=True):
            place = self._where(rows, row)
            raw = rows.quoted(row) if self.rejects.on_error is OnError.QUARANTINE else ""
            self.rejects.add(BadEpisode(rows.why_unfilled(row), where=place, fix=UNFILLED), raw=raw)
            if e in left:
                self.rejects.lose(named.ids[e], place)
        self.rejects.lose_episodes(Lost.BAD_ROW, len(set(bad) - left))
        self.tally.assume("zero-length-episode", len(first) - len(left | set(bad)))
        return self._apart(whole, parts)

    def _apart(self, whole: Whole, parts: Named) -> tuple[Rows, NDArray[np.int64], Named]:
        """Without episodes whose id is that of a part of another one: the one that comes second is a bad one."""
        rows, numbers = whole.rows, whole.number.tolist()
        lengths = np.diff(whole.first, append=len(rows))
        kept = np.ones(len(numbers), np.bool_)
        for e, (name, number) in enumerate(zip(parts.ids, numbers, strict=True)):
            if not number and not PART.search(name):
                continue
            own, others = (self._parts, self._like_parts) if number else (self._like_parts, self._parts)
            own.add(name)
            if name not in others:
                continue
            row, kept[e] = int(whole.first[e]), False
            what = f"two episodes are called {name}: one of the table, and a part of {PART.sub('', name)}, split at a gap"
            fix = "give the one of the table another id, or fill the missing cells, without split_at_gaps"
            error = BadEpisode(what, where=self._where(rows, row), fix=fix, details={PROBLEM: "conflicting-episode"})
            raw = rows.quoted(row) if self.rejects.on_error is OnError.QUARANTINE else ""
            self.rejects.add(error, raw=raw, rows=int(lengths[e]))
            self.rejects.lose_episodes(Lost.CONFLICT)
        if kept.all():
            return rows, whole.first, parts
        rows = rows.filtered(np.repeat(kept, lengths))
        first = np.concatenate([[0], np.cumsum(lengths[kept])[:-1]]) if kept.any() else whole.first[:0]
        return rows, first, parts.of(kept)

    def _rewards(self, rows: Rows) -> NDArray[np.float64]:
        rewards = rows.leaves.get(Columns.REWARDS)
        if rewards is not None:
            return rewards
        self.tally.assume(MISSING_REWARDS, len(rows))
        return np.zeros(len(rows))

    def _finished(
        self, batch: EpisodeBatch, code: NDArray[np.int64], named: Named, rows: Rows, last: NDArray[np.int64]
    ) -> EpisodeBatch:
        """With the ids of the source, and truncated where nothing ended an episode: its last row (E,) has been seen."""
        ended = batch.terminated | batch.truncated
        if not ended.all():
            open_ones = [(int(last[e]), batch.ids[e]) for e in np.flatnonzero(~ended).tolist()]
            places = [place for place in open_ones if place[1] not in self.rejects.incomplete]
            self.tally.assume(UNFINISHED, len(places), places=lambda: (self._place(rows, *place) for place in places))
        custom = None if named.theirs is None else tuple({Columns.SOURCE_ID: named.theirs[c]} for c in code.tolist())
        return replace(batch, truncated=batch.truncated | ~ended, t_started=None, custom_data=custom)

    def _where(self, rows: Rows, row: int) -> str:
        return f"{self.urls[int(rows.file[row])]} row {int(rows.row[row])}"

    def _place(self, rows: Rows, row: int, name: str) -> EpisodePlace:
        return EpisodePlace(f"{self._where(rows, row)}, episode {name}", name)

    def _count_gaps(self, rows: Rows, t: NDArray[Any], first: NDArray[np.int64], ids: Sequence[str]) -> None:
        """Count the gaps in `t`, but for those of episodes that lost a row."""
        t = t if t.dtype.kind == "f" else t.astype(np.int64)
        run = np.repeat(np.arange(len(first)), np.diff(first, append=len(t)))
        inside = run[1:] == run[:-1]
        after = np.flatnonzero(inside)[gaps_in(np.diff(t)[inside], run[1:][inside], counted=rows.layout.counted_t)] + 1
        gaps = [(row, name) for row in after.tolist() if (name := ids[run[row]]) not in self.rejects.incomplete]
        self.tally.assume("gap-in-t", len(gaps), places=lambda: (self._place(rows, *place) for place in gaps))

    # ---- infos ----

    def _infos(self, rows: Rows, code: NDArray[np.int64], named: Named) -> Infos | None:
        if Columns.INFOS not in rows.table.column_names:
            return None
        column = rows.table.column(Columns.INFOS)
        column_field = pa.field(rows.layout.infos or Columns.INFOS, column.type)

        where = partial(self._where, rows)
        try:
            return infos_of(column, column_field, where=where)
        except BadData:
            return [self._info(column, row, column_field, where(row), named.ids[int(code[row])]) for row in range(len(rows))]

    def _info(self, column: pa.ChunkedArray, row: int, column_field: pa.Field, place: str, name: str) -> Mapping[str, Any]:
        """One by one, because one of them cannot be read."""
        try:
            return (infos_of(column.slice(row, 1), column_field, where=lambda _: place) or [{}])[0]
        except BadData as error:
            self.rejects.add(error, raw=column[row].as_py())
            self.rejects.lose(name, place)
            return {}

    # ---- equal values of t ----

    def without_ties(self, rows: Rows, joined: NDArray[np.bool_]) -> tuple[Rows, bool]:
        """`rows`, each `t` of an episode once, and whether any was taken out.

        `joined` (N-1,): of one episode as the row before. Equal rows are one; an episode with rows for one `t` that differ goes
        to the rejects.
        """
        t = rows.t
        ties = np.flatnonzero(joined & (t[1:] == t[:-1])) if t is not None else np.zeros(0, np.int64)
        if not len(ties):
            return rows, False
        equal = rows.repeats(ties)
        kept = np.ones(len(rows), np.bool_)
        kept[ties[equal] + 1] = False
        self.tally.assume("duplicate-row", int(equal.sum()))
        first = runs_of(joined, len(rows))
        run_of = np.searchsorted(first, ties[~equal], side="right") - 1
        for run, tie in dict(zip(run_of[::-1].tolist(), ties[~equal][::-1].tolist(), strict=True)).items():
            stop = int(first[run + 1]) if run + 1 < len(first) else len(rows)
            self._refuse_tie(rows, tie, stop - int(first[run]))
            kept[int(first[run]) : stop] = False
        return rows.filtered(kept), True

    def _refuse_tie(self, rows: Rows, tie: int, count: int) -> None:
        one, other = (self._where(rows, row) for row in (tie, tie + 1))
        self.rejects.add(
            BadEpisode(
                f"two different rows of one episode have t = {rows.t_text(tie)}",
                where=f"{one} and {other}",
                fix="if several episodes share an id, set in the mapping `ids_per_file = true` where each file numbers them"
                ' anew, `episode_ends = "t"` where t begins anew, or `agent_id` where rows are of several agents; else correct'
                " t, or leave it out where rows are in order",
                details={PROBLEM: "conflicting-episode"},
            ),
            rows=count,
        )
        self.rejects.lose_episodes(Lost.CONFLICT)


def _or_none(names: Sequence[str | None] | None, count: int) -> tuple[str | None, ...]:
    return (None,) * count if names is None else tuple(names)
