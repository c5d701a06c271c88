"""Assemble ordered rows into whole episodes: find their boundaries, name them, and reject bad rows.

Everything that divides rows (ids, files, end flags, start flags, `t`, the chain of observations, time gaps and periods) becomes
one boolean array: whether an episode begins at a row. Only the last, open episode is kept in memory. A bad row stays in the
stream until its episode is known, which is then rejected.

Ids are `<8 hex digits of a hash>-<id in the source>`. The hash covers the files' sizes, first and last bytes, but not their
names: a copy elsewhere gives the same ids, and two tables that both number their episodes from 0 give different ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import PROBLEM, BadEpisode, MemoryLimitExceeded
from offline_cli.formats.memory_limits import WRITTEN
from offline_cli.formats.sink import tree_of_names
from offline_cli.formats.source import Fragments, Origins
from offline_cli.formats.step_rows import (
    END_FLAGS,
    Keys,
    SourceRows,
    agent_episode_id,
    chained,
    choices,
    end_flags,
    equal_rows,
    fragments_of_rows,
)
from offline_cli.formats.tables.files import POS, ROW_BITS, TableFiles
from offline_cli.formats.tables.mapping import EXTRA, FILE_ID, STARTS, TableMapping, span_of
from offline_cli.formats.tables.values import BAD, BETWEEN, KEY_FIX, MISSING, NOTHING, Mask, Rows, ValueReader, WrongRow
from offline_cli.tally import MISSING_REWARDS, T_FALLS, UNFINISHED, EpisodePlace, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten

RUN, EPISODE, NEXT = "__run", "__episode", "__next"
LONG_GAP: Final = 10  # a step longer than this multiple of the episode's median step is a gap, if `t` is not a counter
UNKNOWN_EPISODE: Final = "bad-row-of-unknown-episode"  # assumes that the row belonged to an adjacent episode
UNFILLED: Final = "fill it with zero or a number, or skip the episode with --on-error skip"
TIE_FIX: Final = (
    "if several episodes share an id, set in the mapping `ids_per_file = true` if each file numbers them separately,"
    ' `episode_ends = "t"` if t restarts, or `agent_id` if rows are of several agents; otherwise correct t, or remove it'
    " from the mapping if rows are in order"
)
END_FIX: Final = 'set `episode_ends = "flags"` in the mapping if several episodes share an id; otherwise correct the flag'
ROW_ID: Final = "@row"  # instead of an id column: every row is an episode


# ---- ids ----


@dataclass(frozen=True, slots=True)
class Division:
    """How ordered rows are divided into episodes."""

    keys: tuple[tuple[str, str], ...]  # role and column of each part of the key; role "": the file, if ids are per file
    keyed: bool  # rows are grouped by key, and sorted by `t` if it exists
    ends: str | None  # flags | t | chain; None: none of these
    each_row: bool  # every row is an episode
    divides_keys: bool  # several episodes may share a key

    @property
    def by_file(self) -> bool:
        """Whether ids come from files or row numbers, not from a column."""
        return any(theirs in (FILE_ID, ROW_ID) for role, theirs in self.keys if role)


class Name(NamedTuple):
    """The ids of an episode."""

    id: str
    theirs: str | None = None  # the id in the source
    agent: str | None = None
    module: str | None = None
    shared: str | None = None  # the id of the multi-agent episode


@dataclass(slots=True)
class Naming:
    """Numbers runs of rows with the same key, and names the episodes in them."""

    division: Division
    prefix: str  # of ids, including the hyphen; "": keep ids unchanged
    tally: Tally
    _keys: dict[int, str] = field(default_factory=dict)  # keys of current runs
    _run: int = 0
    _before: tuple[int, int] = (0, 0)  # a run, and its last episode number
    _passed: int = 0  # episodes named so far, in tables without ids

    def runs(self, keys: pa.Array) -> NDArray[np.int64]:
        """(N,) The run number of each row: a run is adjacent rows with the same key."""
        same = np.ones(len(keys), np.bool_)
        same[1:] = pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        same[0] = self._keys.get(self._run) == keys[0].as_py()
        self._keys |= dict(enumerate(keys.filter(pa.array(~same)).to_pylist(), self._run + 1))
        runs = self._run + np.cumsum(~same)
        self._run = int(runs[-1])
        return runs

    def of_run(self, run: int) -> str:
        """The key of a run, for messages; "" if there are no keys."""
        return self._keys[run].replace(BETWEEN, "-") if self.division.keyed else ""

    def named(self, runs: Sequence[int]) -> list[Name]:
        """Name consecutive episodes, given their runs."""
        division, keys = self.division, [self._keys[run].split(BETWEEN) for run in runs]
        for run in [run for run in self._keys if run < runs[-1]]:
            del self._keys[run]
        numbered = division.each_row or not (division.keyed and division.keys)
        self.tally.assume("missing-eps-id", len(runs) if not division.each_row and (numbered or division.by_file) else 0)
        found = []
        for run, key in zip(runs, keys, strict=True):
            by_role: dict[str, list[str | None]] = {}
            for (role, _), text in zip(division.keys, key, strict=False):
                by_role.setdefault(role, []).append(None if text == NOTHING else text)
            theirs = "-".join(map(str, by_role.get(Columns.EPS_ID, [])))
            agent, module = (by_role.get(role, [None])[0] for role in (Columns.AGENT_ID, Columns.MODULE_ID))
            if numbered:
                found.append(Name(f"{self.prefix}{self._passed}", theirs if division.keys else None))
                self._passed += 1
                continue
            name = "".join([self.prefix, *(f"{number}-" for number in by_role.get("", ())), theirs])
            shared = name if agent is not None else None
            if Columns.AGENT_ID in by_role and (agent is not None or module is not None):
                name = agent_episode_id(name, module, agent)
            self._before = run, self._before[1] + 1 if self._before[0] == run else 0
            name = f"{name}-{self._before[1]}" if division.divides_keys else name
            found.append(Name(name, theirs if self.prefix and not division.by_file else None, agent, module, shared))
        return found


# ---- rows as arrays ----


def _taken(rows: Rows, which: Any) -> Rows:
    """Select rows from all arrays."""
    return {name: values[which] for name, values in rows.items()}


def _ended(rows: Rows) -> Mask:
    """(N,) Whether a row has an end flag."""
    flags = [rows[name] for name in END_FLAGS if name in rows]
    return np.asarray(np.logical_or.reduce([np.zeros(len(rows[POS]), np.bool_), *flags]))


def _same(rows: Rows) -> Mask:
    """(N-1,) Whether a row is in the same episode as the previous row."""
    return np.asarray(rows[EPISODE][1:] == rows[EPISODE][:-1])


def _latest(chosen: Mask) -> NDArray[np.int64]:
    """(N,) For each row, the last `chosen` row up to and including it; -1 if there is none."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))


def _joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows. Masks of missing cells exist only in parts with missing cells."""
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> NDArray[Any]:
        found = [part.get(name, np.zeros(len(part[POS]), np.bool_)) for part in parts]
        shape = max((one.shape[1:] for one in found), key=math.prod)  # the shape is unknown if all rows are bad
        return np.concatenate([one if one.shape[1:] == shape else np.zeros((len(one), *shape), one.dtype) for one in found])

    return {name: joined(name) for name in dict.fromkeys(name for part in parts for name in part)}


def _gaps_in(steps: NDArray[Any], episode: NDArray[np.int64], *, counted: bool) -> Mask:
    """(K,) Which differences of `t` are gaps. `steps`: (K,) the differences; `episode`: (K,) their episodes.

    If `t` is `counted` and at least half of an episode's steps are 1, all others are gaps; otherwise, steps longer than
    LONG_GAP times the episode's median.
    """
    if counted and (steps == 1).all():
        return np.zeros(len(steps), np.bool_)
    import polars as pl

    step, usual = pl.col("step"), pl.col("step").median().over("episode")
    counts = pl.lit(counted) & ((step == 1).mean().over("episode") >= 0.5)
    gaps = pl.when(counts).then(step != 1).otherwise((usual > 0) & (step > LONG_GAP * usual))
    return np.asarray(pl.DataFrame({"step": steps, "episode": episode}).select(gaps).to_series().to_numpy(), np.bool_)


# ---- episodes ----


@dataclass(slots=True)
class Assembler:
    """Assembles batches of whole episodes, for one reading of a source."""

    files: TableFiles
    reader: ValueReader
    division: Division
    mapping: TableMapping
    naming: Naming
    tally: Tally
    rejects: Rejects
    room: int  # memory limit of one episode, in bytes
    in_order: bool  # whether the rows of an episode are adjacent in the files
    declares_actions: bool
    _gone: list[int] = field(default_factory=list)  # positions of unparsable rows, and rows without an id
    _reported: int = 0  # number of unparsable rows reported
    _touched: bool = False  # whether such rows made an episode incomplete
    _said_flags: bool = False

    def episodes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Fragments]:
        """Assemble the episodes of all rows."""
        held: list[Rows] = []  # the open episode, and rows read since it was last divided
        is_open = 0  # rows of the open episode
        for batch in batches:
            self._report()
            self.tally.rows_in += batch.num_rows
            batch = self._with_keys(batch)
            if not batch.num_rows:
                continue
            held.append(self.reader.rows(batch) | {RUN: self.naming.runs(batch.column("key"))})
            if 2 * (sum(len(rows[POS]) for rows in held) - is_open) < is_open:
                continue  # wait for more rows, so that dividing again takes amortized linear time
            rows = _joined(held)
            begins = self._begins(rows)
            last = len(begins) if self.division.each_row else int(np.flatnonzero(begins)[-1])
            if last:
                yield from self._made(_taken(rows, slice(0, last)), begins[:last])
            held, is_open = [_taken(rows, slice(last, None))] if last < len(begins) else [], len(begins) - last
            for rows in held:
                self._check_length(rows)
        self._report()
        if held:
            rows = _joined(held)
            yield from self._made(rows, self._begins(rows))
        if not self.in_order:
            self.tally.assume(UNKNOWN_EPISODE, len(self._gone))
        if self.division.each_row:
            self.rejects.lose_episodes(Lost.BAD_ROW, len(self._gone))
        elif self._gone and not self._touched:
            self.rejects.lose_episodes(Lost.BAD_ROW)

    def _check_length(self, rows: Rows) -> None:
        others = (Columns.T, STARTS, *END_FLAGS, Columns.NEXT_OBS)
        written = sum(array.nbytes for name, array in rows.items() if name[:2] != "__" and name.split(".")[0] not in others)
        size = sum(array.nbytes for array in rows.values())
        if max(2 * size, WRITTEN * written) > self.room:
            key = self.naming.of_run(int(rows[RUN][0]))
            name = f"episode {key}" if key else f"the episode that begins at {self.files.place(int(rows[POS][0]))}"
            what = f"one episode takes more than {size / 1e6:,.0f} MB, too much for the memory limit"
            fix = "raise --memory-limit, or divide episodes differently: with --episode-ends, or a column of ids"
            raise MemoryLimitExceeded(what, where=name, fix=fix)

    # ---- where episodes begin ----

    def _begins(self, rows: Rows) -> Mask:
        """(N,) Whether an episode begins at a row, by keys and values; always true for the first row."""
        ends, said, count = self.division.ends, self.mapping.said, len(rows[POS])
        if self.division.each_row:
            return np.ones(count, np.bool_)
        t, goes_on = rows.get(Columns.T), rows[RUN][1:] == rows[RUN][:-1]
        if ends is not None:
            goes_on &= ~_ended(rows)[:-1]
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
            chains = chained(self._tree(rows, Columns.OBS), self._following(rows))
            for name in rows:
                if name == BAD or name.startswith(MISSING):
                    chains = chains | rows[name][1:] | rows[name][:-1]  # missing cells do not break the chain
            file = rows[POS] >> ROW_BITS
            goes_on &= chains if ends == "chain" else chains | (file[1:] == file[:-1])
        return np.concatenate([[True], ~goes_on])

    def _span(self, given: str | float) -> Any:
        """A gap or period in units of `t`: nanoseconds if `t` is a time. Numbers without a unit are seconds."""
        span, in_nanoseconds = span_of(given)
        is_time = self.reader.layout.is_time
        return span if in_nanoseconds == is_time else span * 1e9 if is_time else span / 1e9

    # ---- bad rows ----

    def _report(self) -> None:
        """Report newly found unparsable rows."""
        new = self.files.bad[self._reported :]
        self._reported += len(new)
        for one in new:
            self.rejects.add(one.error, raw=one.raw)
            self.tally.rows_in += 1
        self._gone += [(one.file << ROW_BITS) + one.row for one in new]

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Reject rows without an id; returns the others."""
        nameless = batch.column("key").is_null()
        if not batch.column("key").null_count:
            return batch
        why = f"column {self.mapping.names(Columns.EPS_ID)[0]} has no value"
        for row in np.flatnonzero(nameless.to_numpy(zero_copy_only=False)).tolist():
            self._gone.append(self.reader.reject(batch, row, why, KEY_FIX))
            self._reject(self._gone[-1])
        return batch.filter(pc.invert(nameless))

    def _reject(self, pos: int) -> None:
        wrong = self.reader.wrong.pop(pos)
        self.rejects.add(BadEpisode(wrong.why, where=self.files.place(pos), fix=wrong.fix), raw=wrong.raw)

    def _tell_losses(self, rows: Rows, names: Sequence[Name]) -> None:
        """Mark episodes as incomplete if an adjacent row was unparsable or had no id."""
        if not self._gone or self.division.each_row:
            return
        lost, pos = np.unique(self.files.numbers(self._gone), return_index=True)
        numbers, ended = self.files.numbers(rows[POS]), _ended(rows)
        order = np.argsort(numbers)
        begins, ends = np.diff(lost, prepend=-2) > 1, np.diff(lost, append=lost[-1] + 2) > 1
        for first, last, at in zip(lost[begins], lost[ends], pos[begins], strict=True):
            for beside in (first - 1, last + 1):
                found = int(np.searchsorted(numbers, beside, sorter=order))
                row = int(order[found]) if found < len(order) else -1
                if row >= 0 and numbers[row] == beside and not (beside < first and ended[row]):
                    self.rejects.lose(names[int(rows[EPISODE][row])].id, self.files.place(self._gone[at]))
                    self._touched = True

    def _without_bad(self, rows: Rows, names: Sequence[Name]) -> Rows:
        """Reject bad rows, and mark their episodes as incomplete; returns the others."""
        bad = rows[BAD]
        if not bad.any():
            return rows
        wrong, kept = _taken(rows, bad), _taken(rows, ~bad)
        left = set(kept[EPISODE].tolist())
        for pos, e in zip(wrong[POS].tolist(), wrong[EPISODE].tolist(), strict=True):
            self._reject(pos)
            if e in left:
                self.rejects.lose(names[e].id, self.files.place(pos))
        self.rejects.lose_episodes(Lost.BAD_ROW, len(set(wrong[EPISODE].tolist()) - left))
        return kept

    def _without_refused(self, rows: Rows, found: NDArray[np.int64], why: Lost, error: Callable[[int], BadEpisode]) -> Rows:
        """Reject whole episodes that contain a row in `found`. `error`: for the first such row of an episode."""
        good = np.ones(len(rows[POS]), np.bool_)
        for row in found[np.unique(rows[EPISODE][found], return_index=True)[1]].tolist():
            whole = rows[EPISODE] == rows[EPISODE][row]
            self.rejects.add(error(row), rows=int(whole.sum()))
            self.rejects.lose_episodes(why)
            good &= ~whole
        return _taken(rows, good) if len(found) else rows

    # ---- whole episodes ----

    def _made(self, rows: Rows, begins: Mask) -> Iterator[Fragments]:
        """Build the episodes that begin where `begins` is true, without rejected ones."""
        division, names = self.division, self.naming.named(rows.pop(RUN)[begins].tolist())
        rows[EPISODE] = np.cumsum(begins) - 1
        t = rows.get(Columns.T)
        if (
            t is not None and division.ends in ("flags", "chain") and not division.keyed
        ):  # unordered rows, or a missing end flag
            falls: list[int] = rows[POS][1:][(t[1:] < t[:-1]) & _same(rows)].tolist()
            self.tally.assume(T_FALLS, len(falls), places=lambda: map(self.files.place, falls))
        self._tell_losses(rows, names)
        rows = self._without_bad(self._filled(rows), names)
        if t is not None and division.keyed and not division.each_row and division.ends != "t":
            rows = self._without_ties(rows)
            if not (division.divides_keys or division.by_file):
                rows = self._without_early_ends(rows, names)
        if len(self.files.files) > 1:
            pieces = np.unique((rows[EPISODE] << ROW_BITS) + (rows[POS] >> ROW_BITS))
            self.tally.fragments_stitched += len(pieces) - len(np.unique(pieces >> ROW_BITS))
        if self.mapping.said.shift:
            rows = self._shifted(rows)
        if len(rows[POS]):
            yield self._fragments(rows, names)

    def _filled(self, rows: Rows) -> Rows:
        """Fill missing cells from the previous row of the episode; rows without one are marked bad."""
        columns = {leaf.array_of(column): column.name for leaf, column in self.reader.layout.columns}
        for mark in [name for name in rows if name.startswith(MISSING)]:
            missing, name = rows.pop(mark), mark.removeprefix(MISSING)
            source = _latest(~missing)
            found = missing & (source >= 0) & (rows[EPISODE] == rows[EPISODE][source])
            rows[name] = rows[name].copy()
            rows[name][found] = rows[name][source[found]]
            self.tally.assume(f"filled-previous:{columns[name]}", int(found.sum()))
            rows[BAD] = rows[BAD] | (missing & ~found)
            why = f"column {columns[name]} has no value in this row or any earlier row of the episode"
            for pos in rows[POS][missing & ~found].tolist():
                self.reader.wrong.setdefault(pos, WrongRow(why, UNFILLED, ""))
        return rows

    def _without_ties(self, rows: Rows) -> Rows:
        """Drop duplicate rows; reject episodes with different rows for the same `t`."""
        ties = np.flatnonzero(_same(rows) & (rows[Columns.T][1:] == rows[Columns.T][:-1]))
        if not len(ties):
            return rows
        equal = np.ones(len(ties), np.bool_)
        for mine, theirs in ((values[ties], values[ties + 1]) for name, values in rows.items() if name != POS):
            equal &= np.array(mine == theirs, np.bool_) if mine.dtype == object else equal_rows(mine, theirs)
        self.tally.assume("duplicate-row", int(equal.sum()))

        def error(row: int) -> BadEpisode:
            what = f"two different rows of one episode have t = {self._time(rows, row)}"
            where = " and ".join(self.files.place(pos) for pos in rows[POS][row : row + 2].tolist())
            return BadEpisode(what, where=where, fix=TIE_FIX, details={PROBLEM: "conflicting-episode"})

        once = np.ones(len(rows[POS]), np.bool_)
        once[ties[equal] + 1] = False
        conflicts = np.isin(rows[EPISODE], rows[EPISODE][ties[~equal]])
        self._without_refused(rows, ties[~equal], Lost.CONFLICT, error)
        return _taken(rows, once & ~conflicts)

    def _without_early_ends(self, rows: Rows, names: Sequence[Name]) -> Rows:
        """Reject episodes that continue after an end flag, if `t` gives their order."""

        def error(row: int) -> BadEpisode:
            name, at, after = names[int(rows[EPISODE][row])], self._time(rows, row), self._time(rows, row + 1)
            what = f"episode {name.theirs or name.id} has an end flag at t = {at} and continues at t = {after}"
            where = self.files.place(int(rows[POS][row]))
            return BadEpisode(what, where=where, fix=END_FIX, details={PROBLEM: "steps-after-end"})

        return self._without_refused(rows, np.flatnonzero(_ended(rows)[:-1] & _same(rows)), Lost.STEPS_AFTER_END, error)

    def _time(self, rows: Rows, row: int) -> str:
        """`t` of a row, for messages."""
        t = rows[Columns.T][row]
        is_time = self.reader.layout.is_time
        return str(np.datetime64(int(t), "ns")).rstrip("0").rstrip(".").replace("T", " ") if is_time else str(t)

    def _shifted(self, rows: Rows) -> Rows:
        """Convert rows whose action led to their observation: a step takes action and next observation from the next row."""
        led = np.flatnonzero(_same(rows)) + 1
        self.tally.assume("zero-length-episode", len(np.unique(rows[EPISODE])) - len(np.unique(rows[EPISODE][led])))
        obs = [leaf.array_of(column) for leaf in self.reader.layout.of(Columns.OBS) for column in leaf.columns]
        of_row = {*obs, Columns.T, POS, EPISODE}
        made = {name: values[led - 1] if name in of_row else values[led] for name, values in rows.items()}
        return made | {f"{NEXT}{name}": rows[name][led] for name in obs}

    # ---- batches ----

    def _fragments(self, rows: Rows, names: Sequence[Name]) -> Fragments:
        layout, count = self.reader.layout, len(rows[POS])
        flags: dict[str, NDArray[Any]] = {name: rows[name] for name in END_FLAGS if name in rows}
        if not flags and not self._said_flags:
            self._said_flags = True
            self.tally.assume("missing-end-flags")
        terminateds, truncateds = end_flags(flags, count, self.tally)
        first = np.concatenate([[True], ~_same(rows)])
        code, mine = np.cumsum(first) - 1, [names[e] for e in rows[EPISODE][first].tolist()]
        ids, theirs, agents, modules, shared = (tuple(one) for one in zip(*mine, strict=True))
        if Columns.REWARDS not in rows:
            self.tally.assume(MISSING_REWARDS, count)
        infos = rows.get(Columns.INFOS)
        steps = SourceRows(
            keys=Keys(code, ids, agents, modules, shared if any(shared) else None),
            obs=self._tree(rows, Columns.OBS),
            next_obs=self._next_obs(rows),
            actions=self._actions(rows),
            rewards=rows.get(Columns.REWARDS, np.zeros(count)),
            terminateds=terminateds,
            truncateds=truncateds,
            t=None,
            extra={".".join(leaf.part.path): leaf.values(rows) for leaf in layout.of(EXTRA)},
            infos=None if infos is None or not any(infos) else infos.tolist(),
            reset_infos=None,
            file=np.zeros(count, np.int64),
            where=lambda row: self.files.place(int(rows[POS][row])),
        )
        batch, begun = fragments_of_rows(steps, self.tally, lost=self.rejects.incomplete)
        if Columns.T in rows:
            inside = ~first[1:]
            counted = rows[Columns.T].dtype.kind in "iu" and not layout.is_time
            gaps = np.flatnonzero(inside)[_gaps_in(np.diff(rows[Columns.T])[inside], code[1:][inside], counted=counted)] + 1
            self._assume_at("gap-in-t", rows, [(row, ids[int(code[row])]) for row in gaps.tolist()])
        is_ended, last = batch.terminated | batch.truncated, np.append(begun[1:], count) - 1
        self._assume_at(UNFINISHED, rows, [(int(last[e]), batch.ids[e]) for e in np.flatnonzero(~is_ended).tolist()])
        custom = tuple({Columns.SOURCE_ID: theirs[c]} for c in code[begun].tolist()) if theirs[0] is not None else None
        file, row = rows[POS] >> ROW_BITS, rows[POS] & ((1 << ROW_BITS) - 1)
        origins = Origins.of_rows(tuple(one.url for one in self.files.files), file, row, begun, tuple(self.files.lines))
        return Fragments(replace(batch, truncated=batch.truncated | ~is_ended, t_started=None, custom_data=custom), origins)

    def _assume_at(self, kind: str, rows: Rows, found: Iterable[tuple[int, str]]) -> None:
        """Count an assumption at rows, each with its episode's id; incomplete episodes are not counted."""
        counted = [one for one in found if one[1] not in self.rejects.incomplete]

        def places() -> Iterator[EpisodePlace]:
            for row, name in counted:
                yield EpisodePlace(f"{self.files.place(int(rows[POS][row]))}, episode {name}", name)

        self.tally.assume(kind, len(counted), places=places)

    def _tree(self, rows: Rows, role: str, prefix: str = "") -> Tree:
        leaves = {".".join(leaf.part.path): leaf.values(rows, prefix) for leaf in self.reader.layout.of(role)}
        return leaves[""] if "" in leaves else tree_of_names(leaves, ".")

    def _actions(self, rows: Rows) -> Tree:
        """Actions. One-element integer lists become discrete choices, unless a space is declared."""
        is_vector = self.declares_actions or any(leaf.part.stacked for leaf in self.reader.layout.of(Columns.ACTIONS))
        return self._tree(rows, Columns.ACTIONS) if is_vector else choices(self._tree(rows, Columns.ACTIONS))

    def _next_obs(self, rows: Rows) -> Tree | None:
        if self.mapping.said.shift:
            return self._tree(rows, Columns.OBS, NEXT)
        return self._following(rows) if self.reader.layout.of(Columns.NEXT_OBS) else None

    def _following(self, rows: Rows) -> Tree:
        """The mapped next observations. Raises BadEpisode if their shapes are not those of `obs`."""
        obs, found = dict(flatten(self._tree(rows, Columns.OBS))), self._tree(rows, Columns.NEXT_OBS)
        for path, leaf in flatten(found):
            mine, theirs = leaf.shape[1:], obs[path].shape[1:] if path in obs else None
            if mine != theirs:
                what = f"new_obs has shape {list(mine)}, but obs has {'no such part' if theirs is None else list(theirs)}"
                fix = "map new_obs to columns that hold the same values as obs, one step later"
                raise BadEpisode(what, where=self.files.files[0].url, fix=fix)
        return found
