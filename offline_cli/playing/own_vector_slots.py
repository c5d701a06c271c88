"""An environment's own vector class as slots, whichever way it resets itself, and `Sink`, what an env runner passes steps to.

All slots of a vector class share one generator and are always stepped together. gymnasium's three ways (`AutoresetMode`):

* NEXT_STEP: the step after an end resets the slot and ignores its action. What it returns is no step of any episode.
* SAME_STEP: the step that ends an episode returns the first observation of the next; the real last one is in
  `infos["final_obs"]`.
* DISABLED: the caller resets, with a mask.

A recording plays each slot's episodes one after the other (`OwnVectorSlots`), an evaluation one episode per slot and seed
(`RoundSlots`).

A `Sink` keeps steps to be written, or returns and lengths alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from offline_cli.errors import BadConfig
from offline_cli.playing.plan import Plan
from offline_cli.playing.slots import RAISED, Index, SlotFailure, Slots, any_of, owned
from offline_cli.policies.policy import Acted, fitted, row_writer
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.step_values import flag_of, flags_of, reward_of, rewards_of
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["MakeSink", "OwnVectorSlots", "RoundSlots", "Sink", "resets_by"]

FINAL_OBS, FINAL_INFO = ("final_obs", "final_observation"), ("final_info",)

Taken = TypeVar("Taken", covariant=True)


def resets_by(vector: Any, name: str) -> AutoresetMode:
    """How `vector`, the vector class of `name`, resets its slots. Raises BadConfig where it does not say."""
    said = (vector.metadata or {}).get("autoreset_mode")
    try:
        return said if isinstance(said, AutoresetMode) else AutoresetMode(said)
    except ValueError as err:
        what = "its vector class does not say how it resets itself (metadata autoreset_mode)"
        raise BadConfig(what, where=f"--env {name}", fix="--vectorize sync") from err


class OwnVectorSlots(Slots):
    """One gymnasium VectorEnv. An episode may begin where a slot has been reset; a slot without one plays on unrecorded."""

    def __init__(self, vector: Any, observation_space: Space, seed: int, name: str) -> None:
        """Raises SlotFailure where the first reset fails, BadConfig for a class that does not say how it resets itself."""
        self._make_ready(vector, observation_space, resets_by(vector, name))
        self._reset(seed=seed)

    def _make_ready(self, vector: Any, observation_space: Space, mode: AutoresetMode) -> None:
        super().__init__(vector.num_envs, np.zeros(0))
        self._vector, self._mode, self._count = vector, mode, vector.num_envs
        self._next_step = mode == AutoresetMode.NEXT_STEP
        self._dtypes = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(observation_space).items()}
        self._final: tuple[Tree, NDArray[np.object_] | None] | None = None

    def _reset(self, **options: Any) -> None:
        """Be at what the vector gives. Raises SlotFailure."""
        try:
            given, infos = self._vector.reset(**options)
            self.obs = self._plain(given)
            self._keep(infos)
        except RAISED as err:
            raise SlotFailure(None, "reset", repr(err)) from err

    def step(self, actions: Tree, live: NDArray[np.bool_]) -> None:
        """See Slots; all slots are stepped."""
        try:
            obs, rewards, terminated, truncated, infos = self._vector.step(actions)
            self.obs, self.rewards = self._plain(obs), self._rewards(rewards, live)
            flags = self._flags(terminated, live), self._flags(truncated, live)
            if infos or self.infos is not None:
                self._keep(infos)
        except SlotFailure:
            raise
        except RAISED as err:
            raise SlotFailure(None, "step", repr(err)) from err
        self.terminated, self.truncated = flags
        self._turn(infos, live)

    def _turn(self, infos: Mapping[str, Any], live: NDArray[np.bool_]) -> None:
        """Find what has ended with this step, and what may begin."""
        before, any_before = self.ended, self.any_ended
        self.ended = self.terminated | self.truncated
        self.any_ended = any_of(self.ended)
        if self._next_step:
            self.ready, self.any_ready = before, any_before  # an end one step ago: this step was the reset
        elif self.any_ended or self.any_ready:
            self.ready, self.any_ready = self.ended.copy(), self.any_ended
            if self.any_ended:
                self._turn_over(infos)

    def _rewards(self, given: Any, live: NDArray[np.bool_]) -> NDArray[Any]:
        """As numbers; slots without an episode are ignored. Raises SlotFailure, ValueError."""
        found = rewards_of(given, self._count)
        if found is not None:
            return found
        return self._one_by_one(given, np.flatnonzero(live), live, reward_of, np.zeros(self._count))

    def _flags(self, given: Any, live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """As truth values, of all slots: each end makes one ready. Raises SlotFailure, ValueError."""
        found = flags_of(given, self._count)
        if found is not None:
            return found
        return self._one_by_one(given, np.arange(self._count), live, flag_of, np.zeros(self._count, np.bool_))

    def _one_by_one(
        self, given: Any, slots: Index, live: NDArray[np.bool_], one: Callable[[Any], Any], into: NDArray[Any]
    ) -> NDArray[Any]:
        for slot in slots.tolist():
            try:
                into[slot] = one(given[slot])
            except ValueError as err:
                raise SlotFailure(slot if live[slot] else None, "step", repr(err)) from err
        return into

    def _plain(self, obs: Tree) -> Tree:
        """Numpy arrays of the space's dtypes, which torch may write to."""
        if isinstance(obs, np.ndarray) and obs.dtype == self._dtypes.get("") and obs.flags.writeable:
            return obs  # the usual case
        arrays = iter([np.array(fitted(np.asarray(leaf), self._dtypes[path])) for path, leaf in flatten(obs)])
        return map_leaves(lambda _: next(arrays), obs)

    def _turn_over(self, infos: Mapping[str, Any]) -> None:
        """Keep the last observations of slots that ended, and have the slots at their first ones."""
        if self._mode == AutoresetMode.SAME_STEP:
            try:
                self._final = self._final_rows(infos)
            except ValueError as err:
                raise SlotFailure(None, "step", repr(err)) from err
            return
        self._final = map_leaves(np.array, self.obs), None if self.infos is None else self.infos.copy()
        kept = self.infos
        self._reset(options={"reset_mask": self.ended.copy()})
        if self.infos is not None and kept is not None:  # the others are still where their step has left them
            self.infos = np.where(self.ended, self.infos, kept)

    def _final_rows(self, infos: Mapping[str, Any]) -> tuple[Tree, NDArray[np.object_] | None]:
        found = next((infos[name] for name in FINAL_OBS if name in infos), None)
        if found is None:
            raise SlotFailure(None, "step", "its vector class gave no final_obs with the end of an episode")
        rows = map_leaves(np.array, self.obs)
        _fill(rows, found, np.flatnonzero(self.ended))
        final_infos = next((infos[name] for name in FINAL_INFO if name in infos), None)
        return rows, split_infos(final_infos, self._count) if isinstance(final_infos, Mapping) else None

    def _keep(self, infos: Mapping[str, Any]) -> None:
        plain = {key: value for key, value in infos.items() if key.removeprefix("_") not in (*FINAL_OBS, *FINAL_INFO)}
        split = split_infos(plain, self._count) if plain else None
        if split is not None or self.infos is not None:
            self.infos = np.full(self._count, None) if split is None else split

    def finals(self, slots: Index) -> tuple[Tree, NDArray[np.object_] | None]:
        """See Slots."""
        obs, infos = (self.obs, self.infos) if self._final is None else self._final
        taken = (
            obs.take(slots, axis=0) if isinstance(obs, np.ndarray) else map_leaves(lambda leaf: leaf.take(slots, axis=0), obs)
        )
        return taken, None if infos is None else infos[slots]


class RoundSlots(OwnVectorSlots):
    """The same in rounds: all slots begin at once, from one seed, and none begins again before all their episodes have ended.

    No slot is looked at after its episode's end, so that a class need not say how it resets itself; `finals` of one that does
    not, or that gives none with an end, are the observations that it gave. Infos are not kept.
    """

    def __init__(self, vector: Any, observation_space: Space, name: str) -> None:
        """Raises nothing for a class that does not say how it resets itself."""
        mode = AutoresetMode.NEXT_STEP
        with suppress(BadConfig):
            mode = resets_by(vector, name)
        self._make_ready(vector, observation_space, mode)

    def begin(self, slots: Index, seeds: list[int]) -> None:
        """See Slots; the seed is one."""
        self._reset(seed=seeds[0])
        self.ready[:] = self.any_ready = False

    def _turn(self, infos: Mapping[str, Any], live: NDArray[np.bool_]) -> None:
        self.ended = self.terminated | self.truncated
        self.any_ended = any_of(self.ended)
        self._final = None
        if not self.any_ended:
            return
        last = {name: infos[name] for name in FINAL_OBS if name in infos}
        if last and self._mode == AutoresetMode.SAME_STEP:
            self._turn_over(last)
        if not any_of(live > self.ended):  # the round is over
            self.ready[:] = self.any_ready = True
        elif self._mode == AutoresetMode.DISABLED:
            self._turn_over(infos)

    def _keep(self, infos: Mapping[str, Any]) -> None:
        """Nothing."""


def _fill(rows: Tree, found: Any, slots: Index) -> None:
    """Write the observations of `slots` from a batch of them, or from an array of objects with one per slot."""
    if isinstance(found, np.ndarray) and found.dtype == object:
        write = row_writer(rows)
        for slot in slots.tolist():
            write(slot, found[slot])
    else:
        map_leaves(lambda target, leaf: target.__setitem__(slots, fitted(np.asarray(leaf)[slots], target.dtype)), rows, found)


def split_infos(infos: Mapping[str, Any], count: int) -> NDArray[np.object_] | None:
    """gymnasium's infos of a vector, arrays by name with masks `_name`, as one dict per slot; None where all are empty."""
    split: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, values in infos.items():
        if name.startswith("_") and name.removeprefix("_") in infos:
            continue
        mask = infos.get(f"_{name}")
        inner = split_infos(values, count) if isinstance(values, Mapping) else values
        if inner is None or np.ndim(inner) == 0 or len(inner) != count:
            continue  # of the vector as a whole, not of a slot
        for slot in range(count) if mask is None else np.flatnonzero(mask).tolist():
            if inner[slot] is not None:
                split[slot][name] = inner[slot]
    if not any(split):
        return None
    found = np.full(count, None)
    for slot, info in enumerate(split):
        found[slot] = owned(info) or None
    return found


class Sink(Protocol[Taken]):
    """Gets each step of S slots; episodes are numbered from 0 as the runner begins them."""

    row_bytes: int  # that a step of one slot takes until its episode is taken; 0: nothing is kept of steps

    @property
    def full(self) -> bool:
        """Whether `take` must come before the next step."""

    def begin(self, slots: Index, episodes: Index) -> None:
        """These slots begin these episodes at the next step."""

    def act(self, obs: Tree, infos: NDArray[Any] | None, acted: Acted) -> None:
        """Observations, leaves (at least S, ...), and the actions; rows of slots without an episode are meaningless."""

    def reward(self, rewards: NDArray[Any]) -> None:
        """The rewards (S,); ends the step."""

    def end(self, slots: Index, flags: tuple[NDArray[Any], NDArray[Any]], finals: Tree, infos: NDArray[Any] | None) -> None:
        """The episodes of these k slots have ended with the last step; flags: terminated and truncated, (k,) each.

        The arrays are the sink's own from now on.
        """

    def take(self, limit: int | None = None) -> Taken | None:
        """The whole episodes that come next, up to number `limit`; None where there are none."""


MakeSink = Callable[[Plan, int, int, tuple[Space, Space], str], Sink[Taken]]
"""From plan, runner, number of slots, spaces and the policy's fingerprint; it travels to worker processes."""
