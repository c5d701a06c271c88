"""EpisodeBatches to packed episodes, a thousand at a time; infos and custom data that are not plain raise.

An item is joined of parts, which are made column by column. Episodes of as many steps, with the same flags, are of one kind:
between their items only ids, payloads and the like differ. The bytes between these are made once per kind, so that few parts
are left to be joined for each episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch, Infos
from offline_cli.episodes.codec.arrays import list_header
from offline_cli.episodes.codec.fields import (
    ArrayField,
    check_names,
    clocks_bytes,
    flag_bytes,
    name_bytes,
    names_bytes,
    uint_bytes,
)
from offline_cli.episodes.codec.plans import ItemPlan, Slot, plan_of
from offline_cli.episodes.codec.states import pack_state, packed, plain_custom_data, plain_infos
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["encode_batch"]

Column = Iterable[bytes | memoryview]
Field = tuple[bytes | Sequence[bytes], Column | None]
"""A field's bytes: first those that all episodes share, or each kind of them, then each episode's own (None: none)."""

TOGETHER = 1024  # episodes that are packed together: the parts of short ones take several times their bytes
SMALL = 1 << 10  # bytes of a payload, on average: smaller ones are joined faster as bytes of their own than as views


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

    def first(tree: Tree, rows: int) -> Tree:
        return map_leaves(lambda leaf: leaf[:rows], tree)

    return EpisodeBatch(
        batch.ids[:1],
        np.zeros(2, np.int64),
        first(batch.obs, 1),
        first(batch.actions, 0),
        *(batch.rewards[:0], batch.terminated[:1], batch.truncated[:1]),
        extra={name: first(tree, 0) for name, tree in batch.extra.items()},
        observation_space=batch.observation_space,
        action_space=batch.action_space,
    )


# ---- the parts of items ----


def item_parts(batch: EpisodeBatch, plan: ItemPlan, *, where: str, tally: Tally) -> list[Column]:
    """Columns of one part per episode; joined, the parts of an episode are its item. `plan` is the layout of such items.

    Raises BadData naming episode, step and key for infos and custom data that are not plain; counts what it changes in them.
    """
    fields = _Fields(batch, where, tally)
    columns: list[Column] = []
    same, of_kinds = b"", fields.nothing  # written since the last part: `of_kinds`, then `same`
    for index, ((constant, _, _), slot) in enumerate(zip(plan.fields, plan.slots, strict=True)):
        field = plan.arrays.get(index)
        shared, own = fields.array(slot, field) if field else fields.other(slot)
        same += constant
        if isinstance(shared, bytes):
            same += shared
        else:
            of_kinds, same = [before + same + part for before, part in zip(of_kinds, shared, strict=True)], b""
        if own is not None:
            columns += fields.spread(of_kinds, same), own
            same, of_kinds = b"", fields.nothing
    return [*columns, fields.spread(of_kinds, same + plan.tail)]


class _Fields:
    """The bytes of each field of a plan, for all episodes of a batch."""

    def __init__(self, batch: EpisodeBatch, where: str, tally: Tally) -> None:
        self.batch, self.where, self.tally = batch, where, tally
        self.starts: list[int] = batch.starts.tolist()
        self.obs_starts: list[int] = batch.obs_starts.tolist()
        flags = batch.terminated.astype(np.bool_) * 2 + batch.truncated.astype(np.bool_)
        kinds, kind_of = np.unique(batch.lengths * 4 + flags, return_inverse=True)
        self.steps: list[int] = (kinds // 4).tolist()
        self.terminated: list[int] = (kinds // 2 % 2).tolist()
        self.truncated: list[int] = (kinds % 2).tolist()
        self.kind_of: list[int] = kind_of.tolist()  # (E,)
        self.nothing = [b""] * len(kinds)

    def spread(self, of_kinds: Sequence[bytes], same: bytes) -> Column:
        """For each episode the bytes of its kind, and then `same`."""
        return map([part + same for part in of_kinds].__getitem__, self.kind_of)

    def array(self, slot: Slot, field: ArrayField) -> Field:
        observed = slot[0] == "observations"
        starts = self.obs_starts if observed else self.starts
        heads = [field.head(steps + observed) for steps in self.steps]
        leaf = np.ascontiguousarray(_leaf_at(self.batch, slot))
        payload = memoryview(leaf.reshape(-1).view(np.uint8).data) if leaf.size else memoryview(b"")
        data = payload.tobytes() if len(payload) < SMALL * len(self.batch) else payload
        width = field.row_bytes
        return heads, [data[start * width : stop * width] for start, stop in pairwise(starts)]

    def other(self, slot: Slot) -> Field:
        if slot[-1] == "lookback":
            return b"\x00", None
        return self._infos() if slot == ("infos", "data") else self._scalar(slot[0])

    def _scalar(self, key: str) -> Field:
        batch = self.batch
        match key:
            case "id_":
                return b"", names_bytes(batch.ids)
            case "agent_id":
                return _names(batch.agent_ids)
            case "module_id":
                return _names(batch.module_ids)
            case "multi_agent_episode_id":
                return _names(batch.multi_agent_ids)
            case "is_terminated":
                return list(map(flag_bytes, self.terminated)), None
            case "is_truncated":
                return list(map(flag_bytes, self.truncated)), None
            case "t_started":
                return (b"\x00", None) if batch.t_started is None else (b"", _counts(batch.t_started))
            case "t":
                if batch.t_started is None:
                    return list(map(uint_bytes, self.steps)), None
                return b"", _counts(batch.t_started + batch.lengths)
            case "_start_time" | "_last_step_time":
                return self._clock(0 if key == "_start_time" else 1)
            case "custom_data":
                return (b"\x80", None) if batch.custom_data is None else (b"", self._custom_data(batch.custom_data))
        raise AssertionError(key)

    def _clock(self, column: int) -> Field:
        clock = self.batch.clock
        return (b"\xc0", None) if clock is None else (b"", clocks_bytes(clock[:, column]))

    def _custom_data(self, custom_data: Sequence[Mapping[str, Any]]) -> Column:
        texts = _one_text_each(custom_data)
        return list(map(self._packed_custom_data, self.batch.ids, custom_data)) if texts is None else texts

    def _packed_custom_data(self, name: str, values: Mapping[str, Any]) -> bytes:
        place = self._place(name)
        return packed(plain_custom_data(values, where=place, tally=self.tally), where=place)

    def _infos(self) -> Field:
        infos = self.batch.infos
        if infos is None:
            return [list_header(steps + 1) + b"\x80" * (steps + 1) for steps in self.steps], None
        return b"", [self._packed_infos(episode, infos) for episode in range(len(self.batch))]

    def _packed_infos(self, episode: int, infos: Infos) -> bytes:
        part = infos[self.obs_starts[episode] : self.obs_starts[episode + 1]]
        first = 0 if self.batch.t_started is None else int(self.batch.t_started[episode])
        place = self._place(self.batch.ids[episode])
        return packed(plain_infos(part, first=first, where=place, tally=self.tally), where=place)

    def _place(self, name: str) -> str:
        return f"{self.where}, episode {name}"


def _names(names: Sequence[str | None] | None) -> Field:
    return (b"\xc0", None) if names is None else (b"", names_bytes(names))


def _counts(counts: NDArray[np.int64]) -> Column:
    return map(uint_bytes, counts.tolist())


def _one_text_each(custom_data: Sequence[Mapping[str, Any]]) -> list[bytes] | None:
    """Custom data of one text under one key, as every episode of a table has it; None for any other."""
    keys = {key for values in custom_data for key in values}
    if len(keys) != 1:
        return None
    (key,) = keys
    texts: list[Any] = [values.get(key) for values in custom_data]
    if type(key) is not str or set(map(type, texts)) != {str} or not (key + "".join(texts)).isprintable():
        return None  # values that are not text, or a text that UTF-8 may not hold
    head = b"\x81" + name_bytes(key)
    return [head + text for text in names_bytes(texts)]


def _leaf_at(batch: EpisodeBatch, slot: Slot) -> NDArray[Any]:
    """The leaf that a slot like ("actions", "data", "arm") or ("extra", "state_out", "data", "h") holds the bytes of."""
    own = {"observations": batch.obs, "actions": batch.actions, "rewards": batch.rewards}
    tree: Tree = batch.extra[slot[1]] if slot[0] == "extra" else own[slot[0]]
    for part in slot[slot.index("data", 2 if slot[0] == "extra" else 1) + 1 :]:
        tree = tree[int(part)] if isinstance(tree, tuple) else tree[part]
    leaf: NDArray[Any] = tree
    return leaf
