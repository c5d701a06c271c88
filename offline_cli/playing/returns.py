"""Plays exactly the first N episodes of a policy and keeps their returns and lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.games import OBS, STATE, agents_in, final_returns, is_acting
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.infos import KeptInfo
from offline_cli.playing.plan import Plan
from offline_cli.playing.workers import opened_policy, played
from offline_cli.policies.by_name import stand_in
from offline_cli.policies.module_policy import played_module
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import ActInput, ActOutput, Policy
from offline_cli.policies.seeds import Purpose
from offline_cli.stop_signals import StopRequested, check
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["Outcomes", "Played", "Returns", "play", "played_of", "stopped_by_signal"]

SIDE_BY_SIDE = 16  # copies that play, where nobody says how many
Each = Callable[[int], None]
Index = NDArray[np.int64]
FIELDS = ("indices", "returns", "lengths", "not_finite", "by_agent")


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The outcomes of E whole episodes, in any order."""

    indices: Index  # (E,) which they are
    returns: NDArray[np.float64]  # (E,) undiscounted, in the environment's units
    lengths: Index  # (E,) steps
    not_finite: NDArray[np.int64]  # (E, 2) numbers in observations acted on that are NaN, and infinite
    by_agent: NDArray[np.float64]  # (E, A) of games: each agent's return; NaN: it took no part

    def __len__(self) -> int:
        return len(self.indices)

    @classmethod
    def in_order(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """All episodes, by index."""
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS]
        order = np.argsort(joined[0])
        return cls(*(values[order] for values in joined))


class Returns:
    """See Sink; `take` gives Outcomes."""

    held_bytes = 0

    def __init__(self, plan: Plan, slots: int, environment: Environment, policy: Policy) -> None:
        """See MakeSink."""
        self._first = plan.first
        self._episode, self._steps = np.zeros((2, slots), np.int64)
        self._sums = np.zeros(slots)
        self._not_finite = np.zeros((slots, 2), np.int64)
        self._agents = agents_in(environment.observation_space)
        self._ended: list[Outcomes] = []

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Sink."""
        self._episode[slots], self._sums[slots], self._steps[slots] = episodes, 0.0, 0
        self._not_finite[slots] = 0

    def act(self, slots: Index, given: ActInput, infos: Sequence[KeptInfo] | None, acted: ActOutput) -> None:
        """See Sink: what is not finite is counted. A policy may act on it, so that it is no error."""
        obs = {agent: _acted_on(given.obs[agent]) for agent in self._agents} if self._agents else given.obs
        for leaf in (obs,) if isinstance(obs, np.ndarray) else leaves(obs):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                rows = leaf.reshape(len(leaf), -1)
                self._not_finite[slots] += np.stack([np.isnan(rows).sum(axis=1), np.isinf(rows).sum(axis=1)], axis=1)

    def reward(self, slots: Index, rewards: NDArray[np.float64]) -> None:
        """See Sink."""
        self._sums[slots] += rewards
        self._steps[slots] += 1

    def end(
        self,
        slots: Index,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        finals: Tree,
        infos: Sequence[KeptInfo] | None,
    ) -> None:
        """See Sink."""
        returns, by_agent = self._sums[slots], np.zeros((len(slots), len(self._agents)))
        if self._agents:
            found, took_part = zip(*(final_returns(finals[agent][STATE]) for agent in self._agents), strict=True)
            returns = np.sum(found, axis=0)
            by_agent = np.where(took_part, found, np.nan).T
        indices = self._first + self._episode[slots]
        self._ended.append(Outcomes(indices, returns, self._steps[slots], self._not_finite[slots], by_agent))

    def take(self, limit: int) -> Outcomes | None:
        """All that have ended, whatever their order."""
        ended, self._ended = self._ended, []
        return Outcomes.in_order(ended) if ended else None


def _acted_on(seen: Mapping[str, Any]) -> Tree:
    """What an agent of games sees, zeros where it does not act."""
    acting = is_acting(seen[STATE])
    return map_leaves(lambda leaf: np.where(acting.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), seen[OBS])


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
    others: Sequence[str] = (),
    num_envs: int = SIDE_BY_SIDE,
    on_episodes: Each = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`, in this process; with `ranks`, which share them out, in all.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are. In a game
    of several agents the module plays `agent`, and the `others` play by policies `AGENT=POLICY`, or one for all.
    `on_episodes` gets the number of episodes that have ended.

    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, and where a piece raises; BadConfig where the pieces cannot play there; StopRequested.
    """
    device = next(module.parameters()).device
    share = -(-episodes // ranks.count)
    plan = Plan(
        environment=environment.spec,
        policies=tuple(others),
        explore=explore,
        seed=seed,
        purpose=purpose,
        round_=round_,
        first=min(episodes, share * ranks.rank),
        episodes=min(share, max(0, episodes - share * ranks.rank)),
        infos="none" if pieces is None else "plain",
        num_envs=num_envs,
        threads=None,
    )
    how: dict[str, Any] = {"explore": explore, "device": device}
    with evaluating(module):
        if agent is None or environment.agents is None:
            policy = played_module(module, pieces, environment, **how)
        else:
            alone = stand_in(f"{environment.name}, agent {agent}", environment.agents[agent])
            policy = opened_policy(plan, environment, given={agent: played_module(module, pieces, alone, **how)})
        outcomes = played(plan, environment, policy, Returns, stopped=stopped_by_signal) if plan.episodes else iter(())
        if ranks.count > 1:
            outcomes = iter(_of_all(ranks, outcomes))
        return played_of(outcomes, episodes, environment, on_episodes)


def stopped_by_signal() -> bool:
    """Raise StopRequested once a signal has come."""
    check()
    return False


def played_of(outcomes: Iterator[Outcomes], count: int, environment: Environment, on_episodes: Each) -> Played:
    """All `count` episodes. Raises BadData for a return that is no finite number, and what `outcomes` raises."""
    parts, done = [], 0
    for part in outcomes:
        parts.append(part)
        done += len(part)
        on_episodes(done)
    every = Outcomes.in_order(parts)
    assert len(every) == count, (len(every), count)
    bad = np.flatnonzero(~np.isfinite(every.returns))
    if len(bad):
        place, fix = f"{environment.name}, episode {bad[0]}", "fix the environment's rewards"
        raise BadData(f"a return of {every.returns[bad[0]]}", where=place, fix=fix)
    counts = zip(("nan-in-observations", "infinite-in-observations"), every.not_finite.sum(axis=0).tolist(), strict=True)
    by_agent = {agent: every.by_agent[:, number] for number, agent in enumerate(environment.agents or ())}
    return Played(every.returns, every.lengths, {kind: count for kind, count in counts if count}, by_agent)


def _of_all(ranks: Ranks, outcomes: Iterator[Outcomes]) -> list[Outcomes]:
    """The episodes of every rank. Raises what ended this rank's own early; RankFailed where another one's did."""
    failure: Exception | StopRequested | None = None
    own: list[Outcomes] = []
    try:
        own = [*outcomes]
    except (Exception, StopRequested) as err:  # noqa: BLE001  raised once the others know
        failure = err
    ranks.agree(failure, failure.what if isinstance(failure, OfflineCliError) else "")
    texts = ranks.texts(json.dumps([[getattr(part, name).tolist() for name in FIELDS] for part in own]))
    return [Outcomes(*map(np.array, columns)) for text in texts for columns in json.loads(text)]
