"""Plays exactly the first N episodes of a policy and keeps their returns and lengths."""

from __future__ import annotations

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
from offline_cli.playing.workers import played
from offline_cli.policies.module_policy import played_module
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Acted, Policy, Seen
from offline_cli.policies.seeds import Purpose
from offline_cli.stop_signals import StopRequested, check
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["Outcomes", "Played", "Returns", "play", "played_of", "stopped_by_signal"]

SIDE_BY_SIDE = 16  # copies that play, where nobody says how many
Each = Callable[[int], None]
Index = NDArray[np.int64]


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
        fields = ("indices", "returns", "lengths", "not_finite", "by_agent")
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in fields]
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

    def act(self, seen: Seen, infos: Sequence[KeptInfo] | None, acted: Acted) -> None:
        """See Sink: what is not finite is counted. A policy may act on it, so that it is no error."""
        obs = {agent: _acted_on(seen.obs[agent]) for agent in self._agents} if self._agents else seen.obs
        for leaf in (obs,) if isinstance(obs, np.ndarray) else leaves(obs):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                rows = leaf.reshape(len(leaf), -1)
                self._not_finite[seen.slots] += np.stack([np.isnan(rows).sum(axis=1), np.isinf(rows).sum(axis=1)], axis=1)

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

    @property
    def return_by_agent(self) -> dict[str, dict[str, Any]]:
        """Of each agent that took part: how many games, mean and sample standard deviation of its returns."""
        found = {}
        for agent, returns in self.by_agent.items():
            own = returns[~np.isnan(returns)]
            if len(own):
                figures = {"return_mean": float(own.mean()), "return_std": float(own.std(ddof=1)) if len(own) > 1 else 0.0}
                found[agent] = {"games": len(own), **figures}
        return found

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
    pieces: PlaySpec | None = None,
    num_envs: int = SIDE_BY_SIDE,
    on_episodes: Each = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`, in this process; with `ranks`, which share them out, in all.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are.
    `on_episodes` gets the number of episodes that have ended.

    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, and where a piece raises; BadConfig where the pieces cannot play there; StopRequested.
    """
    device = next(module.parameters()).device
    share = -(-episodes // ranks.count)
    plan = Plan(
        environment=environment.spec,
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
    with evaluating(module):
        policy = played_module(module, pieces, environment, explore=explore, device=device)
        outcomes = played(plan, environment, policy, Returns, stopped=stopped_by_signal) if plan.episodes else iter(())
        if ranks.count > 1:
            outcomes = iter([_of_all(ranks, episodes, outcomes)])
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


def _of_all(ranks: Ranks, count: int, outcomes: Iterator[Outcomes]) -> Outcomes:
    """The episodes of every rank. Raises what ended this rank's own early; RankFailed where another one's did."""
    numbers = np.zeros((count, 5))  # each rank has its own rows: 1 where an episode is, return, length, not finite
    failure: Exception | StopRequested | None = None
    try:
        for part in outcomes:
            numbers[part.indices] = np.column_stack([np.ones(len(part)), part.returns, part.lengths, part.not_finite])
    except (Exception, StopRequested) as err:  # noqa: BLE001  raised once the others know
        failure = err
    ranks.agree(failure, failure.what if isinstance(failure, OfflineCliError) else "")
    numbers[:, 1][~np.isfinite(numbers[:, 1])] = np.finfo(np.float64).max  # NaN of one rank would spread
    whole = np.reshape(ranks.summed(numbers.ravel().tolist()), numbers.shape)
    there = np.flatnonzero(whole[:, 0])
    returns = np.where(whole[:, 1] == np.finfo(np.float64).max, np.inf, whole[:, 1])
    lengths, not_finite = whole[there, 2].astype(np.int64), whole[there, 3:].astype(np.int64)
    return Outcomes(there, returns[there], lengths, not_finite, np.zeros((len(there), 0)))  # no ranks play games
