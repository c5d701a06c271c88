"""Collects the steps of many slots as they come, and gives whole episodes in the order of their numbers.

Each step writes one row per slot into arrays (S, capacity, ...), without an object per step. An episode that ends is copied out
of its slot's rows, and waits until all episodes before it are whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.playing.infos import KeptInfo
from offline_cli.policies.policy import ActInput, ActOutput
from offline_cli.spaces import Space
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["EpisodeStore", "RecordedEpisodes"]

CAPACITY: Final = 64  # steps that there is room for at first
NUMBERS: Final = "biuf"
Index = NDArray[np.int64]
Rows = NDArray[Any]


class RecordedEpisodes(NamedTuple):
    """Whole episodes, and what was left out of them."""

    batch: EpisodeBatch
    dropped: Mapping[str, int]  # entries of infos by key


class _Whole:
    """An episode that has ended: leaves of its observations, steps and infos."""

    __slots__ = ("flags", "infos", "obs", "steps")

    def __init__(self, obs: list[Rows], steps: list[Rows], flags: tuple[bool, bool], infos: list[Any] | None) -> None:
        self.obs, self.steps, self.flags, self.infos = obs, steps, flags, infos

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in (*self.obs, *self.steps))


class EpisodeStore:
    """Rows of S slots, from steps to episodes. See Sink."""

    def __init__(self, slots: int, spaces: tuple[Space, Space], ids: Callable[[Index], tuple[str, ...]]) -> None:
        """`spaces`: of observations and actions. `ids`: from episode numbers (E,) to as many ids."""
        self._spaces, self._ids = spaces, ids
        self.held_bytes = 0
        self._t = np.zeros(slots, np.int64)  # (S,) steps of the episode that is under way
        self._episode = np.zeros(slots, np.int64)
        self._infos: list[list[KeptInfo]] = [[] for _ in range(slots)]
        self._capacity = CAPACITY
        self._like: tuple[Tree, Tree, dict[str, Tree]] | None = None  # one row of observations, actions and outputs
        self._obs: list[Rows] = []  # leaves (S, capacity, ...)
        self._steps: list[Rows] = []  # likewise: of the actions, then of each extra model output, then the rewards
        self._forms: list[tuple[str, tuple[int, ...], Any]] = []  # of the extra model outputs
        self._whole: dict[int, _Whole] = {}
        self._next = 0  # episode to be given
        self._dropped: Counter[str] = Counter()

    # ---- one step ----

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Sink."""
        self._t[slots], self._episode[slots] = 0, episodes
        for slot in slots.tolist():
            self._infos[slot] = []

    def act(self, slots: Index, given: ActInput, infos: Sequence[KeptInfo] | None, acted: ActOutput) -> None:
        """See Sink. Raises BadPiece for extra model outputs that are not those of the steps before, or no numbers."""
        if self._like is None:
            self._make_room(given, acted)
        self._check_outputs(acted.extras)
        t = self._t[slots]
        if len(t) and int(t.max()) + 1 >= self._capacity:
            self._grow()
        for held, leaf in zip(self._obs, _flat(given.obs), strict=True):
            held[slots, t] = leaf
        of_step = [*_flat(acted.actions), *(leaf for tree in acted.extras.values() for leaf in _flat(tree))]
        for held, leaf in zip(self._steps, of_step, strict=False):
            held[slots, t] = leaf
        if infos is not None:
            self._keep_infos(slots, infos)

    def _keep_infos(self, slots: Index, infos: Sequence[KeptInfo]) -> None:
        """Infos belong to observations; those before the first one are empty."""
        for slot, info in zip(slots.tolist(), infos, strict=True):
            if info.kept:
                held = self._infos[slot]
                held += [_NONE] * (int(self._t[slot]) - len(held))
                held.append(info)
            self._dropped.update(info.dropped)

    def reward(self, slots: Index, rewards: NDArray[np.float64]) -> None:
        """See Sink."""
        self._steps[-1][slots, self._t[slots]] = rewards
        self._t[slots] += 1

    def end(
        self,
        slots: Index,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        finals: Tree,
        infos: Sequence[KeptInfo] | None,
    ) -> None:
        """See Sink."""
        if infos is not None:
            self._keep_infos(slots, infos)
        for held, leaf in zip(self._obs, _flat(finals), strict=True):
            held[slots, self._t[slots]] = leaf
        for row, slot in enumerate(slots.tolist()):
            stop, noted = int(self._t[slot]), self._infos[slot]
            whole = _Whole(
                [held[slot, : stop + 1].copy() for held in self._obs],
                [held[slot, :stop].copy() for held in self._steps],
                (bool(terminated[row]), bool(truncated[row])),
                [info.kept for info in noted] + [{}] * (stop + 1 - len(noted)) if noted else None,
            )
            self._whole[int(self._episode[slot])] = whole
            self.held_bytes += whole.nbytes

    # ---- room ----

    def _make_room(self, given: ActInput, acted: ActOutput) -> None:
        self._like = map_leaves(_row, given.obs), map_leaves(_row, acted.actions), dict(acted.extras)
        self._forms = _forms(acted.extras)
        strange = [path for path, _, dtype in self._forms if dtype.kind not in NUMBERS]
        if strange:
            fix = "numbers alone; what is not to be recorded, take out of the batch"
            raise BadPiece(f"model outputs that are not numbers: {', '.join(strange)}", where="model outputs", fix=fix)
        outputs = [leaf for tree in acted.extras.values() for leaf in _flat(tree)]
        self._obs = [self._rows_like(leaf) for leaf in _flat(given.obs)]
        self._steps = [self._rows_like(leaf) for leaf in (*_flat(acted.actions), *outputs, np.zeros(1))]

    def _rows_like(self, leaf: Rows) -> Rows:
        return np.empty((len(self._t), self._capacity, *leaf.shape[1:]), leaf.dtype)

    def _grow(self) -> None:
        """Twice the room: what is not written to yet takes no memory."""
        before, self._capacity = self._capacity, 2 * self._capacity
        for held in (self._obs, self._steps):
            for number, old in enumerate(held):
                held[number] = np.empty((len(old), self._capacity, *old.shape[2:]), old.dtype)
                for slot, stop in enumerate(self._t.tolist()):
                    held[number][slot, : min(stop, before)] = old[slot, :stop]

    def _check_outputs(self, extras: Mapping[str, Tree]) -> None:
        forms = _forms(extras)
        if forms != self._forms:
            told = [", ".join(f"{path} {dtype}{list(shape)}" for path, shape, dtype in one) for one in (forms, self._forms)]
            fix = "give the same outputs at every step"
            raise BadPiece(f"model outputs {told[0]}, which were {told[1]} in the steps before", where="model outputs", fix=fix)

    # ---- whole episodes ----

    def take(self, limit: int | None = None) -> RecordedEpisodes | None:
        """See Sink; `limit` None: all that are in line."""
        stop = self._next
        while stop in self._whole and (limit is None or stop < limit):
            stop += 1
        if stop == self._next:
            return None
        numbers = np.arange(self._next, stop)
        episodes = [self._whole.pop(number) for number in numbers.tolist()]
        self._next = stop
        self.held_bytes -= sum(episode.nbytes for episode in episodes)
        dropped, self._dropped = self._dropped, Counter()
        return RecordedEpisodes(self._batch(numbers, episodes), dropped)

    def _batch(self, numbers: Index, episodes: Sequence[_Whole]) -> EpisodeBatch:
        assert self._like is not None, "an episode has been played"
        obs_like, actions_like, extras_like = self._like
        obs = [np.concatenate(parts) for parts in zip(*(episode.obs for episode in episodes), strict=True)]
        *steps, rewards = (np.concatenate(parts) for parts in zip(*(episode.steps for episode in episodes), strict=True))
        flags = np.array([episode.flags for episode in episodes])
        actions = steps[: len(leaves(actions_like))]
        outputs = iter(steps[len(actions) :])
        infos = None
        if any(episode.infos is not None for episode in episodes):
            infos = [info for one in episodes for info in one.infos or [{} for _ in range(len(one.obs[0]))]]
        return EpisodeBatch(
            ids=self._ids(numbers),
            starts=np.cumsum([0, *(len(episode.steps[-1]) for episode in episodes)]).astype(np.int64),
            obs=unflatten_like(obs_like, obs),
            actions=unflatten_like(actions_like, actions),
            rewards=rewards,
            terminated=flags[:, 0],
            truncated=flags[:, 1],
            extra={name: unflatten_like(like, [next(outputs) for _ in leaves(like)]) for name, like in extras_like.items()},
            infos=infos,
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        )


_NONE: Final = KeptInfo({})


def _flat(tree: Tree) -> list[Rows]:
    """The leaves; fast for a single leaf, because this is called at every step."""
    return [tree] if isinstance(tree, np.ndarray) else leaves(tree)


def _row(leaf: Rows) -> Rows:
    return leaf[:1]


def _forms(extras: Mapping[str, Tree]) -> list[tuple[str, tuple[int, ...], Any]]:
    return [(path, leaf.shape[1:], leaf.dtype) for path, leaf in flatten(dict(extras))] if extras else []
