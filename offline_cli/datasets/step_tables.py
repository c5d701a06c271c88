"""EpisodeBatch to Arrow table of the `columns` format and back: one row per step, whole columns at a time.

A row holds the observation acted on (`obs`) and the one it led to (`new_obs`); reading back takes `obs` of every row and
`new_obs` of each episode's last. These raise: episodes without a step, which have no row (the writer drops and counts them),
extra model outputs named like a column of the format, and tables whose rows are not whole runs of timesteps. What a row has no
place for (custom data but `source_id` and `final_obs_assumed`, clock, multi-agent ids) is not kept; the writer counts it.

Infos are JSON text, one per step. Arrays become lists and numpy scalars plain numbers, counted as `info-array-to-list`; what
JSON cannot express (bytes, complex numbers) raises. NaN and infinities are written as Python's json module writes and reads
them: a null would lose them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch, Infos
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.codec.pack_batch import check_names
from offline_cli.episodes.fit import conform
from offline_cli.errors import BadData, BadEpisode
from offline_cli.json_documents import from_json
from offline_cli.parquet.arrow_trees import from_arrow, space_field, to_arrow, tree_field
from offline_cli.spaces import Space, check_supported
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "FLAT_SCHEMA",
    "INFO_COLUMNS",
    "NO_EXTRA",
    "OF_AGENTS",
    "StepRows",
    "completed",
    "extra_fields",
    "from_table",
    "info_from_text",
    "info_to_text",
    "plain_table",
    "step_schema",
    "to_table",
]

INFO_COLUMNS = (Columns.INFOS, Columns.RESET_INFOS)
NO_EXTRA = frozenset({*STEP_COLUMNS, *INFO_COLUMNS, *CUSTOM_COLUMNS})
"""Names that are not those of extra model outputs."""
FIX = "write the dataset again from its source"
FLAT_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)),
        pa.field(Columns.REWARDS, pa.float64()),
        *(pa.field(name, pa.bool_()) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)),
    ]
)
"""The columns from which an episode's length, return and flags follow."""
OF_AGENTS: Final = (Columns.AGENT_ID, Columns.MODULE_ID)


def info_to_text(info: Mapping[str, Any], *, tally: Tally, where: str) -> str | None:
    """`info` as JSON text, None for an empty one. `where` names episode and step. Raises BadData, naming them."""
    if not info:
        return None

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
            tally.assume("info-array-to-list")
            return value.tolist()
        raise TypeError(f"values of type {_name(value)} have no JSON text")

    try:
        return json.dumps(
            plain_mapping(info, tally=tally, where=where), separators=(",", ":"), default=plain, ensure_ascii=False
        )
    except TypeError as err:
        fix = "use the episodes format, which keeps bytes and complex numbers"
        raise BadData(f"infos cannot be written: {err}", where=where, fix=fix) from err


def info_from_text(text: str, *, where: str) -> dict[str, Any]:
    """The info in `text`. Raises BadData where it is no JSON object."""
    try:
        info = from_json(text)
    except ValueError as err:
        raise BadData(f"infos that are not JSON: {err}", where=where, fix="write the dataset again from its source") from err
    if not isinstance(info, dict):
        raise BadData("infos that are not a JSON object", where=where, fix="write the dataset again from its source")
    return info


def _name(value: Any) -> str:
    return f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def step_schema(
    observation_space: Space, action_space: Space, extra: Sequence[Any] = (), *, further: Collection[str] = ()
) -> Any:
    """The table's pa.Schema; `extra`: pa.Fields of the extra model outputs; `further`: CUSTOM_COLUMNS and `infos`, as far as
    there are any. Raises UnsupportedSpace.
    """
    obs, actions = space_field(Columns.OBS, observation_space), space_field(Columns.ACTIONS, action_space)
    plain = {
        Columns.T: pa.int64(),
        Columns.REWARDS: pa.float64(),
        Columns.TERMINATEDS: pa.bool_(),
        Columns.TRUNCATEDS: pa.bool_(),
    }
    of_spaces = {Columns.OBS: obs, Columns.ACTIONS: actions, Columns.NEXT_OBS: obs.with_name(Columns.NEXT_OBS)}
    steps = [of_spaces.get(name) or pa.field(name, plain.get(name, pa.string())) for name in STEP_COLUMNS]  # the rest: names
    theirs = [pa.field(Columns.SOURCE_ID, pa.string())] if Columns.SOURCE_ID in further else []
    assumed = [pa.field(Columns.FINAL_OBS_ASSUMED, pa.bool_())] if Columns.FINAL_OBS_ASSUMED in further else []
    infos = [pa.field(name, pa.string()) for name in INFO_COLUMNS] if Columns.INFOS in further else []
    return pa.schema([*steps, *theirs, *extra, *assumed, *infos])


def completed(table: Any, schema: Any) -> Any:
    """`table` with the further columns of `schema` that it lacks: no infos, no last observation that is assumed."""
    empty = {pa.string(): pa.nulls(table.num_rows, pa.string()), pa.bool_(): pa.array(np.zeros(table.num_rows, np.bool_))}
    columns = [table[field.name] if field.name in table.schema.names else empty[field.type] for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def extra_fields(batch: EpisodeBatch) -> list[Any]:
    """One pa.Field per extra model output, sorted by name. Raises UnsupportedSpace, BadEpisode."""
    for name in batch.extra:
        if name in NO_EXTRA:
            fix = "rename it, or use the episodes format"
            where = f"batch from episode {batch.ids[0] if batch.ids else '(none)'}"
            raise BadEpisode(f"an extra model output is called {name!r}, as a column is", where=where, fix=fix)
    return [tree_field(name, batch.extra[name]) for name in sorted(batch.extra)]


# ---- to rows ----


def to_table(batch: EpisodeBatch, schema: Any, *, tally: Tally) -> Any:
    """The pa.Table of `batch`, which fits `schema` and its spaces already. Raises BadData for infos that have no text."""
    terminateds, truncateds = batch.step_flags()
    columns = {
        Columns.EPS_ID: _names(batch.ids, batch),
        Columns.AGENT_ID: _names(batch.agent_ids, batch),
        Columns.MODULE_ID: _names(batch.module_ids, batch),
        Columns.T: pa.array(batch.timesteps()),
        Columns.OBS: to_arrow(batch.acted_obs(view=True), schema.field(Columns.OBS).type),
        Columns.ACTIONS: to_arrow(batch.actions, schema.field(Columns.ACTIONS).type),
        Columns.REWARDS: pa.array(np.ascontiguousarray(batch.rewards)),
        Columns.NEXT_OBS: to_arrow(batch.next_obs(view=True), schema.field(Columns.NEXT_OBS).type),
        Columns.TERMINATEDS: pa.array(terminateds),
        Columns.TRUNCATEDS: pa.array(truncateds),
        **{name: to_arrow(tree, schema.field(name).type) for name, tree in batch.extra.items()},
    }
    if Columns.SOURCE_ID in schema.names:
        theirs = [data.get(Columns.SOURCE_ID) for data in batch.custom_data or ({},) * len(batch)]
        columns[Columns.SOURCE_ID] = _names(theirs, batch)
    if Columns.FINAL_OBS_ASSUMED in schema.names:
        assumed = np.zeros(batch.num_steps, np.bool_)
        assumed[batch.starts[1:] - 1] = batch.final_obs_assumed
        columns[Columns.FINAL_OBS_ASSUMED] = pa.array(assumed)
    if Columns.INFOS in schema.names:
        columns |= _info_columns(batch, tally)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _names(names: Sequence[str | None] | None, batch: EpisodeBatch) -> Any:
    if names is None:
        return pa.nulls(batch.num_steps, pa.string())
    episodes = np.repeat(np.arange(len(batch), dtype=np.int64), batch.lengths)
    return pa.array(names, pa.string()).take(pa.array(episodes))


def _info_columns(batch: EpisodeBatch, tally: Tally) -> dict[str, Any]:
    if batch.infos is None:
        return {name: pa.nulls(batch.num_steps, pa.string()) for name in INFO_COLUMNS}
    texts = np.full(len(batch.infos), None, object)
    for row, info in enumerate(batch.infos):  # a loop over those that are not empty: JSON is text
        if info:
            texts[row] = info_to_text(info, tally=tally, where=_info_place(batch, row))
    resets = np.full(batch.num_steps, None, object)
    resets[batch.starts[:-1]] = texts[batch.obs_starts[:-1]]
    steps = texts[batch.step_rows() + 1]
    return {Columns.INFOS: pa.array(steps, pa.string()), Columns.RESET_INFOS: pa.array(resets, pa.string())}


def _info_place(batch: EpisodeBatch, row: int) -> str:
    starts = batch.obs_starts
    episode = int(np.searchsorted(starts, row, side="right")) - 1
    return f"episode {batch.ids[episode]}, observation {row - int(starts[episode])}"


# ---- from rows ----


def from_table(
    table: Any,
    starts: NDArray[np.int64],
    *,
    observation_space: Space | None,
    action_space: Space | None,
    where: str,
    keep: Sequence[str] | None = None,
) -> EpisodeBatch:
    """The batch of whole episodes that a pa.Table of step rows holds, in row order. `starts`: see `reading.Rows`.

    `keep`: the extra model outputs to read, and `infos`; None: all there are. Raises BadData, naming the column, for nulls,
    for steps that are missing or out of order, and for infos that are no JSON.
    """
    columns = _Rows(table, where)
    ids = columns.raw(Columns.EPS_ID)
    if ids.null_count:
        raise BadData(f"{ids.null_count} values of column {Columns.EPS_ID!r} are null", where=where, fix=FIX)
    t = columns.tree(Columns.T)
    _check_timesteps(t, starts, where)
    first, last = starts[:-1], starts[1:] - 1
    extra = [name for name in table.column_names if name not in NO_EXTRA]
    wanted = set(extra) | set(INFO_COLUMNS) if keep is None else set(keep)
    t_started = t[first]
    return EpisodeBatch(
        ids=tuple(columns.texts(ids.take(pa.array(first)))),
        starts=starts,
        obs=map_leaves(
            lambda acted, led_to: _with_final(acted, led_to, starts), columns.tree(Columns.OBS), columns.tree(Columns.NEXT_OBS)
        ),
        actions=columns.tree(Columns.ACTIONS),
        rewards=columns.tree(Columns.REWARDS),
        terminated=columns.flags(Columns.TERMINATEDS, last),
        truncated=columns.flags(Columns.TRUNCATEDS, last),
        extra={name: columns.tree(name) for name in extra if name in wanted},
        infos=columns.infos(starts) if Columns.INFOS in wanted else None,
        t_started=t_started if t_started.any() else None,
        agent_ids=columns.names(Columns.AGENT_ID, first),
        module_ids=columns.names(Columns.MODULE_ID, first),
        custom_data=columns.custom_data(first, last),
        observation_space=observation_space,
        action_space=action_space,
    )


def plain_table(table: Any, starts: NDArray[np.int64], schema: Any, where: str) -> Any:
    """Plain columns, a row an episode, of a pa.Table of FLAT_SCHEMA, in the given pa.Schema; `starts`: see `reading.Rows`.

    Returns, and ids of agents and modules, are null where their columns are not in it. Raises BadData for nulls in rewards and
    flags, and for flags before an end.
    """
    rows, first, last = _Rows(table, where), starts[:-1], starts[1:] - 1
    flags = rows.flags(Columns.TERMINATEDS, last), rows.flags(Columns.TRUNCATEDS, last)
    returns: Any = pa.nulls(len(first), pa.float64())
    if Columns.REWARDS in table.column_names:
        returns = EpisodeBatch(("",) * len(first), starts, {}, {}, rows.tree(Columns.REWARDS), *flags).returns
    names = (Columns.EPS_ID, *OF_AGENTS)
    nobody = pa.nulls(len(first), pa.string())
    texts = [rows.raw(name).take(pa.array(first)) if name in table.column_names else nobody for name in names]
    made = dict(
        zip(
            (Columns.LENGTH, Columns.RETURN, Columns.TERMINATED, Columns.TRUNCATED),
            (np.diff(starts), returns, *flags),
            strict=True,
        )
    ) | dict(zip(names, texts, strict=True))
    return pa.table([made[name] for name in schema.names], schema=schema)


class _Rows:
    """The columns of one table, each as one array."""

    def __init__(self, table: Any, where: str) -> None:
        self._table = table.combine_chunks()
        self._where = where

    def raw(self, name: str) -> Any:
        column = self._table.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def texts(self, column: Any) -> list[Any]:
        """The texts of an array, None for null."""
        try:
            found: list[Any] = column.to_pylist()
        except UnicodeDecodeError as err:  # Arrow does not check the bytes of a file
            raise BadData(f"text that is not UTF-8: {err}", where=self._where, fix=FIX) from err
        return found

    def tree(self, name: str) -> Tree:
        try:
            return from_arrow(self.raw(name), self._table.schema.field(name))
        except ValueError as err:
            raise BadData(str(err), where=self._where, fix=FIX) from err

    def flags(self, name: str, last: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(E,) the flag on each episode's last row; set on any other row it is an error."""
        flags: NDArray[np.bool_] = self.tree(name)
        at_end = flags[last]
        if np.count_nonzero(flags) != np.count_nonzero(at_end):
            raise BadData(f"column {name!r} is set before the last step of an episode", where=self._where, fix=FIX)
        return at_end

    def names(self, name: str, first: NDArray[np.int64]) -> tuple[str | None, ...] | None:
        column = self.raw(name)
        return None if column.null_count == len(column) else tuple(self.texts(column.take(pa.array(first))))

    def custom_data(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[Mapping[str, Any], ...] | None:
        """(E,) of CUSTOM_COLUMNS, as far as an episode has them; None where none has any."""
        there = set(self._table.column_names)
        ids = self.names(Columns.SOURCE_ID, first) if Columns.SOURCE_ID in there else None
        assumed = self.flags(Columns.FINAL_OBS_ASSUMED, last).tolist() if Columns.FINAL_OBS_ASSUMED in there else []
        found: list[dict[str, Any]] = [
            {} if name is None else {Columns.SOURCE_ID: name} for name in ids or (None,) * len(first)
        ]
        for episode in np.flatnonzero(assumed).tolist():
            found[episode] |= {Columns.FINAL_OBS_ASSUMED: True}
        return tuple(found) if any(found) else None

    def infos(self, starts: NDArray[np.int64]) -> Infos | None:
        """N+E infos: the reset's and then each step's, per episode; None when all are empty."""
        if Columns.INFOS not in self._table.column_names:
            return None
        steps, resets = (self.raw(name) for name in INFO_COLUMNS)
        if steps.null_count == len(steps) and resets.null_count == len(resets):
            return None
        episodes = len(starts) - 1
        infos: list[Mapping[str, Any]] = [{} for _ in range(len(steps) + episodes)]
        offsets = np.repeat(np.arange(episodes), np.diff(starts))
        for column, shift in ((steps, 1), (resets, 0)):
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            for row, text in zip(rows.tolist(), self.texts(column.take(pa.array(rows))), strict=True):
                infos[row + int(offsets[row]) + shift] = info_from_text(text, where=f"{self._where}, step row {row}")
        return infos


def _check_timesteps(t: NDArray[np.int64], starts: NDArray[np.int64], where: str) -> None:
    steps = np.diff(t)
    steps[starts[1:-1] - 1] = 1  # between episodes it may jump
    if (steps != 1).any():
        row = int(np.flatnonzero(steps != 1)[0])
        raise BadData(f"t goes from {t[row]} to {t[row + 1]} within an episode", where=where, fix=FIX)


def _with_final(acted: NDArray[Any], led_to: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Leaves (N+E, ...) from the observations acted on and led to, (N, ...) each."""
    episodes = np.arange(len(starts) - 1, dtype=np.int64)
    last = starts[1:] + episodes
    rows = np.arange(len(acted) + len(episodes), dtype=np.int64) - np.repeat(episodes, np.diff(starts) + 1)
    rows[last] = 0
    whole = acted.take(rows, axis=0)  # many times faster than to scatter
    whole[last] = led_to[starts[1:] - 1]
    return whole


# ---- for writers ----


class StepRows:
    """As `EpisodeRows`, with one row per step and one schema for the whole dataset; a batch that does not fit it raises.

    The first block fixes the extra model outputs and whether there are ids of the source. Infos get their two columns from the
    first episode on that has any, and `final_obs_assumed` its one; shards before it get empty ones at the commit (`lacks`).
    """

    name = "columns"

    def __init__(self, observation_space: Space, action_space: Space, tally: Tally, further: Collection[str] = ()) -> None:
        """`further`: columns that tables have from the start. Raises UnsupportedSpace for spaces that make no column."""
        self._spaces = observation_space, action_space
        self._tally = tally
        self._extra: list[Any] | None = None  # pa.Fields of the extra model outputs; None until the first block
        self._further = set(further)  # of `infos` and `final_obs_assumed` those that tables have by now
        self._has_source_ids: bool | None = None  # None until the first block
        for name, space in zip(("observations", "actions"), self._spaces, strict=True):
            check_supported(space, where=name)
        step_schema(*self._spaces)

    def rows_of(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """(E,) steps."""
        return batch.lengths

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` in the dtypes of the spaces, without episodes that have no step; counts these and what has no column."""
        empty = batch.lengths == 0
        if empty.any():
            self._tally.assume("zero-length-episode", int(empty.sum()))
            batch = batch.select(np.flatnonzero(~empty))
        check_names(batch, where=f"batch from episode {batch.ids[0]!r}" if len(batch) else "an empty batch")
        self._count_what_is_lost(batch)
        return conform(batch, *self._spaces)

    def _count_what_is_lost(self, batch: EpisodeBatch) -> None:
        if self._has_source_ids is None:
            self._has_source_ids = any(Columns.SOURCE_ID in data for data in batch.custom_data or ())
        if batch.custom_data is not None:
            kept = set(CUSTOM_COLUMNS if self._has_source_ids else CUSTOM_COLUMNS[1:])
            self._tally.assume("custom-data-not-kept", sum(not kept.issuperset(data) for data in batch.custom_data))
        if batch.clock is not None:
            self._tally.assume("clock-not-kept", int(np.count_nonzero(~np.isnan(batch.clock).all(axis=1))))
        if batch.multi_agent_ids is not None:
            self._tally.assume("multi-agent-id-not-kept", sum(name is not None for name in batch.multi_agent_ids))

    def first_change(self, batch: EpisodeBatch) -> int | None:
        """The first episode with an info that is not empty, or an assumed last observation, if none had one before."""
        return min(self._changes(batch).values(), default=None)

    def _changes(self, batch: EpisodeBatch) -> dict[str, int]:
        """The first episode that asks for it, of each column that tables do not have yet."""
        found: dict[str, int] = {}
        if Columns.INFOS not in self._further:
            row = next((row for row, info in enumerate(batch.infos or ()) if info), None)
            found |= {} if row is None else {Columns.INFOS: int(np.searchsorted(batch.obs_starts, row, side="right")) - 1}
        if Columns.FINAL_OBS_ASSUMED not in self._further and (assumed := batch.final_obs_assumed).any():
            found[Columns.FINAL_OBS_ASSUMED] = int(assumed.argmax())
        return found

    def add_columns(self, batch: EpisodeBatch) -> None:
        """See EpisodeRows."""
        self._further |= {name for name, first in self._changes(batch).items() if first == self.first_change(batch)}

    def lacks(self, schema: Any) -> bool:
        """See EpisodeRows."""
        return not self._further.issubset(schema.names)

    def completed(self, table: Any) -> Any:
        """See EpisodeRows."""
        return completed(table, self._schema())

    def _schema(self) -> Any:
        further = self._further | ({Columns.SOURCE_ID} if self._has_source_ids else set())
        return step_schema(*self._spaces, self._extra or (), further=further)

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See EpisodeRows."""
        self._fix_extras(extra_fields(batch), f"batch from episode {batch.ids[0]}")
        return to_table(batch, self._schema(), tally=self._tally)

    def adopt(self, schema: Any) -> None:
        """See EpisodeRows."""
        self._further |= {Columns.INFOS, Columns.FINAL_OBS_ASSUMED}.intersection(schema.names)
        self._has_source_ids = Columns.SOURCE_ID in schema.names
        self._fix_extras([field for field in schema if field.name not in NO_EXTRA], "a shard written before")

    def _fix_extras(self, fields: list[Any], where: str) -> None:
        """Raise BadEpisode unless the extra model outputs are those of the first block, to a dtype and a shape."""
        if self._extra is None:
            self._extra = fields
        before, now = ({field.name: field.type for field in listed} for listed in (self._extra, fields))
        wrong = [
            f"extra model output {name!r} is {now.get(name, 'absent')}, before it was {before.get(name, 'absent')}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]
        if wrong:
            fix = "convert the two kinds of episodes into two datasets, or use the episodes format"
            raise BadEpisode("; ".join(wrong), where=where, fix=fix)
