"""Plays one runner's share of a recording and gives whole episodes in order; refuses to begin more than can be wanted.

Episodes begin in the order of their numbers, and all that come before one that is kept are kept: nothing favours short ones. A
slot that has no episode to play stands still, or plays on unrecorded where the environment's own vector class steps all slots.

A long episode holds back those after it, which are whole and wait in memory. Beyond HELD_BYTES of them no new one begins until
it has ended. That is counted by steps and not by time, so that it is the same in every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.recording.actor import Actor, PolicyFailure
from offline_cli.recording.chance import Chance
from offline_cli.recording.plan import Plan, environment_seed
from offline_cli.recording.policy import Acted
from offline_cli.recording.slots import SlotFailure, Slots
from offline_cli.recording.step_store import StepStore, bytes_per_row
from offline_cli.spaces import Space
from offline_cli.trees import leaves
from offline_cli.waiting import Overdue, current

__all__ = ["EnvRunner", "too_long"]

HELD_BYTES: Final = 256 << 20
REPORT_SECONDS: Final = 0.5  # whole episodes wait no longer than this to be given out
Index = NDArray[np.int64]


def too_long(plan: Plan, where: str, *, doing: str = "reset", more: str = "") -> BadData:
    """What a user is told where a step or reset takes longer than it may; `more`: of the fix."""
    what = f"the environment takes longer than --step-timeout {plan.step_timeout or 0:g} s ({doing})"
    return BadData(what, where=where, fix=f"check the environment with this policy, or a longer --step-timeout{more}")


class EnvRunner:
    """Runner `runner` of a plan. Its own episodes are counted 0, 1, 2, ...; their indices in the recording are `indices`."""

    def __init__(
        self,
        plan: Plan,
        runner: int,
        slots: Slots,
        actor: Actor,
        chance: Chance,
        *,
        spaces: tuple[Space, Space],
        fingerprint: str,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopped` is asked before every step; when it says yes, `batches` gives what is whole and ends."""
        self._plan, self._runner = plan, runner
        self._waiting = current()
        self._waiting.words = self.place
        self._slots, self._actor, self._chance = slots, actor, chance
        self._spaces, self._fingerprint, self._stopped = spaces, fingerprint, stopped
        count = len(slots.ready)
        self._live = np.zeros(count, np.bool_)
        self._live_count = 0
        self._playing = np.full(count, -1, np.int64)  # own episode number of each slot
        self._length = np.zeros(count, np.int64)  # steps of it so far
        self._wanted = plan.share(runner)
        self._begun = 0  # episodes
        self._taken = 0  # steps, of whatever has begun
        self._lengths: dict[int, int] = {}  # of whole episodes behind one that is not whole
        self._whole = 0  # episodes in line that are whole, and
        self._whole_steps = 0  # their steps
        self._store: StepStore | None = None
        self._row_bytes = 1

    def indices(self, episodes: Index) -> Index:
        """Indices in the recording of own episode numbers."""
        return self._plan.first + self._runner + episodes * self._plan.runners

    # ---- the whole ----

    def batches(self) -> Iterator[EpisodeBatch]:
        """Whole episodes in order, until there are enough.

        Raises BadData where environment or policy raise, or a step takes longer than it may, naming the episode; what was whole
        before has been given out.
        """
        failure: BadData | None = None
        until = time.monotonic() + REPORT_SECONDS
        try:
            self._begin_some()
            self._fill_padding()
            while not self._enough() and not self._stopped():
                self._step()
                if self._flushable().full or time.monotonic() > until:
                    yield from self.left()
                    until = time.monotonic() + REPORT_SECONDS
        except BadData as err:
            failure = err
        except Overdue as err:
            failure = self._too_long() if err.timed_out else None
        self._waiting.leave()
        yield from self.left()
        if failure is not None and not self._stopped():  # a stop often reaches what the environment itself has started, too
            raise failure

    def _fill_padding(self) -> None:
        """A real observation in the rows that no slot has, so that a policy need not cope with any other."""
        for leaf in leaves(self._slots.obs):
            if len(leaf) > len(self._live):
                leaf[len(self._live) :] = leaf[0]

    def left(self) -> Iterator[EpisodeBatch]:
        """What is whole and has not been given out; from another thread only while this one does not come back."""
        if self._store is None:
            return
        batch = self._store.flush(lambda own: self._plan.ids(self._fingerprint, self.indices(own)), limit=self._whole)
        if batch is not None:
            yield batch

    def _enough(self) -> bool:
        steps = self._plan.steps
        return self._whole == self._wanted or (steps is not None and self._whole_steps >= steps)

    # ---- a step ----

    def _step(self) -> None:
        slots = self._slots
        acted = self._act()
        store = self._store or self._new_store(acted)
        store.act(slots.obs, slots.infos, acted)
        try:
            slots.step(acted.for_env, self._live)
        except SlotFailure as err:
            raise self._blamed(err) from err
        store.reward(slots.rewards)
        self._length += 1
        self._taken += self._live_count
        try:
            if slots.any_ended:
                self._end(np.flatnonzero(slots.ended & self._live), store)
            self._actor.went_on(slots, self._live)
        except PolicyFailure as err:
            raise self._policy_blamed(err) from err
        if slots.any_ready:
            self._begin_some()

    def _act(self) -> Acted:
        waiting = self._waiting
        waiting.enter("policy")
        try:
            acted = self._actor.act(self._slots.obs, self._chance.draw())
        except PolicyFailure as err:
            raise self._policy_blamed(err) from err
        waiting.leave()
        return acted

    def _new_store(self, acted: Acted) -> StepStore:
        obs = self._slots.obs
        self._store = StepStore(obs, acted, len(self._live), *self._spaces)
        self._row_bytes = bytes_per_row(obs, acted)
        live = np.flatnonzero(self._live)
        self._store.begin(live, self._playing[live])
        return self._store

    def _flushable(self) -> StepStore:
        assert self._store is not None, "a step has been made"
        return self._store

    # ---- beginnings and ends ----

    def _begin_some(self) -> None:
        room = self._room()
        if not room:
            return
        slots = np.flatnonzero(self._slots.ready & ~self._live)[:room]
        if not len(slots):
            return
        episodes = self._begun + np.arange(len(slots))
        self._begun += len(slots)
        self._playing[slots], self._length[slots], self._live[slots] = episodes, 0, True
        self._live_count += len(slots)
        indices = self.indices(episodes)
        seeds = [environment_seed(self._plan.seed, index) for index in indices.tolist()] if not self._plan.own_class else []
        try:
            self._slots.begin(slots, seeds)
        except SlotFailure as err:
            raise self._blamed(err) from err
        self._chance.begin(slots, indices)
        self._actor.begin(slots, indices, self._slots)
        if self._store is not None:
            self._store.begin(slots, episodes)

    def _room(self) -> int:
        """How many more episodes may begin."""
        if self._plan.steps is not None and self._taken >= self._plan.steps:
            return 0  # those that have begun have as many steps already, and they come first
        waiting = (self._taken - self._whole_steps) * self._row_bytes
        if waiting > HELD_BYTES and self._begun > self._whole:
            return 0
        return len(self._live) if self._wanted is None else self._wanted - self._begun

    def _end(self, slots: Index, store: StepStore) -> None:
        finals, infos = self._slots.finals(slots)
        store.end(slots, (self._slots.terminated[slots], self._slots.truncated[slots]), finals, infos)
        self._live[slots] = False
        self._live_count -= len(slots)
        self._lengths.update(zip(self._playing[slots].tolist(), self._length[slots].tolist(), strict=True))
        while self._whole in self._lengths and not self._enough():
            self._whole_steps += self._lengths.pop(self._whole)
            self._whole += 1
        self._actor.end(slots, self._slots, finals, infos)  # last: should it fail, the episode is whole all the same

    # ---- blame ----

    def place(self) -> str:
        """What is waited for, in words; asked from other threads, too."""
        doing, slot = self._waiting.doing, self._waiting.slot
        who = f"runner {self._runner}, " if self._plan.in_processes else ""
        if doing == "policy":
            return f"{who}the policy in {self._plan.env}, after {self._taken} steps"
        if slot is None:
            return f"{who}{self._plan.env}, its vector class, after {self._taken} steps ({doing})"
        return f"{who}slot {slot}: {self._place(slot)} ({doing})"

    def at(self) -> tuple[int, int, int]:
        """Slot, episode and step that are waited for, -1 for the slot where it is none of one slot; from other threads, too."""
        slot = self._waiting.slot
        if slot is None or not self._waiting.doing:
            return -1, 0, 0
        return slot, int(self.indices(self._playing[slot])), int(self._length[slot])

    def _too_long(self) -> BadData:
        slot, doing = self._waiting.slot, self._waiting.doing
        return too_long(self._plan, self.place(), doing=doing, more="" if slot is None else self._seed(slot))

    def _place(self, slot: int) -> str:
        episode = int(self.indices(self._playing[slot]))
        return f"{self._plan.env}, episode {episode}, step {int(self._length[slot])}"

    def _seed(self, slot: int) -> str:
        """For an error's fix: the seed of the slot's episode, where episodes have one."""
        if self._plan.own_class:
            return ""
        index: Any = self.indices(self._playing[slot])
        return f"; its seed was {environment_seed(self._plan.seed, int(index))}"

    def _blamed(self, failure: SlotFailure) -> BadData:
        fix = "check the environment with this policy"
        if failure.slot is None:
            place = f"{self._plan.env}, its vector class, after {self._taken} steps"
        else:
            place = self._place(failure.slot)
            fix += self._seed(failure.slot)
        return BadData(f"the environment raised {failure.cause} ({failure.doing})", where=place, fix=fix)

    def _policy_blamed(self, failure: PolicyFailure) -> BadData:
        slot = failure.row if failure.row < len(self._live) else 0
        what, fix = f"{failure.who} raised {failure.cause!r}", f"check {failure.who} with this environment"
        if isinstance(failure.cause, OfflineCliError):
            what, fix = f"{failure.who}: {failure.cause.what_in_one_line}", failure.cause.fix
        return BadData(what, where=self._place(slot), fix=f"{fix}{self._seed(slot)}")
