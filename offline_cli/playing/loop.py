"""The loop that plays: it begins episodes, asks the policy, steps the copies, and hands whole episodes to a sink.

`record` writes what comes out of it, `evaluate` and the checks of training keep returns. Episodes begin in the order of their
numbers, and all that come before one that is kept are kept: nothing favours short ones. A long episode holds back those after
it, which are whole and wait in memory; beyond HELD_BYTES of them no new one begins until it has ended.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from offline_cli.connectors.piece_options import piece_of
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.playing.copies import NOTHING, Copies, CopyFailed
from offline_cli.playing.infos import KeptInfo
from offline_cli.playing.plan import Plan
from offline_cli.policies.policy import FAILED_ROW, RAISED, Acted, Policy, Seen, rows_of
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

    def act(self, seen: Seen, infos: Sequence[KeptInfo] | None, acted: Acted) -> None:
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

    def __init__(
        self, plan: Plan, copies: Copies, policy: Policy, sink: Sink[Any], *, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """`stopped` is asked before every step; when it returns True, whole episodes are handed out, and no others."""
        self._plan, self._copies, self._policy, self._sink, self._stopped = plan, copies, policy, sink, stopped
        count = copies.count
        self._live = np.zeros(count, np.bool_)
        self._episode = np.zeros(count, np.int64)  # number of each slot's, from the plan's first
        self._t = np.zeros(count, np.int64)  # steps of it so far
        self._rewards = np.zeros(count)  # of the last step
        self._obs: Tree = None
        self._infos: list[KeptInfo] | None = None
        self._state: Any = None
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
        obs = self._obs if everybody else rows_of(self._obs, live)
        infos = self._infos if self._infos is None or everybody else [self._infos[slot] for slot in live.tolist()]
        t, episodes = self._t[live], self._episode[live] + self._plan.first
        size = self._policy.chance_size
        chance = uniform(self._chance_key, episodes, t, size) if size else None
        kept = None if infos is None else [info.kept for info in infos]
        seen = Seen(obs, live, t == 0, self._rewards[live], kept, episodes, chance)
        try:
            acted = self._policy.act(seen, self._state, self._plan.explore)
            self._sink.act(seen, infos, acted)
        except RAISED as err:
            raise self._policy_failed(err, seen) from err
        self._state = acted.state
        actions = acted.for_env if everybody else self._spread(acted.for_env, live)
        self._obs, self._rewards, terminated, truncated, self._infos = self._copies.step(actions)
        self._sink.reward(live, self._rewards[live])
        self._t[live] += 1
        self._taken_steps += len(live)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._end(ended, terminated[ended], truncated[ended])

    def _spread(self, actions: Tree, live: Index) -> Tree:
        """Actions of all slots; those that stand still get any."""

        def spread(leaf: NDArray[Any]) -> NDArray[Any]:
            whole = np.empty((len(self._live), *leaf.shape[1:]), leaf.dtype)
            whole[:] = leaf[0]
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
        earlier = self._infos
        self._obs, infos = self._copies.reset(seeds)
        self._infos = _merged(earlier, infos, seeds)
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

    def _place(self, slot: int) -> tuple[str, str]:
        """The episode of a slot, and for an error's fix its seed."""
        episode = int(self._episode[slot]) + self._plan.first
        place = f"{self._plan.environment.id}, episode {episode}, step {self._t[slot]}"
        return place, f"; its seed was {self._plan.reset_seed(episode)}"

    def _blamed(self, failed: CopyFailed) -> BadData:
        """The error for what a copy raised."""
        (place, seed), failure = self._place(failed.slot), failed.failure
        if failure.is_info:
            return BadData(
                f"{failure.said} ({failure.doing})", where=place, fix="--infos plain leaves out what cannot be stored"
            )
        fix = f"check the environment with this policy{seed}"
        return BadData(f"the environment raised {failure.said} ({failure.doing})", where=place, fix=fix)

    def _policy_failed(self, error: BaseException, seen: Seen) -> BaseException:
        """The error for a policy, or a piece around it, that raised; the first episode for which it raises alone is named."""
        if isinstance(error, MemoryError):
            return error
        place, seed = self._place(self._first_bad(error, seen))
        piece = piece_of(error)
        who = f"piece {piece}" if piece is not None else "the policy"
        if isinstance(error, OfflineCliError):
            return BadData(f"{who}: {error.what_in_one_line}", where=place, fix=f"{error.fix}{seed}")
        return BadData(f"{who} raised {error!r}", where=place, fix=f"check {who} with this environment{seed}")

    def _first_bad(self, error: BaseException, seen: Seen) -> int:
        """The first slot that the policy raises for alone; the first that plays where it does so for none."""
        known = getattr(error, FAILED_ROW, None)
        if known is not None:
            return int(seen.slots[known])
        for row in range(len(seen.slots)):
            one = slice(row, row + 1)
            alone = Seen(rows_of(seen.obs, one), seen.slots[one], seen.begins[one], seen.rewards[one])
            alone.infos = None if seen.infos is None else seen.infos[one]
            alone.episodes = None if seen.episodes is None else seen.episodes[one]
            alone.chance = None if seen.chance is None else seen.chance[one]
            try:
                self._policy.act(alone, copy.deepcopy(self._state), self._plan.explore)
            except RAISED:  # the same failure again, which is what is looked for
                return int(seen.slots[row])
        return int(seen.slots[0])


def _merged(
    earlier: list[KeptInfo] | None, infos: list[KeptInfo] | None, reset: dict[int, int | None]
) -> list[KeptInfo] | None:
    """Infos of all slots after some were reset."""
    if earlier is None or infos is None:
        return infos if earlier is None else [NOTHING if slot in reset else info for slot, info in enumerate(earlier)]
    return [infos[slot] if slot in reset else info for slot, info in enumerate(earlier)]
