"""Slots, copies of an environment that play side by side, one episode each; with their seeds and infos.

Three kinds share one contract: `SyncSlots` here, `AsyncSlots` (a process per slot) and `OwnVectorSlots` (the environment's own
vector class). No episode is stepped beyond its end. gymnasium's SyncVectorEnv and AsyncVectorEnv are not used: they cannot
leave a slot alone that has no episode to play, do not say which copy raised, and turn infos into arrays. Per-episode seeds,
order of calls and results are the same.

* `episode_seed`: one random seed per purpose and number, derived from the run's. A seed for an environment has
  31 bits, since some environments take no more. Its highest two bits are the purpose, so that checks during training,
  confirmations, `evaluate` and `record` never play the same episode.
* `owned`, `unchecked`: infos of environments as they are kept until they are written. Values that cannot be written are an
  error at once, while it is known which copy they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import Env
from offline_cli.episodes.codec.pack import plain_mapping
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadData
from offline_cli.policies.policy import row_writer, rows_of
from offline_cli.spaces import Space
from offline_cli.step_values import FLAGS, REWARDS, flag_of, reward_of
from offline_cli.tally import Tally
from offline_cli.trees import Tree

__all__ = [
    "RAISED",
    "Purpose",
    "SlotFailure",
    "Slots",
    "SyncSlots",
    "any_of",
    "copied",
    "draw",
    "episode_seed",
    "for_torch",
    "owned",
    "unchecked",
]

PLAIN: Final = frozenset({bool, float, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})

BITS_BELOW_PURPOSE = 29
BITS_OF_TORCH = 64

RAISED: Final = (Exception, SystemExit)  # whatever an environment raises; some simulators call exit
Index = NDArray[np.int64]
KeepInfo = Callable[[Mapping[str, Any]], dict[str, Any]]


def owned(info: Mapping[str, Any]) -> dict[str, Any]:
    """A copy whose arrays, dicts and lists are not shared: some environments fill the same ones at every step.

    Raises ValueError, naming the key, for a value that no dataset can hold.
    """
    return {key: value if type(value) in PLAIN else _checked(key, value) for key, value in info.items()}


def unchecked(info: Any) -> dict[str, Any]:
    """The info, for pieces to look at; empty where it is not a mapping."""
    return dict(info) if isinstance(info, Mapping) else {}


def _checked(key: str, value: Any) -> Any:
    try:
        plain_mapping({key: value}, tally=Tally(), where="info")
    except BadData as err:
        raise ValueError(f"an {err.where} with {err.what}; {err.fix}") from err
    return copied(value)


def copied(value: Any) -> Any:
    """A deep copy of arrays, dicts and lists."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if type(value) is list else value


class Purpose(IntEnum):
    """What episodes are played for."""

    EVALUATE = 0
    CHECK = 1
    CONFIRM = 2
    RECORD = 3


def episode_seed(seed: int, purpose: Purpose, index: int, round_: int = 0) -> int:
    """The environment's seed for the `index`-th episode started; `round_` distinguishes the checks of one run."""
    return (int(purpose) << BITS_BELOW_PURPOSE) | (draw(seed, purpose, round_, index) & ((1 << BITS_BELOW_PURPOSE) - 1))


def draw(*key: int) -> int:
    """63 bits that follow from `key`, whose parts are not negative."""
    return int(np.random.SeedSequence([int(part) for part in key]).generate_state(1, np.uint64)[0]) >> 1


def for_torch(seed: int) -> int:
    """`seed`, which is not negative, as torch takes one: itself where it fits, else bits that follow from it."""
    return seed if seed < 1 << BITS_OF_TORCH else draw(seed)


def any_of(flags: NDArray[np.bool_]) -> bool:
    """Whether any of them is true; called at every step, where `flags.any()` takes several times as long."""
    return bool(np.count_nonzero(flags))


class SlotFailure(Exception):
    """An environment raised; `slot` None: which copy is unknown."""

    def __init__(self, slot: int | None, doing: str, cause: str) -> None:
        super().__init__(cause)
        self.slot, self.doing, self.cause = slot, doing, cause


class Slots:
    """S slots, and the state of each. Subclasses define `begin` and `step`."""

    def __init__(self, count: int, obs: Tree) -> None:
        self.obs = obs  # leaves (padded, *shape): the observation each slot is at; may be other arrays after each call
        self.infos: NDArray[np.object_] | None = None  # (S,) the info that came with it, or None; None: there never was any
        self.rewards = np.zeros(count)  # (S,) of the last step, as are the flags
        self.terminated, self.truncated = np.zeros((2, count), np.bool_)  # (S,)
        self.ended = np.zeros(count, np.bool_)  # (S,) slots whose last step was the end of an episode, recorded or not
        self.ready = np.ones(count, np.bool_)  # (S,) slots that may begin an episode now
        self.any_ended, self.any_ready = False, True

    def begin(self, slots: Index, seeds: list[int]) -> None:
        """Begin an episode in each of these, which are ready. Raises SlotFailure."""
        self.ready[slots] = False
        self.any_ready = any_of(self.ready)

    def step(self, actions: Tree, live: NDArray[np.bool_]) -> None:
        """One step in the slots that are `live`; actions: leaves (S, ...). Raises SlotFailure."""
        self.ended = (self.terminated | self.truncated) & live
        self.any_ended = any_of(self.ended)
        if self.any_ended:
            self.ready |= self.ended
            self.any_ready = True

    def finals(self, slots: Index) -> tuple[Tree, NDArray[np.object_] | None]:
        """The real last observations, leaves (k, *shape), and infos of slots that ended in the last step: new arrays."""
        return rows_of(self.obs, slots), None if self.infos is None else self.infos[slots]

    def keep(self, slot: int, info: Mapping[str, Any] | None) -> None:
        """Have the info of a slot."""
        if self.infos is None:
            if not info:
                return
            self.infos = np.full(len(self.ready), None)
        self.infos[slot] = info or None

    def close(self) -> None:
        """Release what is the slots' own: copies, and an own vector class, are closed by their opener."""


class SyncSlots(Slots):
    """Single copies, stepped in turn in this process."""

    def __init__(self, envs: list[Env], observation_space: Space, padded: int, info: KeepInfo | None = owned) -> None:
        """`info`: what is kept of an info; None: nothing."""
        super().__init__(len(envs), zero_rows(observation_space, padded))
        self._envs, self._info = envs, info
        self._write = row_writer(self.obs)

    def begin(self, slots: Index, seeds: list[int]) -> None:
        """See Slots."""
        for slot, seed in zip(slots.tolist(), seeds, strict=True):
            try:
                observation, info = self._envs[slot].reset(seed=seed)
                self._write(slot, observation)
                self._keep(slot, info)
            except RAISED as err:
                raise SlotFailure(slot, "reset", repr(err)) from err
        super().begin(slots, seeds)

    def step(self, actions: Tree, live: NDArray[np.bool_]) -> None:
        """See Slots."""
        envs, write, rewards, terminated, truncated = self._envs, self._write, self.rewards, self.terminated, self.truncated
        plain = isinstance(actions, np.ndarray)
        for slot in np.flatnonzero(live).tolist():
            action = actions[slot] if plain else rows_of(actions, slot)
            try:
                observation, reward, ended, cut, info = envs[slot].step(action)
                rewards[slot] = reward if type(reward) in REWARDS else reward_of(reward)
                terminated[slot] = ended if type(ended) in FLAGS else flag_of(ended)
                truncated[slot] = cut if type(cut) in FLAGS else flag_of(cut)
                write(slot, observation)
                if info or self.infos is not None:
                    self._keep(slot, info)
            except RAISED as err:
                raise SlotFailure(slot, "step", repr(err)) from err
        super().step(actions, live)

    def _keep(self, slot: int, info: Mapping[str, Any]) -> None:
        if self._info is not None and (info or self.infos is not None):
            self.keep(slot, self._info(info))
