"""The loop that plays: it begins episodes, asks the policy, steps the copies, and hands whole episodes to a sink.

`record` writes what comes out of it, `evaluate` and the checks of training keep returns. Episodes begin in the order of their
numbers, and all that come before one that is kept are kept: nothing favours short ones. A long episode holds back those after
it, which are whole and wait in memory; beyond HELD_BYTES of them no new one begins until it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData
from offline_cli.playing.copies import NOTHING, Copies, CopyFailed
from offline_cli.playing.infos import KeptInfo
from offline_cli.playing.plan import Plan
from offline_cli.policies.policy import (
    RAISED,
    ActInput,
    ActOutput,
    Policy,
    State,
    blamed,
    put_state,
    rows_of,
    state_rows,
)
from offline_cli.policies.seeds import uniform
from offline_cli.trees import Tree, map_leaves

__all__ = ["Loop", "Sink"]

HELD_BYTES: Final = 256 << 20
REPORT_SECONDS: Final = 0.5  # whole episodes wait no longer than this to be handed out
Index = NDArray[np.int64]
Made = TypeVar("Made", covariant=True)


class Sink(Protocol[Made]):
    """What becomes of the steps that are played. Arrays that it is given change with the next step."""

    def begin(self, slots: Index, episodes: Index) -> None:
        """These slots begin these episodes, counted from the plan's first one."""

    def act(self, slots: Index, given: ActInput, infos: Sequence[KeptInfo] | None, acted: ActOutput) -> None:
        """What the slots have come to, and their actions."""

    def reward(self, slots: Index, rewards: NDArray[np.float64]) -> None:
        """The answer to the actions of these k slots: (k,)."""

    def end(
        self,
        slots: Index,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        finals: Tree,
        infos: Sequence[KeptInfo] | None,
    ) -> None:
        """The episodes of these k slots are over: flags (k,), last observations (k, ...), infos (k,)."""

    @property
    def held_bytes(self) -> int:
        """Bytes of whole episodes that have not been taken."""

    def take(self, limit: int) -> Made | None:
        """The whole episodes that come next, up to number `limit`; None: there are none."""


class Loop:
    """Plays the plan's episodes with `policy` in `copies`."""

    def __init__(self, plan: Plan, copies: Copies, policy: Policy, sink: Sink[Any], *, stopped: Callable[[], bool]) -> None:
        """`stopped` is asked before every step; when it returns True, whole episodes are handed out, and no others."""
        self._plan, self._copies, self._policy, self._sink, self._stopped = plan, copies, policy, sink, stopped
        count = copies.count
        self._live = np.zeros(count, np.bool_)
        self._episode = np.zeros(count, np.int64)  # number of each slot's, from the plan's first
        self._t = np.zeros(count, np.int64)  # steps of it so far
        self._rewards = np.zeros(count)  # of the last step
        self._obs: Tree = None
        self._infos: list[KeptInfo] | None = None
        self._state: State = {}  # of the policy, (slots, ...)
        self._chance_key = plan.chance_key
        self._begun = self._whole = 0  # episodes that have begun; and those that are whole with all before them
        self._taken_steps = self._whole_steps = 0  # steps of all that have begun; and of those whole ones
        self._lengths: dict[int, int] = {}  # of whole episodes behind one that is not

    def run(self) -> Iterator[Any]:
        """What the sink makes of whole episodes, in order.

        Raises BadData where environment or policy raise, naming the episode; what was whole before has been handed out.
        """
        failure: BadData | None = None
        until = time.monotonic() + REPORT_SECONDS
        try:
            self._begin(np.arange(len(self._live)))
            while not self._has_enough() and not self._stopped():
                self._step()
                if time.monotonic() > until or self._sink.held_bytes > HELD_BYTES // 8:
                    yield from self._given()
                    until = time.monotonic() + REPORT_SECONDS
        except CopyFailed as err:
            failure = self._blamed(err)
            failure.__cause__ = err
        except BadData as err:
            failure = err
        yield from self._given()
        if failure is not None and not self._stopped():  # a stop often reaches what the environment itself has started, too
            raise failure

    def _given(self) -> Iterator[Any]:
        taken = self._sink.take(self._whole)
        if taken is not None:
            yield taken

    def _has_enough(self) -> bool:
        if self._plan.episodes is not None:
            return self._whole >= self._plan.episodes
        return self._whole_steps >= (self._plan.steps or 0)

    # ---- a step ----

    def _step(self) -> None:
        live = np.flatnonzero(self._live)
        everybody = len(live) == len(self._live)
        acted = self._acted(live, everybody)
        actions = acted.for_env if everybody else self._spread(acted.for_env, live)
        self._obs, self._rewards, terminated, truncated, self._infos = self._copies.step(actions)
        self._sink.reward(live, self._rewards[live])
        self._t[live] += 1
        self._taken_steps += len(live)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._end(ended, terminated[ended], truncated[ended])

    def _acted(self, live: Index, everybody: bool) -> ActOutput:
        """What the policy does in these slots, which may be all."""
        infos = self._infos if self._infos is None or everybody else [self._infos[slot] for slot in live.tolist()]
        t, episodes, size = self._t[live], self._episode[live] + self._plan.first, self._policy.chance_size
        given = ActInput(
            self._obs if everybody else rows_of(self._obs, live),
            episodes,
            t,
            self._rewards[live],
            None if infos is None else [info.kept for info in infos],
            uniform(self._chance_key, episodes, t, size) if size else None,
        )
        try:
            acted = self._policy.act(given, self._state if everybody else state_rows(self._state, live))
            self._sink.act(live, given, infos, acted)
        except RAISED as err:
            raise self._policy_failed(err, live) from err
        if everybody:
            self._state = acted.state
        else:
            put_state(self._state, live, acted.state, len(self._live))
        return acted

    def _spread(self, actions: Tree, live: Index) -> Tree:
        """Actions of all slots; those that stand still get any."""

        def spread(leaf: NDArray[Any]) -> NDArray[Any]:
            whole = np.repeat(leaf[:1], len(self._live), axis=0)
            whole[live] = leaf
            return whole

        return map_leaves(spread, actions)

    # ---- beginnings and ends ----

    def _begin(self, slots: Index) -> None:
        """Begin episodes in these slots, as many as there is room for; the others stand still."""
        beginning = slots[: self._room(len(slots))]
        episodes = np.arange(self._begun, self._begun + len(beginning))
        self._episode[beginning], self._t[beginning], self._rewards[beginning] = episodes, 0, 0.0
        seeds: dict[int, int | None] = dict.fromkeys(slots.tolist())
        for slot, episode in zip(beginning.tolist(), episodes.tolist(), strict=True):
            seeds[slot] = self._plan.reset_seed(self._plan.first + episode)
        self._live[beginning] = True
        self._begun += len(beginning)
        self._obs, infos = self._copies.reset(seeds)
        if infos is not None or self._infos is not None:  # of the slots that were reset, and of the others as they were
            new, old = (one or [NOTHING] * len(self._live) for one in (infos, self._infos))
            self._infos = [new[slot] if slot in seeds else old[slot] for slot in range(len(self._live))]
        if len(beginning):
            self._sink.begin(beginning, episodes)

    def _room(self, wanted: int) -> int:
        """How many of so many episodes may begin."""
        if self._plan.steps is not None and self._taken_steps >= self._plan.steps:
            return 0  # those that have begun have as many steps already, and they come first
        if self._sink.held_bytes > HELD_BYTES and self._begun > self._whole:
            return 0
        return wanted if self._plan.episodes is None else min(wanted, self._plan.episodes - self._begun)

    def _end(self, slots: Index, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        infos = None if self._infos is None else [self._infos[slot] for slot in slots.tolist()]
        self._sink.end(slots, terminated, truncated, rows_of(self._obs, slots), infos)
        self._lengths.update(zip(self._episode[slots].tolist(), self._t[slots].tolist(), strict=True))
        while self._whole in self._lengths and not (self._plan.steps is not None and self._has_enough()):
            self._whole_steps += self._lengths.pop(self._whole)
            self._whole += 1
        self._live[slots] = False
        self._begin(np.flatnonzero(~self._live))

    # ---- blame ----

    def _blamed(self, failed: CopyFailed) -> BadData:
        """The error for what a copy raised, naming its episode."""
        failure, episode = failed.failure, int(self._episode[failed.slot]) + self._plan.first
        place = f"{self._plan.environment.id}, episode {episode}, step {self._t[failed.slot]}"
        if failure.is_info:
            fix = "--infos plain leaves out what cannot be stored"
            return BadData(f"{failure.said} ({failure.doing})", where=place, fix=fix)
        fix = f"check the environment with this policy; its seed was {self._plan.reset_seed(episode)}"
        return BadData(f"the environment raised {failure.said} ({failure.doing})", where=place, fix=fix)

    def _policy_failed(self, error: BaseException, slots: Index) -> BaseException:
        """The error for a policy, or a piece around it, that raised, naming the episodes that it was asked for."""
        first, last = (int(one) + self._plan.first for one in (self._episode[slots].min(), self._episode[slots].max()))
        place = f"{self._plan.environment.id}, episode"
        place += f" {first}, step {self._t[slots[0]]}" if len(slots) == 1 else f"s {first} to {last}"
        more = f"; the first one's seed was {self._plan.reset_seed(first)}, and with --num-envs 1 each is asked for alone"
        return blamed(error, where=place, more=more)
