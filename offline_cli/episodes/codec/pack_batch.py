"""EpisodeBatches to packed episodes, byte for byte as `encode` packs each of them.

An item is joined of parts, which are made column by column: the bytes that all items of a batch share, and between these each
episode's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import bin_header, list_header, map_header, pack
from offline_cli.episodes.codec.pack import packed, plain_custom_data, plain_infos
from offline_cli.episodes.episode_spaces import known_space_to_rllib
from offline_cli.episodes.single_agent_episode import REWARD_SPACE
from offline_cli.errors import BadData
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree

__all__ = ["check_names", "encode_batch"]

TOGETHER = 1024  # episodes that are packed together: the parts of short ones take several times their bytes
SMALL = 1 << 10  # bytes of a payload, on average: smaller ones are joined faster as bytes of their own than as views
NIL, NO_ENTRIES, ZERO = b"\xc0", b"\x80", b"\x00"
FLOAT64 = 0xCB
FLAGS = (b"\xc2", b"\xc3")
ONE_BYTE = tuple(bytes([value]) for value in range(0x100))
NAME_HEADS = (*ONE_BYTE[0xA0:0xC0], *(b"\xd9" + ONE_BYTE[size] for size in range(0x20, 0x100)))  # by bytes of text


def encode_batch(batch: EpisodeBatch, *, where: str, tally: Tally) -> list[bytes]:
    """Each episode of `batch` as `encode` would pack it, byte for byte.

    Raises BadData naming episode, step and key for infos and custom data that are not plain, and for names that UTF-8 cannot
    hold; what had to be changed in infos is counted in `tally`.
    """
    check_names(batch, where=where)
    parts = (batch.select(slice(first, first + TOGETHER)) for first in range(0, len(batch), TOGETHER))
    return list(chain.from_iterable(_Items(part, where, tally).joined() for part in parts))


def check_names(batch: EpisodeBatch, *, where: str) -> None:
    """Raise BadData for a name in `batch` that a file cannot hold: text with lone surrogates."""
    for name in chain(batch.ids, batch.agent_ids or (), batch.module_ids or (), batch.multi_agent_ids or ()):
        if name is not None and not name.isascii():
            try:
                name.encode("utf-8")
            except UnicodeEncodeError as err:
                raise BadData(f"the name {name[:80]!r}, which UTF-8 cannot hold", where=where, fix="give other ids") from err


class _Items:
    """The items of a batch, written part by part in the order of the state's keys."""

    def __init__(self, batch: EpisodeBatch, where: str, tally: Tally) -> None:
        self.batch, self.where, self.tally = batch, where, tally
        self.steps: list[int] = batch.lengths.tolist()
        self.acted = list(pairwise(batch.starts.tolist()))  # rows of each episode
        self.seen = list(pairwise(batch.obs_starts.tolist()))
        self.shared = bytearray()  # written for all since the last column
        self.columns: list[Iterable[bytes | memoryview]] = []

    def joined(self) -> list[bytes]:
        batch = self.batch
        first = np.zeros(len(batch), np.int64) if batch.t_started is None else batch.t_started
        self.shared += map_header(18)
        self.names("id_", batch.ids)
        self.names("agent_id", batch.agent_ids)
        self.names("module_id", batch.module_ids)
        self.names("multi_agent_episode_id", batch.multi_agent_ids)
        self.buffer("observations", batch.obs, batch.observation_space, self.seen)
        self.buffer("actions", batch.actions, batch.action_space, self.acted)
        self.buffer("rewards", batch.rewards, REWARD_SPACE, self.acted)
        self.key("infos")
        self.infos()
        self.key("extra_model_outputs")
        self.shared += map_header(len(batch.extra)) if batch.extra else NIL
        for name, tree in batch.extra.items():
            self.buffer(name, tree, None, self.acted)
        self.own("is_terminated", [FLAGS[flag] for flag in batch.terminated.tolist()])
        self.own("is_truncated", [FLAGS[flag] for flag in batch.truncated.tolist()])
        self.own("t_started", list(map(_uint_bytes, first.tolist())))
        self.own("t", list(map(_uint_bytes, (first + batch.lengths).tolist())))
        self.key("_observation_space")
        self.shared += pack(known_space_to_rllib(batch.observation_space))
        self.key("_action_space")
        self.shared += pack(known_space_to_rllib(batch.action_space))
        for column, key in enumerate(("_start_time", "_last_step_time")):
            self.own(key, None if batch.clock is None else _clock_bytes(batch.clock[:, column]))
        self.own("custom_data", None if batch.custom_data is None else self.custom_data(batch.custom_data), NO_ENTRIES)
        return list(map(b"".join, zip(*self.columns, repeat(bytes(self.shared)))))

    def key(self, name: str) -> None:
        self.shared += pack(name)

    def each(self, column: Iterable[bytes | memoryview]) -> None:
        self.columns += repeat(bytes(self.shared)), column
        self.shared.clear()

    def own(self, key: str, values: Iterable[bytes] | None, missing: bytes = NIL) -> None:
        self.key(key)
        if values is None:
            self.shared += missing
        else:
            self.each(values)

    def names(self, key: str, names: Sequence[str | None] | None) -> None:
        self.own(key, None if names is None else list(map(_name_bytes, names)))

    def by_steps(self, make: Callable[[int], bytes]) -> None:
        """A part that only depends on the number of steps."""
        made = {steps: make(steps) for steps in set(self.steps)}
        self.each(map(made.__getitem__, self.steps))

    def buffer(self, name: str, tree: Tree, space: Space | None, rows: Sequence[tuple[int, int]]) -> None:
        self.key(name)
        self.shared += map_header(4) + pack("data")
        self.tree(tree, rows)
        self.after_data(True, space)

    def after_data(self, finalized: bool, space: Space | None) -> None:
        self.shared += pack("lookback") + ZERO + pack("finalized") + pack(finalized)
        self.shared += pack("space") + pack(known_space_to_rllib(space))

    def tree(self, tree: Tree, rows: Sequence[tuple[int, int]]) -> None:
        if isinstance(tree, dict):
            self.shared += map_header(len(tree))
            for key, part in tree.items():
                self.key(key)
                self.tree(part, rows)
        elif isinstance(tree, tuple):
            self.shared += list_header(len(tree))
            for part in tree:
                self.tree(part, rows)
        else:
            self.array(np.ascontiguousarray(tree), rows)

    def array(self, leaf: NDArray[Any], rows: Sequence[tuple[int, int]]) -> None:
        more, width = int(rows is self.seen), leaf[:1].nbytes if len(leaf) else 0
        middle = b"".join(pack(size) for size in leaf.shape[1:]) + pack(b"data")
        self.shared += map_header(5) + pack(b"nd") + pack(True) + pack(b"type") + pack(leaf.dtype.str) + pack(b"kind")
        self.shared += pack(b"") + pack(b"shape") + list_header(leaf.ndim)
        self.by_steps(lambda steps: _uint_bytes(steps + more) + middle + bin_header((steps + more) * width))
        payload = memoryview(leaf.reshape(-1).view(np.uint8).data) if leaf.size else memoryview(b"")
        data = payload.tobytes() if len(payload) < SMALL * len(self.batch) else payload
        self.each([data[start * width : stop * width] for start, stop in rows])

    def infos(self) -> None:
        infos = self.batch.infos
        self.shared += map_header(4) + pack("data")
        if infos is None:
            self.by_steps(lambda steps: list_header(steps + 1) + NO_ENTRIES * (steps + 1))
        else:
            self.each([self.packed_infos(e, infos[start:stop]) for e, (start, stop) in enumerate(self.seen)])
        self.after_data(False, None)

    def packed_infos(self, e: int, infos: Sequence[Mapping[str, Any]]) -> bytes:
        first = 0 if self.batch.t_started is None else int(self.batch.t_started[e])
        place = f"{self.where}, episode {self.batch.ids[e]}"
        return packed(plain_infos(infos, first=first, where=place, tally=self.tally), where=place)

    def custom_data(self, custom_data: Sequence[Mapping[str, Any]]) -> list[bytes]:
        places = [f"{self.where}, episode {name}" for name in self.batch.ids]
        found = zip(custom_data, places, strict=True)
        return [packed(plain_custom_data(data, where=place, tally=self.tally), where=place) for data, place in found]


def _name_bytes(name: str | None) -> bytes:
    if name is None:
        return NIL
    text = name.encode()
    return NAME_HEADS[len(text)] + text if len(text) < len(NAME_HEADS) else pack(name)


def _uint_bytes(value: int) -> bytes:
    return ONE_BYTE[value] if value < 0x80 else pack(value)


def _clock_bytes(seconds: NDArray[Any]) -> list[bytes]:
    """Each of `seconds` (E,) as a float; NaN as nil."""
    image = np.full((len(seconds), 9), FLOAT64, np.uint8)
    image[:, 1:] = seconds.astype(">f8").view(np.uint8).reshape(-1, 8)
    return [NIL if second != second else row.tobytes() for row, second in zip(image, seconds.tolist(), strict=True)]
