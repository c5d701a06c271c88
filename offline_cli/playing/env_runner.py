"""Plays one runner's share of a plan and passes the steps to a sink, which returns whole episodes.

Episodes begin in the order of their numbers, and all that come before one that is kept are kept: nothing favours short ones. A
slot that has no episode to play is idle, or plays on unrecorded where the environment's own vector class steps all slots.

A long episode holds back those after it, which are whole and wait in memory. Beyond HELD_BYTES of them no new one begins until
it has ended. That is counted by steps and not by time, so that it is the same in every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData
from offline_cli.playing.actors import Actor, PolicyFailure
from offline_cli.playing.own_vector_slots import Sink
from offline_cli.playing.plan import Chance, Plan
from offline_cli.playing.slots import SlotFailure, Slots
from offline_cli.trees import leaves

__all__ = ["EnvRunner"]

HELD_BYTES: Final = 256 << 20
REPORT_SECONDS: Final = 0.5  # whole episodes wait no longer than this to be given out
NUMBERED: Final = 1024  # episodes whose numbers are made at once
Index = NDArray[np.int64]
Taken = TypeVar("Taken")


class EnvRunner(Generic[Taken]):
    """Runner `runner` of a plan. Its own episodes are counted 0, 1, 2, ...; their indices in the plan are `indices`."""

    def __init__(
        self,
        plan: Plan,
        runner: int,
        slots: Slots,
        actor: Actor,
        chance: Chance,
        sink: Sink[Taken],
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopped` is asked before every step; when it returns True, `batches` yields the whole episodes and ends."""
        self._plan, self._runner = plan, runner
        self._slots, self._actor, self._chance = slots, actor, chance
        self._sink, self._stopped = sink, stopped
        count = len(slots.ready)
        self._live = np.zeros(count, np.bool_)
        self._live_count = 0
        self._playing = np.full(count, -1, np.int64)  # own episode number of each slot
        self._steps = 0  # of all slots at once
        self._first_step = np.zeros(count, np.int64)  # before which each slot's episode began
        self._wanted = plan.share(runner)
        self._begun = 0  # episodes
        self._numbers = self._indices = np.zeros(0, np.int64)  # of NUMBERED episodes, from
        self._numbered = 0  # this one on
        self._taken = 0  # steps, of whatever has begun
        self._ended = 0  # episodes
        self._just_ended: list[tuple[Index, Index, int]] = []  # of those not counted yet: numbers, first steps, step after
        self._lengths = np.zeros(0, np.int64)  # of episode `_whole` and those after it that had begun; 0: it is not whole
        self._whole = 0  # episodes in line that are whole, and
        self._whole_steps = 0  # their steps; both as of `_count_whole`

    def indices(self, episodes: Index) -> Index:
        """Indices in the plan of own episode numbers."""
        return self._plan.indices(self._runner, episodes)

    # ---- the whole ----

    def batches(self) -> Iterator[Taken]:
        """Whole episodes, until there are enough.

        Raises BadData where environment or policy raise, naming the episode; what was whole before has been given out.
        """
        failure: BadData | None = None
        until = time.monotonic() + REPORT_SECONDS
        try:
            self._begin_some()
            self._fill_padding()
            while not self._enough() and not self._stopped():
                self._step()
                if self._sink.full or time.monotonic() > until:
                    yield from self.left()
                    until = time.monotonic() + REPORT_SECONDS
        except (SlotFailure, PolicyFailure) as err:
            failure = self._blamed(err)
        except BadData as err:
            failure = err
        yield from self.left()
        if failure is not None and not self._stopped():  # a stop often reaches what the environment itself has started, too
            raise failure

    def _fill_padding(self) -> None:
        """Put a real observation into the rows without a slot, so that a policy never sees any other."""
        for leaf in leaves(self._slots.obs):
            if len(leaf) > len(self._live):
                leaf[len(self._live) :] = leaf[0]

    def left(self) -> Iterator[Taken]:
        """What is whole and has not been given out."""
        self._count_whole()
        taken = self._sink.take(limit=self._whole)
        if taken is not None:
            yield taken

    def _enough(self) -> bool:
        steps = self._plan.steps
        if self._ended == self._wanted or (steps is not None and self._taken >= steps):  # it may be, and is not before
            self._count_whole()
        return self._has_enough()

    def _has_enough(self) -> bool:
        steps = self._plan.steps
        return self._whole == self._wanted or (steps is not None and self._whole_steps >= steps)

    def _count_whole(self) -> None:
        """Count the whole episodes at the head of the queue: only when needed, not at every end."""
        if not self._just_ended or self._has_enough():
            return
        numbers, first, stop = zip(*self._just_ended, strict=True)
        ended, self._just_ended = np.concatenate(numbers), []
        lengths = np.zeros(self._begun - self._whole, np.int64)
        lengths[: len(self._lengths)] = self._lengths
        lengths[ended - self._whole] = np.repeat(stop, list(map(len, numbers))) - np.concatenate(first)
        steps = np.cumsum(lengths[: np.append(lengths, 0).argmin()])  # of those in line
        if self._plan.steps is not None:
            steps = steps[: np.searchsorted(steps, self._plan.steps - self._whole_steps) + 1]
        self._whole += len(steps)
        self._whole_steps += int(steps[-1]) if len(steps) else 0
        self._lengths = lengths[len(steps) :]

    # ---- a step ----

    def _step(self) -> None:
        slots, sink = self._slots, self._sink
        acted = self._actor.act(slots.obs, self._chance.draw())
        sink.act(slots.obs, slots.infos, acted)
        slots.step(acted.for_env, self._live)
        sink.reward(slots.rewards)
        self._steps += 1
        self._taken += self._live_count
        if slots.any_ended:
            self._end((slots.ended & self._live).nonzero()[0])
        self._actor.went_on(slots, self._live)
        if slots.any_ready:
            self._begin_some()

    # ---- beginnings and ends ----

    def _begin_some(self) -> None:
        room = self._room()
        if not room:
            return
        slots = (self._slots.ready > self._live).nonzero()[0][:room]  # ready, and not live
        count = len(slots)
        if not count:
            return
        episodes, indices = self._next_numbers(count)
        self._begun += count
        self._live_count += count
        self._playing[slots], self._first_step[slots], self._live[slots] = episodes, self._steps, True
        self._slots.begin(slots, self._plan.reset_seeds(indices))
        self._chance.begin(slots, indices)
        self._actor.begin(slots, indices, self._slots)
        self._sink.begin(slots, episodes)

    def _next_numbers(self, count: int) -> tuple[Index, Index]:
        """Own numbers and indices in the plan of the next so many episodes: views, since few begin at a time."""
        at = self._begun - self._numbered
        if at + count > len(self._numbers):
            at, self._numbered = 0, self._begun
            self._numbers = np.arange(self._begun, self._begun + max(count, NUMBERED))
            self._indices = self.indices(self._numbers)
        return self._numbers[at : at + count], self._indices[at : at + count]

    def _room(self) -> int:
        """How many more episodes may begin."""
        if self._plan.steps is not None and self._taken >= self._plan.steps:
            return 0  # those that have begun have as many steps already, and they come first
        if self._holds_much():
            self._count_whole()
            if self._holds_much() and self._begun > self._whole:
                return 0
        return len(self._live) if self._wanted is None else self._wanted - self._begun

    def _holds_much(self) -> bool:
        return (self._taken - self._whole_steps) * self._sink.row_bytes > HELD_BYTES

    def _end(self, slots: Index) -> None:
        finals, infos = self._slots.finals(slots)
        self._sink.end(slots, (self._slots.terminated[slots], self._slots.truncated[slots]), finals, infos)
        self._live[slots] = False
        self._live_count -= len(slots)
        self._ended += len(slots)
        self._just_ended.append((self._playing[slots], self._first_step[slots], self._steps))
        self._actor.end(slots, self._slots, finals, infos)  # last: should it fail, the episode is whole all the same

    def _length(self, slot: int) -> int:
        """Steps of the episode in this slot so far."""
        return self._steps - int(self._first_step[slot])

    # ---- blame ----

    def _place(self, slot: int) -> str:
        episode = int(self.indices(self._playing[slot]))
        return f"{self._plan.env}, episode {episode}, step {self._length(slot)}"

    def _seed(self, slot: int) -> str:
        """For an error's fix: the seed of the slot's episode, where episodes have one."""
        if self._plan.own_class:
            return ""
        return f"; its seed was {self._plan.reset_seeds(self.indices(self._playing[[slot]]))[0]}"

    def _blamed(self, failure: SlotFailure | PolicyFailure) -> BadData:
        """The error for what environment or policy raised. Raises the failure itself where neither is the cause."""
        if isinstance(failure, PolicyFailure):
            slot = failure.row if failure.row < len(self._live) else 0
            error = self._plan.policy_failed(failure, self._place(slot), self._seed(slot))
            if not isinstance(error, BadData):
                raise error from (error.__cause__ if error is failure.cause else failure)
        else:
            place, fix = (
                f"{self._plan.env}, its vector class, after {self._taken} steps",
                "check the environment with this policy",
            )
            if failure.slot is not None:
                place, fix = self._place(failure.slot), fix + self._seed(failure.slot)
            error = BadData(f"the environment raised {failure.cause} ({failure.doing})", where=place, fix=fix)
        error.__cause__ = error.__cause__ or failure
        return error
