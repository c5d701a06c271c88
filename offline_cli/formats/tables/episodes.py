"""Ordered rows as whole episodes: batches of a query as arrays, where one episode ends and the next begins, and their names.

Whatever divides the rows (ids, files, end flags, start flags, `t`, the chain of observations, gaps and periods of time) is one
array of booleans here: whether an episode begins at a row. Only the last, open episode is held. A bad row stays in the stream
until its episode is known, which is then set aside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, BadEpisode, MemoryLimitExceeded
from offline_cli.formats.action_shapes import choices
from offline_cli.formats.arrow_leaves import infos_of
from offline_cli.formats.memory_limits import WRITTEN
from offline_cli.formats.source import Fragments, Origins
from offline_cli.formats.step_rows import (
    END_FLAGS,
    Keys,
    StepRows,
    agent_episode_id,
    chained,
    end_flags,
    equal_rows,
    fragments_of_rows,
)
from offline_cli.formats.tables.columns import SCALARS, ColumnPlan, Layout, Leaf, hint_for_cells
from offline_cli.formats.tables.files import POS, TableFiles, is_list
from offline_cli.formats.tables.images import image_counts, images_in, why_no_image
from offline_cli.formats.tables.mapping import EXTRA, FILLED_ROLES, MEAN, PREVIOUS, STARTS, TableMapping
from offline_cli.tally import MISSING_REWARDS, T_FALLS, UNFINISHED, EpisodePlace, Lost, OnError, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["Assembler", "Divided", "ValueReader"]

RUN, NUMBER, BEGIN, BAD, GAP_ROW = "__run", "__number", "__begin", "__bad", "__gap"
UNKNOWN_EPISODE: Final = "bad-row-of-unknown-episode"  # the assumption that it belonged to an episode beside it
LONG_GAP: Final = 10  # times the median step of an episode, from which on a step is a gap in a `t` that is no counter
PART: Final = re.compile(r"-gap[0-9]+$", re.ASCII)  # the end of the id of a part
SHOWN: Final = 60  # letters of an offending value
FIX: Final = "correct the value, leave the column out of the mapping, or --on-error skip to leave out the episode"
MISSING: Final = "[fill] or split_at_gaps in the mapping (docs/tables.md), or --on-error skip to leave out the episode"
UNFILLED: Final = "fill it with zero, mean or a number; split_at_gaps = true; or --on-error skip to leave out the episode"

Shape = tuple[int, ...]
Rows = dict[str, NDArray[Any]]  # arrays (N, ...) by leaf, and by the names above


# ---- batches as arrays ----


@dataclass(slots=True)
class ValueReader:
    """Batches of the query of `source.py` as arrays; bad rows are marked, and their reasons kept by position."""

    files: TableFiles
    layout: Layout
    tally: Tally
    means: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)  # of one value, by leaf and column
    reasons: dict[int, tuple[str, bool]] = field(default_factory=dict)  # of bad rows by position; whether a cell is missing

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """(N, ...) arrays of all leaves."""
        pos = np.asarray(batch.column(POS).to_numpy(), np.int64)
        rows: Rows = {POS: pos, BAD: np.zeros(len(pos), np.bool_)}
        if self.layout.split_at_gaps:
            rows[GAP_ROW] = np.zeros(len(pos), np.bool_)
        number = 0
        for leaf in self.layout.leaves:
            parts = []
            for i in range(len(leaf.columns)):
                parts.append(self._part(leaf, i, batch, number, rows))
                number += 1
            rows[leaf.name] = self._joined(leaf, parts)
        if self.layout.infos is not None:
            rows[Columns.INFOS] = np.array(batch.column(Columns.INFOS).to_pylist(), object)
        return rows

    def _joined(self, leaf: Leaf, parts: list[NDArray[Any]]) -> NDArray[Any]:
        if leaf.role in (*END_FLAGS, STARTS):
            return parts[0].astype(np.bool_, copy=False)
        if not leaf.stacked:
            values = parts[0].astype(leaf.dtype, copy=False)
            return -values if leaf.is_cost else values
        widths = [part.shape[1] if part.ndim > 1 else 1 for part in parts]
        stacked = np.empty((len(parts[0]), sum(widths)), leaf.dtype)
        for part, width, stop in zip(parts, widths, np.cumsum(widths).tolist(), strict=True):
            stacked[:, stop - width : stop] = part.reshape(len(part), width)
        return stacked

    def _part(self, leaf: Leaf, i: int, batch: pa.RecordBatch, number: int, rows: Rows) -> NDArray[Any]:
        plan, column = leaf.columns[i], batch.column(f"v{number}")
        raw = batch.column(f"r{number}") if f"r{number}" in batch.schema.names else None
        key, scalar = f"{leaf.name} {plan.column}", leaf.role in (*SCALARS, Columns.T)
        shape = self.shapes.get(key)
        if plan.image:
            values, bad = images_in(pa.chunked_array([column]), plan.image, shape)
            for kind, count in image_counts(pa.chunked_array([column]), plan.column).items():
                self.tally.assume(kind, count)
        else:
            values, bad = array_of(column, None, shape)
        if plan.column in self.files.shapes and values.ndim == 2:
            values = values.reshape(len(values), *self.files.shapes[plan.column])
        if raw is not None and plan.cells not in ("category", "time", "microseconds") and self.files.kind != "csv":
            self.tally.assume(f"numbers-as-text:{plan.column}", len(column) - column.null_count)
        is_filled = plan.fill is not None or self.layout.splits_at(leaf)
        has_text = np.zeros(len(values), np.bool_) if raw is None else raw.is_valid().to_numpy(zero_copy_only=False)
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False)) & ~has_text
        if is_filled and values.ndim == 1 and values.dtype.kind == "f" and (plan.fill is not None or leaf.role != EXTRA):
            missing = missing | (np.isnan(values) & ~has_text)
        bad = missing | (False if bad is None else bad)
        if shape is None and (not bad.all() or not plan.vectors):
            self._check_shape(leaf, plan, values.shape[1:], scalar=scalar, where=self.files.place(int(rows[POS][0])))
            self.shapes[key] = values.shape[1:]
        if shape is None and bad.all() and plan.vectors and is_filled:
            self.shapes[key] = values.shape[1:]
        if scalar and values.ndim > 1:
            values = values.reshape(len(values))  # lists of one
        if leaf.role == Columns.T and values.dtype.kind == "f":
            bad = bad | np.isnan(values)
        if leaf.role in (*END_FLAGS, STARTS):
            if values.dtype.kind == "f":
                nan = np.isnan(values)
                self.tally.assume("null-as-false", int((nan & ~missing).sum()))
                values = np.where(nan, 0, values)
            if values.dtype.kind != "b":
                bad = bad | ((values != 0) & (values != 1))  # 2 may be a code, -1 missing
        if bad.any():
            values = self._note(leaf, i, column, raw, values, bad, missing, rows)
        for row in () if leaf.role in (*END_FLAGS, STARTS) else lost_in(values, leaf.dtype):
            said = "" if leaf.role == Columns.T else " of [dtypes]"
            self._reject(
                rows, row, f"column {plan.column} holds {values[row]}, which {leaf.dtype}{said} cannot hold", is_missing=False
            )
        return values

    def _note(
        self,
        leaf: Leaf,
        i: int,
        column: pa.Array,
        raw: pa.Array | None,
        values: NDArray[Any],
        bad: NDArray[np.bool_],
        missing: NDArray[np.bool_],
        rows: Rows,
    ) -> NDArray[Any]:
        """Rows without a value: of flags false, of extra outputs NaN, all others as the mapping says, each counted; or bad."""
        plan = leaf.columns[i]
        gone = bad & missing
        if plan.fill is not None:
            values = self._filled(leaf, i, values, gone, rows)
        elif leaf.role in (*END_FLAGS, STARTS):
            self.tally.assume("null-as-false", int(gone.sum()))
        elif leaf.role == EXTRA and values.ndim == 1 and not plan.vectors and leaf.dtype.kind == "f":
            self.tally.assume("null-as-nan", int(gone.sum()))
            values = values.astype(leaf.dtype)
            values[gone] = np.nan
        elif self.layout.splits_at(leaf):
            rows[GAP_ROW][gone] = True
        else:
            gone = np.zeros_like(gone)
        for row in np.flatnonzero(bad & ~gone).tolist():
            text = None if raw is None else raw[row].as_py()
            value = text if text is not None else column[row].as_py()
            why = self._why(value, plan, values.shape[1:])
            self._reject(rows, row, why, is_missing=bool(missing[row]) and leaf.role in FILLED_ROLES)
        return values

    def _filled(self, leaf: Leaf, i: int, values: NDArray[Any], gone: NDArray[np.bool_], rows: Rows) -> NDArray[Any]:
        plan = leaf.columns[i]
        if plan.fill == PREVIOUS:
            rows[mark_of(leaf, i)] = gone
        else:
            how = plan.fill if isinstance(plan.fill, str) else "number"
            self.tally.assume(f"filled-{how}:{plan.column}", int(gone.sum()))
        value: Any = self.means.get(plan.column) if plan.fill == MEAN else 0 if isinstance(plan.fill, str) else plan.fill
        kind = np.result_type(values.dtype, np.float64) if isinstance(value, float | np.ndarray) else values.dtype
        made = values.astype(kind if values.dtype.kind != "f" else values.dtype)
        made[gone] = value
        return made

    def _reject(self, rows: Rows, row: int, why: str, *, is_missing: bool) -> None:
        rows[BAD][row] = True
        self.reasons.setdefault(int(rows[POS][row]), (why, is_missing))

    def _check_shape(self, leaf: Leaf, plan: ColumnPlan, shape: Shape, *, scalar: bool, where: str) -> None:
        what = ""
        if scalar and shape not in ((), (1,)):
            what = f"column {plan.column} holds {list(shape)} values per row, and {leaf.name} is one number"
        elif leaf.stacked and len(shape) > 1:
            what = f"column {plan.column} holds arrays of shape {list(shape)}, and only numbers and vectors are stacked"
        elif 0 in shape:
            what = f"column {plan.column} holds empty lists"
        if what:
            raise BadEpisode(what, where=where, fix="name another column in the mapping")

    def shape(self, leaf: Leaf) -> Shape | None:
        """Of one value of a leaf that is not stacked, once a row was read."""
        return self.shapes.get(f"{leaf.name} {leaf.columns[0].column}")

    def _why(self, value: Any, plan: ColumnPlan, shape: Shape) -> str:
        name = f"column {plan.column}"
        if value is None:
            return f"{name} has no value"
        if plan.image:
            why = why_no_image(value, plan.image, shape) if isinstance(value, bytes) else "no bytes"
            return f"{name} holds {why or 'an image that is damaged'}"
        text = repr(value) if len(repr(value)) <= SHOWN else f"{repr(value)[:SHOWN]}..."
        if plan.cells == "category":
            return f"{name} holds {text}, which is none of its [categories]"
        if isinstance(value, str) and plan.cells == "list":
            if value.strip().startswith("[") and len(value.replace(",", " ").split()) > 1 and "," not in value:
                return f"{name} holds {text}, as numpy prints it: write JSON (json.dumps(x.tolist())), or lists in Parquet"
            if not value.strip().startswith("["):
                return f"{name} holds {text}, not a JSON list"
        elif isinstance(value, str) or (not shape and plan.dtype.kind == "b"):
            wanted = "true or false" if plan.cells == "bool" else "a number"
            if plan.dtype.kind == "b" and plan.cells != "bool":
                wanted = "a flag: 0 or 1, true or false, yes or no"
            if plan.cells in ("time", "microseconds"):
                wanted = "a time of 1678 to 2261" if plan.cells == "time" else "a time"
            hint = hint_for_cells(plan.column, [value]) if isinstance(value, str) and plan.dtype.kind != "b" else ""
            return f"{name} holds {text}, not {wanted}{hint and '; '}{hint}"
        words = "a number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {list(shape)}"
        return f"{name} holds {text}, not {words} as in other rows"


def mark_of(leaf: Leaf, i: int) -> str:
    """The name of the array that marks missing cells, to be filled, of one of the leaf's columns."""
    return f"__missing {i} {leaf.name}"


def array_of(
    array: pa.Array, dtype: np.dtype[Any] | None, shape: Shape | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """(N, *shape) values with 0 in rows that are bad, and (N,) the mask of these; `shape`: None: that of most rows."""
    if is_list(array.type):
        values, bad = _lists(array, shape)
    elif shape:  # numbers where vectors are wanted
        return np.zeros((len(array), *shape)), np.ones(len(array), np.bool_)
    else:
        bad = None
        if array.null_count:
            bad = np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)
            array = (
                array.fill_null(False if pa.types.is_boolean(array.type) else 0) if not pa.types.is_null(array.type) else array
            )
        values = np.zeros(len(array)) if pa.types.is_null(array.type) else np.asarray(array.to_numpy(zero_copy_only=False))
    if shape is not None and values.shape[1:] != shape:
        return np.zeros((len(array), *shape), values.dtype), np.ones(len(array), np.bool_)
    return values, bad


def _lists(array: pa.Array, shape: Shape | None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size)
        if array.null_count:
            lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    else:
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    known = lengths[lengths >= 0]
    size = shape[0] if shape else int(np.bincount(known).argmax()) if len(known) else 0
    bad = np.asarray(lengths != size)
    kept = array.filter(pa.array(~bad)) if bad.any() else array
    inner, inner_bad = array_of(kept.flatten(), None, None if shape is None else shape[1:])
    values = inner.reshape(len(kept), size, *inner.shape[1:])
    of_kept = None if inner_bad is None else np.asarray(inner_bad.reshape(len(kept), size).any(axis=1))
    if not bad.any():
        return values, of_kept
    whole = np.zeros((len(array), *values.shape[1:]), values.dtype)
    whole[~bad] = values
    if of_kept is not None:
        bad[np.flatnonzero(~bad)[of_kept]] = True
    return whole, bad


def lost_in(values: NDArray[Any], dtype: np.dtype[Any]) -> list[int]:
    """Rows of `values` (N, ...) that `dtype` cannot hold; floats are rounded."""
    if dtype.kind == "f" or np.can_cast(values.dtype, dtype):
        return []
    with np.errstate(invalid="ignore"):
        lost = values.astype(dtype) != values
    return np.flatnonzero(lost.reshape(len(lost), -1).any(axis=1)).tolist()


# ---- rows as episodes ----


@dataclass(frozen=True, slots=True)
class Divided:
    """What divides ordered rows into episodes."""

    keyed: bool  # rows of one key are together, in the order of `t` where there is one
    ends: str | None  # flags | t | chain; None: nothing of the three
    each_row: bool = False  # every row is an episode
    per_file: bool = False  # files number their episodes by themselves
    has_agents: bool = False
    ids: int = 0  # columns of the id
    by_file: bool = False  # the id is that of a file or folder, which has no name of its own in the table


@dataclass(slots=True)
class Assembler:
    """Makes batches of whole episodes of one reading of a source."""

    files: TableFiles
    reader: ValueReader
    divided: Divided
    mapping: TableMapping
    prefix: str  # of ids, with its hyphen; "": they stay as they are
    tally: Tally
    rejects: Rejects
    room: int  # bytes that one episode may take
    declares_actions: bool = False
    lost_keys: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # good rows without an id
    in_order: bool = True  # whether the rows of an episode stand together in the files
    _pending: list[Rows] = field(default_factory=list)
    _carry: Rows | None = None  # the last row that was read
    _carry_key: tuple[Any, ...] = ()
    _run: int = 0
    _number: int = 0
    _keys: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # of runs that are held
    _passed: int = 0  # episodes made, of tables without ids
    _reported: int = 0  # bad rows of files that were reported
    _held: int = 0
    _beside: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    _touched: int = 0  # bad rows of files that cost an episode
    _said_flags: bool = False
    _parts: set[str] = field(default_factory=set)
    _like_parts: set[str] = field(default_factory=set)

    def episodes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Fragments]:
        """The episodes of all rows."""
        self._report()
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = self.reader.rows(batch)
            self._report()
            self.tally.rows_in += batch.num_rows
            self._divide(rows, batch)
            begins = np.flatnonzero(rows[BEGIN])
            last = int(begins[-1]) if len(begins) else -1
            if self.divided.each_row:
                last = batch.num_rows
            if last > 0 or (last == 0 and self._pending):
                done = [*self._pending, taken(rows, slice(0, last))]
                self._pending, self._held = [], 0
                yield from self._made(done)
            if last < batch.num_rows:
                self._pending.append(taken(rows, slice(max(0, last), None)))
                self._check_length()
        self._report()
        if self._pending:
            yield from self._made(self._pending)
        self._finish()

    def _check_length(self) -> None:
        self._held += max(
            2 * sum(one.nbytes for one in self._pending[-1].values()), WRITTEN * self._kept_bytes(self._pending[-1])
        )
        if self._held > self.room:
            first = self._pending[0]
            key = self._keys.get(int(first[RUN][0]))
            name = (
                f"episode {'-'.join(map(str, key))}"
                if key and self.divided.keyed
                else f"the episode that begins at {self.files.place(int(first[POS][0]))}"
            )
            size = sum(array.nbytes for rows in self._pending for array in rows.values())
            what = f"the rows of one episode take more than {size / 1e6:,.0f} MB, which is too much for the memory limit"
            fix = "raise --memory-limit, or choose another end of episodes: --episode-ends, or a column of ids in the mapping"
            raise MemoryLimitExceeded(what, where=name, fix=fix)

    def _kept_bytes(self, rows: Rows) -> int:
        roles = {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, EXTRA}
        return sum(rows[leaf.name].nbytes for leaf in self.reader.layout.leaves if leaf.role in roles)

    # ---- where episodes begin ----

    def _divide(self, rows: Rows, batch: pa.RecordBatch) -> None:
        """Add the arrays `RUN` (number of the key), `BEGIN` and `NUMBER` (of the episode among those of its key)."""
        count, same = batch.num_rows, self._same_key(batch)
        rows[RUN] = self._run + np.cumsum(~same)
        self._run = int(rows[RUN][-1])
        looked_at = {name: values for name, values in rows.items() if name in self._dividing}
        looked_at |= {name: values for name, values in rows.items() if name.startswith("__missing")}
        goes_on = self._goes_on(looked_at if self._carry is None else _concat([self._carry, looked_at]))
        goes_on = np.concatenate([[False], goes_on]) if self._carry is None else goes_on
        begin = ~(goes_on & same)
        if self.divided.each_row:
            begin[:] = True
        rows[BEGIN] = begin
        order = np.cumsum(begin)
        first = np.maximum.accumulate(np.where(~same, np.arange(count), -1))
        base = np.where(first >= 0, order[np.maximum(first, 0)], -self._number)
        rows[NUMBER] = order - base
        self._number = int(rows[NUMBER][-1])
        self._carry = taken(looked_at, slice(count - 1, None))

    @property
    def _dividing(self) -> set[str]:
        """The arrays that `_goes_on` looks at."""
        names = {POS, BAD, GAP_ROW, Columns.T, STARTS, *END_FLAGS}
        if self.divided.ends in ("chain", "flags"):
            names |= {leaf.name for leaf in self.reader.layout.leaves if leaf.role in (Columns.OBS, Columns.NEXT_OBS)}
        return names

    def _same_key(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """(N,) whether a row has the key of the row before; the keys of new runs are kept by number."""
        names = [name for name in batch.schema.names if name[0] == "e" and name[1:].isdigit()]
        same = np.ones(batch.num_rows, np.bool_)
        columns = [batch.column(name) for name in names]
        for column in columns:
            if column.null_count:
                column = column.dictionary_encode(null_encoding="encode").indices
            same[1:] &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        head = tuple(column[0].as_py() for column in columns)
        same[0] = self._carry is not None and head == self._carry_key
        begins = np.flatnonzero(~same)
        if columns and len(begins):
            heads = zip(*(column.take(pa.array(begins)).to_pylist() for column in columns), strict=True)
            self._keys |= dict(enumerate(heads, self._run + 1))
        self._carry_key = tuple(column[batch.num_rows - 1].as_py() for column in columns)
        return same

    def _goes_on(self, rows: Rows) -> NDArray[np.bool_]:
        """(N-1,) whether a row is of the same episode as the one before it, as far as values say."""
        divided, mapping, t = self.divided, self.mapping, rows.get(Columns.T)
        count = len(rows[POS])
        flags = [rows[name] for name in END_FLAGS if name in rows]
        ended = np.logical_or.reduce([np.zeros(count, np.bool_), *flags])
        goes_on = np.ones(count - 1, np.bool_)
        ends = divided.ends
        if ends is not None:
            goes_on &= ~ended[:-1]
        if STARTS in rows:
            goes_on &= ~rows[STARTS][1:]
        if t is not None and mapping.gap is not None:
            goes_on &= ~(t[1:] - t[:-1] > self._span(mapping.gap))
        if t is not None and mapping.period is not None:
            span = np.floor_divide(t, self._span(mapping.period))
            goes_on &= span[1:] == span[:-1]
        if ends == "t" and t is not None:
            goes_on &= t[1:] > t[:-1]
        if ends in ("chain", "flags") and self.reader.layout.of(Columns.NEXT_OBS):
            chains = chained(self._tree(rows, Columns.OBS), self._tree(rows, Columns.NEXT_OBS))
            for name in rows:
                if name in (BAD, GAP_ROW) or name.startswith("__missing"):
                    chains = chains | rows[name][1:] | rows[name][:-1]  # a missing cell breaks none
            file = self.files.at(rows[POS])[0]
            goes_on &= chains if ends == "chain" else chains | (file[1:] == file[:-1])
        if ends is not None and ends != "t" and t is not None and not divided.keyed:
            falls = np.flatnonzero(goes_on & (t[1:] < t[:-1])) + 1
            self.tally.assume(T_FALLS, len(falls), places=lambda: (self.files.place(int(rows[POS][row])) for row in falls))
        return goes_on

    def _span(self, given: tuple[float, bool]) -> Any:
        """Of a gap or period, in the units of `t`."""
        span, in_nanoseconds = given
        is_time = self.reader.layout.of(Columns.T)[0].columns[0].cells == "time"
        if in_nanoseconds and not is_time:
            return span / 1e9  # numbers are seconds
        return span if in_nanoseconds or not is_time else span * 1e9

    # ---- bad rows ----

    def _report(self) -> None:
        """Pass on the rows that no parser could read, and those without an id."""
        new = self.files.bad[self._reported :]
        self._reported += len(new)
        for one in new:
            self.rejects.add(one.error, raw=one.raw)
            self.tally.rows_in += 1
            self._beside = None

    def _lost_beside(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the good rows before and after each row of unknown episode, sorted."""
        if self._beside is None:
            after = [pos for _, pos in self.files.beside()] + self.lost_keys.tolist()
            gone = set(self.lost_keys.tolist())
            befores, afters = [], []
            for pos in after:
                before, pos = pos - 1, pos
                while before in gone:
                    before -= 1
                while pos in gone:
                    pos += 1
                befores.append(before)
                afters.append(pos)
            self._beside = np.array(befores, np.int64), np.array(afters, np.int64)
        return self._beside

    def _tell_losses(self, rows: Rows, episode: NDArray[np.int64], names: Sequence[str]) -> None:
        """Which episodes lost a row that has no columns, or no id: those of the rows beside it."""
        if not (self.files.bad or len(self.lost_keys)) or self.divided.each_row:
            return
        flags = [rows[name] for name in END_FLAGS if name in rows]
        ended = np.logical_or.reduce([np.zeros(len(rows[POS]), np.bool_), *flags])
        before, after = self._lost_beside()
        places = [one.error.where for one, _ in self.files.beside()] + [self.files.place(int(pos)) for pos in self.lost_keys]
        order = np.argsort(rows[POS])
        for beside, ends in ((before, True), (after, False)):
            at = np.searchsorted(rows[POS], beside, sorter=order)
            for loss in np.flatnonzero((at < len(order)) & (beside >= 0)).tolist():
                row = int(order[at[loss]])
                if rows[POS][row] == beside[loss] and not (ends and ended[row]):
                    self.rejects.lose(names[int(episode[row])], places[loss])
                    self._touched += 1

    def _finish(self) -> None:
        count = len(self.files.bad) + len(self.lost_keys)
        if not self.in_order:
            self.tally.assume(UNKNOWN_EPISODE, count)
        if self.divided.each_row:
            self.rejects.lose_episodes(Lost.BAD_ROW, count)
        elif count and not self._touched:
            self.rejects.lose_episodes(Lost.BAD_ROW)

    def _without_bad(self, rows: Rows, episode: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.bool_]:
        """(N,) the rows that are whole; what is wrong with others goes to the rejects, and costs their episode."""
        bad = rows[BAD]
        if not bad.any():
            return ~bad
        left = set(episode[~bad].tolist())
        for row in np.flatnonzero(bad).tolist():
            place = self.files.place(int(rows[POS][row]))
            why, is_missing = self.reader.reasons.pop(int(rows[POS][row]), ("the row is bad", False))
            self.rejects.add(BadEpisode(why, where=place, fix=MISSING if is_missing else FIX), raw=self._raw(rows, row))
            if int(episode[row]) in left:
                self.rejects.lose(names[int(episode[row])], place)
        self.rejects.lose_episodes(Lost.BAD_ROW, len(set(episode[bad].tolist()) - left))
        return ~bad

    def trees(self, rows: Rows) -> Iterator[tuple[Tree, Tree]]:
        """Observations, next ones too, with the actions."""
        actions = self._tree(rows, Columns.ACTIONS)
        if not self.declares_actions and not any(leaf.stacked for leaf in self.reader.layout.of(Columns.ACTIONS)):
            actions = choices(actions)
        yield self._tree(rows, Columns.OBS), actions
        if self.reader.layout.of(Columns.NEXT_OBS):
            yield self._tree(rows, Columns.NEXT_OBS), actions

    def raw_of(self, pos: int) -> str:
        """A row as JSON text, where rejected rows are kept."""
        said = self.files.raw_row(pos) if self.rejects.on_error is OnError.QUARANTINE else None
        return "" if said is None else json.dumps(said, default=str)

    def _raw(self, rows: Rows, row: int) -> str:
        if self.rejects.on_error is not OnError.QUARANTINE:
            return ""
        said = self.files.raw_row(int(rows[POS][row]))
        if said is None:
            said = {
                name: rows[name][row].tolist() if hasattr(rows[name][row], "tolist") else rows[name][row]
                for name in rows
                if name[:2] != "__"
            }
        return json.dumps(said, default=str)

    # ---- whole episodes ----

    def _made(self, parts: list[Rows]) -> Iterator[Fragments]:
        rows = _concat([part for part in parts if len(part[POS])])
        rows[BEGIN][0] = True
        episode = np.cumsum(rows[BEGIN]) - 1
        first = np.flatnonzero(rows[BEGIN])
        named = self._named(rows, first)
        for run in range(min(self._keys, default=0), int(rows[RUN][-1])):
            self._keys.pop(run, None)
        self._tell_losses(rows, episode, named.ids)
        kept = self._without_bad(rows, episode, named.ids)
        rows, episode = (rows, episode) if kept.all() else (taken(rows, kept), episode[kept])
        if not self.divided.each_row and self.divided.keyed and self.divided.ends != "t" and Columns.T in rows:
            rows, episode = self._without_ties(rows, episode)
            if self.divided.ends is None:
                rows, episode = self._without_early_ends(rows, episode, named)
        if len(rows[POS]):
            self._count_files(rows, episode)
            made = self._batch(rows, episode, named)
            if made is not None:
                yield made

    def _count_files(self, rows: Rows, episode: NDArray[np.int64]) -> None:
        file = self.files.at(rows[POS])[0]
        if (file != file[0]).any():
            pairs = np.unique(episode * (int(file.max()) + 1) + file)
            self.tally.fragments_stitched += len(pairs) - len(np.unique(episode))

    def _named(self, rows: Rows, first: NDArray[np.int64]) -> Named:
        divided = self.divided
        numbers = range(self._passed, self._passed + len(first))
        if not divided.keyed or not self._keys or divided.each_row:
            self._passed += len(first)
            theirs = None
            if divided.each_row and self._keys and divided.ids:
                theirs = ["-".join(map(str, self._keys[int(run)][: divided.ids])) for run in rows[RUN][first]]
            if not divided.each_row:
                self.tally.assume("missing-eps-id", len(first))
            return Named([f"{self.prefix}{number}" for number in numbers], theirs)
        keys = [self._keys[int(run)] for run in rows[RUN][first]]
        texts = ["-".join(map(str, key[: divided.ids])) for key in keys]
        stems = [f"{key[-1]}-{text}" for key, text in zip(keys, texts, strict=True)] if divided.per_file else texts
        names = [f"{self.prefix}{stem}" for stem in stems]
        agents = modules = shared = None
        if not divided.has_agents and self._has_modules:
            modules = [None if key[divided.ids] is None else str(key[divided.ids]) for key in keys]
        if divided.has_agents:
            agents = [None if key[divided.ids] is None else str(key[divided.ids]) for key in keys]
            modules = (
                [None if key[divided.ids + 1] is None else str(key[divided.ids + 1]) for key in keys]
                if self._has_modules
                else None
            )
            shared = [None if agent is None else name for agent, name in zip(agents, names, strict=True)]
            pairs = zip(names, agents, modules or [None] * len(names), strict=True)
            names = [
                name if agent is None and module is None else agent_episode_id(name, module, agent)
                for name, agent, module in pairs
            ]
        if divided.ends is not None or self._divides_more:
            names = [f"{name}-{number}" for name, number in zip(names, rows[NUMBER][first].tolist(), strict=True)]
        if divided.by_file:
            self.tally.assume("missing-eps-id", len(first))
        return Named(names, texts if self.prefix and not divided.by_file else None, agents, modules, shared)

    @property
    def _has_modules(self) -> bool:
        return any(role == Columns.MODULE_ID for role, _ in self.reader.layout.keys)

    @property
    def _divides_more(self) -> bool:
        return self.mapping.gap is not None or self.mapping.period is not None or bool(self.mapping.of(STARTS))

    def _without_ties(self, rows: Rows, episode: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
        """Each `t` of an episode once: equal rows are one, and an episode with rows for one `t` that differ is a bad one."""
        t = rows[Columns.T]
        ties = np.flatnonzero((episode[1:] == episode[:-1]) & (t[1:] == t[:-1]))
        if not len(ties):
            return rows, episode
        equal = np.ones(len(ties), np.bool_)
        for name, values in rows.items():
            if name not in (POS, RUN, NUMBER, BEGIN):
                mine, theirs = values[ties], values[ties + 1]
                equal &= np.array(mine == theirs, np.bool_) if values.dtype == object else equal_rows(mine, theirs)
        kept = np.ones(len(t), np.bool_)
        kept[ties[equal] + 1] = False
        self.tally.assume("duplicate-row", int(equal.sum()))
        for tie in dict(zip(episode[ties[~equal]][::-1].tolist(), ties[~equal][::-1].tolist(), strict=True)).values():
            whole = episode == episode[tie]
            one, other = (self.files.place(int(rows[POS][row])) for row in (tie, tie + 1))
            what = f"two different rows of one episode have t = {self._t_text(rows, tie)}"
            fix = (
                "if several episodes share an id, set in the mapping `ids_per_file = true` where each file numbers them"
                ' anew, `episode_ends = "t"` where t begins anew, or `agent_id` where rows are of several agents; else correct'
                " t, or leave it out where rows are in order"
            )
            error = BadEpisode(what, where=f"{one} and {other}", fix=fix, details={PROBLEM: "conflicting-episode"})
            self.rejects.add(error, rows=int(whole.sum()))
            self.rejects.lose_episodes(Lost.CONFLICT)
            kept &= ~whole
        return taken(rows, kept), episode[kept]

    def _without_early_ends(self, rows: Rows, episode: NDArray[np.int64], named: Named) -> tuple[Rows, NDArray[np.int64]]:
        """Without the episodes that continue after an end flag, where `t` gives their order."""
        flags = [rows[name] for name in END_FLAGS if name in rows]
        if not flags or self._divides_more or self.divided.by_file:
            return rows, episode
        ended = np.logical_or.reduce(flags)
        early = np.flatnonzero(ended[:-1] & (episode[1:] == episode[:-1]))
        kept = np.ones(len(episode), np.bool_)
        for row in dict(zip(episode[early][::-1].tolist(), early[::-1].tolist(), strict=True)).values():
            whole = episode == episode[row]
            theirs = (named.theirs or named.ids)[int(episode[row])]
            at, after = self._t_text(rows, row), self._t_text(rows, row + 1)
            what = f"episode {theirs} has an end flag at t = {at} and continues at t = {after}"
            fix = (
                '`episode_ends = "flags"` in the mapping, where an id names more than an episode (a user, a robot); else'
                " correct the flag"
            )
            place = self.files.place(int(rows[POS][row]))
            self.rejects.add(
                BadEpisode(what, where=place, fix=fix, details={PROBLEM: "steps-after-end"}), rows=int(whole.sum())
            )
            self.rejects.lose_episodes(Lost.STEPS_AFTER_END)
            kept &= ~whole
        return (rows, episode) if kept.all() else (taken(rows, kept), episode[kept])

    def _t_text(self, rows: Rows, row: int) -> str:
        """`t` of a row, as people write it."""
        value = rows[Columns.T][row]
        if self.reader.layout.of(Columns.T)[0].columns[0].cells != "time":
            return str(value)
        return str(np.datetime64(int(value), "ns")).rstrip("0").rstrip(".").replace("T", " ")

    def _batch(self, rows: Rows, episode: NDArray[np.int64], named: Named) -> Fragments | None:
        """The rows of whole episodes, (N,) number of each among those `named`."""
        if GAP_ROW in rows or any(name.startswith("__missing") for name in rows):
            rows, episode, named = self._whole(rows, episode, named)
        if self.mapping.shift:
            rows, episode = self._shifted(rows, episode)
        if not len(rows[POS]):
            return None
        flags: dict[str, NDArray[Any]] = {name: rows[name] for name in END_FLAGS if name in rows}
        if not flags and not self._said_flags:
            self._said_flags = True
            self.tally.assume("missing-end-flags")
        terminateds, truncateds = end_flags(flags, len(rows[POS]), self.tally)
        numbers, code = np.unique(episode, return_inverse=True)
        named = named.taken(numbers)
        actions = self._tree(rows, Columns.ACTIONS)
        if not self.declares_actions and not any(leaf.stacked for leaf in self.reader.layout.of(Columns.ACTIONS)):
            actions = choices(actions)
        count = len(numbers)
        steps = StepRows(
            keys=Keys(
                code.astype(np.int64),
                tuple(named.ids),
                (None,) * count if named.agents is None else tuple(named.agents),
                (None,) * count if named.modules is None else tuple(named.modules),
                None if named.shared is None else tuple(named.shared),
            ),
            obs=self._tree(rows, Columns.OBS),
            next_obs=self._next_obs(rows),
            actions=actions,
            rewards=self._rewards(rows),
            terminateds=terminateds,
            truncateds=truncateds,
            t=None,
            extra={".".join(leaf.path): rows[leaf.name] for leaf in self.reader.layout.of(EXTRA)},
            infos=self._infos(rows, code, named),
            reset_infos=None,
            file=np.zeros(len(code), np.int64),
            follows=False,
            where=lambda row: self.files.place(int(rows[POS][row])),
        )
        batch, begun = fragments_of_rows(steps, self.tally, lost=self.rejects.incomplete)
        if Columns.T in rows:
            self._count_gaps(rows, code, named.ids)
        file, row = self.files.at(rows[POS])
        origins = Origins.of_rows(tuple(one.url for one in self.files.files), file.astype(np.int64), row, begun)
        last = np.append(begun[1:], len(code)) - 1
        return Fragments(self._finished(batch, code[begun], named, rows, last), origins)

    def _finished(
        self, batch: EpisodeBatch, code: NDArray[np.int64], named: Named, rows: Rows, last: NDArray[np.int64]
    ) -> EpisodeBatch:
        """With the ids of the source, and truncated where nothing ended an episode: its last row (E,) has been seen."""
        ended = batch.terminated | batch.truncated
        if not ended.all():
            open_ones = [(int(last[e]), batch.ids[e]) for e in np.flatnonzero(~ended).tolist()]
            places = [one for one in open_ones if one[1] not in self.rejects.incomplete]
            self.tally.assume(UNFINISHED, len(places), places=lambda: (self._place(rows, *one) for one in places))
        custom = None if named.theirs is None else tuple({Columns.SOURCE_ID: named.theirs[c]} for c in code.tolist())
        return replace(batch, truncated=batch.truncated | ~ended, t_started=None, custom_data=custom)

    def _place(self, rows: Rows, row: int, name: str) -> EpisodePlace:
        return EpisodePlace(f"{self.files.place(int(rows[POS][row]))}, episode {name}", name)

    def _rewards(self, rows: Rows) -> NDArray[np.float64]:
        if Columns.REWARDS in rows:
            return rows[Columns.REWARDS]
        self.tally.assume(MISSING_REWARDS, len(rows[POS]))
        return np.zeros(len(rows[POS]))

    def _tree(self, rows: Rows, role: str, prefix: str = "") -> Tree:
        leaves = [(leaf.path, rows[f"{prefix}{leaf.name}"]) for leaf in self.reader.layout.of(role)]
        return _tree(leaves)

    def _next_obs(self, rows: Rows) -> Tree | None:
        if self.mapping.shift:
            return self._tree(rows, Columns.OBS, "__next ")
        layout = self.reader.layout
        if not layout.of(Columns.NEXT_OBS):
            return None
        for leaf in layout.of(Columns.NEXT_OBS):
            twin = f"{Columns.OBS}.{'.'.join(leaf.path)}".rstrip(".")
            theirs = rows.get(twin)
            if theirs is None or theirs.shape[1:] != rows[leaf.name].shape[1:]:
                name = f" part {'.'.join(leaf.path)}" if leaf.path else ""
                have = "nothing" if theirs is None else f"shape {list(theirs.shape[1:])}"
                raise BadEpisode(
                    f"new_obs{name} has shape {list(rows[leaf.name].shape[1:])}, and obs has {have}",
                    where=self.files.files[0].url,
                    fix="name the same columns, one step later, for new_obs as for obs",
                )
        return self._tree(rows, Columns.NEXT_OBS)

    def _shifted(self, rows: Rows, episode: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
        """Steps of rows whose action led to their observation: that of the row after, and its observation as the next one."""
        goes_on = episode[1:] == episode[:-1]
        self.tally.assume("zero-length-episode", len(np.unique(episode)) - len(np.unique(episode[1:][goes_on])))
        acted, led = np.flatnonzero(goes_on), np.flatnonzero(goes_on) + 1
        of_row = {leaf.name for leaf in self.reader.layout.leaves if leaf.role in (Columns.OBS, Columns.T)} | {
            POS,
            RUN,
            NUMBER,
            BEGIN,
        }
        made = {name: values[acted] if name in of_row else values[led] for name, values in rows.items()}
        made |= {f"__next {leaf.name}": rows[leaf.name][led] for leaf in self.reader.layout.of(Columns.OBS)}
        return made, episode[acted]

    def _count_gaps(self, rows: Rows, run: NDArray[np.int64], ids: Sequence[str]) -> None:
        """Count the gaps in `t`, but for those of episodes that lost a row."""
        t = rows[Columns.T] if rows[Columns.T].dtype.kind == "f" else rows[Columns.T].astype(np.int64)
        inside = run[1:] == run[:-1]
        gaps = gaps_in(np.diff(t)[inside], run[1:][inside], counted=self.reader.layout.counted_t)
        after = np.flatnonzero(inside)[gaps] + 1
        found = [(row, name) for row in after.tolist() if (name := ids[int(run[row])]) not in self.rejects.incomplete]
        self.tally.assume("gap-in-t", len(found), places=lambda: (self._place(rows, *one) for one in found))

    def _infos(self, rows: Rows, code: NDArray[np.int64], named: Named) -> list[Mapping[str, Any]] | None:
        if Columns.INFOS not in rows:
            return None
        column = pa.chunked_array([pa.array(rows[Columns.INFOS].tolist(), pa.large_string())])
        column_field = pa.field(self.reader.layout.infos or Columns.INFOS, column.type)
        try:
            found = infos_of(column, column_field, where=lambda row: self.files.place(int(rows[POS][row])))
            return None if found is None else list(found)
        except BadData:
            return [self._info(column, row, column_field, rows, named.ids[int(code[row])]) for row in range(len(column))]

    def _info(self, column: pa.ChunkedArray, row: int, column_field: pa.Field, rows: Rows, name: str) -> Mapping[str, Any]:
        """One by one, because one of them cannot be read."""
        place = self.files.place(int(rows[POS][row]))
        try:
            return (infos_of(column.slice(row, 1), column_field, where=lambda _: place) or [{}])[0]
        except BadData as error:
            self.rejects.add(error, raw=column[row].as_py())
            self.rejects.lose(name, place)
            return {}

    # ---- missing cells ----

    def _whole(self, rows: Rows, episode: NDArray[np.int64], named: Named) -> tuple[Rows, NDArray[np.int64], Named]:
        """Episodes with missing cells filled, and split where one is not. A value never comes from another episode."""
        count = len(episode)
        marks = {name: values for name, values in rows.items() if name.startswith("__missing")}
        gap = rows.get(GAP_ROW, np.zeros(count, np.bool_))
        begins = np.concatenate([[True], episode[1:] != episode[:-1]])[:count]
        begins[1:] |= gap[:-1]
        runs = _latest(begins)
        if GAP_ROW in rows and marks:  # a part begins with the first row that needs no value from before
            ready = np.cumsum(~gap & ~np.logical_or.reduce(list(marks.values())))
            gap = gap | (ready == np.concatenate([[0], ready])[runs])
            begins[1:] |= gap[:-1]
            runs = _latest(begins)
        rows, unfilled = self._fill(rows, marks, runs, gap)
        kept = ~(gap | unfilled)
        part = np.cumsum(np.concatenate([[True], runs[kept][1:] != runs[kept][:-1]])[: int(kept.sum())]) - 1
        start = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]])[: len(part)])
        of = episode[kept][start]
        number = np.arange(len(of)) - np.searchsorted(of, of)
        self.tally.assume("split-at-gap", int(gap.sum()))
        parts = named.parts(of, number)
        for e, name in zip(of.tolist(), parts.ids, strict=True):
            if named.ids[e] in self.rejects.incomplete:
                self.rejects.lose(name, self.rejects.incomplete[named.ids[e]])
        left, bad = set(of.tolist()), episode[unfilled].tolist()
        for row, e in zip(np.flatnonzero(unfilled).tolist(), bad, strict=True):
            place = self.files.place(int(rows[POS][row]))
            names = [
                leaf.columns[i].column
                for leaf in self.reader.layout.leaves
                for i in range(len(leaf.columns))
                if mark_of(leaf, i) in marks and marks[mark_of(leaf, i)][row]
            ]
            what = f"column {', '.join(names)} has no value, and no row before it in the episode has one"
            self.rejects.add(BadEpisode(what, where=place, fix=UNFILLED), raw=self._raw(rows, row))
            if e in left:
                self.rejects.lose(named.ids[e], place)
        self.rejects.lose_episodes(Lost.BAD_ROW, len(set(bad) - left))
        self.tally.assume("zero-length-episode", len(set(episode.tolist()) - left - set(bad)))
        return self._apart(taken(rows, kept), part, parts, number)

    def _fill(
        self, rows: Rows, marks: Mapping[str, NDArray[np.bool_]], runs: NDArray[np.int64], gap: NDArray[np.bool_]
    ) -> tuple[Rows, NDArray[np.bool_]]:
        unfilled, rows = np.zeros(len(gap), np.bool_), dict(rows)
        for leaf in self.reader.layout.leaves:
            for i, plan in enumerate(leaf.columns):
                missing = marks.get(mark_of(leaf, i))
                if missing is None or not missing.any():
                    continue
                source = _latest(~missing)
                found = missing & ~gap & (source >= runs)
                values = rows[leaf.name].copy()
                if leaf.stacked:
                    shapes = [self.reader.shapes.get(f"{leaf.name} {one.column}", ()) for one in leaf.columns]
                    widths = [shape[0] if shape else 1 for shape in shapes]
                    span = slice(sum(widths[:i]), sum(widths[: i + 1]))
                    values[found, span] = values[source[found], span]
                else:
                    values[found] = values[source[found]]
                rows[leaf.name] = values
                self.tally.assume(f"filled-previous:{plan.column}", int(found.sum()))
                unfilled |= missing & ~gap & ~found
        return rows, unfilled

    def _apart(
        self, rows: Rows, part: NDArray[np.int64], parts: Named, number: NDArray[np.int64]
    ) -> tuple[Rows, NDArray[np.int64], Named]:
        """Without episodes whose id is that of a part of another one: the one that comes second is a bad one."""
        kept = np.ones(len(parts.ids), np.bool_)
        for e, (name, n) in enumerate(zip(parts.ids, number.tolist(), strict=True)):
            if not n and not PART.search(name):
                continue
            own, others = (self._parts, self._like_parts) if n else (self._like_parts, self._parts)
            own.add(name)
            if name in others:
                kept[e] = False
                what = f"two episodes are called {name}: one of the table, and a part of {PART.sub('', name)}, split at a gap"
                fix = "give the one of the table another id, or fill the missing cells, without split_at_gaps"
                place = self.files.place(int(rows[POS][np.flatnonzero(part == e)[0]]))
                self.rejects.add(
                    BadEpisode(what, where=place, fix=fix, details={PROBLEM: "conflicting-episode"}),
                    rows=int((part == e).sum()),
                )
                self.rejects.lose_episodes(Lost.CONFLICT)
        return (rows, part, parts) if kept.all() else (taken(rows, kept[part]), part[kept[part]], parts)


@dataclass(frozen=True, slots=True)
class Named:
    """The names of the episodes of a batch, one entry each."""

    ids: Sequence[str]
    theirs: Sequence[str] | None = None  # the ids of the source
    agents: Sequence[str | None] | None = None
    modules: Sequence[str | None] | None = None
    shared: Sequence[str | None] | None = None  # ids of multi-agent episodes

    def taken(self, of: NDArray[np.int64]) -> Named:
        """Those of some episodes."""

        def some(names: Sequence[Any] | None) -> list[Any] | None:
            return None if names is None else [names[e] for e in of.tolist()]

        return Named([self.ids[e] for e in of.tolist()], *map(some, (self.theirs, self.agents, self.modules, self.shared)))

    def parts(self, of: NDArray[np.int64], number: NDArray[np.int64]) -> Named:
        """Those of parts of episodes: the first has the name, the n-th after it `-gap<n>` too."""
        found = self.taken(of)
        ids = [f"{name}-gap{n}" if n else name for name, n in zip(found.ids, number.tolist(), strict=True)]
        shared = found.shared and [None if n else name for name, n in zip(found.shared, number.tolist(), strict=True)]
        return replace(found, ids=ids, shared=shared)  # agents' gaps differ


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


def taken(rows: Rows, which: Any) -> Rows:
    """Some rows of all arrays."""
    return {name: values[which] for name, values in rows.items()}


def _concat(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return dict(parts[0])
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([_or_false(part, name) for part in parts]) for name in names}


def _or_false(part: Rows, name: str) -> NDArray[Any]:
    """Marks of missing cells are there only where some are."""
    return part[name] if name in part else np.zeros(len(part[POS]), np.bool_)


def _latest(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) for each row the last one up to it that is `chosen`; -1: there is none."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1)) if len(chosen) else np.zeros(0, np.int64)


def _tree(leaves: list[tuple[tuple[str, ...], NDArray[Any]]]) -> Tree:
    """Nested dicts by path; the empty path is the array itself."""
    if not leaves[0][0]:
        return leaves[0][1]
    parts: dict[str, list[tuple[tuple[str, ...], NDArray[Any]]]] = {}
    for path, values in leaves:
        parts.setdefault(path[0], []).append((path[1:], values))
    return {name: _tree(inner) for name, inner in parts.items()}
