"""Packed episodes to EpisodeBatches and back, many at a time; refuses what `one_episode` refuses, unused spaces aside.

No Python object per step, and per episode only a row of offsets: items of one layout go through an `ItemPlan`, and each leaf of
a batch is one join of the items' payloads. An item that its plan does not know goes through the general reader, which either
reads it or says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch, Infos
from offline_cli.episodes.codec.fields import ArrayField, clock_bytes, name_bytes, uint_bytes
from offline_cli.episodes.codec.names import check_names
from offline_cli.episodes.codec.plans import ItemPlan, Slot, plan_of
from offline_cli.episodes.codec.rows import batch_of_rows, batch_of_state
from offline_cli.episodes.codec.states import pack_state, packed, plain_custom_data, plain_infos, unpack_state
from offline_cli.episodes.codec.strided_lists import list_header
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.spaces import bound_bytes
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["BatchDecoder", "decode_batch", "encode_batch"]

PLANS_BYTES = 32 << 20  # of the bounds of their spaces
MAX_PLANS = 8  # layouts at once: each costs one attempt per item that has another
PATIENCE = 16  # plans made in vain before one item in four earns another


# ---- reading ----


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
    """The first plan, and those after it whose spaces there is room for."""
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
        for index in indices:  # one value among many: the odd episode is found by taking each alone
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


def _batch_or_none(plan: ItemPlan, rows: Sequence[Sequence[Any]]) -> EpisodeBatch | None:
    """The batch of these rows; None where something in them does not fit."""
    try:
        return batch_of_rows(plan, rows)
    except BadEpisode:
        return None


# ---- writing ----


def encode_batch(batch: EpisodeBatch, *, where: str, tally: Tally) -> list[bytes]:
    """Each episode of `batch` as `encode` would pack it, byte for byte.

    Raises BadData naming episode, step and key for infos and custom data that are not plain, and for names that UTF-8 cannot
    hold or that are longer than 64 KiB; what had to be changed in infos is counted in `tally`.
    """
    if not len(batch):
        return []
    check_names(batch, where=where)
    plan = plan_of(pack_state(_layout_of(batch)[0].get_state(), where=where, tally=Tally()))
    assert plan is not None, f"no plan for an item of our own: {batch!r}"
    writer = _Writer(batch, where, tally)
    columns: list[Iterable[Any]] = []
    for (constant, _, _), slot in zip(plan.fields, plan.slots, strict=True):
        columns += [repeat(constant), *writer.columns(slot, plan)]
    return [b"".join(parts) for parts in zip(*columns, repeat(plan.tail), strict=False)]  # constants repeat for ever


def _layout_of(batch: EpisodeBatch) -> EpisodeBatch:
    """One episode without steps that is laid out as those of `batch` are."""
    return EpisodeBatch(
        ids=batch.ids[:1],
        starts=np.zeros(2, np.int64),
        obs=map_leaves(lambda leaf: leaf[:1], batch.obs),
        actions=map_leaves(lambda leaf: leaf[:0], batch.actions),
        rewards=batch.rewards[:0],
        terminated=batch.terminated[:1],
        truncated=batch.truncated[:1],
        extra={name: map_leaves(lambda leaf: leaf[:0], tree) for name, tree in batch.extra.items()},
        observation_space=batch.observation_space,
        action_space=batch.action_space,
    )


class _Writer:
    """The bytes of each field of a plan, for all episodes of a batch."""

    def __init__(self, batch: EpisodeBatch, where: str, tally: Tally) -> None:
        self.batch, self.where, self.tally = batch, where, tally
        self.lengths: list[int] = batch.lengths.tolist()
        self.starts: list[int] = batch.starts.tolist()
        self.obs_starts: list[int] = batch.obs_starts.tolist()
        self.t_started = [0] * len(batch) if batch.t_started is None else batch.t_started.tolist()

    def columns(self, slot: Slot, plan: ItemPlan) -> list[Iterable[Any]]:
        """One or two columns of bytes per episode."""
        if slot[-1] == "lookback":
            return [repeat(b"\x00")]
        if slot == ("infos", "data"):
            return [self._infos()]
        if len(slot) > 1:
            return self._array(slot, plan.arrays[plan.slots[slot]])
        return [self._scalar(slot[0])]

    def _array(self, slot: Slot, field: ArrayField) -> list[Iterable[Any]]:
        leaf = _leaf_at(self.batch, slot)
        starts = self.obs_starts if slot[0] == "observations" else self.starts
        rows = [stop - start for start, stop in pairwise(starts)]
        heads = {count: field.head(count) for count in set(rows)}
        width = field.row_bytes
        payload = memoryview(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data) if leaf.size else memoryview(b"")
        pieces = [payload[start * width : stop * width] for start, stop in pairwise(starts)]
        return [[heads[count] for count in rows], pieces]

    def _scalar(self, key: str) -> Iterable[bytes]:
        batch = self.batch
        match key:
            case "id_":
                return map(name_bytes, batch.ids)
            case "agent_id":
                return _names(batch.agent_ids)
            case "module_id":
                return _names(batch.module_ids)
            case "multi_agent_episode_id":
                return _names(batch.multi_agent_ids)
            case "is_terminated":
                return [b"\xc3" if flag else b"\xc2" for flag in batch.terminated.tolist()]
            case "is_truncated":
                return [b"\xc3" if flag else b"\xc2" for flag in batch.truncated.tolist()]
            case "t_started":
                return repeat(b"\x00") if batch.t_started is None else map(uint_bytes, self.t_started)
            case "t":
                return [uint_bytes(start + steps) for start, steps in zip(self.t_started, self.lengths, strict=True)]
            case "_start_time" | "_last_step_time":
                return self._clock(0 if key == "_start_time" else 1)
            case "custom_data":
                return self._custom_data()
        raise AssertionError(key)

    def _clock(self, column: int) -> Iterable[bytes]:
        return repeat(b"\xc0") if self.batch.clock is None else map(clock_bytes, self.batch.clock[:, column].tolist())

    def _custom_data(self) -> Iterable[bytes]:
        if self.batch.custom_data is None:
            return repeat(b"\x80")
        return list(map(self._packed_custom_data, self.batch.ids, self.batch.custom_data))

    def _packed_custom_data(self, name: str, values: Mapping[str, Any]) -> bytes:
        if len(values) == 1:  # one text, as every episode of a table has it
            ((key, value),) = values.items()
            if type(key) is str and type(value) is str and key.isprintable() and value.isprintable():
                return b"\x81" + name_bytes(key) + name_bytes(value)
        place = self._place(name)
        return packed(plain_custom_data(values, where=place, tally=self.tally), where=place)

    def _infos(self) -> Iterable[bytes]:
        if self.batch.infos is None:
            empties = {steps: list_header(steps + 1) + b"\x80" * (steps + 1) for steps in set(self.lengths)}
            return [empties[steps] for steps in self.lengths]
        return [self._packed_infos(episode, self.batch.infos) for episode in range(len(self.batch))]

    def _packed_infos(self, episode: int, infos: Infos) -> bytes:
        part = infos[self.obs_starts[episode] : self.obs_starts[episode + 1]]
        place = self._place(self.batch.ids[episode])
        return packed(plain_infos(part, first=self.t_started[episode], where=place, tally=self.tally), where=place)

    def _place(self, name: str) -> str:
        return f"{self.where}, episode {name}"


def _names(names: tuple[str | None, ...] | None) -> Iterable[bytes]:
    return repeat(b"\xc0") if names is None else map(name_bytes, names)


def _leaf_at(batch: EpisodeBatch, slot: Slot) -> NDArray[Any]:
    """The leaf that a slot like ("actions", "data", "arm") or ("extra", "state_out", "data", "h") holds the bytes of."""
    own = {"observations": batch.obs, "actions": batch.actions, "rewards": batch.rewards}
    tree: Tree = batch.extra[slot[1]] if slot[0] == "extra" else own[slot[0]]
    for part in slot[slot.index("data", 2 if slot[0] == "extra" else 1) + 1 :]:
        tree = tree[int(part)] if isinstance(tree, tuple) else tree[part]
    leaf: NDArray[Any] = tree
    return leaf
