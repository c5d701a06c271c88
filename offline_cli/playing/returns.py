"""Returns and lengths of exactly the first N episodes of a policy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.environments import RETURN, STATE, TERMINATED, TRUNCATED, Environment
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.copies import KeptInfo
from offline_cli.playing.loop import Plan, opened_policy, played
from offline_cli.policies.module_policy import module_policy
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, Purpose, stand_in
from offline_cli.stop_signals import StopRequested, check
from offline_cli.trees import Tree


class Outcome(NamedTuple):
    """Return and length of a whole episode."""

    length: int  # steps
    value: float  # undiscounted return, in the environment's units; for games the sum over agents
    by_agent: Sequence[float]  # for games: each agent's return; NaN if it took no part
    nbytes: int = 0  # see StepSink


class Returns:
    """A StepSink that returns Outcomes."""

    def __init__(self, slots: int, environment: Environment) -> None:
        """See MakeSink."""
        self._sums, self._steps = np.zeros(slots), np.zeros(slots, np.int64)  # of rewards
        self._agents = tuple(environment.agents or ())

    def step(
        self, rows: Any, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See StepSink."""
        self._sums[rows] += rewards
        self._steps[rows] += 1

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> Outcome:
        """See StepSink."""
        states = [final[agent][STATE] for agent in self._agents]
        by_agent = [float(one[RETURN]) if one[TERMINATED] or one[TRUNCATED] else math.nan for one in states]
        total = sum(one[RETURN] for one in states if one[TERMINATED] or one[TRUNCATED])
        value = float(total if self._agents else self._sums[slot])
        steps = int(self._steps[slot])
        self._sums[slot], self._steps[slot] = 0.0, 0
        return Outcome(steps, value, by_agent)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """N whole episodes, in the order of their start."""

    returns: NDArray[np.float64]  # (N,) undiscounted, in the environment's units
    lengths: NDArray[np.int64]  # (N,) steps
    by_agent: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # (N,) for games; NaN if it took no part

    def of_agent(self, agent: str) -> Played:
        """One agent's returns in the games that it took part in."""
        took_part = ~np.isnan(self.by_agent[agent])
        return Played(self.by_agent[agent][took_part], self.lengths[took_part])

    @property
    def return_by_agent(self) -> dict[str, dict[str, Any]]:
        """For each agent that took part: number of games, mean and sample standard deviation of its returns."""
        every = {agent: self.of_agent(agent) for agent in self.by_agent}
        return {
            agent: {"games": len(own.returns), "return_mean": own.mean, "return_std": own.std}
            for agent, own in every.items()
            if len(own.returns)
        }

    @property
    def mean(self) -> float:
        """Mean return; NaN without episodes."""
        return float(self.returns.mean()) if len(self.returns) else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns; 0 for one episode."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def ci95(self) -> float | None:
        """Half the width of the 95% confidence interval of the mean, by the normal approximation; None for one episode."""
        return 1.96 * self.std / math.sqrt(len(self.returns)) if len(self.returns) > 1 else None


def play(
    module: RLModule,
    environment: Environment,
    episodes: int,
    *,
    seed: int,
    purpose: Purpose,
    round_: int = 0,
    explore: bool = False,
    pieces: PlaySpec | None = None,
    agent: str | None = None,
    others: Mapping[str, Policy] | None = None,
    num_envs: int = 16,
    ranks: Ranks = ALONE,
) -> Played:
    """Play `episodes` whole episodes, greedily unless `explore`, in this process; `ranks` divide them among processes.

    `pieces`: the policy's pipelines; None: raw observations and actions. With several agents the module plays `agent`, and
    `others` are policies by agent for the rest.

    Raises BadData if the environment raises, returns observations of another shape than its space or non-finite rewards, and
    if a piece raises; BadConfig if the pieces do not fit the environment; StopRequested.
    """
    share = ranks.share(episodes)
    plan = Plan(
        environment=environment.spec,
        opening=PolicyOptions(explore=explore),
        seed=seed,
        purpose=purpose,
        round_=round_,
        first=share.start,
        episodes=share.stop - share.start,
        infos="none" if pieces is None and not others else "plain",
        num_envs=num_envs,
        threads=None,
    )
    device = next(module.parameters()).device
    with evaluating(module):
        if agent is None or environment.agents is None:
            policy = module_policy(module, pieces, environment, device=device)
        else:
            alone = stand_in(f"{environment.name}, agent {agent}", environment.agents[agent])
            own = module_policy(module, pieces, alone, device=device)
            policy = opened_policy(plan, environment, {**(others or {}), agent: own})
        outcomes = played(plan, environment, policy, Returns) if plan.episodes else iter(())
        return played_of(outcomes, environment, lambda done: None, ranks)


def played_of(
    outcomes: Iterable[list[Outcome]], environment: Environment, on_episodes: Callable[[int], None], ranks: Ranks = ALONE
) -> Played:
    """Collect all episodes, in order, from all ranks.

    Raises BadData for a non-finite return, StopRequested, and what `outcomes` raises; RankFailed if another rank failed.
    """
    failure: Exception | StopRequested | None = None
    own = list[Outcome]()
    try:
        for part in outcomes:
            own += part
            on_episodes(len(own))
        check()
    except (Exception, StopRequested) as err:  # noqa: BLE001  raised after telling the other ranks
        failure = err
    ranks.agree(failure, failure.what if isinstance(failure, OfflineCliError) else "")
    every = [Outcome(*one) for text in ranks.texts(json.dumps(own)) for one in json.loads(text)]
    values = np.array([one.value for one in every], np.float64)
    if (bad := np.flatnonzero(~np.isfinite(values))).size:
        place, fix = f"{environment.name}, episode {bad[0]}", "fix the environment's rewards"
        raise BadData(f"the return is {values[bad[0]]}", where=place, fix=fix)
    return Played(
        values,
        np.array([one.length for one in every], np.int64),
        {agent: np.array([one.by_agent[number] for one in every]) for number, agent in enumerate(environment.agents or ())},
    )
