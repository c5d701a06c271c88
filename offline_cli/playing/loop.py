"""The loop that plays: it begins episodes, asks the policy, steps the copies, and hands whole episodes to a sink.

Episode i, counted from 0, is reset with a seed of (--seed, i) and plays to its own end. All episodes that come before one that
is kept are kept: nothing favours short ones. A long episode holds back those after it, which are whole and wait in memory;
beyond HELD_BYTES of them no new one begins until it has ended.

`played` plays a plan in this process; `played_on` has an engine's workers play it, a block of episodes at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.engine import Engine
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.errors import BadData
from offline_cli.modules.python_network import use_threads
from offline_cli.playing.copies import NOTHING, Copies, CopyFailed, KeptInfo
from offline_cli.policies.by_name import open_policies
from offline_cli.policies.policy import RAISED, Acted, Policy, PolicyOptions, Purpose, State, blamed, chance_key, reset_seed
from offline_cli.scopes import Reading
from offline_cli.stop_signals import check, requested
from offline_cli.trees import Tree, map_leaves, rows_of, with_rows

HELD_BYTES: Final = 256 << 20
REPORT_SECONDS: Final = 0.5  # whole episodes wait no longer than this to be handed out
ROUNDS: Final = 16  # episodes of a copy in one block of a worker, at most
SHARES: Final = 2  # blocks of each worker, where the number of episodes is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines the episodes, and where they are played, as one value that is sent to processes."""

    environment: EnvironmentSpec
    policies: tuple[str, ...] = ()  # one for all, or AGENT=POLICY for several agents
    opening: PolicyOptions = field(default_factory=PolicyOptions)  # how they are opened
    seed: int = 0
    purpose: Purpose = Purpose.RECORD
    round_: int = 0  # tells the checks of one run apart
    first: int = 0  # index of the first episode to play
    episodes: int | None = None  # how many to play from there; None: see steps
    steps: int | None = None  # play the fewest episodes that have so many
    infos: str = "plain"  # "all" | "plain" | "none": see `infos.py`
    vectorize: str = "sync"  # "sync" | "async"
    num_envs: int = 16  # copies of the environment, in each process that plays
    step_timeout: float | None = None  # seconds for a step of an `async` copy; None: any time
    threads: int | None = 1  # of torch; None: as many as there are

    @property
    def slots(self) -> int:
        """Copies that play side by side: no more than there are episodes."""
        return self.num_envs if self.episodes is None else max(1, min(self.num_envs, self.episodes))

    def reset_seed(self, episode: int) -> int:
        """What episode `episode` is reset with."""
        return reset_seed(self.seed, episode, self.purpose, self.round_)


class StepSink(Protocol):
    """Takes the steps that are played in S slots, and makes of an episode that ends what is kept of it."""

    def step(
        self, rows: Any, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """What k slots saw and did, and the rewards for it: leaves (k, ...). `rows`: an index array of these slots, or
        slice(None): all. The first step of a slot, and the first after an end, begins an episode. Raises BadData."""

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> Any:
        """The episode of a slot, which has ended with this observation. It has `nbytes`."""


MakeSink = Callable[[int, Environment], StepSink]
"""A sink for that number of slots."""


def opened_policy(plan: Plan, environment: Environment, given: dict[str, Policy] | None = None) -> Policy:
    """The plan's policy. `given`: by agent, those that are open already. Raises as `open_policies` does."""
    return open_policies(plan.policies, environment, plan.opening, seed=plan.reset_seed(plan.first), given=given)


def played(plan: Plan, environment: Environment, policy: Policy, make: MakeSink) -> Iterator[list[Any]]:
    """The plan's episodes, as the sink makes them, in order and some at a time; in this process, until a signal comes.

    Raises BadData where environment or policy raise, naming the episode; what was whole before has been handed out.
    """
    with (
        nullcontext() if plan.threads is None else use_threads(plan.threads),
        Copies(environment, plan.slots, infos=plan.infos, vectorize=plan.vectorize, timeout=plan.step_timeout) as copies,
    ):
        yield from Loop(plan, copies, policy, make(plan.slots, environment)).run()


def played_on(
    engine: Engine, workers: int, plan: Plan, environment: Environment, policy: Policy, make: MakeSink
) -> Reading[list[Any]]:
    """The same by an engine's workers, without end where the plan has steps, and with StopRequested for a signal."""
    if engine.is_local:
        return engine.streamed(lambda whole: played(whole, environment, policy, make), [plan])
    return engine.streamed(partial(_played_block, make), _blocks(plan, workers))


def _blocks(plan: Plan, workers: int) -> Iterator[Plan]:
    """In order; their sizes follow from the plan alone."""
    done, size = 0, ROUNDS * plan.num_envs
    if plan.episodes is not None:
        size = max(1, min(size, -(-plan.episodes // (SHARES * workers))))
    while plan.episodes is None or done < plan.episodes:
        count = size if plan.episodes is None else min(size, plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=count, steps=None, opening=replace(plan.opening, loaded=None))
        done += count


def _played_block(make: MakeSink, plan: Plan) -> Iterator[list[Any]]:
    """In a worker, which opens environment and policy for each block."""
    spec = plan.environment
    with open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
        yield from played(plan, environment, opened_policy(plan, environment), make)
    check()


class Loop:
    """Plays the plan's episodes with `policy` in `copies`."""

    def __init__(self, plan: Plan, copies: Copies, policy: Policy, sink: StepSink) -> None:
        self._plan, self._copies, self._policy, self._sink = plan, copies, policy, sink
        count = copies.count
        self._live = np.zeros(count, np.bool_)
        self._rows: Any = slice(0, 0)  # the slots that play: slice(None) where all do, else an index array
        self._count = 0  # of them
        key = chance_key(plan.seed, plan.purpose, plan.round_)
        self._state = State(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count), key)  # of all slots
        self._obs: Tree = None  # leaves (S, ...)
        self._infos: list[KeptInfo] | None = None
        self._begun = self._whole = self._given = plan.first  # numbers: to begin next; first not whole; first not handed out
        self._taken_steps = self._whole_steps = 0  # steps of all that have begun; and of those that are whole, in order
        self._ended: dict[int, tuple[Any, int]] = {}  # whole episodes that have not been handed out, with their steps
        self._held = 0  # bytes of these

    def run(self) -> Iterator[list[Any]]:
        """See `played`."""
        failure: BadData | None = None
        until = time.monotonic() + REPORT_SECONDS
        try:
            self._begin()
            while not self._has_enough() and requested() is None:
                self._step()
                if time.monotonic() > until or self._held > HELD_BYTES // 8:
                    yield from self._handed_out()
                    until = time.monotonic() + REPORT_SECONDS
        except CopyFailed as err:
            failure = self._copy_failed(err)
            failure.__cause__ = err
        except BadData as err:
            failure = err
        yield from self._handed_out()
        if failure is not None and requested() is None:  # a stop often reaches what the environment itself has started, too
            raise failure

    def _handed_out(self) -> Iterator[list[Any]]:
        episodes = [self._ended.pop(number)[0] for number in range(self._given, self._whole)]
        self._given = self._whole
        self._held -= sum(one.nbytes for one in episodes)
        if episodes:
            yield episodes

    def _has_enough(self) -> bool:
        if self._plan.episodes is not None:
            return self._whole >= self._plan.first + self._plan.episodes
        return self._whole_steps >= (self._plan.steps or 0)

    def _step(self) -> None:
        """Ask the policy for the slots that play, and step all."""
        state, rows, seen, infos = self._state, self._rows, self._obs, self._infos
        is_all = isinstance(rows, slice)
        if not is_all:
            seen, infos = rows_of(seen, rows), infos and [infos[slot] for slot in rows.tolist()]
        known = None if infos is None else [info.kept for info in infos]
        memory = rows_of(state.memory, rows)
        given = State(state.episodes[rows], state.t[rows], state.rewards[rows], state.key, known, memory)
        try:
            acted = self._policy.act(seen, given, self._plan.opening.explore)
            actions = map_leaves(np.array if is_all else self._spread, acted.for_env)  # copies: they may be written into
        except RAISED as err:
            raise self._policy_failed(err) from err
        state.memory = with_rows(state.memory, rows, acted.memory, len(self._live))
        self._obs, state.rewards, terminated, truncated, self._infos = self._copies.step(actions)
        try:
            self._sink.step(rows, seen, infos, acted, state.rewards[rows])
        except BadData as err:  # model outputs that are not to be recorded
            raise self._policy_failed(err) from err
        state.t[rows] += 1
        self._taken_steps += self._count
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            for slot in ended.tolist():
                self._end(slot, bool(terminated[slot]), bool(truncated[slot]))
            self._begin()

    def _spread(self, leaf: NDArray[Any]) -> NDArray[Any]:
        """Actions (S, ...): those of the slots that play, and any for the ones that stand still."""
        whole = np.empty((len(self._live), *leaf.shape[1:]), leaf.dtype)
        whole[:] = leaf[0]
        whole[self._rows] = leaf
        return whole

    def _begin(self) -> None:
        """Begin episodes in the slots without one, as many as there is room for; the others stand still."""
        slots, plan, state = np.flatnonzero(~self._live), self._plan, self._state
        beginning = slots[: self._room(len(slots))]
        numbers = np.arange(self._begun, self._begun + len(beginning))
        state.episodes[beginning], state.t[beginning], state.rewards[beginning] = numbers, 0, 0.0
        seeds: dict[int, int | None] = dict.fromkeys(slots.tolist())
        seeds |= {slot: plan.reset_seed(number) for slot, number in zip(beginning.tolist(), numbers.tolist(), strict=True)}
        self._live[beginning] = True
        self._begun += len(beginning)
        live = np.flatnonzero(self._live)
        self._rows, self._count = slice(None) if len(live) == len(self._live) else live, len(live)
        self._obs, infos = self._copies.reset(seeds)
        if infos is not None or self._infos is not None:  # of the slots that were reset, and of the others as they were
            new, old = (one or [NOTHING] * len(self._live) for one in (infos, self._infos))
            self._infos = [new[slot] if slot in seeds else old[slot] for slot in range(len(self._live))]

    def _room(self, wanted: int) -> int:
        """How many of so many episodes may begin."""
        if self._plan.steps is not None and self._taken_steps >= self._plan.steps:
            return 0  # those that have begun have as many steps already, and they come first
        if self._held > HELD_BYTES and self._begun > self._whole:
            return 0
        return wanted if self._plan.episodes is None else min(wanted, self._plan.first + self._plan.episodes - self._begun)

    def _end(self, slot: int, terminated: bool, truncated: bool) -> None:
        info = NOTHING if self._infos is None else self._infos[slot]
        episode = self._sink.end(slot, terminated, truncated, rows_of(self._obs, slot), info)
        self._ended[int(self._state.episodes[slot])] = episode, int(self._state.t[slot])
        self._held += episode.nbytes
        self._live[slot] = False
        while self._whole in self._ended and not (self._plan.steps is not None and self._has_enough()):
            self._whole_steps += self._ended[self._whole][1]
            self._whole += 1

    def _copy_failed(self, failed: CopyFailed) -> BadData:
        """The error for what a copy raised, naming its episode."""
        failure, episode = failed.failure, int(self._state.episodes[failed.slot])
        place = f"{self._plan.environment.id}, episode {episode}, step {self._state.t[failed.slot]}"
        if failure.is_info:
            return BadData(failure.what, where=place, fix="--infos plain leaves out what cannot be stored")
        fix = f"check the environment with this policy; its seed was {self._plan.reset_seed(episode)}"
        return BadData(f"the environment raised {failure.what}", where=place, fix=fix)

    def _policy_failed(self, error: BaseException) -> BaseException:
        """The error for a policy, or a piece around it, that raised, naming the episodes that it was asked for."""
        asked = self._state.episodes[self._rows]
        first, last = int(asked.min()), int(asked.max())
        place = f"{self._plan.environment.id}, episode"
        place += f" {first}, step {self._state.t[self._rows][0]}" if len(asked) == 1 else f"s {first} to {last}"
        more = f"; the first one's seed was {self._plan.reset_seed(first)}, and with --num-envs 1 each is asked for alone"
        return blamed(error, where=place, more=more)
