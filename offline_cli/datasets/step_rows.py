"""The `columns` format: one row per step, with RLlib's names, whole columns at a time.

A row holds the observation acted on (`obs`) and the one it led to (`new_obs`); reading back takes `obs` of every row and
`new_obs` of each episode's last. All datasets have the columns of `FURTHER`, empty where there is nothing to say. Episodes
without a step have no row, and are counted, as is what a row has no place for (other custom data, clock, multi-agent ids).

Infos are JSON text, one per step: arrays become lists, counted as `info-array-to-list`; what JSON cannot express (bytes,
complex numbers) raises. NaN and infinities are written as Python's json module writes and reads them: a null would lose them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import CUSTOM_COLUMNS, STEP_COLUMNS, Columns
from offline_cli.datasets.row_format import FIX, OF_AGENTS, PLAIN_SCHEMA, RowFormat, Rows, differing_columns
from offline_cli.episodes.batch import EpisodeBatch, Infos
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.codec.pack_batch import check_names
from offline_cli.episodes.fit import conform
from offline_cli.errors import BadData, BadEpisode
from offline_cli.parquet.arrow_trees import from_arrow, is_numeric, space_field, to_arrow, tree_field
from offline_cli.schema_files import from_json
from offline_cli.spaces import Space, check_supported
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

INFO_COLUMNS: Final = (Columns.INFOS, Columns.RESET_INFOS)
FURTHER: Final = pa.schema(
    {
        Columns.SOURCE_ID: pa.string(),  # of the episode in the table that it comes from
        Columns.FINAL_OBS_ASSUMED: pa.bool_(),  # on an episode's last step
        **dict.fromkeys(INFO_COLUMNS, pa.string()),
    }
)
"""The columns after the extra model outputs."""


def info_to_text(info: Mapping[str, Any], *, tally: Tally, where: str) -> str | None:
    """`info` as JSON text, None for an empty one. `where` names episode and step. Raises BadData, naming them."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
            tally.assume("info-array-to-list")
            return value.tolist()
        name = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"values of type {name} have no JSON text")

    try:
        known = plain_mapping(info, tally=tally, where=where)
        return json.dumps(known, separators=(",", ":"), default=plain, ensure_ascii=False) if info else None
    except TypeError as err:
        fix = "use the episodes format, which keeps bytes and complex numbers"
        raise BadData(f"infos cannot be written: {err}", where=where, fix=fix) from err


def _info_of_text(text: str, where: str) -> dict[str, Any]:
    try:
        info = from_json(text)
        if not isinstance(info, dict):
            raise ValueError("not an object")
    except ValueError as err:
        raise BadData(f"infos that are no JSON object: {err}", where=where, fix=FIX) from err
    return info


def step_schema(observation_space: Space, action_space: Space, extra: Sequence[Any] = ()) -> Any:
    """The pa.Schema of all tables; `extra`: pa.Fields of the extra model outputs. Raises UnsupportedSpace."""
    obs, actions = space_field(Columns.OBS, observation_space), space_field(Columns.ACTIONS, action_space)
    flags = dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), pa.bool_())
    numbers = {Columns.T: pa.int64(), Columns.REWARDS: pa.float64(), **flags}
    of_spaces = {Columns.OBS: obs, Columns.ACTIONS: actions, Columns.NEXT_OBS: obs.with_name(Columns.NEXT_OBS)}
    steps = [of_spaces.get(name) or pa.field(name, numbers.get(name, pa.string())) for name in STEP_COLUMNS]
    return pa.schema([*steps, *extra, *FURTHER])


class StepRows(RowFormat):
    """One row per step; the first table fixes the extra model outputs."""

    name, has_steps = "columns", True
    plain_from = pa.schema(
        {
            **dict.fromkeys((Columns.EPS_ID, *OF_AGENTS), pa.string()),
            Columns.REWARDS: pa.float64(),
            **dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), pa.bool_()),
        }
    )

    def __init__(self, observation_space: Space, action_space: Space, tally: Tally | None = None, **options: Any) -> None:
        """`options`: see RowFormat. Raises UnsupportedSpace for spaces that make no column."""
        super().__init__(observation_space, action_space, tally, **options)
        for name, space in (("observations", observation_space), ("actions", action_space)):
            check_supported(space, where=name)
        self._steps = step_schema(observation_space, action_space)  # without extra model outputs
        self._schema: Any = None  # with them; None until the first table
        self._read: list[Any] | None = None  # pa.Fields of those of the first shard that was read

    # ---- writing ----

    def prepare(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` in the dtypes of the spaces, without episodes that have no step; counts these and what has no column."""
        empty = batch.lengths == 0
        if empty.any():
            self.tally.assume("zero-length-episode", int(empty.sum()))
            batch = batch.select(np.flatnonzero(~empty))
        check_names(batch, where=f"batch from episode {batch.ids[0]!r}" if len(batch) else "an empty batch")
        if batch.custom_data is not None:
            kept = frozenset(CUSTOM_COLUMNS)
            self.tally.assume("custom-data-not-kept", sum(not kept.issuperset(data) for data in batch.custom_data))
        if batch.clock is not None:
            self.tally.assume("clock-not-kept", int(np.count_nonzero(~np.isnan(batch.clock).all(axis=1))))
        if batch.multi_agent_ids is not None:
            self.tally.assume("multi-agent-id-not-kept", sum(name is not None for name in batch.multi_agent_ids))
        observations, actions = self.spaces
        assert observations is not None and actions is not None  # noqa: PT018  by __init__
        return conform(batch, observations, actions)

    def table(self, batch: EpisodeBatch, *, where: str) -> Any:
        """See RowFormat. Raises BadData for infos that have no text."""
        place = f"batch from episode {batch.ids[0]}"
        if taken := sorted(batch.extra.keys() & {*self._steps.names}):
            what = f"an extra model output is called {taken[0]!r}, as a column is"
            raise BadEpisode(what, where=place, fix="rename it, or use the episodes format")
        schema = self._fixed([tree_field(name, batch.extra[name]) for name in sorted(batch.extra)], place)
        terminateds, truncateds = batch.step_flags()
        assumed = np.zeros(batch.num_steps, np.bool_)
        assumed[batch.starts[1:] - 1] = batch.final_obs_assumed
        sources = None if batch.custom_data is None else [data.get(Columns.SOURCE_ID) for data in batch.custom_data]
        columns = {
            Columns.EPS_ID: _on_steps(batch.ids, batch),
            Columns.AGENT_ID: _on_steps(batch.agent_ids, batch),
            Columns.MODULE_ID: _on_steps(batch.module_ids, batch),
            Columns.T: pa.array(batch.timesteps()),
            Columns.OBS: to_arrow(batch.acted_obs(view=True), schema.field(Columns.OBS).type),
            Columns.ACTIONS: to_arrow(batch.actions, schema.field(Columns.ACTIONS).type),
            Columns.REWARDS: pa.array(np.ascontiguousarray(batch.rewards)),
            Columns.NEXT_OBS: to_arrow(batch.next_obs(view=True), schema.field(Columns.NEXT_OBS).type),
            Columns.TERMINATEDS: pa.array(terminateds),
            Columns.TRUNCATEDS: pa.array(truncateds),
            **{name: to_arrow(tree, schema.field(name).type) for name, tree in batch.extra.items()},
            Columns.SOURCE_ID: _on_steps(sources, batch),
            Columns.FINAL_OBS_ASSUMED: pa.array(assumed),
            **dict(zip(INFO_COLUMNS, self._infos(batch), strict=True)),
        }
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _infos(self, batch: EpisodeBatch) -> tuple[Any, Any]:
        """Texts of the infos that steps led to, and of those of resets, each on the first step."""
        if batch.infos is None:
            return (pa.nulls(batch.num_steps, pa.string()),) * 2
        texts = np.full(len(batch.infos), None, object)
        for row, info in enumerate(batch.infos):  # a loop over those that are not empty: JSON is text
            if info:
                episode = int(np.searchsorted(batch.obs_starts, row, side="right")) - 1
                where = f"episode {batch.ids[episode]}, observation {row - int(batch.obs_starts[episode])}"
                texts[row] = info_to_text(info, tally=self.tally, where=where)
        resets = np.full(batch.num_steps, None, object)
        resets[batch.starts[:-1]] = texts[batch.obs_starts[:-1]]
        return pa.array(texts[batch.step_rows() + 1], pa.string()), pa.array(resets, pa.string())

    def adopt(self, schema: Any) -> None:
        """See RowFormat."""
        self._fixed([field for field in schema if field.name not in self._steps.names], "a shard written before")

    def _fixed(self, extra: list[Any], where: str) -> Any:
        """The schema. Raises BadEpisode unless the extra model outputs are those of the first table, to a dtype and a shape."""
        if self._schema is None:
            self._schema = pa.schema([*self._steps][: len(STEP_COLUMNS)] + extra + [*FURTHER])
        wrong = _other_extra(extra, [field for field in self._schema if field.name not in self._steps.names])
        if wrong:
            fix = "convert the two kinds of episodes into two datasets, or use the episodes format"
            raise BadEpisode(f"other extra model outputs than before: {'; '.join(wrong)}", where=where, fix=fix)
        return self._schema

    # ---- reading ----

    def wrong_columns(self, schema: Any) -> list[str]:
        """See RowFormat."""
        extra = [column for column in schema if column.name not in self._steps.names]
        self._read = extra if self._read is None else self._read
        wrong = [f"column {one.name!r} is {one.type}, which holds no numbers" for one in extra if not is_numeric(one.type)]
        return [*differing_columns(schema, self._steps), *(wrong or _other_extra(extra, self._read))]

    def columns(self, schema: Any) -> list[str]:
        """See RowFormat."""
        names: list[str] = schema.names
        if self.keep is None:
            return names
        infos = INFO_COLUMNS if Columns.INFOS in self.keep else ()
        wanted = {*STEP_COLUMNS, *CUSTOM_COLUMNS, *infos, *(name for name in self.keep if name not in self._steps.names)}
        return [name for name in names if name in wanted]

    def batches(self, rows: Rows, numbers: Sequence[int] | NDArray[Any], *, where: str) -> Iterator[EpisodeBatch]:
        """See RowFormat: one batch. Raises BadData, naming the column, for nulls, for steps that are missing or out of order,
        and for infos that are no JSON.
        """
        table, starts = _TableColumns(rows.table, where), rows.starts
        ids = table.raw(Columns.EPS_ID)
        if ids.null_count:
            raise BadData(f"{ids.null_count} values of column {Columns.EPS_ID!r} are null", where=where, fix=FIX)
        begins, ends = starts[:-1], starts[1:] - 1
        t = table.tree(Columns.T)
        _check_timesteps(t, starts, where)
        acted, led_to = table.tree(Columns.OBS), table.tree(Columns.NEXT_OBS)
        wanted = [name for name in self.columns(rows.table.schema) if name not in self._steps.names]
        observations, actions = self.spaces
        yield EpisodeBatch(
            ids=tuple(table.texts(ids.take(pa.array(begins)))),
            starts=starts,
            obs=map_leaves(lambda rows, final: _with_final(rows, final, starts), acted, led_to),
            actions=table.tree(Columns.ACTIONS),
            rewards=table.tree(Columns.REWARDS),
            terminated=table.flags(Columns.TERMINATEDS, ends),
            truncated=table.flags(Columns.TRUNCATEDS, ends),
            extra={name: table.tree(name) for name in wanted},
            infos=table.infos(starts, numbers) if self.keep is None or Columns.INFOS in self.keep else None,
            t_started=t[begins] if t[begins].any() else None,
            agent_ids=table.names(Columns.AGENT_ID, begins),
            module_ids=table.names(Columns.MODULE_ID, begins),
            custom_data=table.custom_data(begins, ends),
            observation_space=observations,
            action_space=actions,
        )

    def plain(self, rows: Rows, *, where: str) -> Any:
        """See RowFormat. Raises BadData for nulls in rewards and flags, and for flags before an end."""
        table, starts = _TableColumns(rows.table, where), rows.starts
        begins, ends, there = starts[:-1], starts[1:] - 1, rows.table.column_names
        flags = table.flags(Columns.TERMINATEDS, ends), table.flags(Columns.TRUNCATEDS, ends)
        returns = EpisodeBatch(("",) * len(begins), starts, {}, {}, table.tree(Columns.REWARDS), *flags).returns
        nobody = pa.nulls(len(begins), pa.string())
        texts = [table.raw(name).take(pa.array(begins)) if name in there else nobody for name in (Columns.EPS_ID, *OF_AGENTS)]
        return pa.table([texts[0], np.diff(starts), returns, *flags, *texts[1:]], schema=PLAIN_SCHEMA)


def _other_extra(have: list[Any], want: list[Any]) -> list[str]:
    """In words, how extra model outputs, as pa.Fields, differ from those before."""
    names = {field.name for field in want}
    new = [f"column {field.name!r} is new" for field in have if field.name not in names]
    return [*differing_columns(have, want), *new]


def _on_steps(values: Sequence[str | None] | None, batch: EpisodeBatch) -> Any:
    """The text of each episode on all its steps."""
    if values is None:
        return pa.nulls(batch.num_steps, pa.string())
    episodes = np.repeat(np.arange(len(batch), dtype=np.int64), batch.lengths)
    return pa.array(values, pa.string()).take(pa.array(episodes))


class _TableColumns:
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

    def flags(self, name: str, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(E,) the flag on each episode's last row; set on any other row it is an error."""
        flags: NDArray[np.bool_] = self.tree(name)
        at_end = flags[ends]
        if np.count_nonzero(flags) != np.count_nonzero(at_end):
            raise BadData(f"column {name!r} is set before the last step of an episode", where=self._where, fix=FIX)
        return at_end

    def names(self, name: str, begins: NDArray[np.int64]) -> tuple[str | None, ...] | None:
        column = self.raw(name)
        return None if column.null_count == len(column) else tuple(self.texts(column.take(pa.array(begins))))

    def custom_data(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[Mapping[str, Any], ...] | None:
        """(E,) of CUSTOM_COLUMNS, as far as an episode has them; None where none has any."""
        ids = self.names(Columns.SOURCE_ID, begins) or (None,) * len(begins)
        found: list[dict[str, Any]] = [{} if name is None else {Columns.SOURCE_ID: name} for name in ids]
        for episode in np.flatnonzero(self.flags(Columns.FINAL_OBS_ASSUMED, ends)).tolist():
            found[episode] |= {Columns.FINAL_OBS_ASSUMED: True}
        return tuple(found) if any(found) else None

    def infos(self, starts: NDArray[np.int64], numbers: Sequence[int] | NDArray[Any]) -> Infos | None:
        """N+E infos: the reset's and then each step's, per episode; None when all are empty."""
        steps, resets = (self.raw(name) for name in INFO_COLUMNS)
        if steps.null_count == len(steps) and resets.null_count == len(resets):
            return None
        episodes = len(starts) - 1
        infos: list[Mapping[str, Any]] = [{} for _ in range(len(steps) + episodes)]
        offsets = np.repeat(np.arange(episodes), np.diff(starts))
        for column, shift in ((steps, 1), (resets, 0)):
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            for row, text in zip(rows.tolist(), self.texts(column.take(pa.array(rows))), strict=True):
                infos[row + int(offsets[row]) + shift] = _info_of_text(text, f"{self._where}, step row {numbers[row]}")
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
