"""Plays exactly the first N episodes of a policy in an environment: `evaluation_plan.py` says which these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import Environment
from offline_cli.errors import BadData
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.evaluation_plan import BLOCK, EvaluationPlan
from offline_cli.playing.plan import OWN_CLASS
from offline_cli.playing.returns import Outcomes, Returns
from offline_cli.playing.runner_factory import open_runner
from offline_cli.playing.runner_processes import outcomes_of_processes
from offline_cli.playing.slots import Purpose
from offline_cli.policies.module_policy import ModulePolicy
from offline_cli.policies.pieces import PlayPieces
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy

__all__ = ["Played", "play", "played_by_runners", "way_to_step"]

Each = Callable[[int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """N whole episodes, in the order in which they were started."""

    returns: NDArray[np.float64]  # (N,) undiscounted, in the environment's units
    lengths: NDArray[np.int64]  # (N,) steps

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns; 0 for one episode."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def ci95(self) -> float:
        """Half the width of the 95% confidence interval of the mean, by the normal approximation."""
        return 1.96 * self.std / math.sqrt(len(self.returns))


def play(
    module: RLModule,
    environment: Environment,
    episodes: int,
    *,
    seed: int,
    purpose: Purpose,
    round_: int = 0,
    explore: bool = False,
    pieces: PlayPieces | None = None,
    num_envs: int = BLOCK,
    step_timeout: float | None = None,
    on_step: Callable[[], None] = lambda: None,
    on_episodes: Each = lambda done: None,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`, in this process.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are.
    `num_envs`: single copies side by side, which changes no episode unless pieces learn while they play. `on_step` is called at
    every step and may raise to stop; `on_episodes` gets the number of episodes that have ended.

    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, where a step takes longer than `step_timeout`, and where a piece raises; BadConfig where the pieces
    cannot play there.
    """
    plan = EvaluationPlan(
        env=environment.name,
        env_kwargs={},
        wrappers=(),
        policy="",
        explore=explore,
        seed=seed,
        vectorize=way_to_step(environment, pieces),
        num_envs=num_envs,
        runners=1,
        device=next(module.parameters()).device.type,
        episodes=episodes,
        step_timeout=step_timeout,
        threads=None,
        purpose=purpose,
        round_=round_,
    )

    def stopped() -> bool:
        on_step()
        return False

    with evaluating(module):
        policy = _policy(module, environment, pieces, explore=explore)
        with open_runner(plan, 0, environment=environment, policy=policy, sink=Returns, stopped=stopped) as runner:
            return _checked(plan, runner.batches(), on_episodes)


def played_by_runners(plan: EvaluationPlan, *, on_episodes: Each = lambda done: None) -> Played:
    """The plan's episodes, by as many runner processes as it says. Raises what `play` raises."""
    with closing(outcomes_of_processes(plan, Returns)) as outcomes:
        return _checked(plan, outcomes, on_episodes)


def way_to_step(environment: Environment, pieces: PlayPieces | None) -> str:
    """`Plan.vectorize` of an evaluation: pieces see episodes, each from its beginning to its end, in single copies."""
    return OWN_CLASS if pieces is None and environment.vector_class_fits else "sync"


def _policy(module: RLModule, environment: Environment, pieces: PlayPieces | None, *, explore: bool) -> Policy | PipedPolicy:
    device = next(module.parameters()).device
    if pieces is not None:
        return PipedPolicy(module, pieces, environment, explore=explore, device=device)
    policy = ModulePolicy(module, explore=explore, device=device, fingerprint="")
    policy.play_in(environment.action_space)
    return policy


def _checked(plan: EvaluationPlan, outcomes: Iterator[Outcomes], on_episodes: Each) -> Played:
    parts, done = [], 0
    for part in outcomes:
        parts.append(part)
        done += len(part)
        on_episodes(done)
    if done < plan.count:
        fix = "--num-env-runners 0 shows what happens"
        raise BadData(f"the runners ended after {done} of {plan.count} episodes", where=plan.env, fix=fix)
    every = Outcomes.in_order(parts)
    bad = np.flatnonzero(~np.isfinite(every.returns))
    if len(bad):
        place, fix = f"{plan.env}, episode {bad[0]}", "mend the environment's rewards"
        raise BadData(f"a return of {every.returns[bad[0]]}", where=place, fix=fix)
    return Played(every.returns, every.lengths)
