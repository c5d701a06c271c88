"""Lines of SampleBatch or MultiAgentBatch JSON as arrays, by policy; a line that is neither is refused with its place.

Besides plain lists these are read: the wrapper `{"value": ...}` (text or object), lines without `type`, NaN and Infinity as
Python writes them, packed columns and cells, columns of a Dict or Tuple by part (`{"a": [n rows]}`, as RLlib writes them) or by
row (as other programs do). Where a list could be either, it holds rows if it has as many items as the line has steps; with the
space given, a Tuple is known to be one.

Columns of numbers that have no meaning of their own become extra model outputs by name. Columns without a place in an episode
are left out, with the reason. Rows that pad sequences to one length are removed by `seq_lens`, and counted.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.rllib.json_lines import Line
from offline_cli.formats.rllib.packed import PackedColumns, looks_packed, unpack, unpack_cells
from offline_cli.formats.step_rows import END_FLAGS, end_flags, timesteps
from offline_cli.safe_json import from_json
from offline_cli.spaces import Space
from offline_cli.tally import MISSING_REWARDS, Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["BatchReader", "PolicyRows", "is_batch"]

ARRAYS: Final = ("line", "rewards", "terminateds", "truncateds", "eps_id", "agent_index", "t")
SAMPLE_BATCH: Final = "SampleBatch"
MULTI_AGENT_BATCH: Final = "MultiAgentBatch"
POLICY_BATCHES: Final = "policy_batches"
NEEDED: Final = (Columns.OBS, Columns.ACTIONS)
MAX_WRAPPERS: Final = 4
FIX: Final = "write the file again from its source, or --on-error skip to leave out the line"

START: Final = 1 << 16  # bytes of a line that are searched where it cannot be parsed
KINDS: Final = (SAMPLE_BATCH.encode(), MULTI_AGENT_BATCH.encode(), POLICY_BATCHES.encode())

AGENT_INDEX: Final = "agent_index"
UNROLL_ID: Final = "unroll_id"
IDS: Final = (Columns.EPS_ID, AGENT_INDEX)
PER_STEP: Final = (Columns.REWARDS, *END_FLAGS, Columns.T, *IDS)
"""Columns of one number per step; the first that a line has gives its number of steps."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
ROLE: Final = frozenset({*PER_STEP, *TREES, Columns.INFOS, "type", "count"})
PER_SEQUENCE: Final = "state_in"
PREVIOUS: Final = frozenset({"prev_actions", "prev_rewards"})
NO_PLACE: Final = (
    frozenset({*STEP_COLUMNS, *PREVIOUS, UNROLL_ID, Columns.SEQ_LENS, Columns.RESET_INFOS, Columns.SOURCE_ID}) - ROLE
)
"""Columns that are never extra model outputs: bookkeeping, and names that mean something else in our own tables."""

PACKED: Final[dict[type, tuple[str, Any]]] = {float: ("d", np.float64), int: ("q", np.int64)}
NUMBERS: Final = frozenset((float, int, bool, type(None)))  # None: a NaN, which JSON cannot express
NUMERIC: Final = "biufc"
MAX_DEPTH: Final = 16
MAX_NDIM: Final = 32
MAX_TEXT: Final = 8 << 20  # letters of ids as an array, which has the room of the longest for each


@dataclass(slots=True)
class PolicyRows:
    """The N steps of one policy in some lines of a file."""

    policy: str | None  # None: SampleBatch lines, which name none
    places: tuple[str, ...]  # of the lines
    nbytes: int  # of the lines
    line: NDArray[np.int64]  # (N,) index into `places`, rising
    columns: dict[str, Tree]  # obs, actions, new_obs if there, and extra model outputs by name; leaves (N, ...)
    typed: frozenset[str]  # columns that say their dtype, as packed ones do; JSON knows only float64, int64 and bool
    rewards: NDArray[np.float64]  # (N,)
    terminateds: NDArray[np.bool_]  # (N,)
    truncateds: NDArray[np.bool_]  # (N,)
    eps_id: NDArray[Any] | None  # (N,) int64 or text
    agent_index: NDArray[Any]  # (N,) int64 or text
    t: NDArray[np.int64] | None  # (N,)
    infos: list[Any] | None  # (N,) of the observation that each step led to; None: all empty
    lost_before: str = ""  # where lines were lost right before the first one, of unknown episodes

    def __len__(self) -> int:
        return len(self.rewards)

    def _arrays(self) -> dict[str, Any]:
        """All that has a row for each step, but for infos."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {"columns": self.columns, **{name: array for name, array in arrays.items() if array is not None}}

    @property
    def form(self) -> object:
        """Equal for rows that can be joined: of the same columns, dtypes and shapes."""
        kinds = {name: array.dtype.kind for name, array in self._arrays().items() if name in ARRAYS}
        return self.policy, kinds, map_leaves(lambda leaf: f"{leaf.dtype.str}{leaf.shape[1:]}", self.columns)

    @classmethod
    def joined(cls, parts: Sequence[PolicyRows]) -> PolicyRows:
        """The rows of lines of one form, one after the other."""
        starts = np.cumsum([0, *(len(part.places) for part in parts[:-1])])
        numbered = [replace(part, line=first + part.line) for first, part in zip(starts, parts, strict=True)]
        infos = [part.infos if part.infos is not None else [{}] * len(part) for part in parts]
        return replace(
            parts[0],
            places=tuple(chain.from_iterable(part.places for part in parts)),
            nbytes=sum(part.nbytes for part in parts),
            infos=list(chain.from_iterable(infos)) if any(part.infos is not None for part in parts) else None,
            **map_leaves(lambda *leaves: np.concatenate(leaves), *(part._arrays() for part in numbered)),
        )

    def take(self, chosen: NDArray[Any]) -> PolicyRows:
        """The rows of that index array or mask."""
        infos = None if self.infos is None else [self.infos[row] for row in np.arange(len(self))[chosen].tolist()]
        return replace(self, infos=infos, **map_leaves(lambda leaf: leaf[chosen], self._arrays()))


# ---- JSON to batches ----


def is_batch(line: Line) -> bool:
    """Whether a line is a batch, or was one before it was cut: by its type, or by the columns that every batch has.

    A row of a table may have their names, but has one value where a batch has a list.
    """
    try:
        record = _parsed(line)
    except BadData:  # a line cut in half may still show what it was
        start = line.data[:START]
        return any(word in start for word in KINDS) or all(f'"{name}'.encode() in start for name in NEEDED)
    if not isinstance(record, dict):
        return False
    if record.get("type") is not None or POLICY_BATCHES in record:
        return record.get("type") in (SAMPLE_BATCH, MULTI_AGENT_BATCH, None)
    is_row = any(isinstance(record.get(name), (int, float)) for name in PER_STEP)
    return all(name in record for name in NEEDED) and not is_row


def _parsed(line: Line) -> Any:
    """The line's value, without its wrappers. Raises BadData, naming the line, where it is not whole JSON."""
    value = _loaded(line.data, line)
    for _ in range(MAX_WRAPPERS):
        if not isinstance(value, dict) or "value" not in value or "type" in value:
            break
        inner = value["value"]
        value = _loaded(inner.encode(), line) if isinstance(inner, str) else inner
    return value


def _loaded(data: bytes, line: Line) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if b"NaN" in data or b"Infinity" in data:  # Python's own writer makes these, and no standard parser takes them
            try:
                return from_json(data)
            except ValueError:
                pass
        fix = FIX if line.whole else f"the writer was stopped in the middle of it: {FIX}"
        raise BadData(f"a line that is not whole JSON: {error}", where=line.where, fix=fix) from error


def _batches_of(record: Any, line: Line, tally: Tally) -> Mapping[str | None, Mapping[str, Any]]:
    """The columns by name of each policy of a line; the policy of a SampleBatch is None. Raises BadData, naming the line."""
    if not isinstance(record, dict):
        raise BadData(f"a line that holds a {type(record).__name__}, not an object", where=line.where, fix=FIX)
    kind = record.get("type")
    if kind is None and (POLICY_BATCHES in record or Columns.OBS in record):
        tally.assume("missing-type")
        kind = MULTI_AGENT_BATCH if POLICY_BATCHES in record else SAMPLE_BATCH
    if kind == SAMPLE_BATCH:
        return {None: record}
    if kind != MULTI_AGENT_BATCH:
        what = f"a line of type {kind!r}" if kind is not None else "a line without type and obs"
        raise BadData(f"{what}: neither SampleBatch nor MultiAgentBatch", where=line.where, fix=FIX)
    policies = record.get(POLICY_BATCHES)
    if not isinstance(policies, dict) or not all(isinstance(batch, dict) for batch in policies.values()):
        raise BadData("a MultiAgentBatch without policy_batches", where=line.where, fix=FIX)
    return policies


# ---- batches to arrays ----


@dataclass(slots=True)
class BatchReader:
    """Reads lines of one source, and counts what it has to assume."""

    tally: Tally
    observation_space: Space | None = None  # distinguishes a Tuple from a list of rows
    action_space: Space | None = None
    packed: PackedColumns = field(default_factory=PackedColumns)

    def read(self, line: Line) -> list[PolicyRows]:
        """The rows of each policy of a line that has any. Raises BadData, naming line and column."""
        was_enabled = gc.isenabled()
        gc.disable()  # JSON makes no cycles, and the search for them takes a fifth of the time
        try:
            tally = Tally()  # of a line that cannot be read nothing is assumed
            return self.rows(_batches_of(_parsed(line), line, tally), line.where, len(line.data), tally)
        finally:
            if was_enabled:
                gc.enable()

    def rows(self, batches: Mapping[str | None, Mapping[str, Any]], place: str, nbytes: int, tally: Tally) -> list[PolicyRows]:
        """The steps of each policy that has any, of its columns by name: as JSON has them, or arrays."""
        found = []
        for policy, batch in batches.items():
            where = place if policy is None else f"{place}, policy {policy!r}"
            columns = {name: value for name, value in batch.items() if value is not None}
            rows = _Batch(columns, where, tally, self).rows(policy, place, nbytes)
            tally.assume("empty-batch", int(not len(rows)))
            found += [rows] if len(rows) else []
        self.tally.add(tally)
        return found


@dataclass(slots=True)
class _Batch:
    """The columns of one policy in a line, as they were parsed."""

    columns: Mapping[str, Any]
    where: str
    tally: Tally
    reader: BatchReader
    steps: int | None = None  # None: not known yet

    def rows(self, policy: str | None, place: str, nbytes: int) -> PolicyRows:
        missing = [name for name in NEEDED if name not in self.columns]
        if missing:
            raise BadEpisode(f"no column {' and no column '.join(missing)}", where=self.where, fix="record these columns too")
        read = {name: self._vector(name) for name in PER_STEP if name in self.columns}
        if self.steps is None:
            self.steps = len(leaves(self._column(Columns.ACTIONS)[0])[0])
        found = {name: self._tree(name) for name in TREES if name in self.columns} | self._extras()
        columns = {name: tree for name, (tree, _) in found.items()}
        _check_next_obs(columns, self.where)
        self.tally.assume("missing-t", int(Columns.T not in read))
        self.tally.assume("missing-end-flags", int(read.keys().isdisjoint(END_FLAGS)))
        self.tally.assume(MISSING_REWARDS, 0 if Columns.REWARDS in read else self.steps)
        terminateds, truncateds = end_flags(read, self.steps, self.tally)
        return self._without_padding(
            PolicyRows(
                policy=policy,
                places=(place,),
                nbytes=nbytes,
                line=np.zeros(self.steps, np.int64),
                columns=columns,
                typed=frozenset(name for name, (_, typed) in found.items() if typed),
                rewards=read.get(Columns.REWARDS, np.zeros(self.steps)).astype(np.float64),
                terminateds=terminateds,
                truncateds=truncateds,
                eps_id=_whole(read[Columns.EPS_ID]) if Columns.EPS_ID in read else None,
                agent_index=_whole(read.get(AGENT_INDEX, np.zeros(self.steps, np.int64))),
                t=read.get(Columns.T),
                infos=self._infos(),
            )
        )

    def _column(self, name: str, space: Space | None = None) -> tuple[Tree, bool]:
        """The column as arrays, and whether these have the dtypes that it said."""
        reading = _ColumnReading(self.steps, f"{self.where}, column {name}", self.reader.packed, name in IDS)
        tree = reading.column(self.columns[name], space)
        if name not in IDS and reading.nulls and _is_numeric(tree):
            self.tally.assume("null-as-nan", reading.nulls)
        return tree, reading.typed

    def _vector(self, name: str) -> NDArray[Any]:
        """A column of one value per step, (n,): only rewards may be without a value."""
        array, where = self._column(name)[0], f"{self.where}, column {name}"
        if not isinstance(array, np.ndarray) or array.size != len(array):
            raise BadEpisode("more than one value per step", where=where, fix=FIX)
        if array.dtype.kind not in ("biufU" if name in IDS else "biuf"):
            raise BadEpisode("values that are not numbers", where=where, fix=FIX)
        array = array.reshape(len(array))
        self.steps = len(array)
        if name == Columns.T:
            return timesteps(array, where=lambda row: f"{where}, row {row}")
        if name != Columns.REWARDS and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BadEpisode("null, NaN or infinity where every step needs a value", where=where, fix=FIX)
        return array

    def _tree(self, name: str) -> tuple[Tree, bool]:
        column = self._column(name, self.reader.action_space if name == Columns.ACTIONS else self.reader.observation_space)
        if not _is_numeric(column[0]):
            place = f"{self.where}, column {name}"
            raise BadEpisode("values that are not numbers", where=place, fix="record numbers; infos may hold text")
        return column

    def _extras(self) -> dict[str, tuple[Tree, bool]]:
        """Extra model outputs. Counts the columns that hold none."""
        extras = {}
        for name, value in self.columns.items():
            if name in ROLE:
                continue
            column = None
            if name not in NO_PLACE and _is_column(value):
                try:
                    column = self._column(name)
                except BadEpisode:
                    if not name.startswith(PER_SEQUENCE):
                        raise
            if column is not None and _is_numeric(column[0]):
                extras[name] = column
            else:
                self.tally.drop_column(name, _why_dropped(name, value))
        return extras

    def _infos(self) -> list[Any] | None:
        """The info of each step; None: all are empty."""
        value, where = self.columns.get(Columns.INFOS, []), f"{self.where}, column {Columns.INFOS}"
        if isinstance(value, str):
            value = unpack(value, where=where, object_lists=True)
        if not isinstance(value, (list, tuple)):
            raise _bad(f"infos as {type(value).__name__} instead of a list", where)
        if Columns.INFOS in self.columns and len(value) != self.steps:
            raise _bad(f"{len(value)} infos in a line of {self.steps} steps", where, problem="length-mismatch")
        if not any(value):
            return None
        if set(map(type, value)) == {dict}:
            return list(value)
        self.tally.assume("info-not-a-dict", sum(bool(info) and not isinstance(info, dict) for info in value))
        return [info if isinstance(info, dict) else {"info": info} if info else {} for info in value]

    def _without_padding(self, found: PolicyRows) -> PolicyRows:
        """Without the rows that fill sequences up to one length, where `seq_lens` says that there are any."""
        if Columns.SEQ_LENS not in self.columns or not len(found):
            return found
        self.steps = None
        lengths = self._vector(Columns.SEQ_LENS)
        width = len(found) // max(len(lengths), 1)
        if int(lengths.sum()) == len(found) or width * len(lengths) != len(found) or int(lengths.max()) > width:
            return found
        real = (np.arange(width) < lengths[:, None]).reshape(-1)
        self.tally.assume("padding-removed", int((~real).sum()))
        return found.take(real)


def _why_dropped(name: str, value: Any) -> str:
    if name == UNROLL_ID:
        return "which piece of sampling a row came from: the order of rows says the same"
    if name in PREVIOUS:
        return "actions or rewards of the step before: the row before has them"
    if name == Columns.SEQ_LENS or name.startswith(PER_SEQUENCE):
        return "one row for each sequence, and not for each step"
    if name in NO_PLACE:
        return "a name that SampleBatch gives no meaning, and that means something else in our own columns"
    return "values that are not numbers" if _is_column(value) else "one value, and not one for each step"


def _is_numeric(tree: Tree) -> bool:
    found = leaves(tree)
    return bool(found) and all(leaf.dtype.kind in NUMERIC for leaf in found)


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, dict, np.ndarray)) or looks_packed(value)


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    """Ids as int64 where they fit, else as text."""
    if values.dtype.kind == "U":
        return values
    with np.errstate(invalid="ignore"):  # what does not fit int64 is text
        whole = values.astype(np.int64)
    return whole if (whole == values).all() else values.astype(np.str_)


def _check_next_obs(columns: Mapping[str, Tree], where: str) -> None:
    if Columns.NEXT_OBS in columns:
        obs, new_obs = (
            map_leaves(lambda leaf: list(leaf.shape[1:]), columns[name]) for name in (Columns.OBS, Columns.NEXT_OBS)
        )
        if obs != new_obs:
            raise BadEpisode(f"obs of shape {obs} and new_obs of shape {new_obs}", where=where, fix=FIX)


# ---- values to arrays ----


@dataclass(slots=True)
class _ColumnReading:
    """Reads one column, and records what was seen on the way."""

    steps: int | None  # that it must have; None: any
    where: str
    packed: PackedColumns
    may_be_text: bool
    typed: bool = False
    nulls: int = 0

    def column(self, value: Any, space: Space | None) -> Tree:
        """Raises BadEpisode where rows have no common shape, or are not as many as the steps; UnsafeData for hostile text."""
        tree = self.tree(value, space, 0)
        for path, leaf in flatten(tree):
            have = len(leaf) if leaf.ndim else 1
            if not leaf.ndim or have != (have if self.steps is None else self.steps):
                place = f"{self.where}, part {path}" if path else self.where
                raise _bad(f"{have} rows in a line of {self.steps} steps", place, problem="length-mismatch")
        return tree

    def tree(self, value: Any, space: Space | None, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise _bad(f"parts nested deeper than {MAX_DEPTH}", self.where)
        if isinstance(value, str):
            value = self.packed.unpack(value, where=self.where)
            self.typed = True
        if isinstance(value, np.ndarray):
            self.typed = True
            return value
        if isinstance(value, dict):
            return {str(key): self.tree(part, _part(space, key), depth + 1) for key, part in value.items()}
        if isinstance(value, tuple) or self._is_by_part(value, space):
            return tuple(self.tree(part, _part(space, i), depth + 1) for i, part in enumerate(value))
        if isinstance(value, list):
            return self._of_rows(value, space, depth)
        raise _bad(f"{type(value).__name__} instead of a list of rows", self.where)

    def _is_by_part(self, value: Any, space: Space | None) -> bool:
        """Whether a list holds one column per part of a Tuple."""
        if not isinstance(value, list) or not value or self.steps is None:
            return False
        is_tuple = isinstance(space, spaces.Tuple)
        has_parts = len(value) == len(space.spaces) if is_tuple else len(value) != self.steps  # type: ignore[union-attr]
        return has_parts and all(
            isinstance(part, dict) or looks_packed(part) or (isinstance(part, list) and len(part) == self.steps)
            for part in value
        )

    def _of_rows(self, value: list[Any], space: Space | None, depth: int) -> Tree:
        first = value[0] if value else None
        if isinstance(first, dict):
            keys = first.keys()
            if any(not isinstance(row, dict) or row.keys() != keys for row in value):
                raise _bad("rows with different keys", self.where)
            return {key: self.tree([row[key] for row in value], _part(space, key), depth + 1) for key in keys}
        if looks_packed(first):
            self.typed = True
            return unpack_cells(value, where=lambda row: f"{self.where}, row {row}")
        array = None if isinstance(space, spaces.Tuple) else self._array(value)
        if array is not None:
            return array
        sizes = {len(row) if isinstance(row, list) else -1 for row in value}
        if len(sizes) != 1 or min(sizes) < 1:
            raise _bad("rows of different shapes", self.where)
        return tuple(self.tree([row[i] for row in value], _part(space, i), depth + 1) for i in range(sizes.pop()))

    def _array(self, rows: list[Any]) -> NDArray[Any] | None:
        """The array of rows of one shape, of objects where they are no numbers; None for rows of different shapes."""
        shape, level = [len(rows)], rows
        while level and type(level[0]) is list and len(shape) < MAX_NDIM:
            if set(map(type, level)) != {list} or len(sizes := set(map(len, level))) > 1:
                return None
            shape += sizes
            level = list(chain.from_iterable(level))
        array = _packed_numbers(level)
        array = self._mixed(level) if array is None else array
        return None if array is None else array.reshape(shape)

    def _mixed(self, values: list[Any]) -> NDArray[Any] | None:
        """(n,) of values that are not all floats or all integers; None where there are rows among them."""
        kinds = set(map(type, values))
        if list in kinds:
            return None
        if kinds == {bool}:
            return np.frombuffer(bytes(values), np.bool_)
        if kinds <= NUMBERS:
            self.nulls += values.count(None) if type(None) in kinds else 0
            try:
                array = np.array(values, np.float64 if type(None) in kinds else None)
                return np.array(values, np.float64) if array.dtype == object else array
            except OverflowError as error:
                raise _bad(f"a number that is too large: {error}", self.where) from error
        is_short = self.may_be_text and kinds == {str} and max(map(len, values)) * len(values) <= MAX_TEXT
        return np.array(values, np.str_ if is_short else object)


def _packed_numbers(values: list[Any]) -> NDArray[Any] | None:
    """(n,) of floats or of integers of 64 bits; None for others. To ask numpy for it, which asks each value what it is, takes
    ten times as long."""
    code, dtype = PACKED.get(type(values[0]) if values else float, ("", None))
    try:
        return np.frombuffer(struct.pack(f"{len(values)}{code}", *values), dtype) if code else None
    except (struct.error, OverflowError):  # of other values among them
        return None


def _part(space: Space | None, key: Any) -> Space | None:
    if isinstance(space, spaces.Dict):
        return space.spaces.get(key)
    if isinstance(space, spaces.Tuple) and isinstance(key, int) and key < len(space.spaces):
        return space.spaces[key]
    return None


def _bad(what: str, where: str, *, problem: str | None = None) -> BadEpisode:
    fix = "write the line again from its source, or --on-error skip to leave it out"
    return BadEpisode(what, where=where, fix=fix, details={PROBLEM: problem} if problem else None)
