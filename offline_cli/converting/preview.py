"""What a conversion would write, shown before it does: first episode and size on disk. Nothing is written to the output.

The size is measured, not guessed: the first episodes are written as a dataset in a temporary folder, with the same options, and
the bytes of its shards are extrapolated to the rest in proportion.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline_cli.converting.reading import EpisodeStream
from offline_cli.converting.sink import Sink
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import Location, open_location
from offline_cli.spaces import describe
from offline_cli.trees import flatten

__all__ = ["Preview", "preview"]

SAMPLE = 16 << 20  # bytes of arrays that are written to extrapolate the rest from
SHOWN_STEPS = 3
SHOWN_NUMBERS = 8  # of one value


@dataclass(frozen=True, slots=True)
class Preview:
    """What is in the episodes that would be written."""

    episodes: int
    steps: int
    estimated_bytes: int  # of all shards
    observation_space: str
    action_space: str
    mappings: Sequence[Mapping[str, str]]  # of each table: its columns by ours
    first_episode: Mapping[str, Any]  # id, length, return, flags and the first steps, as JSON values

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, without the counts, which the result of the conversion has too."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("episodes", "steps")}


def preview(stream: EpisodeStream, writer: Callable[[Location], Sink]) -> Preview:
    """Read all of `stream`; `writer` makes the writer that would write it, at another place.

    Raises what reading and writing would raise. Without any episode its figures are 0.
    """
    first: Mapping[str, Any] = {}
    found = steps = size = sampled = written = 0
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder, writer(open_location(folder).join("sample")) as sample:
        for batch in stream:
            first = first or _described(batch)
            found, steps, size = found + len(batch), steps + batch.num_steps, size + batch.nbytes
            if sampled < SAMPLE:
                part = _within(batch, SAMPLE - sampled)
                sample.write(part)
                sampled += part.nbytes
                batch = batch.select(slice(len(part), len(batch)))
            if len(batch):
                sample.rehearse(batch)
        if sampled:
            written = sample.commit(assumptions={}, episodes_lost=None).bytes
    return Preview(
        episodes=found,
        steps=steps,
        estimated_bytes=round(written * size / sampled) if sampled else 0,
        observation_space=describe(stream.observation_space),
        action_space=describe(stream.action_space),
        mappings=tuple(stream.mappings),
        first_episode=first,
    )


def _within(batch: EpisodeBatch, limit: int) -> EpisodeBatch:
    """The first episodes, of about `limit` bytes and at least one."""
    if batch.nbytes <= limit:
        return batch
    share = np.searchsorted(batch.starts, batch.num_steps * limit / batch.nbytes)
    return batch.select(slice(0, max(1, int(share))))


def _described(batch: EpisodeBatch) -> dict[str, Any]:
    shown = min(SHOWN_STEPS, int(batch.lengths[0]))
    trees = {"obs": batch.obs, "actions": batch.actions, "rewards": batch.rewards, **batch.extra}
    leaves = [(path, leaf) for name, tree in trees.items() for path, leaf in flatten(tree, name)]
    return {
        "eps_id": batch.ids[0],
        "length": int(batch.lengths[0]),
        "return": float(batch.returns[0]),
        "terminated": bool(batch.terminated[0]),
        "truncated": bool(batch.truncated[0]),
        "first_steps": [{path: _value(leaf[step]) for path, leaf in leaves} for step in range(shown)],
    }


def _value(value: Any) -> Any:
    """A number, a short list of numbers, or the shape and dtype of a larger value."""
    array = np.asarray(value)
    return array.tolist() if array.size <= SHOWN_NUMBERS else f"{array.dtype} {list(array.shape)}"
