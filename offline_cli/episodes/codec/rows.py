"""EpisodeBatches from what was read of packed episodes, rows of fields or a state; refuses rewards that are no numbers.

Lookback buffers are left out: their steps belong to an earlier chunk of the same episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import check_values
from offline_cli.episodes.codec.fields import INSIDE
from offline_cli.episodes.codec.plans import BufferSlots, ItemPlan
from offline_cli.episodes.codec.states import DATA_BUFFERS
from offline_cli.episodes.codec.steps import Steps, empty_rows
from offline_cli.episodes.codec.strided_lists import ItemTemplate
from offline_cli.episodes.known_spaces import in_space, space_in_state
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["batch_of_rows", "batch_of_state"]

FIX = "write the file again from its source"


# ---- from rows of fields ----


def batch_of_rows(plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> EpisodeBatch | None:
    """The batch of these rows; None where buffers are not as long as their timesteps say.

    Raises BadEpisode, without a place, where a value is none.
    """
    columns = _Columns(plan, rows)
    if not columns.sound():
        return None
    trees = {name: columns.tree(slots, name, space) for name, slots, space in _data_buffers(plan)}
    return EpisodeBatch(
        ids=tuple(columns.values("id_")),
        starts=np.concatenate([[0], np.cumsum(columns.steps)]),
        obs=trees["observations"],
        actions=trees["actions"],
        rewards=_rewards(trees["rewards"], INSIDE),
        terminated=np.array(columns.values("is_terminated"), np.bool_),
        truncated=np.array(columns.values("is_truncated"), np.bool_),
        extra={name: columns.tree(slots, name, None) for name, slots in plan.extra.items()},
        infos=columns.infos(),
        t_started=columns.starts_at if columns.starts_at.any() else None,
        agent_ids=columns.names("agent_id"),
        module_ids=columns.names("module_id"),
        multi_agent_ids=columns.names("multi_agent_episode_id"),
        custom_data=columns.custom_data(),
        clock=columns.clock(),
        observation_space=plan.observation_space,
        action_space=plan.action_space,
    )


def _data_buffers(plan: ItemPlan) -> list[tuple[str, BufferSlots, Space | None]]:
    own = {"observations": plan.observation_space, "actions": plan.action_space, "rewards": None}
    return [(name, plan.buffers[name], space) for name, space in own.items()]


class _Columns:
    """Rows of one plan, turned on their side."""

    def __init__(self, plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> None:
        self.plan = plan
        self.columns = list(zip(*rows, strict=True))
        self.starts_at = np.array(self.values("t_started"), np.int64)
        self.steps = np.array(self.values("t"), np.int64) - self.starts_at

    def values(self, key: str) -> Sequence[Any]:
        return self.columns[self.plan.slots[(key,)]]

    def sound(self) -> bool:
        """Whether all buffers are as long as the timesteps say."""
        own = all(self._fits(self.plan.buffers[name], more) for name, more in DATA_BUFFERS.items())
        more = all(self._fits(slots, 0) for slots in self.plan.extra.values())
        return own and more and bool((self.steps >= 0).all()) and None not in self.values("id_")

    def _fits(self, slots: BufferSlots, more: int) -> bool:
        want = (self.steps + more + np.array(self.columns[slots.lookback], np.int64)).tolist()
        return all([value[0] for value in self.columns[index]] == want for index in leaves(slots.data))

    def tree(self, slots: BufferSlots, name: str, space: Space | None) -> Tree:
        skip = self.columns[slots.lookback]
        if slots.steps:
            return self._joined_steps(slots.data, skip)
        joined = map_leaves(lambda index: self._joined_arrays(index, skip), slots.data)
        return in_space(joined, space, name=name, where=INSIDE)

    def _joined_arrays(self, index: int, skip: Sequence[int]) -> NDArray[Any]:
        field = self.plan.arrays[index]
        payloads = [payload for _, payload in self.columns[index]]
        if any(skip):
            payloads = [payload[k * field.row_bytes :] for payload, k in zip(payloads, skip, strict=True)]
        rows = sum(count for count, _ in self.columns[index]) - sum(skip)
        array = np.frombuffer(bytearray().join(payloads), field.dtype).reshape(rows, *field.shape)
        check_values(array, where=INSIDE)
        return array

    def _joined_steps(self, index: int, skip: Sequence[int]) -> Tree:
        field = self.plan.steps[index]
        trees: list[Tree] = [field.empty]
        for template, group in groupby(zip(self.columns[index], skip, strict=True), key=lambda value: value[0][1]):
            if template is None:
                trees += [map_leaves(partial(_rows_from, k), tree) for (_, _, tree), k in group]
            else:
                trees.append(field.structured(_joined(template, [(rows, k) for (_, _, rows), k in group])))
        return map_leaves(lambda *parts: np.concatenate(parts), *trees) if len(trees) > 2 else trees[-1]

    def infos(self) -> list[Mapping[str, Any]] | None:
        slots = self.plan.buffers["infos"]
        found = self.columns[slots.data]
        if all(infos is None for _, infos in found):
            return None
        empty: Mapping[str, Any] = {}
        joined: list[Mapping[str, Any]] = []
        for (count, infos), k in zip(found, self.columns[slots.lookback], strict=True):
            joined += [empty] * (count - k) if infos is None else infos[k:]
        return joined if any(joined) else None

    def names(self, key: str) -> tuple[str | None, ...] | None:
        values = tuple(self.values(key))
        return None if all(value is None for value in values) else values

    def custom_data(self) -> tuple[Mapping[str, Any], ...] | None:
        slot = self.plan.slots.get(("custom_data",), self.plan.slots.get(("_temporary_timestep_data",)))
        values = () if slot is None else tuple(self.columns[slot])
        return values if any(values) else None

    def clock(self) -> NDArray[np.float64] | None:
        slots = [self.plan.slots.get((key,)) for key in ("_start_time", "_last_step_time")]
        unknown = [np.nan] * len(self.steps)
        columns = [unknown if slot is None else self.columns[slot] for slot in slots]
        clock = np.array(columns, np.float64).T.copy()
        return None if np.isnan(clock).all() else clock


def _rows_from(first: int, leaf: NDArray[Any]) -> NDArray[Any]:
    return leaf[first:]


def _joined(template: ItemTemplate, parts: Sequence[tuple[bytes | memoryview, int]]) -> Tree:
    """Leaves (N, *shape) of the steps in all parts, but for the first k of each. Raises BadEpisode unless all fit."""
    table = bytearray().join(rows[k * template.size :] if k else rows for rows, k in parts)
    tree = template.read(table, 0, len(table) // template.size)
    if tree is None:
        raise BadEpisode("steps that differ in more than their values", where=INSIDE, fix=FIX)
    return tree


# ---- from a state ----


def batch_of_state(state: Mapping[str, Any], *, where: str, tally: Tally) -> EpisodeBatch:
    """The batch of one episode, from a state that `unpack_state` checked. Raises BadEpisode naming the episode and the leaf."""
    here = f"{where}, episode {state['id_']}"
    own = {name: space_in_state(state, name, where=here) for name in ("observations", "actions")}
    trees = {name: _tree(state[name], name, own.get(name), here, tally) for name in ("observations", "actions", "rewards")}
    extra = {name: _tree(part, name, None, here, tally) for name, part in (state["extra_model_outputs"] or {}).items()}
    infos = state["infos"]["data"][state["infos"]["lookback"] :]
    clock = np.array([[state["_start_time"], state["_last_step_time"]]], np.float64)  # None becomes NaN
    return EpisodeBatch(
        ids=(state["id_"],),
        starts=np.array([0, state["t"] - state["t_started"]]),
        obs=trees["observations"],
        actions=trees["actions"],
        rewards=_rewards(trees["rewards"], here),
        terminated=np.array([state["is_terminated"]]),
        truncated=np.array([state["is_truncated"]]),
        extra=extra,
        infos=infos if any(infos) else None,
        t_started=np.array([state["t_started"]]) if state["t_started"] else None,
        agent_ids=_one(state["agent_id"]),
        module_ids=_one(state["module_id"]),
        multi_agent_ids=_one(state["multi_agent_episode_id"]),
        custom_data=_one(state["custom_data"] or None),
        clock=None if np.isnan(clock).all() else clock,
        observation_space=own["observations"],
        action_space=own["actions"],
    )


def _one(value: Any) -> tuple[Any] | None:
    return None if value is None else (value,)


def _tree(buffer: Mapping[str, Any], name: str, space: Space | None, where: str, tally: Tally) -> Tree:
    data, skip = buffer["data"], buffer["lookback"]
    if buffer["finalized"]:
        return map_leaves(lambda leaf: leaf[skip:], in_space(data, space, name=name, where=where))
    if len(data) == skip:
        return empty_rows(space)
    steps = Steps(name, where, tally)
    return steps.in_space(steps.stack(data[skip:]), space)


def _rewards(rewards: Tree, where: str) -> NDArray[np.float64]:
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        kind = f"{rewards.dtype}{rewards.shape[1:]}" if isinstance(rewards, np.ndarray) else "nested"
        raise BadEpisode(f"rewards are {kind}, not one number per step", where=where, fix=FIX)
    return rewards.astype(np.float64, copy=False)
