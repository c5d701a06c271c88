"""Collects the steps of many slots as they come, and makes whole episodes of them: for `record` and for `Recorder`.

Each step writes one row per slot into arrays (S, capacity, ...), without an object per step. An episode that ends is copied out
of its slot's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["EpisodeRows", "RecordedEpisode", "batch_of", "count_dropped"]

CAPACITY: Final = 64  # steps that there is room for at first
NUMBERS: Final = "biuf"
OUTPUTS: Final = "model outputs"
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """An episode that has ended."""

    obs: Tree  # leaves (T+1, ...)
    steps: Mapping[str, Tree]  # leaves (T, ...): `actions`, `extra` model outputs, `rewards`
    flags: tuple[bool, bool]  # terminated, truncated
    infos: Sequence[tuple[int, KeptInfo]]  # with the step at which each came, from 0 to T

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        return sum(leaf.nbytes for leaf in leaves((self.obs, self.steps)))


class EpisodeRows:
    """Rows of S slots, from steps to episodes. See Sink."""

    def __init__(self, slots: int, *_: object) -> None:
        """See MakeSink."""
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the episode that is under way
        self._infos: list[list[tuple[int, KeptInfo]]] = [[] for _ in range(slots)]
        self._obs: Tree = None  # leaves (S, capacity, ...)
        self._steps: Any = None  # likewise, of what there is of a step
        self._forms: list[Any] = []  # of these

    def step(
        self, slots: Index, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See Sink. Raises BadData for extra model outputs that are not those of the steps before, or no numbers."""
        step = {"actions": acted.actions, "extra": dict(acted.extras), "rewards": rewards}
        forms = [*acted.extras, *((leaf.shape[1:], leaf.dtype) for leaf in leaves(step))]
        if self._obs is None:
            self._check_numbers(step["extra"])
            self._obs, self._steps = (map_leaves(self._room_for, tree) for tree in (observations, step))
            self._forms = forms
        if forms != self._forms:
            what = f"model outputs in another form than in the steps before: {', '.join(acted.extras) or 'none'}"
            raise BadData(what, where=OUTPUTS, fix="give the same outputs at every step")
        t = self._t[slots]
        if int(t.max()) + 1 >= leaves(self._obs)[0].shape[1]:
            self._obs, self._steps = (map_leaves(_with_more_room, tree) for tree in (self._obs, self._steps))
        for held, new in ((self._obs, observations), (self._steps, step)):
            for rows, leaf in zip(leaves(held), leaves(new), strict=True):
                rows[slots, t] = leaf
        for slot, at, info in zip(slots.tolist(), t.tolist(), infos, strict=True) if infos is not None else ():
            if info.kept or info.dropped:
                self._infos[slot].append((at, info))
        self._t[slots] += 1

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> RecordedEpisode:
        """See Sink."""
        stop, infos = int(self._t[slot]), self._infos[slot]
        for held, leaf in zip(leaves(self._obs), leaves(final), strict=True):
            held[slot, stop] = leaf
        self._t[slot], self._infos[slot] = 0, []
        return RecordedEpisode(
            map_leaves(lambda held: held[slot, : stop + 1].copy(), self._obs),
            map_leaves(lambda held: held[slot, :stop].copy(), self._steps),
            (terminated, truncated),
            [*infos, (stop, info)] if info.kept or info.dropped else infos,
        )

    def _room_for(self, leaf: NDArray[Any]) -> NDArray[Any]:
        return np.empty((len(self._t), CAPACITY, *leaf.shape[1:]), leaf.dtype)

    def _check_numbers(self, extra: Mapping[str, Tree]) -> None:
        strange = [path for path, leaf in flatten(extra) if leaf.dtype.kind not in NUMBERS]
        if strange:
            fix = "numbers alone; what is not to be recorded, take out of the batch"
            raise BadData(f"model outputs that are not numbers: {', '.join(strange)}", where=OUTPUTS, fix=fix)


def _with_more_room(held: NDArray[Any]) -> NDArray[Any]:
    """For twice as many steps: what is not written to yet takes no memory."""
    more = np.empty((len(held), 2 * held.shape[1], *held.shape[2:]), held.dtype)
    more[:, : held.shape[1]] = held
    return more


def batch_of(episodes: Sequence[RecordedEpisode], ids: Sequence[str], spaces: tuple[Space, Space]) -> EpisodeBatch:
    """The episodes as one batch. `spaces`: of observations and actions."""
    step: Any = map_leaves(lambda *parts: np.concatenate(parts), *(episode.steps for episode in episodes))
    starts = np.cumsum([0, *(len(episode.steps["rewards"]) for episode in episodes)]).astype(np.int64)
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
        obs=map_leaves(lambda *parts: np.concatenate(parts), *(episode.obs for episode in episodes)),
        actions=step["actions"],
        rewards=step["rewards"],
        terminated=flags[:, 0],
        truncated=flags[:, 1],
        extra=step["extra"],
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
