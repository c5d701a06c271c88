"""Packed episodes to EpisodeBatches, many at a time; raises where `one_episode` does, except for unused spaces.

No Python object per step, and per episode only a row of offsets: items of one layout go through an `ItemPlan`, and each leaf of
a batch is one join of the items' payloads. An item that its plan does not know goes through the general reader, which either
reads it or reports what is wrong with it. Lookback buffers are dropped: their steps belong to an earlier chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import check_values
from offline_cli.episodes.codec.fields import INSIDE
from offline_cli.episodes.codec.plans import BufferSlots, ItemPlan, plan_of
from offline_cli.episodes.codec.states import DATA_BUFFERS, unpack_state
from offline_cli.episodes.codec.steps import Steps
from offline_cli.episodes.codec.strided_lists import ItemTemplate
from offline_cli.episodes.episode_spaces import in_space, space_in_state, zero_rows
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.spaces import Space, bound_bytes
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BatchDecoder", "batch_of_state", "decode_batch"]

FIX = "write the file again from its source"
PLANS_BYTES = 32 << 20  # of the bounds of their spaces
MAX_PLANS = 8  # layouts at once: each costs one attempt per item that has another
PATIENCE = 16  # useless plans before one item in four earns another


def decode_batch(
    items: Iterable[bytes], *, where: Callable[[int], str], rejects: Rejects, tally: Tally
) -> Iterator[EpisodeBatch]:
    """The episodes in `items`, in order; a new batch begins where the structure changes.

    `items` may be a pyarrow array of binary as well. `where(i)` names the place of item i, and is called for errors only. Bad
    items go through `rejects`. Episodes may be fragments (t_started > 0, no flag set); of a lookback buffer nothing is taken.
    """
    return BatchDecoder(rejects, tally).decode(items, where=where)


def _as_bytes(items: Iterable[Any]) -> Sequence[Any]:
    to_list = getattr(items, "to_pylist", None)  # pyarrow arrays: one pass in C instead of a scalar object per item
    found: Sequence[Any] = to_list() if to_list else items if isinstance(items, (list, tuple)) else list(items)
    return found


def _that_fit(plans: list[ItemPlan]) -> list[ItemPlan]:
    """The first plan, and those after it whose spaces fit into memory."""
    room = [PLANS_BYTES]
    for plan in plans:
        room.append(room[-1] - bound_bytes(plan.observation_space) - bound_bytes(plan.action_space))
    return [plan for plan, left in zip(plans, room[1:], strict=True) if plan is plans[0] or left > 0]


class BatchDecoder:
    """`decode_batch` for many files: layouts that it has seen (about a millisecond each to learn) are known to the next call.

    It tries these layouts on each item, learns new ones, and falls back to the general reader. Not for several threads at once.
    """

    def __init__(self, rejects: Rejects, tally: Tally) -> None:
        self.rejects, self.tally = rejects, tally
        self.plans: list[ItemPlan] = []
        self.items = self.made = 0

    def decode(self, items: Iterable[bytes], *, where: Callable[[int], str]) -> Iterator[EpisodeBatch]:
        """As `decode_batch`; read each call to its end before the next."""
        pending: list[EpisodeBatch] = []
        for batch in self._batches(_as_bytes(items), where):
            if pending and pending[0].structure_difference(batch):
                yield EpisodeBatch.concat(pending)
                pending = []
            pending.append(batch)
        if pending:
            yield EpisodeBatch.concat(pending)

    def _batches(self, items: Sequence[Any], where: Callable[[int], str]) -> Iterator[EpisodeBatch]:
        plan: ItemPlan | None = None
        rows: list[list[Any]] = []
        indices: list[int] = []
        for index, item in enumerate(items):
            row, used = self._row(item)
            if used is not plan or used is None:
                yield from self._flush(plan, rows, indices, items, where)
                plan, rows, indices = used, [], []
            if row is None:
                yield from self._general(item, where(index))
            else:
                rows.append(row)
                indices.append(index)
        yield from self._flush(plan, rows, indices, items, where)

    def _row(self, item: Any) -> tuple[list[Any] | None, ItemPlan | None]:
        if not isinstance(item, bytes):
            return None, None
        for read in (ItemPlan.read, ItemPlan.read_checked):
            for plan in self.plans:
                row = read(plan, item)
                if row is not None:
                    return self._used(plan, row)
        self.items += 1
        if self.made > PATIENCE + self.items // 4:
            return None, None
        self.made += 1
        made = plan_of(item)
        row = made.read_checked(item) if made else None
        return self._used(made, row) if made and row is not None else (None, None)

    def _used(self, plan: ItemPlan, row: list[Any]) -> tuple[list[Any], ItemPlan]:
        if not self.plans or self.plans[0] is not plan:
            self.plans = _that_fit([plan, *(other for other in self.plans if other is not plan)][:MAX_PLANS])
        if plan.scratch.assumptions:
            self.tally.assumptions.update(plan.scratch.assumptions)
        return row, plan

    def _flush(
        self,
        plan: ItemPlan | None,
        rows: list[list[Any]],
        indices: list[int],
        items: Sequence[Any],
        where: Callable[[int], str],
    ) -> Iterator[EpisodeBatch]:
        if plan is None or not rows:
            return
        batch = _batch_or_none(plan, rows)
        if batch is not None:
            yield batch
            return
        for index in indices:  # one value among many: the odd episode is found by decoding each alone
            row = plan.read_checked(items[index])
            batch = _batch_or_none(plan, [row]) if row is not None else None
            if batch is not None:
                yield batch
            else:
                yield from self._general(items[index], where(index))

    def _general(self, item: Any, place: str) -> Iterator[EpisodeBatch]:
        try:
            if not isinstance(item, bytes):
                raise BadEpisode(f"a {type(item).__name__} where packed bytes belong", where=place, fix="leave this row out")
            yield batch_of_state(unpack_state(item, where=place), where=place, tally=self.tally)
        except (BadData, UnsupportedSpace) as err:
            self.rejects.add(err, raw=item if isinstance(item, bytes) else b"")
            self.rejects.lose_episodes(Lost.UNREADABLE)


def _batch_or_none(plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> EpisodeBatch | None:
    """The batch of these rows; None where something in them does not fit."""
    try:
        return batch_of_rows(plan, rows)
    except BadEpisode:
        return None


# ---- from rows of fields ----


def batch_of_rows(plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> EpisodeBatch | None:
    """The batch of these rows; None where buffers are not as long as their timesteps imply.

    Raises BadEpisode, without a place, where a value is invalid.
    """
    columns = _Columns(plan, rows)
    if not columns.sound():
        return None
    spaces = {"observations": plan.observation_space, "actions": plan.action_space, "rewards": None}
    trees = {name: columns.tree(plan.buffers[name], name, space) for name, space in spaces.items()}
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


class _Columns:
    """Rows of one plan, transposed."""

    def __init__(self, plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> None:
        self.plan = plan
        self.columns = list(zip(*rows, strict=True))
        self.starts_at = np.array(self.values("t_started"), np.int64)
        self.steps = np.array(self.values("t"), np.int64) - self.starts_at

    def values(self, key: str) -> Sequence[Any]:
        return self.columns[self.plan.slots[(key,)]]

    def sound(self) -> bool:
        """Whether all buffers are as long as the timesteps imply."""
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
                trees += [map_leaves(itemgetter(slice(k, None)), tree) for (_, _, tree), k in group]
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
        return zero_rows(space, 0)
    steps = Steps(name, where, tally)
    return steps.in_space(steps.stack(data[skip:]), space)


def _rewards(rewards: Tree, where: str) -> NDArray[np.float64]:
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        kind = f"{rewards.dtype}{rewards.shape[1:]}" if isinstance(rewards, np.ndarray) else "nested"
        raise BadEpisode(f"rewards are {kind}, not one number per step", where=where, fix=FIX)
    return rewards.astype(np.float64, copy=False)
