"""Collects the steps of many slots as they come, and makes whole episodes of them: for `record` and for `Recorder`.

Each step writes one row per slot into arrays (S, capacity, ...), without an object per step. An episode that ends is copied out
of its slot's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.playing.infos import DROPPED, KeptInfo
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, leaves, unflatten_like

__all__ = ["EpisodeRows", "RecordedEpisode", "batch_of", "count_dropped"]

CAPACITY: Final = 64  # steps that there is room for at first
OUTPUTS: Final = "model outputs"
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """An episode that has ended."""

    like: Any  # (observations, actions, extra model outputs, rewards): the structure of `rows`
    rows: list[NDArray[Any]]  # of each leaf: (T+1, ...) observations, (T, ...) of all else
    flags: tuple[bool, bool]  # terminated, truncated
    infos: Sequence[tuple[int, KeptInfo]]  # with the step at which each came, from 0 to T

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        return sum(leaf.nbytes for leaf in self.rows)


class EpisodeRows:
    """Rows of S slots, from steps to episodes. See Sink."""

    def __init__(self, slots: int, *_: object) -> None:
        """See MakeSink."""
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the episode that is under way
        self._infos: list[list[tuple[int, KeptInfo]]] = [[] for _ in range(slots)]
        self._like: Any = None  # of a step, once there is one: see RecordedEpisode
        self._forms: list[Any] = []  # of its leaves
        self._held: list[NDArray[Any]] = []  # (S, capacity, ...) of each leaf

    def step(
        self, slots: Index, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See Sink. Raises BadData for extra model outputs that are not those of the steps before, or no numbers."""
        step = observations, acted.actions, dict(acted.extras), rewards
        new = leaves(step)
        forms = [*acted.extras, *((leaf.dtype, leaf.shape[1:]) for leaf in new)]
        if self._like is None:
            if strange := [path for path, leaf in flatten(step[2]) if leaf.dtype.kind not in "biuf"]:
                fix = "numbers alone; what is not to be recorded, take out of the batch"
                raise BadData(f"model outputs that are not numbers: {', '.join(strange)}", where=OUTPUTS, fix=fix)
            self._like, self._forms = step, forms
            self._held = [np.empty((len(self._t), CAPACITY, *leaf.shape[1:]), leaf.dtype) for leaf in new]
        if forms != self._forms:
            what = f"model outputs in another form than in the steps before: {', '.join(acted.extras) or 'none'}"
            raise BadData(what, where=OUTPUTS, fix="give the same outputs at every step")
        t = self._t[slots]
        if int(t.max()) + 1 >= self._held[0].shape[1]:
            self._held = [_doubled(held) for held in self._held]
        for held, leaf in zip(self._held, new, strict=True):
            held[slots, t] = leaf
        for slot, at, info in zip(slots.tolist(), t.tolist(), infos, strict=True) if infos is not None else ():
            if info:
                self._infos[slot].append((at, info))
        self._t[slots] += 1

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> RecordedEpisode:
        """See Sink."""
        stop, infos = int(self._t[slot]), self._infos[slot]
        seen = leaves(final)
        for held, leaf in zip(self._held, seen, strict=False):
            held[slot, stop] = leaf
        rows = [held[slot, : stop + (number < len(seen))].copy() for number, held in enumerate(self._held)]
        self._t[slot], self._infos[slot] = 0, []
        return RecordedEpisode(self._like, rows, (terminated, truncated), [*infos, (stop, info)] if info else infos)


def batch_of(episodes: Sequence[RecordedEpisode], ids: Sequence[str], spaces: tuple[Space, Space]) -> EpisodeBatch:
    """The episodes as one batch. `spaces`: of observations and actions."""
    rows = [np.concatenate(parts) for parts in zip(*(episode.rows for episode in episodes), strict=True)]
    obs, actions, extra, rewards = unflatten_like(episodes[0].like, rows)
    starts = np.cumsum([0, *(len(episode.rows[-1]) for episode in episodes)]).astype(np.int64)
    infos: list[dict[str, Any]] | None = None
    if any(info.kept for episode in episodes for _, info in episode.infos):
        infos = [{} for _ in range(int(starts[-1]) + len(episodes))]
        for number, episode in enumerate(episodes):
            for at, info in episode.infos:
                infos[int(starts[number]) + number + at] = info.kept
    flags = np.array([episode.flags for episode in episodes])
    return EpisodeBatch(
        ids=tuple(ids),
        starts=starts,
        obs=obs,
        actions=actions,
        rewards=rewards,
        terminated=flags[:, 0],
        truncated=flags[:, 1],
        extra=extra,
        infos=infos,
        observation_space=spaces[0],
        action_space=spaces[1],
    )


def count_dropped(episodes: Sequence[RecordedEpisode], tally: Tally) -> None:
    """Count the entries of infos that were left out, by key."""
    for episode in episodes:
        for _, info in episode.infos:
            for key in info.dropped:
                tally.assume(f"{DROPPED}: {key}")


def _doubled(held: NDArray[Any]) -> NDArray[Any]:
    """(slots, 2 * steps, ...) with what is held; room that is not used yet takes no memory."""
    more = np.empty((held.shape[0], 2 * held.shape[1], *held.shape[2:]), held.dtype)
    more[:, : held.shape[1]] = held
    return more
