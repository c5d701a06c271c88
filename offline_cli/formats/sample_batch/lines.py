"""One policy's batches, of a line or of several lines that are alike, as arrays; batches whose columns disagree raise.

Columns of numbers that have no meaning of their own become extra model outputs by name. Columns without a place in an episode
are left out: `unroll_id` (which piece of a worker's sampling a row came from; the order of rows and `t` say the same),
`seq_lens` and `state_in_*` of one row per sequence (derivable from `state_out_*`), texts, single values. Rows that pad
sequences to one length are removed by `seq_lens` and counted.

Several lines give together what they would give one by one, concatenated. Where that cannot be guaranteed, they are `NotAlike`,
and the caller reads them one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadEpisode
from offline_cli.formats.packed import KnownPatterns, looks_packed
from offline_cli.formats.sample_batch.rows import FIX, NEEDED, LinePlace, PolicyRows
from offline_cli.formats.sample_batch.values import Column, arrays_of, column_of, infos_of
from offline_cli.formats.step_rows import END_FLAGS, end_flags, timesteps
from offline_cli.spaces import Space
from offline_cli.tally import MISSING_REWARDS, Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["PER_STEP", "Batch", "BatchReader", "NotAlike"]

AGENT_INDEX: Final = "agent_index"
UNROLL_ID: Final = "unroll_id"

IDS: Final = (Columns.EPS_ID, AGENT_INDEX)
PER_STEP: Final = (Columns.REWARDS, *END_FLAGS, Columns.T, *IDS)
"""Columns of one number per step; the first that a line has gives its number of steps."""
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
ROLE: Final = frozenset({*PER_STEP, *TREES, Columns.INFOS, "type", "count"})
"""Columns with a meaning of their own."""
PER_SEQUENCE: Final = "state_in"
NO_PLACE: Final = frozenset({*STEP_COLUMNS, UNROLL_ID, Columns.SEQ_LENS, Columns.RESET_INFOS, Columns.SOURCE_ID}) - ROLE
"""Columns that are never extra model outputs: bookkeeping, and names that mean something else in our own tables."""


class NotAlike(Exception):
    """Batches that read together would not give what each gives by itself."""


@dataclass(slots=True)
class Batch:
    """What one line holds of one policy."""

    columns: Mapping[str, Any]  # as they were parsed
    where: str  # the line, and the policy if it is named
    rows: int | None = None  # steps; None: not known before they are read


@dataclass(slots=True)
class BatchReader:
    """Reads batches of one source, and counts what it had to assume."""

    patterns: KnownPatterns
    observation_space: Space | None = None  # distinguishes a Tuple from a list of rows
    action_space: Space | None = None
    tally: Tally = field(default_factory=Tally)

    def read(self, policy: str | None, batches: Sequence[Batch], lines: tuple[LinePlace, ...]) -> PolicyRows:
        """The rows of `policy` in `lines`, of which each holds one of `batches`.

        Several batches have the same columns, as many `rows` as each says, at least one, and no padding.
        Raises BadData, naming the line of a single batch, and NotAlike for several.
        """
        _check_needed(batches)
        read = self._per_step(batches)
        for batch in batches:
            if batch.rows is None:
                batch.rows = self._leading(batch)
        columns = {name: self._tree(name, batches) for name in TREES if name in batches[0].columns}
        columns |= self._extras(batches)
        _check_next_obs(columns, batches[0].where)
        starts = np.cumsum([0, *(batch.rows for batch in batches)])
        terminateds, truncateds = self._flags(read, starts)
        infos = self._infos(batches)
        self.tally.assume("missing-t", 0 if Columns.T in read else len(batches))
        found = PolicyRows(
            policy=policy,
            lines=lines,
            starts=starts,
            columns=columns,
            rewards=self._rewards(read, int(starts[-1])),
            terminateds=terminateds,
            truncateds=truncateds,
            eps_id=_names(read[Columns.EPS_ID], batches) if Columns.EPS_ID in read else None,
            agent_index=_names(read.get(AGENT_INDEX, np.zeros(starts[-1], np.int64)), batches),
            t=read.get(Columns.T),
            infos=infos,
        )
        return found if len(batches) > 1 else self._without_padding(found, batches[0])

    # ---- columns ----

    def _per_step(self, batches: Sequence[Batch]) -> dict[str, NDArray[Any]]:
        """The columns of one value per step, (N,) each."""
        read: dict[str, NDArray[Any]] = {}
        for name in PER_STEP:
            if name in batches[0].columns:
                column = self._column(name, batches)
                read[name] = _vector(column, name, f"{batches[0].where}, column {name}")
                self.tally.assume("null-as-nan", column.nulls if name == Columns.REWARDS else 0)
                if len(batches) == 1:
                    batches[0].rows = len(read[name])
        return read

    def _tree(self, name: str, batches: Sequence[Batch]) -> Column:
        column = self._column(name, batches, self.action_space if name == Columns.ACTIONS else self.observation_space)
        if not column.is_numeric:
            place = f"{batches[0].where}, column {name}"
            raise BadEpisode("values that are not numbers", where=place, fix="record numbers; infos may hold text")
        self.tally.assume("null-as-nan", column.nulls)
        return column

    def _extras(self, batches: Sequence[Batch]) -> dict[str, Column]:
        extras = {}
        for name in batches[0].columns:
            if name in ROLE:
                continue
            column = None if name in NO_PLACE else self._extra(name, batches)
            if column is None:
                self.tally.drop_column(name, _why_dropped(name, batches[0].columns[name]))
            else:
                self.tally.assume("null-as-nan", column.nulls)
                extras[name] = column
        return extras

    def _extra(self, name: str, batches: Sequence[Batch]) -> Column | None:
        """An extra model output; None for a column that has no row per step by its nature, or holds no numbers."""
        numbers = _numbers(name, batches)
        if numbers is not None:
            return numbers
        columns = [self._extra_of(name, batch) for batch in batches]
        found = [column for column in columns if column is not None]
        if found and len(found) < len(columns):
            raise NotAlike
        return _joined(found) if found else None

    def _extra_of(self, name: str, batch: Batch) -> Column | None:
        value = batch.columns[name]
        if not isinstance(value, (list, dict, np.ndarray)) and not looks_packed(value):
            return None
        try:
            column = column_of(value, batch.rows, where=f"{batch.where}, column {name}", patterns=self.patterns)
        except BadEpisode:
            if name.startswith(PER_SEQUENCE):
                return None
            raise
        return column if column.is_numeric else None

    def _column(self, name: str, batches: Sequence[Batch], space: Space | None = None) -> Column:
        numbers = None if isinstance(space, spaces.Tuple) else _numbers(name, batches)  # a list may be parts of a Tuple
        return numbers or _joined(
            [
                column_of(
                    batch.columns[name],
                    batch.rows,
                    where=f"{batch.where}, column {name}",
                    space=space,
                    patterns=self.patterns,
                )
                for batch in batches
            ]
        )

    def _infos(self, batches: Sequence[Batch]) -> list[Any] | None:
        read = []
        for batch in batches:
            assert batch.rows is not None
            value = batch.columns.get(Columns.INFOS, [None] * batch.rows)
            infos, strange = infos_of(value, batch.rows, where=f"{batch.where}, column infos")
            self.tally.assume("info-not-a-dict", strange)
            read.append((infos, batch.rows))
        if all(infos is None for infos, _ in read):
            return None
        return list(chain.from_iterable([{}] * rows if infos is None else infos for infos, rows in read))

    def _leading(self, batch: Batch) -> int:
        """The steps of a line that has no column of one value per step: the rows of its actions."""
        column = column_of(batch.columns[Columns.ACTIONS], None, where=f"{batch.where}, column {Columns.ACTIONS}")
        return len(leaves(column.tree)[0])

    # ---- what may be missing ----

    def _rewards(self, read: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.float64]:
        if Columns.REWARDS in read:
            return read[Columns.REWARDS].astype(np.float64)
        self.tally.assume(MISSING_REWARDS, rows)
        return np.zeros(rows)

    def _flags(
        self, read: Mapping[str, NDArray[Any]], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        self.tally.assume("missing-end-flags", len(starts) - 1 if read.keys().isdisjoint(END_FLAGS) else 0)
        return end_flags(read, int(starts[-1]), self.tally)

    def _without_padding(self, found: PolicyRows, batch: Batch) -> PolicyRows:
        """Without the rows that fill sequences up to one length, where `seq_lens` says that there are any."""
        if Columns.SEQ_LENS not in batch.columns or not found.rows:
            return found
        place = f"{batch.where}, column {Columns.SEQ_LENS}"
        lengths = _vector(column_of(batch.columns[Columns.SEQ_LENS], None, where=place), Columns.SEQ_LENS, place)
        width = found.rows // max(len(lengths), 1)
        if int(lengths.sum()) == found.rows or width * len(lengths) != found.rows or int(lengths.max()) > width:
            return found
        real = (np.arange(width) < lengths[:, None]).reshape(-1)
        self.tally.assume("padding-removed", int((~real).sum()))
        return found.take(real)


def _why_dropped(name: str, value: Any) -> str:
    if name == UNROLL_ID:
        return "which piece of sampling a row came from: the order of rows says the same"
    if name == Columns.SEQ_LENS or name.startswith(PER_SEQUENCE):
        return "one row for each sequence, and not for each step"
    if name in NO_PLACE:
        return "a name that SampleBatch gives no meaning, and that means something else in our own columns"
    is_one = not isinstance(value, (list, dict, np.ndarray)) and not looks_packed(value)
    return "one value, and not one for each step" if is_one else "values that are not numbers"


def _check_needed(batches: Sequence[Batch]) -> None:
    missing = [name for name in NEEDED if name not in batches[0].columns]
    if missing:
        what = f"no column {' and no column '.join(missing)}"
        raise BadEpisode(what, where=batches[0].where, fix="record these columns too")


def _numbers(name: str, batches: Sequence[Batch]) -> Column | None:
    """The column, where it is in all batches a list of numbers of one type and shape, one for each step."""
    values = [batch.columns[name] for batch in batches]
    for value, batch in zip(values, batches, strict=True):
        if type(value) is not list or not value or (batch.rows is not None and len(value) != batch.rows):
            return None
    arrays = arrays_of(values, narrow=name not in PER_STEP)
    return None if arrays is None else Column(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), typed=False)


def _joined(columns: Sequence[Column]) -> Column:
    """The column of all batches of that of each. Raises NotAlike where these are of different dtypes, shapes or structures."""
    if len(columns) == 1:
        return columns[0]
    if len({column.typed for column in columns}) > 1:
        raise NotAlike
    try:
        tree = map_leaves(_concatenated, *(column.tree for column in columns))
    except ValueError as error:
        raise NotAlike from error
    return Column(tree, columns[0].typed, sum(column.nulls for column in columns))


def _concatenated(*leaves: NDArray[Any]) -> NDArray[Any]:
    kinds = {(np.str_ if leaf.dtype.kind == "U" else leaf.dtype, leaf.shape[1:]) for leaf in leaves}
    if len(kinds) > 1:
        raise NotAlike
    return np.concatenate(leaves)


def _vector(column: Column, name: str, where: str) -> NDArray[Any]:
    """A column of one value per step, (n,): only rewards may be without a value."""
    array = column.tree
    if not isinstance(array, np.ndarray) or array.size != len(array):
        raise BadEpisode("more than one value per step", where=where, fix=FIX)
    if array.dtype.kind not in ("biufU" if name in IDS else "biuf"):
        raise BadEpisode("values that are not numbers", where=where, fix=FIX)
    array = array.reshape(len(array))
    if name == Columns.T:
        return timesteps(array, where=lambda row: f"{where}, row {row}")
    if name != Columns.REWARDS and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadEpisode("null, NaN or infinity where every step needs a value", where=where, fix=FIX)
    return array


def _names(values: NDArray[Any], batches: Sequence[Batch]) -> NDArray[Any]:
    """Ids as int64 where they fit, else as text. Raises NotAlike where several batches would have to agree on that."""
    if values.dtype.kind == "U":
        return values
    with np.errstate(invalid="ignore"):  # what does not fit int64 is text
        whole = values.astype(np.int64)
    if (whole == values).all():
        return whole
    if len(batches) > 1:
        raise NotAlike
    return values.astype(np.str_)


def _check_next_obs(columns: Mapping[str, Column], where: str) -> None:
    if Columns.NEXT_OBS not in columns:
        return
    obs, new_obs = (_shapes(columns[name].tree) for name in (Columns.OBS, Columns.NEXT_OBS))
    if obs != new_obs:
        raise BadEpisode(f"obs of shape {obs} and new_obs of shape {new_obs}", where=where, fix=FIX)


def _shapes(tree: Tree) -> Tree:
    return map_leaves(lambda leaf: list(leaf.shape[1:]), tree)
