"""Plays exactly the first N episodes of a policy and keeps their returns and lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.games import ACTS, OBS, RETURN, STATE, TERMINATED, TRUNCATED
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.infos import KeptInfo
from offline_cli.playing.loop import Plan, opened_policy, played
from offline_cli.policies.module_policy import module_policy
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Acted, Policy, PolicyOptions, stand_in
from offline_cli.policies.seeds import Purpose
from offline_cli.stop_signals import StopRequested, check
from offline_cli.trees import Tree, leaves

__all__ = ["Outcome", "Played", "Returns", "play", "played_of"]

Index = NDArray[np.int64]


class Outcome(NamedTuple):
    """What is kept of a whole episode."""

    length: int  # steps
    value: float  # the return: undiscounted, in the environment's units; of games the sum over agents
    not_finite: Sequence[int]  # numbers in observations acted on that are NaN, and infinite
    by_agent: Sequence[float]  # of games: each agent's return; NaN: it took no part
    nbytes: int = 0  # see Sink


class Returns:
    """See Sink: it keeps outcomes."""

    def __init__(self, slots: int, environment: Environment) -> None:
        """See MakeSink."""
        self._steps, self._sums, self._not_finite = np.zeros(slots, np.int64), np.zeros(slots), np.zeros((slots, 2), np.int64)
        self._agents = tuple(environment.agents or ())

    def step(
        self, slots: Index, observations: Tree, infos: Sequence[KeptInfo] | None, acted: Acted, rewards: NDArray[np.float64]
    ) -> None:
        """See Sink: what is not finite is counted. A policy may act on it, so that it is no error."""
        self._sums[slots] += rewards
        self._steps[slots] += 1
        seen = [(observations[agent][OBS], observations[agent][STATE][:, ACTS]) for agent in self._agents]
        for tree, acts in seen or [(observations, np.ones(len(slots)))]:
            for leaf in leaves(tree):
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    numbers = leaf.reshape(len(leaf), -1)
                    found = np.stack([np.isnan(numbers).sum(axis=1), np.isinf(numbers).sum(axis=1)], axis=1)
                    self._not_finite[slots] += found * (acts > 0)[:, None]

    def end(self, slot: int, terminated: bool, truncated: bool, final: Tree, info: KeptInfo) -> Outcome:
        """See Sink."""
        states = [final[agent][STATE] for agent in self._agents]
        by_agent = [float(one[RETURN]) if one[TERMINATED] or one[TRUNCATED] else math.nan for one in states]
        value = float(sum(one for one, state in zip(by_agent, states, strict=True) if state[TERMINATED] or state[TRUNCATED]))
        value = value if self._agents else float(self._sums[slot])
        outcome = Outcome(int(self._steps[slot]), value, self._not_finite[slot].tolist(), by_agent)
        self._steps[slot], self._sums[slot], self._not_finite[slot] = 0, 0.0, 0
        return outcome


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """N whole episodes, in the order in which they were started."""

    returns: NDArray[np.float64]  # (N,) undiscounted, in the environment's units
    lengths: Index  # (N,) steps
    observations_not_finite: Mapping[str, int] = field(default_factory=dict)  # "nan-in-observations", ...: numbers acted on
    by_agent: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # (N,) of games, NaN: it took no part

    def of_agent(self, agent: str) -> Played:
        """Its returns, in the games that it took part in."""
        took_part = ~np.isnan(self.by_agent[agent])
        return Played(self.by_agent[agent][took_part], self.lengths[took_part])

    @property
    def return_by_agent(self) -> dict[str, dict[str, Any]]:
        """Of each agent that took part: how many games, mean and sample standard deviation of its returns."""
        every = {agent: self.of_agent(agent) for agent in self.by_agent}
        return {
            agent: {"games": len(own.returns), "return_mean": own.mean, "return_std": own.std}
            for agent, own in every.items()
            if len(own.returns)
        }

    @property
    def mean(self) -> float:
        """Mean return; NaN of no episodes."""
        return float(self.returns.mean()) if len(self.returns) else math.nan

    @property
    def std(self) -> float:
        """Sample standard deviation of the returns; 0 for one episode."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def ci95(self) -> float:
        """Half the width of the 95% confidence interval of the mean, by the normal approximation."""
        return 1.96 * self.std / math.sqrt(max(1, len(self.returns)))


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
    on_episodes: Callable[[int], None] = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`, in this process; with `ranks`, which share them out, in all.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are. In a game
    of several agents the module plays `agent`, and the `others` play by policies of their own, by agent.
    `on_episodes` gets the number of episodes that have ended.

    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, and where a piece raises; BadConfig where the pieces cannot play there; StopRequested.
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
        return played_of(outcomes, environment, on_episodes, ranks)


def played_of(
    outcomes: Iterable[list[Outcome]],
    environment: Environment,
    on_episodes: Callable[[int], None],
    ranks: Ranks = ALONE,
) -> Played:
    """All episodes, with `ranks` of all of them, in order.

    Raises BadData for a return that is no finite number, StopRequested, and what `outcomes` raises; RankFailed where another
    rank's have ended early.
    """
    failure: Exception | StopRequested | None = None
    every = list[Outcome]()
    try:
        for part in outcomes:
            every += part
            on_episodes(len(every))
        check()
    except (Exception, StopRequested) as err:  # noqa: BLE001  raised once the other ranks know
        failure = err
    ranks.agree(failure, failure.what if isinstance(failure, OfflineCliError) else "")
    every = [Outcome(*rest) for text in ranks.texts(json.dumps(every)) for rest in json.loads(text)]
    bad = next((number for number, one in enumerate(every) if not math.isfinite(one.value)), None)
    if bad is not None:
        place, fix = f"{environment.name}, episode {bad}", "fix the environment's rewards"
        raise BadData(f"a return of {every[bad].value}", where=place, fix=fix)
    nans, infinities = (sum(one.not_finite[kind] for one in every) for kind in (0, 1))
    counts = {"nan-in-observations": nans, "infinite-in-observations": infinities}
    return Played(
        np.array([one.value for one in every], np.float64),
        np.array([one.length for one in every], np.int64),
        {kind: times for kind, times in counts.items() if times},
        {agent: np.array([one.by_agent[number] for one in every]) for number, agent in enumerate(environment.agents or ())},
    )
