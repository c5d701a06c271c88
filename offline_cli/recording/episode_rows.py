"""Collects the steps of many slots as they come, and makes whole episodes of them.

Each step writes one row per slot into arrays (S, capacity, ...), without an object per step. An episode that ends is copied out
of its slot's rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.playing.infos import KeptInfo
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, leaves, unflatten_like

__all__ = ["EpisodeRows", "RecordedEpisode", "RecordedEpisodes"]

CAPACITY: Final = 64  # steps that there is room for at first
NUMBERS: Final = "biuf"
OUTPUTS: Final = "model outputs"
Index = NDArray[np.int64]
Rows = NDArray[Any]


class RecordedEpisodes(NamedTuple):
    """Whole episodes, and what was left out of them."""

    batch: EpisodeBatch
    dropped: Mapping[str, int]  # entries of infos by key


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """An episode that has ended."""

    obs: list[Rows]  # leaves (T+1, ...)
    steps: list[Rows]  # leaves (T, ...): actions, extra model outputs, rewards
    flags: tuple[bool, bool]  # terminated, truncated
    infos: list[tuple[int, KeptInfo]]  # with the step at which each came, from 0 to T

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        return sum(leaf.nbytes for leaf in (*self.obs, *self.steps))


class EpisodeRows:
    """Rows of S slots, from steps to episodes. See Sink."""

    def __init__(self, slots: int, spaces: tuple[Space, Space], ids: Callable[[Sequence[int]], tuple[str, ...]]) -> None:
        """`spaces`: of observations and actions. `ids`: from episode numbers to as many ids."""
        self._spaces, self._ids = spaces, ids
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the episode that is under way
        self._infos: list[list[tuple[int, KeptInfo]]] = [[] for _ in range(slots)]
        self._like: tuple[Tree, Tree] | None = None  # observations, and what there is of a step, in their structure
        self._forms: list[Any] = []  # of what there is of a step
        self._obs: list[Rows] = []  # leaves (S, capacity, ...)
        self._steps: list[Rows] = []  # likewise

    def step(
        self, slots: Index, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See Sink. Raises BadData for extra model outputs that are not those of the steps before, or no numbers."""
        step = {"actions": acted.actions, "extra": dict(acted.extras), "rewards": rewards}
        seen, done = leaves(observations), leaves(step)
        forms = [*acted.extras, *((leaf.shape[1:], leaf.dtype) for leaf in done)]
        if self._like is None:
            self._make_room(observations, step, forms)
        if forms != self._forms:
            what = f"model outputs in another form than in the steps before: {', '.join(acted.extras) or 'none'}"
            raise BadData(what, where=OUTPUTS, fix="give the same outputs at every step")
        t = self._t[slots]
        if int(t.max()) + 1 >= self._obs[0].shape[1]:
            self._obs, self._steps = ([_with_more_room(held) for held in part] for part in (self._obs, self._steps))
        for held, leaf in (*zip(self._obs, seen, strict=True), *zip(self._steps, done, strict=True)):
            held[slots, t] = leaf
        for slot, at, info in zip(slots.tolist(), t.tolist(), infos, strict=True) if infos is not None else ():
            if info.kept or info.dropped:
                self._infos[slot].append((at, info))
        self._t[slots] += 1

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> RecordedEpisode:
        """See Sink."""
        stop, infos = int(self._t[slot]), self._infos[slot]
        for held, leaf in zip(self._obs, leaves(final), strict=True):
            held[slot, stop] = leaf
        self._t[slot], self._infos[slot] = 0, []
        return RecordedEpisode(
            [held[slot, : stop + 1].copy() for held in self._obs],
            [held[slot, :stop].copy() for held in self._steps],
            (terminated, truncated),
            [*infos, (stop, info)] if info.kept or info.dropped else infos,
        )

    def joined(self, numbers: Sequence[int], episodes: Sequence[RecordedEpisode]) -> RecordedEpisodes:
        """See Sink."""
        assert self._like is not None, "an episode has been played"
        obs = [np.concatenate(parts) for parts in zip(*(episode.obs for episode in episodes), strict=True)]
        steps = [np.concatenate(parts) for parts in zip(*(episode.steps for episode in episodes), strict=True)]
        step = unflatten_like(self._like[1], steps)
        flags = np.array([episode.flags for episode in episodes])
        lengths = [len(episode.steps[-1]) for episode in episodes]
        noted = [info for episode in episodes for _, info in episode.infos]
        infos: list[dict[str, Any]] | None = None
        if any(info.kept for info in noted):
            infos = [{} for _ in range(sum(lengths) + len(lengths))]
            first = 0
            for length, episode in zip(lengths, episodes, strict=True):
                for at, info in episode.infos:
                    infos[first + at] = info.kept
                first += length + 1
        batch = EpisodeBatch(
            ids=self._ids(numbers),
            starts=np.cumsum([0, *lengths]).astype(np.int64),
            obs=unflatten_like(self._like[0], obs),
            actions=step["actions"],
            rewards=step["rewards"],
            terminated=flags[:, 0],
            truncated=flags[:, 1],
            extra=step["extra"],
            infos=infos,
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        )
        return RecordedEpisodes(batch, Counter(key for info in noted for key in info.dropped))

    def _make_room(self, observations: Tree, step: Tree, forms: list[Any]) -> None:
        strange = [path for path, leaf in flatten(step["extra"]) if leaf.dtype.kind not in NUMBERS]
        if strange:
            fix = "numbers alone; what is not to be recorded, take out of the batch"
            raise BadData(f"model outputs that are not numbers: {', '.join(strange)}", where=OUTPUTS, fix=fix)
        self._like, self._forms = (observations, step), forms
        self._obs, self._steps = (
            [np.empty((len(self._t), CAPACITY, *leaf.shape[1:]), leaf.dtype) for leaf in leaves(tree)]
            for tree in (observations, step)
        )


def _with_more_room(held: Rows) -> Rows:
    """For twice as many steps: what is not written to yet takes no memory."""
    more = np.empty((len(held), 2 * held.shape[1], *held.shape[2:]), held.dtype)
    more[:, : held.shape[1]] = held
    return more
