"""Ordered rows as whole episodes: where one ends and the next begins, their names, and what is no step.

Whatever divides the rows (ids, files, end flags, start flags, `t`, the chain of observations, gaps and periods of time) is one
array of booleans here: whether an episode begins at a row. Only the last, open episode is held. A bad row stays in the stream
until its episode is known, which is then set aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import PROBLEM, BadData, BadEpisode, MemoryLimitExceeded
from offline_cli.formats.action_shapes import choices
from offline_cli.formats.arrow_leaves import infos_of
from offline_cli.formats.memory_limits import WRITTEN
from offline_cli.formats.source import Fragments, Origins
from offline_cli.formats.step_rows import (
    END_FLAGS,
    Keys,
    StepRows,
    chained,
    end_flags,
    equal_rows,
    fragments_of_rows,
)
from offline_cli.formats.tables.files import POS, TableFiles
from offline_cli.formats.tables.ids import Divided, Name, Naming
from offline_cli.formats.tables.mapping import EXTRA, STARTS, TableMapping, span_of
from offline_cli.formats.tables.rows import (
    Episode,
    Rows,
    changes_in,
    concat,
    ended,
    first_of_each,
    gaps_in,
    kept,
    latest,
    nested,
    taken,
    time_text,
)
from offline_cli.formats.tables.values import BAD, GAP, MISSING, ValueReader, mark_of
from offline_cli.tally import MISSING_REWARDS, T_FALLS, UNFINISHED, EpisodePlace, Lost, OnError, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["Assembler"]

RUN, NEXT = "__run", "__next"
UNKNOWN_EPISODE: Final = "bad-row-of-unknown-episode"  # the assumption that it belonged to an episode beside it
FIX: Final = "correct the value, leave the column out of the mapping, or --on-error skip to leave out the episode"
MISSING_FIX: Final = "[fill] or split_at_gaps in the mapping (docs/tables.md), or --on-error skip to leave out the episode"
UNFILLED: Final = "fill it with zero, mean or a number; split_at_gaps = true; or --on-error skip to leave out the episode"
TIE_FIX: Final = (
    "if several episodes share an id, set in the mapping `ids_per_file = true` where each file numbers them anew,"
    ' `episode_ends = "t"` where t begins anew, or `agent_id` where rows are of several agents; else correct t, or leave it out'
    " where rows are in order"
)
END_FIX: Final = '`episode_ends = "flags"` in the mapping, where an id names more than an episode; else correct the flag'


@dataclass(slots=True)
class Assembler:
    """Makes batches of whole episodes of one reading of a source."""

    files: TableFiles
    reader: ValueReader
    divided: Divided
    mapping: TableMapping
    naming: Naming
    tally: Tally
    rejects: Rejects
    room: int  # bytes that one episode may take
    declares_actions: bool = False
    lost_keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # good rows without an id
    in_order: bool = True  # whether the rows of an episode stand together in the files
    _reported: int = 0  # bad rows of files that were reported
    _touched: int = 0  # bad rows of files that cost an episode
    _said_flags: bool = False

    def episodes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Fragments]:
        """The episodes of all rows."""
        held: list[Rows] = []  # the open episode, and what has been read since it was looked at
        is_open = 0  # rows of it
        self._report()
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(self.reader.rows(batch) | {RUN: self.naming.runs(batch)})
            self.tally.rows_in += batch.num_rows
            self._report()
            if 2 * (sum(len(rows[POS]) for rows in held) - is_open) < is_open:
                continue  # looking again would cost more than waiting
            rows = concat(held)
            begins = self._begins(rows)
            last = len(begins) if self.divided.each_row else int(np.flatnonzero(begins)[-1])
            yield from self._made(taken(rows, slice(0, last)), begins[:last])
            held, is_open = [taken(rows, slice(last, None))] if last < len(begins) else [], len(begins) - last
            self._check_length(held)
        self._report()
        if held:
            rows = concat(held)
            yield from self._made(rows, self._begins(rows))
        self._finish()

    def _check_length(self, held: Sequence[Rows]) -> None:
        roles = {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, EXTRA}
        names = [leaf.name for leaf in self.reader.layout.leaves if leaf.role in roles]
        for rows in held:
            size = sum(array.nbytes for array in rows.values())
            if max(2 * size, WRITTEN * sum(rows[name].nbytes for name in names)) > self.room:
                key, first = self.naming.of_run(int(rows[RUN][0])), self.files.place(int(rows[POS][0]))
                name = f"episode {key}" if key else f"the episode that begins at {first}"
                what = f"the rows of one episode take more than {size / 1e6:,.0f} MB, which is too much for the memory limit"
                fix = "raise --memory-limit, or choose another end of episodes: --episode-ends, or a column of ids"
                raise MemoryLimitExceeded(what, where=name, fix=fix)

    # ---- where episodes begin ----

    def _begins(self, rows: Rows) -> NDArray[np.bool_]:
        """(N,) whether an episode begins at a row, as far as keys and values say; the first row always does."""
        ends, said, count = self.divided.ends, self.mapping.said, len(rows[POS])
        if self.divided.each_row:
            return np.ones(count, np.bool_)
        t, goes_on = rows.get(Columns.T), rows[RUN][1:] == rows[RUN][:-1]
        if ends is not None:
            goes_on &= ~ended(rows)[:-1]
        if STARTS in rows:
            goes_on &= ~rows[STARTS][1:]
        if t is not None and said.gap is not None:
            goes_on &= ~(t[1:] - t[:-1] > self._span(said.gap))
        if t is not None and said.period is not None:
            spans = np.floor_divide(t, self._span(said.period))
            goes_on &= spans[1:] == spans[:-1]
        if t is not None and ends == "t":
            goes_on &= t[1:] > t[:-1]
        if ends in ("chain", "flags") and self.reader.layout.of(Columns.NEXT_OBS):
            chains = chained(self._tree(rows, Columns.OBS), self._tree(rows, Columns.NEXT_OBS))
            for name in rows:
                if name in (BAD, GAP) or name.startswith(MISSING):
                    chains = chains | rows[name][1:] | rows[name][:-1]  # a missing cell breaks none
            file = self.files.at(rows[POS])[0]
            goes_on &= chains if ends == "chain" else chains | (file[1:] == file[:-1])
        return np.concatenate([[True], ~goes_on])

    def _span(self, given: str | float) -> Any:
        """Of a gap or period, in the units of `t`."""
        span, in_nanoseconds = span_of(given)
        t = self.reader.layout.t
        is_time = t is not None and t.columns[0].cells == "time"
        if in_nanoseconds and not is_time:
            return span / 1e9  # numbers are seconds
        return span if in_nanoseconds or not is_time else span * 1e9

    # ---- bad rows ----

    def _report(self) -> None:
        """Pass on the rows that no parser could read."""
        new = self.files.bad[self._reported :]
        self._reported += len(new)
        for one in new:
            self.rejects.add(one.error, raw=one.raw)
            self.tally.rows_in += 1

    def lose_keys(self, positions: NDArray[np.int64], column: str) -> None:
        """Set aside rows without an id."""
        self.lost_keys = positions
        fix = "delete the row if it is empty, or give it its id; --on-error skip leaves out the episodes beside it"
        self._reject(
            positions.tolist(), lambda pos: BadEpisode(f"column {column} has no value", where=self.files.place(pos), fix=fix)
        )
        self.tally.rows_in += len(positions)

    def _reject(self, positions: Sequence[int], error_of: Callable[[int], BadEpisode], rows: Rows | None = None) -> None:
        """Set rows aside, as their files have them where that is text, else as far as they were read."""
        keeps = self.rejects.on_error is OnError.QUARANTINE
        raws = self.files.raw_rows(positions) if keeps else {}
        at = {} if rows is None or not keeps else {pos: row for row, pos in enumerate(rows[POS].tolist())}
        for pos in positions:
            raw = raws.get(pos)
            if raw is None and rows is not None and pos in at:
                raw = {name: np.asarray(values[at[pos]]).tolist() for name, values in rows.items() if name[:2] != "__"}
            self.rejects.add(error_of(pos), raw="" if raw is None else json.dumps(raw, default=str))

    def _tell_losses(self, rows: Rows, episode: Episode, named: Sequence[Name]) -> None:
        """Which episodes lost a row that has no columns, or no id: those of the rows beside it."""
        if not (self.files.bad or len(self.lost_keys)) or self.divided.each_row:
            return
        gone, order = set(self.lost_keys.tolist()), np.argsort(rows[POS])
        losses = [(one.error.where, pos - 1, pos) for one, pos in self.files.beside()]
        losses += [(self.files.place(pos), pos - 1, pos + 1) for pos in gone]
        for place, before, after in losses:
            while before in gone:
                before -= 1
            while after in gone:
                after += 1
            for pos, is_before in ((before, True), (after, False)):
                at = int(np.searchsorted(rows[POS], pos, sorter=order))
                if at < len(order) and rows[POS][order[at]] == pos and not (is_before and ended(rows)[order[at]]):
                    self.rejects.lose(named[int(episode[order[at]])].id, place)
                    self._touched += 1

    def _finish(self) -> None:
        count = len(self.files.bad) + len(self.lost_keys)
        if not self.in_order:
            self.tally.assume(UNKNOWN_EPISODE, count)
        if self.divided.each_row:
            self.rejects.lose_episodes(Lost.BAD_ROW, count)
        elif count and not self._touched:
            self.rejects.lose_episodes(Lost.BAD_ROW)

    def _without_bad(self, rows: Rows, episode: Episode, named: Sequence[Name]) -> NDArray[np.bool_]:
        """(N,) the rows that are whole; what is wrong with others goes to the rejects, and costs their episode."""
        bad = rows[BAD]
        if not bad.any():
            return ~bad

        def error_of(pos: int) -> BadEpisode:
            why, is_missing = self.reader.reasons.pop(pos, ("the row is bad", False))
            return BadEpisode(why, where=self.files.place(pos), fix=MISSING_FIX if is_missing else FIX)

        self._reject(rows[POS][bad].tolist(), error_of, rows)
        self._lose(rows, episode, named, bad, set(episode[~bad].tolist()))
        return ~bad

    def _lose(self, rows: Rows, episode: Episode, named: Sequence[Name], bad: NDArray[np.bool_], left: set[int]) -> None:
        """Set aside the episodes of bad rows: by name those of which other rows are `left`."""
        for pos, e in zip(rows[POS][bad].tolist(), episode[bad].tolist(), strict=True):
            if e in left:
                self.rejects.lose(named[e].id, self.files.place(pos))
        self.rejects.lose_episodes(Lost.BAD_ROW, len(set(episode[bad].tolist()) - left))

    # ---- whole episodes ----

    def _made(self, rows: Rows, begins: NDArray[np.bool_]) -> Iterator[Fragments]:
        if not len(begins):
            return
        episode, divided = np.cumsum(begins) - 1, self.divided
        named = self.naming.named(rows[RUN][begins].tolist())
        self._count_falls(rows, episode)
        self._tell_losses(rows, episode, named)
        rows, episode = kept(rows, episode, self._without_bad(rows, episode, named))
        if not divided.each_row and divided.keyed and divided.ends != "t" and Columns.T in rows:
            rows, episode = kept(rows, episode, self._without_ties(rows, episode))
            if divided.ends is None and not (self.mapping.divides_more or divided.by_file):
                rows, episode = kept(rows, episode, self._without_early_ends(rows, episode, named))
        self._count_files(rows, episode)
        if GAP in rows or any(name.startswith(MISSING) for name in rows):
            rows, episode, named = self._without_gaps(rows, episode, named)
        if self.mapping.said.shift:
            rows, episode = self._shifted(rows, episode)
        if len(episode):
            yield self._fragments(rows, episode, named)

    def _count_falls(self, rows: Rows, episode: Episode) -> None:
        """`t` falls inside an episode that flags or a chain divide: rows are not in order, or a flag is missing."""
        t, divided = rows.get(Columns.T), self.divided
        if t is not None and divided.ends in ("flags", "chain") and not divided.keyed:
            falls = np.flatnonzero((t[1:] < t[:-1]) & (episode[1:] == episode[:-1])) + 1
            self.tally.assume(T_FALLS, len(falls), places=lambda: (self.files.place(int(rows[POS][row])) for row in falls))

    def _count_files(self, rows: Rows, episode: Episode) -> None:
        file = self.files.at(rows[POS])[0]
        if len(file) and (file != file[0]).any():
            pairs = np.unique(episode * (int(file.max()) + 1) + file)
            self.tally.fragments_stitched += len(pairs) - len(np.unique(episode))

    def _without_ties(self, rows: Rows, episode: Episode) -> NDArray[np.bool_]:
        """(N,) each `t` of an episode once; an episode with different rows for one `t` is a bad one."""
        t, good = rows[Columns.T], np.ones(len(episode), np.bool_)
        ties = np.flatnonzero((episode[1:] == episode[:-1]) & (t[1:] == t[:-1]))
        if not len(ties):
            return good
        equal = np.ones(len(ties), np.bool_)
        for name, values in rows.items():
            if name not in (POS, RUN):
                mine, theirs = values[ties], values[ties + 1]
                equal &= np.array(mine == theirs, np.bool_) if values.dtype == object else equal_rows(mine, theirs)
        good[ties[equal] + 1] = False
        self.tally.assume("duplicate-row", int(equal.sum()))
        for row in first_of_each(ties[~equal], episode):
            one, other = (self.files.place(int(rows[POS][at])) for at in (row, row + 1))
            what = f"two different rows of one episode have t = {self._time(rows, row)}"
            error = BadEpisode(what, where=f"{one} and {other}", fix=TIE_FIX, details={PROBLEM: "conflicting-episode"})
            good &= ~self._refused(error, episode == episode[row], Lost.CONFLICT)
        return good

    def _without_early_ends(self, rows: Rows, episode: Episode, named: Sequence[Name]) -> NDArray[np.bool_]:
        """(N,) not the rows of episodes that continue after an end flag, where `t` gives their order."""
        good = np.ones(len(episode), np.bool_)
        for row in first_of_each(np.flatnonzero(ended(rows)[:-1] & (episode[1:] == episode[:-1])), episode):
            name = named[int(episode[row])]
            at, after = self._time(rows, row), self._time(rows, row + 1)
            what = f"episode {name.theirs or name.id} has an end flag at t = {at} and continues at t = {after}"
            place = self.files.place(int(rows[POS][row]))
            error = BadEpisode(what, where=place, fix=END_FIX, details={PROBLEM: "steps-after-end"})
            good &= ~self._refused(error, episode == episode[row], Lost.STEPS_AFTER_END)
        return good

    def _refused(self, error: BadEpisode, whole: NDArray[np.bool_], why: Lost) -> NDArray[np.bool_]:
        self.rejects.add(error, rows=int(whole.sum()))
        self.rejects.lose_episodes(why)
        return whole

    def _time(self, rows: Rows, row: int) -> str:
        t = self.reader.layout.t
        return time_text(rows[Columns.T][row], is_time=t is not None and t.columns[0].cells == "time")

    def _shifted(self, rows: Rows, episode: Episode) -> tuple[Rows, Episode]:
        """Steps of rows whose action led to their observation: that of the row after, and its observation as the next one."""
        goes_on = episode[1:] == episode[:-1]
        self.tally.assume("zero-length-episode", len(np.unique(episode)) - len(np.unique(episode[1:][goes_on])))
        acted, led = np.flatnonzero(goes_on), np.flatnonzero(goes_on) + 1
        obs = [leaf.name for leaf in self.reader.layout.of(Columns.OBS)]
        of_row = {*obs, Columns.T, POS, RUN}
        made = {name: values[acted] if name in of_row else values[led] for name, values in rows.items()}
        return made | {f"{NEXT}{name}": rows[name][led] for name in obs}, episode[acted]

    def _fragments(self, rows: Rows, episode: Episode, named: Sequence[Name]) -> Fragments:
        layout, count = self.reader.layout, len(episode)
        flags: dict[str, NDArray[Any]] = {name: rows[name] for name in END_FLAGS if name in rows}
        if not flags and not self._said_flags:
            self._said_flags = True
            self.tally.assume("missing-end-flags")
        terminateds, truncateds = end_flags(flags, count, self.tally)
        numbers, code = np.unique(episode, return_inverse=True)
        named = [named[e] for e in numbers.tolist()]
        ids, theirs, agents, modules, shared = (tuple(column) for column in zip(*named, strict=True))
        if Columns.REWARDS not in rows:
            self.tally.assume(MISSING_REWARDS, count)
        steps = StepRows(
            keys=Keys(code.astype(np.int64), ids, agents, modules, shared if any(shared) else None),
            obs=self._tree(rows, Columns.OBS),
            next_obs=self._next_obs(rows),
            actions=self.actions(rows),
            rewards=rows.get(Columns.REWARDS, np.zeros(count)),
            terminateds=terminateds,
            truncateds=truncateds,
            t=None,
            extra={".".join(leaf.path): rows[leaf.name] for leaf in layout.of(EXTRA)},
            infos=self._infos(rows, code, ids),
            reset_infos=None,
            file=np.zeros(count, np.int64),
            follows=False,
            where=lambda row: self.files.place(int(rows[POS][row])),
        )
        batch, begun = fragments_of_rows(steps, self.tally, lost=self.rejects.incomplete)
        if Columns.T in rows:
            self._count_gaps(rows, code, ids)
        is_ended = batch.terminated | batch.truncated
        last = np.append(begun[1:], count) - 1
        unfinished = [(int(last[e]), batch.ids[e]) for e in np.flatnonzero(~is_ended).tolist()]
        self._assume_at(UNFINISHED, rows, [one for one in unfinished if one[1] not in self.rejects.incomplete])
        custom = tuple({Columns.SOURCE_ID: theirs[c]} for c in code[begun].tolist()) if theirs[0] is not None else None
        file, row = self.files.at(rows[POS])
        origins = Origins.of_rows(tuple(one.url for one in self.files.files), file.astype(np.int64), row, begun)
        return Fragments(replace(batch, truncated=batch.truncated | ~is_ended, t_started=None, custom_data=custom), origins)

    def _assume_at(self, kind: str, rows: Rows, found: Sequence[tuple[int, str]]) -> None:
        """Count an assumption at some rows, each with the id of its episode."""

        def places() -> Iterator[EpisodePlace]:
            for row, name in found:
                yield EpisodePlace(f"{self.files.place(int(rows[POS][row]))}, episode {name}", name)

        self.tally.assume(kind, len(found), places=places)

    def _tree(self, rows: Rows, role: str, prefix: str = "") -> Tree:
        return nested([(leaf.path, rows[f"{prefix}{leaf.name}"]) for leaf in self.reader.layout.of(role)])

    def actions(self, rows: Rows) -> Tree:
        """Actions, whole numbers alone in a list as choices where no space says otherwise."""
        actions = self._tree(rows, Columns.ACTIONS)
        is_vector = self.declares_actions or any(leaf.stacked for leaf in self.reader.layout.of(Columns.ACTIONS))
        return actions if is_vector else choices(actions)

    def _next_obs(self, rows: Rows) -> Tree | None:
        if self.mapping.said.shift:
            return self._tree(rows, Columns.OBS, NEXT)
        leaves = self.reader.layout.of(Columns.NEXT_OBS)
        for leaf in leaves:
            theirs = rows.get(".".join((Columns.OBS, *leaf.path)))
            if theirs is None or theirs.shape[1:] != rows[leaf.name].shape[1:]:
                have = "nothing" if theirs is None else f"shape {list(theirs.shape[1:])}"
                what = f"{leaf.name} has shape {list(rows[leaf.name].shape[1:])}, and obs has {have}"
                fix = "name the same columns, one step later, for new_obs as for obs"
                raise BadEpisode(what, where=self.files.files[0].url, fix=fix)
        return self._tree(rows, Columns.NEXT_OBS) if leaves else None

    def _count_gaps(self, rows: Rows, run: NDArray[np.int64], ids: Sequence[str]) -> None:
        """Count the gaps in `t`, but for those of episodes that lost a row."""
        t, leaf, inside = rows[Columns.T], self.reader.layout.t, run[1:] == run[:-1]
        is_counter = leaf is not None and leaf.dtype.kind in "iu" and leaf.columns[0].cells != "time"
        gaps = gaps_in(np.diff(t)[inside], run[1:][inside], counted=is_counter)
        found = [(row, ids[int(run[row])]) for row in (np.flatnonzero(inside)[gaps] + 1).tolist()]
        self._assume_at("gap-in-t", rows, [one for one in found if one[1] not in self.rejects.incomplete])

    def _infos(self, rows: Rows, code: NDArray[np.int64], ids: Sequence[str]) -> list[Mapping[str, Any]] | None:
        if Columns.INFOS not in rows:
            return None
        column = pa.chunked_array([pa.array(rows[Columns.INFOS].tolist(), pa.large_string())])
        column_field = pa.field(self.reader.layout.infos or Columns.INFOS, column.type)

        def place(row: int) -> str:
            return self.files.place(int(rows[POS][row]))

        try:
            found = infos_of(column, column_field, where=place)
            return None if found is None else list(found)
        except BadData:  # one by one, because one of them cannot be read
            infos: list[Mapping[str, Any]] = []
            for row in range(len(column)):
                try:
                    infos += infos_of(column.slice(row, 1), column_field, where=partial(lambda at, _: place(at), row)) or [{}]
                except BadData as error:
                    self.rejects.add(error, raw=column[row].as_py())
                    self.rejects.lose(ids[int(code[row])], place(row))
                    infos.append({})
            return infos

    # ---- missing cells ----

    def _without_gaps(self, rows: Rows, episode: Episode, named: Sequence[Name]) -> tuple[Rows, Episode, list[Name]]:
        """Episodes with missing cells filled, and split where one is not. A value never comes from another episode."""
        count = len(episode)
        marks = {name: values for name, values in rows.items() if name.startswith(MISSING)}
        gap = rows.get(GAP, np.zeros(count, np.bool_))
        runs = latest(changes_in(episode, gap))
        if GAP in rows and marks:  # a part begins with the first row that needs no value from before
            ready = np.cumsum(~gap & ~np.logical_or.reduce(list(marks.values())))
            gap = gap | (ready == np.concatenate([[0], ready])[runs])
            runs = latest(changes_in(episode, gap))
        rows, unfilled = self._with_values_before(rows, marks, runs, gap)
        kept = ~(gap | unfilled)
        begins = changes_in(runs[kept])
        part, of = np.cumsum(begins) - 1, episode[kept][begins]
        number = (np.arange(len(of)) - np.searchsorted(of, of)).tolist()
        self.tally.assume("split-at-gap", int(gap.sum()))
        parts = [
            named[e]._replace(id=f"{named[e].id}-gap{n}", shared=None) if n else named[e]
            for e, n in zip(of.tolist(), number, strict=True)
        ]
        for e, name in zip(of.tolist(), parts, strict=True):
            if named[e].id in self.rejects.incomplete:
                self.rejects.lose(name.id, self.rejects.incomplete[named[e].id])
        left, bad = set(of.tolist()), set(episode[unfilled].tolist())
        at = {int(rows[POS][row]): row for row in np.flatnonzero(unfilled).tolist()}

        def error_of(pos: int) -> BadEpisode:
            leaves = self.reader.layout.leaves
            names = [
                plan.column
                for leaf in leaves
                for i, plan in enumerate(leaf.columns)
                if marks.get(mark_of(leaf, i), gap)[at[pos]]
            ]
            what = f"column {', '.join(names)} has no value, and no row before it in the episode has one"
            return BadEpisode(what, where=self.files.place(pos), fix=UNFILLED)

        self._reject(list(at), error_of, rows)
        self._lose(rows, episode, named, unfilled, left)
        self.tally.assume("zero-length-episode", len(set(episode.tolist()) - left - bad))
        return taken(rows, kept), part, parts

    def _with_values_before(
        self, rows: Rows, marks: Mapping[str, NDArray[np.bool_]], runs: NDArray[np.int64], gap: NDArray[np.bool_]
    ) -> tuple[Rows, NDArray[np.bool_]]:
        """Rows in which missing cells have the value of the row before, and those where there is none in the run."""
        unfilled, rows = np.zeros(len(gap), np.bool_), dict(rows)
        for leaf in self.reader.layout.leaves:
            stop = 0
            for i, plan in enumerate(leaf.columns):
                shape = self.reader.shape(leaf, i)
                start, stop = stop, stop + (shape[0] if shape else 1)
                missing = marks.get(mark_of(leaf, i))
                if missing is None or not missing.any():
                    continue
                source = latest(~missing)
                found = missing & ~gap & (source >= runs)
                rows[leaf.name] = values = rows[leaf.name].copy()
                span = (slice(start, stop),) if leaf.stacked else ()
                values[(found, *span)] = values[(source[found], *span)]
                self.tally.assume(f"filled-previous:{plan.column}", int(found.sum()))
                unfilled |= missing & ~gap & ~found
        return rows, unfilled
