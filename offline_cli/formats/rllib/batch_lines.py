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
from offline_cli.formats.rllib.packed import looks_packed, unpack, unpack_cells
from offline_cli.formats.step_rows import END_FLAGS, end_flags, timesteps
from offline_cli.schema_files import from_json
from offline_cli.spaces import Space
from offline_cli.tally import MISSING_REWARDS, Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

SAMPLE_BATCH: Final = "SampleBatch"
MULTI_AGENT_BATCH: Final = "MultiAgentBatch"
POLICY_BATCHES: Final = "policy_batches"
AGENT_INDEX: Final = "agent_index"
UNROLL_ID: Final = "unroll_id"

NEEDED: Final = (Columns.OBS, Columns.ACTIONS)
IDS: Final = (Columns.EPS_ID, AGENT_INDEX)
PER_STEP: Final = (Columns.REWARDS, *END_FLAGS, Columns.T, *IDS)
"""Columns of one number per step; the first that a line has gives its number of steps."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
ROLES: Final = frozenset({*PER_STEP, *TREES, Columns.INFOS, "type", "count"})
PER_SEQUENCE: Final = "state_in"
PREVIOUS: Final = frozenset({"prev_actions", "prev_rewards"})
NO_PLACE: Final = (
    frozenset({*STEP_COLUMNS, *PREVIOUS, UNROLL_ID, Columns.SEQ_LENS, Columns.RESET_INFOS, Columns.SOURCE_ID}) - ROLES
)
"""Columns that are never extra model outputs: bookkeeping, and names that mean something else in our own tables."""

START: Final = 1 << 16  # bytes of a line that are searched where it cannot be parsed
MAX_WRAPPERS: Final = 4
MAX_DEPTH: Final = 16
MAX_NDIM: Final = 32
MAX_ID: Final = 512  # letters of an id: an array has room for the longest in each row
FIX: Final = "write the file again from its source, or --on-error skip to leave out the line"


@dataclass(slots=True)
class PolicyRows:
    """The N steps of one policy in a line."""

    policy: str | None  # None: of a SampleBatch, which names none
    place: str  # of the line
    nbytes: int  # of the line, or of the arrays if that is more
    columns: dict[str, Tree]
    """By RLlib's names, leaves (N, ...): obs, actions, rewards (float64), terminateds, truncateds, agent_index (int64 or text);
    eps_id (the same), t (int64) and new_obs where the line has them; any other is an extra model output."""
    extras: frozenset[str]  # of the columns
    typed: frozenset[str]  # columns that say their dtype, as packed ones do; JSON knows only float64, int64 and bool
    infos: list[Any] | None  # (N,) of the observation that each step led to; None: all empty
    file: tuple[int, str] = (0, "")  # of the line: its number in the source, and its URL
    lost_before: str = ""  # where lines were lost right before the first one, of unknown episodes

    def __len__(self) -> int:
        return len(self.columns[Columns.REWARDS])

    @property
    def ended(self) -> NDArray[np.bool_]:
        """(N,) whether a step ended its episode."""
        return np.asarray(self.columns[Columns.TERMINATEDS] | self.columns[Columns.TRUNCATEDS])

    @property
    def form(self) -> object:
        """Equal for rows that can be joined: of the same columns and shapes, and of the same dtypes where they say these."""
        return self.typed, {
            name: map_leaves(lambda leaf: (leaf.dtype if name in self.typed else None, leaf.shape[1:]), tree)  # noqa: B023
            for name, tree in self.columns.items()
        }

    def take(self, rows: NDArray[np.int64]) -> PolicyRows:
        """Some rows, by number."""
        infos = None if self.infos is None else [self.infos[row] for row in rows.tolist()]
        return replace(self, columns=map_leaves(lambda leaf: leaf[rows], self.columns), infos=infos)

    @classmethod
    def joined(cls, parts: Sequence[PolicyRows]) -> PolicyRows:
        """The rows of lines of one form, one after the other."""
        if len(parts) == 1:
            return parts[0]
        infos = None
        if any(part.infos is not None for part in parts):
            infos = [info for part in parts for info in part.infos or [{}] * len(part)]
        columns = map_leaves(lambda *leaves: np.concatenate(leaves), *(part.columns for part in parts))
        return replace(parts[0], columns=columns, infos=infos)


# ---- JSON to batches ----


def is_batch(line: Line) -> bool:
    """Whether a line is a batch, or was one before it was cut: by its type, or by the columns that every batch has.

    A row of a table may have their names, but has one value where a batch has a list.
    """
    try:
        record = _parsed(line)
    except BadData:  # a line cut in half may still show what it was
        start = line.data[:START]
        kinds = (SAMPLE_BATCH, MULTI_AGENT_BATCH, POLICY_BATCHES)
        return any(word.encode() in start for word in kinds) or all(f'"{name}'.encode() in start for name in NEEDED)
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


def _batches_of(record: Any, where: str, tally: Tally) -> Mapping[str | None, Mapping[str, Any]]:
    """The columns by name of each policy of a line; the policy of a SampleBatch is None. Raises BadData, naming the line."""
    kind = record.get("type") if isinstance(record, dict) else None
    if isinstance(record, dict) and kind is None and (POLICY_BATCHES in record or Columns.OBS in record):
        tally.assume("missing-type")
        kind = MULTI_AGENT_BATCH if POLICY_BATCHES in record else SAMPLE_BATCH
    if kind == SAMPLE_BATCH:
        return {None: record}
    policies = record.get(POLICY_BATCHES) if kind == MULTI_AGENT_BATCH else None
    if not isinstance(policies, dict) or not all(isinstance(batch, dict) for batch in policies.values()):
        raise BadData("neither a SampleBatch nor a MultiAgentBatch with policy_batches", where=where, fix=FIX)
    return policies


# ---- batches to arrays ----


@dataclass(slots=True)
class BatchReader:
    """Reads lines of one source, and counts what it has to assume."""

    tally: Tally
    observation_space: Space | None = None  # distinguishes a Tuple from a list of rows
    action_space: Space | None = None

    def read(self, line: Line) -> list[PolicyRows]:
        """The rows of each policy of a line that has any. Raises BadData, naming line and column."""
        was_enabled = gc.isenabled()
        gc.disable()  # JSON makes no cycles, and the search for them takes a fifth of the time
        try:
            tally = Tally()  # of a line that cannot be read nothing is assumed
            return self.rows(_batches_of(_parsed(line), line.where, tally), line.where, len(line.data), tally)
        finally:
            if was_enabled:
                gc.enable()

    def rows(self, batches: Mapping[str | None, Mapping[str, Any]], place: str, nbytes: int, tally: Tally) -> list[PolicyRows]:
        """The steps of each policy that has any, of its columns by name: as JSON has them, or arrays."""
        found = []
        for policy, batch in batches.items():
            where = place if policy is None else f"{place}, policy {policy!r}"
            given = {name: value for name, value in batch.items() if value is not None}
            rows = _Batch(given, where, tally, self).rows(policy, place, nbytes)
            tally.assume("empty-batch", int(not len(rows)))
            found += [rows] if len(rows) else []
        self.tally.add(tally)
        return found


@dataclass(slots=True)
class _Batch:
    """The columns of one policy in a line, as they were parsed."""

    given: Mapping[str, Any]
    where: str
    tally: Tally
    reader: BatchReader
    steps: int | None = None  # None: not known yet
    typed: set[str] = field(default_factory=set)

    def rows(self, policy: str | None, place: str, nbytes: int) -> PolicyRows:
        missing = [name for name in NEEDED if name not in self.given]
        if missing:
            raise BadEpisode(f"no column {' and no column '.join(missing)}", where=self.where, fix="record these columns too")
        read = {name: self._vector(name) for name in PER_STEP if name in self.given}
        if self.steps is None:
            self.steps = len(leaves(self._column(Columns.ACTIONS))[0])
        columns = {name: self._numbers(name) for name in TREES if name in self.given}
        self._check_next_obs(columns)
        self.tally.assume("missing-t", int(Columns.T not in read))
        self.tally.assume("missing-end-flags", int(read.keys().isdisjoint(END_FLAGS)))
        self.tally.assume(MISSING_REWARDS, 0 if Columns.REWARDS in read else self.steps)
        columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS] = end_flags(read, self.steps, self.tally)
        columns[Columns.REWARDS] = read.get(Columns.REWARDS, np.zeros(self.steps)).astype(np.float64)
        columns[AGENT_INDEX] = _whole(read.get(AGENT_INDEX, np.zeros(self.steps, np.int64)))
        columns |= {name: _whole(read[name]) for name in (Columns.EPS_ID, Columns.T) if name in read}
        extras = self._extras()
        columns |= extras
        nbytes = max(nbytes, sum(leaf.nbytes for name in self.typed for leaf in leaves(columns.get(name, ()))))
        found = PolicyRows(policy, place, nbytes, columns, frozenset(extras), frozenset(self.typed), self._infos())
        return self._without_padding(found)

    def _column(self, name: str) -> Tree:
        """The column as arrays of as many rows as the line has steps, if that is known."""
        space = None
        if name in TREES:
            space = self.reader.action_space if name == Columns.ACTIONS else self.reader.observation_space
        values = _Values(f"{self.where}, column {name}", self.steps, is_id=name in IDS)
        tree = values.tree(self.given[name], space, 0)
        for path, leaf in (("", tree),) if isinstance(tree, np.ndarray) else flatten(tree):
            have = len(leaf) if leaf.ndim else 1
            if not leaf.ndim or self.steps not in (None, have):
                place = f"{values.where}, part {path}" if path else values.where
                raise _bad(f"{have} rows in a line of {self.steps} steps", place, problem="length-mismatch")
        if values.is_typed:
            self.typed.add(name)
        if name not in IDS and values.nulls and _is_numeric(tree):
            self.tally.assume("null-as-nan", values.nulls)
        return tree

    def _vector(self, name: str) -> NDArray[Any]:
        """A column of one value per step, (n,): only rewards may be without a value."""
        array, where = self._column(name), f"{self.where}, column {name}"
        if not isinstance(array, np.ndarray) or array.size != len(array):
            raise _bad("more than one value per step", where)
        if array.dtype.kind not in ("biufU" if name in IDS else "biuf"):
            raise _bad("values that are not numbers", where)
        array = array.reshape(len(array))
        self.steps = len(array)
        if name == Columns.T:
            return timesteps(array, where=lambda row: f"{where}, row {row}")
        if name != Columns.REWARDS and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _bad("null, NaN or infinity where every step needs a value", where)
        return array

    def _numbers(self, name: str) -> Tree:
        tree = self._column(name)
        if not _is_numeric(tree):
            raise _bad("values that are not numbers", f"{self.where}, column {name}")
        return tree

    def _check_next_obs(self, columns: Mapping[str, Tree]) -> None:
        if Columns.NEXT_OBS in columns:
            obs, new_obs = (map_leaves(lambda leaf: leaf.shape[1:], columns[name]) for name in (Columns.OBS, Columns.NEXT_OBS))
            if obs != new_obs:
                raise _bad(f"obs of shape {obs} and new_obs of shape {new_obs}", self.where)

    def _extras(self) -> dict[str, Tree]:
        """Extra model outputs. Counts the columns that hold none."""
        extras = {}
        for name, value in self.given.items():
            if name in ROLES:
                continue
            column = None
            if name not in NO_PLACE and _is_column(value):
                try:
                    column = self._column(name)
                except BadEpisode:
                    if not name.startswith(PER_SEQUENCE):
                        raise
            if column is not None and _is_numeric(column):
                extras[name] = column
            else:
                self.tally.drop_column(name, _why_dropped(name, value))
        return extras

    def _infos(self) -> list[Any] | None:
        """The info of each step; None: all are empty."""
        value, where = self.given.get(Columns.INFOS), f"{self.where}, column {Columns.INFOS}"
        if isinstance(value, str):
            value = unpack(value, where=where, object_lists=True)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) != self.steps:
            what = f"{len(value)} infos" if isinstance(value, (list, tuple)) else f"infos as {type(value).__name__}"
            raise _bad(f"{what} in a line of {self.steps} steps", where, problem="length-mismatch")
        if not any(value):
            return None
        if set(map(type, value)) == {dict}:
            return list(value)
        self.tally.assume("info-not-a-dict", sum(bool(info) and not isinstance(info, dict) for info in value))
        return [info if isinstance(info, dict) else {"info": info} if info else {} for info in value]

    def _without_padding(self, found: PolicyRows) -> PolicyRows:
        """Without the rows that fill sequences up to one length, where `seq_lens` says that there are any."""
        if Columns.SEQ_LENS not in self.given or not len(found):
            return found
        self.steps = None
        lengths = self._vector(Columns.SEQ_LENS)
        width = len(found) // max(len(lengths), 1)
        if int(lengths.sum()) == len(found) or width * len(lengths) != len(found) or int(lengths.max()) > width:
            return found
        real = (np.arange(width) < lengths[:, None]).reshape(-1)
        self.tally.assume("padding-removed", int((~real).sum()))
        return found.take(np.flatnonzero(real))


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
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind in "biufc"
    found = leaves(tree)
    return bool(found) and all(leaf.dtype.kind in "biufc" for leaf in found)


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, dict, np.ndarray)) or looks_packed(value)


def _whole(values: NDArray[Any]) -> NDArray[Any]:
    """Ids as int64 where they fit, else as text."""
    if values.dtype.kind == "U" or values.dtype == np.int64:
        return values
    with np.errstate(invalid="ignore"):  # what does not fit int64 is text
        whole = values.astype(np.int64)
    return whole if (whole == values).all() else values.astype(np.str_)


# ---- values to arrays ----


@dataclass(slots=True)
class _Values:
    """Reads the values of one column, and records what was seen on the way.

    Raises BadEpisode where rows have no common shape, UnsafeData for hostile packed text.
    """

    where: str
    steps: int | None
    is_id: bool
    is_typed: bool = False
    nulls: int = 0

    def tree(self, value: Any, space: Space | None, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise _bad(f"parts nested deeper than {MAX_DEPTH}", self.where)
        if isinstance(value, str):
            value = unpack(value, where=self.where)
            self.is_typed = True
        if isinstance(value, np.ndarray):
            self.is_typed = True
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
        has_parts = len(value) == len(space.spaces) if isinstance(space, spaces.Tuple) else len(value) != self.steps
        return has_parts and all(
            isinstance(part, dict) or looks_packed(part) or (isinstance(part, list) and len(part) == self.steps)
            for part in value
        )

    def _of_rows(self, rows: list[Any], space: Space | None, depth: int) -> Tree:
        first = rows[0] if rows else None
        if isinstance(first, dict):
            keys = first.keys()
            if any(not isinstance(row, dict) or row.keys() != keys for row in rows):
                raise _bad("rows with different keys", self.where)
            return {key: self.tree([row[key] for row in rows], _part(space, key), depth + 1) for key in keys}
        if looks_packed(first):
            self.is_typed = True
            return unpack_cells(rows, where=lambda row: f"{self.where}, row {row}")
        array = None if isinstance(space, spaces.Tuple) else self._array(rows)
        if array is not None:
            return array
        sizes = {len(row) if isinstance(row, list) else -1 for row in rows}
        if len(sizes) != 1 or min(sizes) < 1:
            raise _bad("rows of different shapes", self.where)
        return tuple(self.tree([row[i] for row in rows], _part(space, i), depth + 1) for i in range(sizes.pop()))

    def _array(self, rows: list[Any]) -> NDArray[Any] | None:
        """(n, ...) of rows of one shape, of objects where they are no numbers; None for rows of different shapes."""
        shape, level = [len(rows)], rows
        while level and type(level[0]) is list and len(shape) < MAX_NDIM:
            if set(map(type, level)) != {list} or len(sizes := set(map(len, level))) > 1:
                return None
            shape += sizes
            level = list(chain.from_iterable(level))
        array = _uniform(level)
        array = self._mixed(level) if array is None else array
        return None if array is None else array.reshape(shape)

    def _mixed(self, values: list[Any]) -> NDArray[Any] | None:
        """(n,) of values that are not all floats or all integers; None where there are rows among them."""
        kinds = set(map(type, values))
        if list in kinds:
            return None
        if kinds <= {float, int, bool, type(None)}:
            self.nulls += values.count(None)
            try:
                array = np.array(values, np.float64 if type(None) in kinds else None)
                return np.array(values, np.float64) if array.dtype == object else array
            except OverflowError as error:
                raise _bad(f"a number that is too large: {error}", self.where) from error
        is_short = self.is_id and kinds == {str} and max(map(len, values)) <= MAX_ID
        return np.array(values, np.str_ if is_short else object)


def _uniform(values: list[Any]) -> NDArray[Any] | None:
    """(n,) of floats, or of integers of 64 bits; None for others. To ask numpy for it, which asks each value what it is, takes
    three times as long.
    """
    code = {float: "d", int: "q"}.get(type(values[0])) if values else "d"
    try:
        return None if code is None else np.frombuffer(struct.pack(f"{len(values)}{code}", *values), code)
    except (struct.error, OverflowError):  # of other values among them
        return None


def _part(space: Space | None, key: Any) -> Space | None:
    if isinstance(space, spaces.Dict):
        return space.spaces.get(key)
    if isinstance(space, spaces.Tuple) and isinstance(key, int) and key < len(space.spaces):
        return space.spaces[key]
    return None


def _bad(what: str, where: str, *, problem: str | None = None) -> BadEpisode:
    return BadEpisode(what, where=where, fix=FIX, details={PROBLEM: problem} if problem else None)
