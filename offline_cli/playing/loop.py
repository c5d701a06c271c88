"""The playing loop: start episodes, call the policy, step the copies, and collect whole episodes in a sink.

Episode i (0-based) is reset with a seed from (--seed, i) and plays to its end. Episodes are returned in order without gaps, so
short ones are not favoured. Episodes that finish before an earlier, longer one wait in memory; beyond HELD_BYTES no new episode
starts until it ends.

`played` plays a plan in this process; `played_on` uses an engine's workers, with blocks of episodes.
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
REPORT_SECONDS: Final = 0.5  # longest delay before whole episodes are returned
ROUNDS: Final = 16  # maximum episodes per copy in a worker's block
SHARES: Final = 2  # blocks per worker, if the number of episodes is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines the episodes and how they are played; picklable."""

    environment: EnvironmentSpec
    policies: tuple[str, ...] = ()  # one for all, or AGENT=POLICY for several agents
    opening: PolicyOptions = field(default_factory=PolicyOptions)  # options for opening the policies
    seed: int = 0
    purpose: Purpose = Purpose.RECORD
    round_: int = 0  # number of the check in a run
    first: int = 0  # index of the first episode to play
    episodes: int | None = None  # number of episodes; None: see steps
    steps: int | None = None  # play the fewest episodes with at least so many steps
    infos: str = "plain"  # "all" | "plain" | "none": see `copies.py`
    vectorize: str = "sync"  # "sync" | "async"
    num_envs: int = 16  # copies of the environment in each playing process
    step_timeout: float | None = None  # seconds per step of an `async` copy; None: no limit
    threads: int | None = 1  # torch threads; None: torch's setting

    @property
    def slots(self) -> int:
        """Number of parallel copies, at most one per episode."""
        return self.num_envs if self.episodes is None else max(1, min(self.num_envs, self.episodes))

    def reset_seed(self, episode: int) -> int:
        """The reset seed of episode `episode`."""
        return reset_seed(self.seed, episode, self.purpose, self.round_)


class StepSink(Protocol):
    """Collects the steps of S slots, and returns a result for each episode that ends."""

    def step(
        self, rows: Any, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """Add a step of k slots: leaves (k, ...). `rows`: index array of these slots, or slice(None) for all. The first step of
        a slot, and the first after `end`, starts an episode. Raises BadData."""

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> Any:
        """End the episode of a slot with its final observation; return the result, which has `nbytes`."""


MakeSink = Callable[[int, Environment], StepSink]
"""Makes a sink for a number of slots."""


def opened_policy(plan: Plan, environment: Environment, given: dict[str, Policy] | None = None) -> Policy:
    """Open the plan's policy. `given`: open policies by agent. Raises like `open_policies`."""
    return open_policies(plan.policies, environment, plan.opening, seed=plan.reset_seed(plan.first), given=given)


def played(plan: Plan, environment: Environment, policy: Policy, make: MakeSink) -> Iterator[list[Any]]:
    """Play the plan in this process, until it is done or a signal arrives; yield lists of the sink's results, in order.

    Raises BadData, naming the episode, if environment or policy raises, after yielding the whole episodes before it.
    """
    with (
        nullcontext() if plan.threads is None else use_threads(plan.threads),
        Copies(environment, plan.slots, infos=plan.infos, vectorize=plan.vectorize, timeout=plan.step_timeout) as copies,
    ):
        yield from Loop(plan, copies, policy, make(plan.slots, environment)).run()


def played_on(
    engine: Engine, workers: int, plan: Plan, environment: Environment, policy: Policy, make: MakeSink
) -> Reading[list[Any]]:
    """Like `played`, on an engine's workers; endless if the plan has steps, and raises StopRequested for a signal."""
    if engine.is_local:
        return engine.streamed(lambda whole: played(whole, environment, policy, make), [plan])
    return engine.streamed(partial(_played_block, make), _blocks(plan, workers))


def _blocks(plan: Plan, workers: int) -> Iterator[Plan]:
    """Split the plan into blocks, in order; block sizes depend on plan and workers only."""
    done, size = 0, ROUNDS * plan.num_envs
    if plan.episodes is not None:
        size = max(1, min(size, -(-plan.episodes // (SHARES * workers))))
    while plan.episodes is None or done < plan.episodes:
        count = size if plan.episodes is None else min(size, plan.episodes - done)
        yield replace(plan, first=plan.first + done, episodes=count, steps=None, opening=replace(plan.opening, loaded=None))
        done += count


def _played_block(make: MakeSink, plan: Plan) -> Iterator[list[Any]]:
    """Play a block in a worker, which opens environment and policy for each block."""
    check()
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
        self._rows: Any = slice(0, 0)  # live slots: slice(None) for all, else an index array
        self._count = 0  # live slots
        key = chance_key(plan.seed, plan.purpose, plan.round_)
        self._state = State(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count), key)  # all slots
        self._obs: Tree = None  # leaves (S, ...)
        self._infos: list[KeptInfo] | None = None
        self._begun = self._whole = self._given = (
            plan.first
        )  # episode numbers: next to start, first unfinished, first not yielded
        self._taken_steps = self._whole_steps = 0  # steps of all started episodes; of the finished ones without a gap
        self._ended: dict[int, tuple[Any, int]] = {}  # finished episodes not yet yielded, with their steps
        self._held = 0  # their bytes

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
        if failure is not None and requested() is None:  # a stop signal often also kills the environment's own processes
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
        """Call the policy for the live slots, and step all."""
        state, rows, seen, infos = self._state, self._rows, self._obs, self._infos
        is_all = isinstance(rows, slice)
        if not is_all:
            seen, infos = rows_of(seen, rows), infos and [infos[slot] for slot in rows.tolist()]
        known = None if infos is None else [info.kept for info in infos]
        memory = rows_of(state.memory, rows)
        given = State(state.episodes[rows], state.t[rows], state.rewards[rows], state.key, known, memory)
        try:
            acted = self._policy.act(seen, given, self._plan.opening.explore)
            actions = map_leaves(np.array if is_all else self._spread, acted.for_env)  # copies: environments may overwrite them
        except RAISED as err:
            raise self._policy_failed(err) from err
        state.memory = with_rows(state.memory, rows, acted.memory, len(self._live))
        self._obs, state.rewards, terminated, truncated, self._infos = self._copies.step(actions)
        try:
            self._sink.step(rows, seen, infos, acted, state.rewards[rows])
        except BadData as err:  # model outputs that cannot be recorded
            raise self._policy_failed(err) from err
        state.t[rows] += 1
        self._taken_steps += self._count
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            for slot in ended.tolist():
                self._end(slot, bool(terminated[slot]), bool(truncated[slot]))
            self._begin()

    def _spread(self, leaf: NDArray[Any]) -> NDArray[Any]:
        """Actions (S, ...): those of live slots, and arbitrary ones for idle slots."""
        whole = np.empty((len(self._live), *leaf.shape[1:]), leaf.dtype)
        whole[:] = leaf[0]
        whole[self._rows] = leaf
        return whole

    def _begin(self) -> None:
        """Start episodes in free slots, as many as allowed; the other slots become idle."""
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
        if infos is not None or self._infos is not None:  # new infos for reset slots, old ones for the others
            new, old = (one or [NOTHING] * len(self._live) for one in (infos, self._infos))
            self._infos = [new[slot] if slot in seeds else old[slot] for slot in range(len(self._live))]

    def _room(self, wanted: int) -> int:
        """How many of `wanted` episodes may start."""
        if self._plan.steps is not None and self._taken_steps >= self._plan.steps:
            return 0  # the started episodes already have enough steps
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
        """The error for an exception of a copy, naming its episode."""
        failure, episode = failed.failure, int(self._state.episodes[failed.slot])
        place = f"{self._plan.environment.id}, episode {episode}, step {self._state.t[failed.slot]}"
        if failure.is_info:
            return BadData(failure.what, where=place, fix="use --infos plain, which drops such entries")
        fix = f"test the environment with this policy and reset seed {self._plan.reset_seed(episode)}"
        return BadData(f"the environment raised {failure.what}", where=place, fix=fix)

    def _policy_failed(self, error: BaseException) -> BaseException:
        """The error for an exception of a policy, or a piece around it, naming the episodes of the call."""
        asked = self._state.episodes[self._rows]
        first, last = int(asked.min()), int(asked.max())
        place = f"{self._plan.environment.id}, episode"
        place += f" {first}, step {self._state.t[self._rows][0]}" if len(asked) == 1 else f"s {first} to {last}"
        more = (
            f"; the first one's reset seed is {self._plan.reset_seed(first)}; --num-envs 1 calls it for one episode at a time"
        )
        return blamed(error, where=place, more=more)
