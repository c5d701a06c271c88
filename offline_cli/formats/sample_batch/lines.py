"""The batches of a line as arrays, one set per policy; refuses batches whose columns disagree.

Columns of numbers that have no meaning of their own become extra model outputs by name. Columns without a place in an
episode are left out, each counted once per source as `dropped-column`: `unroll_id` (which piece of a worker's sampling a
row came from; the order of rows and `t` say the same), `seq_lens` and `state_in_*` of one row per sequence (derivable from
`state_out_*`), texts, single values. Rows that pad sequences to one length are taken out by `seq_lens` and counted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.end_flags import END_FLAGS, end_flags
from offline_cli.formats.packed import KnownPatterns, looks_packed
from offline_cli.formats.sample_batch.files import Line
from offline_cli.formats.sample_batch.number_lists import arrays_of
from offline_cli.formats.sample_batch.records import FIX, NEEDED, batches_of, parsed, plain_batches
from offline_cli.formats.sample_batch.values import Column, column_of, infos_of
from offline_cli.formats.step_rows import timesteps
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["LineReader", "PolicyRows"]

AGENT_INDEX: Final = "agent_index"
UNROLL_ID: Final = "unroll_id"

IDS: Final = (Columns.EPS_ID, AGENT_INDEX)
PER_STEP: Final = (Columns.REWARDS, *END_FLAGS, Columns.T, *IDS)
"""Columns of one number per step; the first that a line has says how many steps it holds."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
ROLE: Final = frozenset({*PER_STEP, *TREES, Columns.INFOS, "type", "count"})
"""Columns with a meaning of their own."""
NO_PLACE: Final = frozenset({*STEP_COLUMNS, UNROLL_ID, Columns.SEQ_LENS, Columns.RESET_INFOS, Columns.SOURCE_ID}) - ROLE
"""Columns that are never extra model outputs: bookkeeping, and names that mean something else in our own tables."""
LEFT_AS_THEY_ARE: Final = NO_PLACE | ROLE - {*PER_STEP, *TREES}
"""Values that no column of numbers is made of: an info may be a number, and stays one."""


@dataclass(slots=True)
class PolicyRows:
    """The n steps of one policy in one line, as they stand there."""

    policy: str | None  # None: a SampleBatch line, which names none
    where: str
    rows: int
    columns: dict[str, Column]  # obs, actions, new_obs if there, and extra model outputs by name
    rewards: NDArray[np.float64]  # (n,)
    terminateds: NDArray[np.bool_]  # (n,)
    truncateds: NDArray[np.bool_]  # (n,)
    eps_id: NDArray[Any] | None  # (n,) int64 or text
    agent_index: NDArray[Any]  # (n,) int64 or text
    t: NDArray[np.int64] | None  # (n,)
    infos: list[Any] | None  # (n,) of the observation that each step led to; None: all empty
    lost_before: str = ""  # where lines were lost right before this one, without a way to tell which episodes they held
    underived: tuple[str, ...] = ()  # columns that could repeat another one, and say more (`settling`)

    def take(self, chosen: NDArray[Any]) -> PolicyRows:
        """The rows of that index array or mask, in its order."""

        def of(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[chosen]

        columns = {
            name: Column(map_leaves(of, column.tree), column.typed, column.nulls) for name, column in self.columns.items()
        }
        order = np.arange(self.rows)[chosen]
        return PolicyRows(
            policy=self.policy,
            where=self.where,
            rows=len(order),
            columns=columns,
            rewards=self.rewards[chosen],
            terminateds=self.terminateds[chosen],
            truncateds=self.truncateds[chosen],
            eps_id=of(self.eps_id),
            agent_index=self.agent_index[chosen],
            t=of(self.t),
            infos=None if self.infos is None else [self.infos[row] for row in order],
            lost_before=self.lost_before,
            underived=self.underived,
        )


@dataclass(slots=True)
class LineReader:
    """Reads the lines of one source; remembers which columns it has counted as dropped."""

    tally: Tally
    observation_space: Space | None = None  # tells a Tuple from a list of rows
    action_space: Space | None = None
    _dropped: set[str] = field(default_factory=set)
    _patterns: KnownPatterns = field(default_factory=KnownPatterns)

    def read(self, lines: Sequence[Line]) -> Iterator[list[PolicyRows] | BadData]:
        """For each line the rows of each of its policies, or the BadData, naming the line, that keeps it from being read.

        The numbers of all lines become arrays together, where they can; memory is taken for all of them at once.
        """
        with _no_search_for_cycles():
            values = list(map(_parsed, lines))
            self._make_arrays([value for value in values if not isinstance(value, BadData)])
        for line, value in zip(lines, values, strict=True):
            try:
                yield value if isinstance(value, BadData) else self._rows_of(line, value)
            except BadData as error:
                yield error

    def _make_arrays(self, values: Sequence[Any]) -> None:
        """Put arrays in the places of lists of numbers of one type and shape, one for each step."""
        columns: dict[tuple[str | None, str], list[dict[str, Any]]] = {}
        for policy, batch in chain.from_iterable(map(plain_batches, values)):
            rows = _steps_of_lists(batch)
            for name, value in batch.items() if rows else ():
                if type(value) is list and len(value) == rows and name not in LEFT_AS_THEY_ARE and not self._is_tuple(name):
                    columns.setdefault((policy, name), []).append(batch)
        for (_, name), batches in columns.items():
            arrays = arrays_of([batch[name] for batch in batches], narrow=name not in PER_STEP)
            for batch, array in zip(batches, arrays or (), strict=False):
                batch[name] = array

    def _is_tuple(self, name: str) -> bool:
        """Whether lists in that column may be parts of a Tuple."""
        return name in TREES and isinstance(self._space_of(name), spaces.Tuple)

    def _space_of(self, name: str) -> Space | None:
        return self.action_space if name == Columns.ACTIONS else self.observation_space

    def _rows_of(self, line: Line, value: Any) -> list[PolicyRows]:
        found = [
            self._policy_rows(policy, batch, line.where if policy is None else f"{line.where}, policy {policy!r}")
            for policy, batch in batches_of(line, value, self.tally)
        ]
        filled = [rows for rows in found if rows.rows]
        self.tally.assume("empty-batch", len(found) - len(filled))
        return filled

    # ---- columns ----

    def _policy_rows(self, policy: str | None, batch: Mapping[str, Any], where: str) -> PolicyRows:
        batch = {name: value for name, value in batch.items() if value is not None}
        missing = [name for name in NEEDED if name not in batch]
        if missing:
            raise BadEpisode(f"no column {' and no column '.join(missing)}", where=where, fix="record these columns too")
        read = self._per_step(batch, where)
        rows = len(next(iter(read.values()))) if read else _leading(batch, where)
        columns: dict[str, Column] = {name: self._tree(name, batch[name], rows, where) for name in TREES if name in batch}
        columns |= self._extras(batch, rows, where)
        _check_next_obs(columns, where)
        terminateds, truncateds = self._flags(read, rows)
        infos, strange = infos_of(batch.get(Columns.INFOS, [None] * rows), rows, where=f"{where}, column infos")
        self.tally.assume("info-not-a-dict", strange)
        self.tally.assume("missing-t", int(Columns.T not in read))
        found = PolicyRows(
            policy=policy,
            where=where,
            rows=rows,
            columns=columns,
            rewards=self._rewards(read, rows),
            terminateds=terminateds,
            truncateds=truncateds,
            eps_id=_names(read[Columns.EPS_ID]) if Columns.EPS_ID in read else None,
            agent_index=_names(read.get(AGENT_INDEX, np.zeros(rows, np.int64))),
            t=read.get(Columns.T),
            infos=infos,
        )
        return self._without_padding(found, batch)

    def _per_step(self, batch: Mapping[str, Any], where: str) -> dict[str, NDArray[Any]]:
        """The columns of one value per step, (n,) each."""
        read: dict[str, NDArray[Any]] = {}
        for name in PER_STEP:
            if name in batch:
                place = f"{where}, column {name}"
                rows = len(next(iter(read.values()))) if read else None
                read[name], nulls = _vector(batch[name], rows, name, place)
                self.tally.assume("null-as-nan", nulls)
        return read

    def _tree(self, name: str, value: Any, rows: int, where: str) -> Column:
        place = f"{where}, column {name}"
        column = column_of(value, rows, where=place, space=self._space_of(name), patterns=self._patterns)
        if not column.is_numeric:
            raise BadEpisode("values that are not numbers", where=place, fix="record numbers; infos may hold text")
        self.tally.assume("null-as-nan", column.nulls)
        return column

    def _extras(self, batch: Mapping[str, Any], rows: int, where: str) -> dict[str, Column]:
        extras = {}
        for name, value in batch.items():
            if name in ROLE:
                continue
            if name in NO_PLACE:
                self._drop(name)
                continue
            column = self._extra(name, value, rows, f"{where}, column {name}")
            if column is None:
                self._drop(name)
            else:
                self.tally.assume("null-as-nan", column.nulls)
                extras[name] = column
        return extras

    def _extra(self, name: str, value: Any, rows: int, where: str) -> Column | None:
        """An extra model output; None for what has no row per step by its nature, or holds no numbers."""
        if not isinstance(value, (list, dict, np.ndarray)) and not looks_packed(value):
            return None
        try:
            column = column_of(value, rows, where=where, patterns=self._patterns)
        except BadEpisode:
            if name.startswith("state_in"):  # one row per sequence
                return None
            raise
        return column if column.is_numeric else None

    def _drop(self, name: str) -> None:
        if name not in self._dropped:
            self._dropped.add(name)
            self.tally.assume("dropped-column")

    # ---- what may be missing ----

    def _rewards(self, read: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.float64]:
        if Columns.REWARDS in read:
            return read[Columns.REWARDS].astype(np.float64)
        self.tally.assume("missing-rewards", rows)
        return np.zeros(rows)

    def _flags(self, read: Mapping[str, NDArray[Any]], rows: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        self.tally.assume("missing-end-flags", int(read.keys().isdisjoint(END_FLAGS)))
        return end_flags(read, rows, self.tally)

    def _without_padding(self, found: PolicyRows, batch: Mapping[str, Any]) -> PolicyRows:
        """Without the rows that fill sequences up to one length, where `seq_lens` says that there are any."""
        if Columns.SEQ_LENS not in batch or not found.rows:
            return found
        place = f"{found.where}, column {Columns.SEQ_LENS}"
        lengths, _ = _vector(batch[Columns.SEQ_LENS], None, Columns.SEQ_LENS, place)
        width = found.rows // max(len(lengths), 1)
        if int(lengths.sum()) == found.rows or width * len(lengths) != found.rows or int(lengths.max()) > width:
            return found
        real = (np.arange(width) < lengths[:, None]).reshape(-1)
        self.tally.assume("padding-removed", int((~real).sum()))
        return found.take(real)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Within it, Python looks for no cycles in what it makes: JSON has none, and a fifth of the time would go into that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parsed(line: Line) -> Any:
    try:
        return parsed(line)
    except BadData as error:
        return error


def _steps_of_lists(batch: Mapping[str, Any]) -> int:
    """How many steps the batch has, where that can be told from plain lists; else 0."""
    first = next((batch[name] for name in PER_STEP if batch.get(name) is not None), None)
    return len(first) if type(first) is list else 0


def _vector(value: Any, rows: int | None, name: str, where: str) -> tuple[NDArray[Any], int]:
    """A column of one value per step, (n,), and how many of them were null: only rewards may be without a value."""
    column = column_of(value, rows, where=where)
    array = column.tree
    if not isinstance(array, np.ndarray) or array.size != len(array):
        raise BadEpisode("more than one value per step", where=where, fix=FIX)
    if array.dtype.kind not in ("biufU" if name in IDS else "biuf"):
        raise BadEpisode("values that are not numbers", where=where, fix=FIX)
    array = array.reshape(len(array))
    if name == Columns.T:
        return timesteps(array, where=lambda row: f"{where}, row {row}"), 0
    if name != Columns.REWARDS and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadEpisode("null, NaN or infinity where every step needs a value", where=where, fix=FIX)
    return array, column.nulls


def _leading(batch: Mapping[str, Any], where: str) -> int:
    """The steps of a line that has no column of one value per step: the rows of its actions."""
    tree = column_of(batch[Columns.ACTIONS], None, where=f"{where}, column {Columns.ACTIONS}").tree
    return len(leaves(tree)[0])


def _names(values: NDArray[Any]) -> NDArray[Any]:
    """Ids as int64 where they fit, else as text."""
    if values.dtype.kind == "U":
        return values
    with np.errstate(invalid="ignore"):  # what fits no int64 is text
        whole = values.astype(np.int64)
    return whole if (whole == values).all() else values.astype(np.str_)


def _check_next_obs(columns: Mapping[str, Column], where: str) -> None:
    if Columns.NEXT_OBS not in columns:
        return
    obs, new_obs = (_shapes(columns[name].tree) for name in (Columns.OBS, Columns.NEXT_OBS))
    if obs != new_obs:
        raise BadEpisode(f"obs of shape {obs} and new_obs of shape {new_obs}", where=where, fix=FIX)


def _shapes(tree: Tree) -> Tree:
    return map_leaves(lambda leaf: list(leaf.shape[1:]), tree)
