"""Packed episodes to EpisodeBatches and back, many at a time; refuses what `one_episode` refuses, unused spaces aside.

No Python object per step, and per episode only a row of offsets: items of one layout go through an `ItemPlan`, and each leaf of
a batch is one join of the items' payloads. An item that its plan does not know goes through the general reader, which either
reads it or says what is wrong with it. Written is what `item_parts` has, for a thousand episodes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.item_parts import item_parts
from offline_cli.episodes.codec.names import check_names
from offline_cli.episodes.codec.plans import ItemPlan, plan_of
from offline_cli.episodes.codec.rows import batch_of_rows, batch_of_state
from offline_cli.episodes.codec.states import pack_state, unpack_state
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.spaces import bound_bytes
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import map_leaves

__all__ = ["BatchDecoder", "decode_batch", "encode_batch"]

PLANS_BYTES = 32 << 20  # of the bounds of their spaces
MAX_PLANS = 8  # layouts at once: each costs one attempt per item that has another
TOGETHER = 1024  # episodes that are packed together: the parts of short ones take several times their bytes
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
            self.rejects.lose_episodes(Lost.UNREADABLE)


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
    items: list[bytes] = []
    for first in range(0, len(batch), TOGETHER):
        part = batch if len(batch) <= TOGETHER else batch.select(slice(first, first + TOGETHER))
        items.extend(map(b"".join, zip(*item_parts(part, plan, where=where, tally=tally), strict=True)))
    return items


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
