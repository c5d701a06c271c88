"""Encode EpisodeBatches as packed episodes, byte for byte equal to `encode`.

The state that all episodes of a batch share is packed once, with marks where they differ. Each item joins the bytes between the
marks with the episode's own bytes, which are made column by column.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import bin_header, list_header, pack
from offline_cli.episodes.codec.pack import packed, plain_custom_data, plain_infos
from offline_cli.episodes.episode_spaces import known_space_to_rllib
from offline_cli.episodes.single_agent_episode import REWARD_SPACE
from offline_cli.errors import BadData
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["check_names", "encode_batch"]

TOGETHER = 1024  # episodes packed at a time: the parts of short ones take several times their size
SMALL = 1 << 10  # mean payload bytes: smaller payloads are joined faster as bytes than as views
MARK = os.urandom(16)
NIL, NO_ENTRIES, FLAGS = b"\xc0", b"\x80", (b"\xc2", b"\xc3")
FLOAT64 = 0xCB
ONE_BYTE = tuple(bytes([value]) for value in range(0x100))
NAME_HEADS = (
    *ONE_BYTE[0xA0:0xC0],
    *(b"\xd9" + ONE_BYTE[size] for size in range(0x20, 0x100)),
)  # by length of the text in bytes


def encode_batch(batch: EpisodeBatch, *, where: str, tally: Tally) -> list[bytes]:
    """Encode each episode of `batch`, byte for byte as `encode` does.

    Raises BadData, naming episode, step and key, for infos and custom data that cannot be made plain, and for names that UTF-8
    cannot encode; conversions in infos are counted in `tally`.
    """
    check_names(batch, where=where)
    parts = (batch.select(slice(first, first + TOGETHER)) for first in range(0, len(batch), TOGETHER))
    return list(chain.from_iterable(_Items(part, where, tally).joined() for part in parts))


def check_names(batch: EpisodeBatch, *, where: str) -> None:
    """Raise BadData for a name in `batch` with lone surrogates, which no file can hold."""
    for name in chain(batch.ids, batch.agent_ids or (), batch.module_ids or (), batch.multi_agent_ids or ()):
        if name is not None and not name.isascii():
            try:
                name.encode("utf-8")
            except UnicodeEncodeError as err:
                raise BadData(f"UTF-8 cannot encode the name {name[:80]!r}", where=where, fix="use other ids") from err


class _Items:
    """Builds the items of a batch."""

    def __init__(self, batch: EpisodeBatch, where: str, tally: Tally) -> None:
        self.batch, self.where, self.tally = batch, where, tally
        self.first = np.zeros(len(batch), np.int64) if batch.t_started is None else batch.t_started
        self.steps: list[int] = batch.lengths.tolist()
        self.acted = list(pairwise(batch.starts.tolist()))  # rows of each episode
        self.seen = list(pairwise(batch.obs_starts.tolist()))
        self.columns: list[tuple[Iterable[bytes | memoryview], ...]] = []  # for each mark: its bytes by episode

    def joined(self) -> list[bytes]:
        batch, first = self.batch, self.first
        state = {
            "id_": self.each(map(_name_bytes, batch.ids)),
            "agent_id": self.names(batch.agent_ids),
            "module_id": self.names(batch.module_ids),
            "multi_agent_episode_id": self.names(batch.multi_agent_ids),
            "observations": self.buffer(batch.obs, batch.observation_space, self.seen),
            "actions": self.buffer(batch.actions, batch.action_space, self.acted),
            "rewards": self.buffer(batch.rewards, REWARD_SPACE, self.acted),
            "infos": _buffer(self.infos(), None, finalized=False),
            "extra_model_outputs": {name: self.buffer(tree, None, self.acted) for name, tree in batch.extra.items()} or None,
            "is_terminated": self.each(FLAGS[flag] for flag in batch.terminated.tolist()),
            "is_truncated": self.each(FLAGS[flag] for flag in batch.truncated.tolist()),
            "t_started": self.each(map(_uint_bytes, first.tolist())),
            "t": self.each(map(_uint_bytes, (first + batch.lengths).tolist())),
            "_observation_space": known_space_to_rllib(batch.observation_space),
            "_action_space": known_space_to_rllib(batch.action_space),
            "_start_time": None if batch.clock is None else self.each(_clock_bytes(batch.clock[:, 0])),
            "_last_step_time": None if batch.clock is None else self.each(_clock_bytes(batch.clock[:, 1])),
            "custom_data": {} if batch.custom_data is None else self.each(self.custom_data()),
        }
        begin, *between = pack(state).split(pack(MARK))  # marks are in the order of their columns
        parts = [(*columns, repeat(shared)) for columns, shared in zip(self.columns, between, strict=True)]
        return list(map(b"".join, zip(repeat(begin), *chain.from_iterable(parts))))

    def each(self, *columns: Iterable[bytes | memoryview]) -> bytes:
        """Add the bytes of each episode; return the mark that they replace."""
        self.columns.append(columns)
        return MARK

    def by_steps(self, make: Callable[[int], bytes]) -> Iterable[bytes]:
        """Bytes that depend only on the number of steps."""
        made = {steps: make(steps) for steps in set(self.steps)}
        return map(made.__getitem__, self.steps)

    def names(self, names: Sequence[str | None] | None) -> bytes | None:
        return None if names is None else self.each(map(_name_bytes, names))

    def buffer(self, tree: Tree, space: Space | None, rows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        return _buffer(map_leaves(lambda leaf: self.array(np.ascontiguousarray(leaf), rows), tree), space, finalized=True)

    def array(self, leaf: NDArray[Any], rows: Sequence[tuple[int, int]]) -> dict[bytes, Any]:
        more, width = int(rows is self.seen), leaf[:1].nbytes if len(leaf) else 0
        payload = memoryview(leaf.reshape(-1).view(np.uint8).data) if leaf.size else memoryview(b"")
        data = payload.tobytes() if len(payload) < SMALL * len(self.batch) else payload
        count = self.each(self.by_steps(lambda steps: _uint_bytes(steps + more)))
        sizes = self.by_steps(lambda steps: bin_header((steps + more) * width))
        node = {b"nd": True, b"type": leaf.dtype.str, b"kind": b"", b"shape": (count, *leaf.shape[1:])}
        return {**node, b"data": self.each(sizes, (data[start * width : stop * width] for start, stop in rows))}

    def infos(self) -> bytes:
        infos = self.batch.infos
        if infos is None:
            return self.each(self.by_steps(lambda steps: list_header(steps + 1) + NO_ENTRIES * (steps + 1)))
        found = zip(self.batch.ids, self.first.tolist(), self.seen, strict=True)
        places = [(f"{self.where}, episode {name}", first, rows) for name, first, rows in found]
        return self.each(
            [
                packed(plain_infos(infos[start:stop], first=first, where=place, tally=self.tally), where=place)
                for place, first, (start, stop) in places
            ]
        )

    def custom_data(self) -> list[bytes]:
        found = [
            (data, f"{self.where}, episode {name}")
            for data, name in zip(self.batch.custom_data or (), self.batch.ids, strict=True)
        ]
        return [packed(plain_custom_data(data, where=place, tally=self.tally), where=place) for data, place in found]


def _buffer(data: Any, space: Space | None, *, finalized: bool) -> dict[str, Any]:
    return {"data": data, "lookback": 0, "finalized": finalized, "space": known_space_to_rllib(space)}


def _name_bytes(name: str | None) -> bytes:
    if name is None:
        return NIL
    text = name.encode()
    return NAME_HEADS[len(text)] + text if len(text) < len(NAME_HEADS) else pack(name)


def _uint_bytes(value: int) -> bytes:
    return ONE_BYTE[value] if value < 0x80 else pack(value)


def _clock_bytes(seconds: NDArray[Any]) -> list[bytes]:
    """Pack each of `seconds` (E,) as a float; NaN as nil."""
    image = np.full((len(seconds), 9), FLOAT64, np.uint8)
    image[:, 1:] = seconds.astype(">f8").view(np.uint8).reshape(-1, 8)
    return [NIL if second != second else row.tobytes() for row, second in zip(image, seconds.tolist(), strict=True)]
