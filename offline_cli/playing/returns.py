"""Plays exactly the first N episodes of a policy and keeps their returns and lengths; `EvaluationPlan` says which these are.

`EvaluateResult` is the result of `evaluate`; all of it has a form in JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.engines.processes import ProcessEngine
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.games import OBS, STATE, agents_in, final_returns, is_acting
from offline_cli.modules.rl_module import RLModule, evaluating
from offline_cli.playing.plan import BLOCK, OWN_CLASS, EvaluationPlan, Plan
from offline_cli.playing.runner_factory import open_runner
from offline_cli.playing.runner_tasks import played_in_shares
from offline_cli.playing.slots import Index, Purpose
from offline_cli.policies.module_policy import ModulePolicy
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.policy import Acted, Policy
from offline_cli.spaces import Space
from offline_cli.stop_signals import StopRequested, check
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["EvaluateResult", "Played", "Returns", "play", "played_by_runners", "played_here", "played_with", "way_to_step"]

Each = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Whole episodes of one policy; of several agents, whole games, whose return is the sum over agents."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float  # half the width of the 95% confidence interval of the mean
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    env_kwargs: Mapping[str, Any]  # it was made with; secret ones blanked out
    wrappers: Sequence[str]  # around it
    explore: bool  # actions were drawn, not the likeliest
    seed: int
    checkpoint: int | None = None  # the run is not finished, and this update's policy played; None: it is
    observations_not_finite: Mapping[str, int] = field(default_factory=dict)  # "nan-in-observations", ...: numbers acted on
    pieces: Mapping[str, Sequence[str]] = field(default_factory=dict)  # played between, by side; and what is `unlike_training`
    return_by_agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of games: see `Played.return_by_agent`

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; returns by agent where there are several."""
        return {name: value for name, value in asdict(self).items() if value or name != "return_by_agent"}


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The outcomes of E whole episodes, in any order."""

    indices: Index  # (E,) which they are
    returns: NDArray[np.float64]  # (E,) undiscounted, in the environment's units
    lengths: NDArray[np.int64]  # (E,) steps
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

    row_bytes = 0

    def __init__(self, plan: Plan, runner: int, slots: int, spaces: tuple[Space, Space], fingerprint: str) -> None:
        """See MakeSink."""
        self._plan, self._runner = plan, runner
        self._episode = np.zeros(slots, np.int64)
        self._sums = np.zeros(slots)
        self._steps = np.zeros(slots, np.int64)
        self._not_finite = np.zeros((slots, 2), np.int64)
        self._agents = agents_in(spaces[0])
        self._ended: list[Outcomes] = []

    @property
    def full(self) -> bool:
        """Whether an episode has ended: progress is reported by episode."""
        return bool(self._ended)

    def begin(self, slots: Index, episodes: Index) -> None:
        """See Sink."""
        self._episode[slots], self._sums[slots], self._steps[slots] = episodes, 0.0, 0
        self._not_finite[slots] = 0

    def act(self, obs: Tree, infos: NDArray[Any] | None, acted: Acted) -> None:
        """See Sink: what is not finite is counted. A policy may act on it, so that it is no error."""
        if self._agents:
            obs = {agent: _acted_on(obs[agent]) for agent in self._agents}
        for leaf in (obs,) if isinstance(obs, np.ndarray) else leaves(obs):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                rows = leaf[: len(self._steps)].reshape(len(self._steps), -1)
                self._not_finite += np.stack([np.isnan(rows).sum(axis=1), np.isinf(rows).sum(axis=1)], axis=1)

    def reward(self, rewards: NDArray[Any]) -> None:
        """See Sink."""
        self._sums += rewards
        self._steps += 1

    def end(self, slots: Index, flags: tuple[NDArray[Any], NDArray[Any]], finals: Tree, infos: NDArray[Any] | None) -> None:
        """See Sink."""
        indices, returns = self._plan.indices(self._runner, self._episode[slots]), self._sums[slots]
        by_agent = np.zeros((len(slots), len(self._agents)))
        if self._agents:
            found, took_part = zip(*(final_returns(finals[agent][STATE]) for agent in self._agents), strict=True)
            returns = np.sum(found, axis=0)
            by_agent = np.where(took_part, found, np.nan).T
        self._ended.append(Outcomes(indices, returns, self._steps[slots], self._not_finite[slots], by_agent))

    def take(self, limit: int | None = None) -> Outcomes | None:
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
    lengths: NDArray[np.int64]  # (N,) steps
    observations_not_finite: Mapping[str, int] = field(default_factory=dict)  # see EvaluateResult
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
    num_envs: int = BLOCK,
    on_episodes: Each = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """`episodes` whole episodes, greedily unless `explore`, in this process; with `ranks`, which share them out, in all.

    `pieces`: what the policy plays between; None: it sees observations as they are, and its actions go as they are.
    `num_envs`: single copies side by side, which changes no episode. `on_episodes` gets the number of episodes that have ended.

    Raises BadData where the environment raises, gives observations of another shape than its space says, or rewards that are
    no finite numbers, and where a piece raises; BadConfig where the pieces cannot play there; StopRequested.
    """
    plan = EvaluationPlan(
        env=environment.name,
        env_kwargs=environment.spec.kwargs,
        wrappers=environment.spec.wrappers,
        policy="",
        explore=explore,
        seed=seed,
        vectorize=way_to_step(environment, pieces),
        num_envs=num_envs,
        runners=ranks.count,
        device=next(module.parameters()).device.type,
        episodes=episodes,
        threads=None,
        purpose=purpose,
        round_=round_,
    )

    return played_here(plan, module, environment, pieces, on_episodes=on_episodes, ranks=ranks)


def played_with(
    plan: EvaluationPlan,
    policy: Policy | PipedPolicy,
    environment: Environment,
    *,
    on_episodes: Each = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """The plan's episodes of a policy that is open, in this process: see `play`."""

    def stopped() -> bool:
        check()
        return False

    def played() -> Generator[Outcomes, None, None]:
        with open_runner(plan, ranks.rank, environment=environment, policy=policy, sink=Returns, stopped=stopped) as runner:
            yield from runner.batches()

    with closing(played()) as own:
        return _checked(plan, own if ranks.count == 1 else iter([_of_all(ranks, plan, own)]), on_episodes, environment)


def _of_all(ranks: Ranks, plan: EvaluationPlan, outcomes: Iterator[Outcomes]) -> Outcomes:
    """The episodes of every rank. Raises what ended this rank's own early; RankFailed where another one's did."""
    numbers = np.zeros((plan.count, 5))  # each rank has its own rows: 1 where an episode is, return, length, not finite
    failure: Exception | StopRequested | None = None
    try:
        for part in outcomes:
            numbers[part.indices] = np.column_stack([np.ones(len(part)), part.returns, part.lengths, part.not_finite])
    except (Exception, StopRequested) as err:  # noqa: BLE001  # raised once the others know
        failure = err
    ranks.agree(failure, failure.what if isinstance(failure, OfflineCliError) else "")
    numbers[:, 1][~np.isfinite(numbers[:, 1])] = np.finfo(np.float64).max  # NaN of one rank would spread
    whole = np.reshape(ranks.summed(numbers.ravel().tolist()), numbers.shape)
    there = np.flatnonzero(whole[:, 0])
    returns = np.where(whole[:, 1] == np.finfo(np.float64).max, np.inf, whole[:, 1])
    lengths, not_finite = whole[there, 2].astype(np.int64), whole[there, 3:].astype(np.int64)
    return Outcomes(there, returns[there], lengths, not_finite, np.zeros((len(there), 0)))  # no ranks play games


def played_here(
    plan: EvaluationPlan,
    module: RLModule,
    environment: Environment,
    pieces: PlaySpec | None,
    *,
    on_episodes: Each = lambda done: None,
    ranks: Ranks = ALONE,
) -> Played:
    """The plan's episodes, in this process: see `play`."""
    with evaluating(module):
        policy = _policy(module, environment, pieces, explore=plan.explore)
        return played_with(plan, policy, environment, on_episodes=on_episodes, ranks=ranks)


def played_by_runners(plan: EvaluationPlan, environment: Environment, *, on_episodes: Each = lambda done: None) -> Played:
    """The plan's episodes, by as many worker processes as it has runners. Raises what `play` raises."""
    with ProcessEngine(plan.runners) as engine, closing(played_in_shares(plan, Returns, engine)) as outcomes:
        return _checked(plan, outcomes, on_episodes, environment)


def way_to_step(environment: Environment, pieces: PlaySpec | None) -> str:
    """`Plan.vectorize` of an evaluation: pieces see episodes, each from its beginning to its end, in single copies."""
    return OWN_CLASS if pieces is None and environment.vector_class_fits else "sync"


def _policy(module: RLModule, environment: Environment, pieces: PlaySpec | None, *, explore: bool) -> Policy | PipedPolicy:
    device = next(module.parameters()).device
    if pieces is not None:
        return PipedPolicy(module, pieces, environment, explore=explore, device=device)
    policy = ModulePolicy(module, explore=explore, device=device, fingerprint="")
    policy.play_in(environment.action_space)
    return policy


def _checked(plan: EvaluationPlan, outcomes: Iterator[Outcomes], on_episodes: Each, environment: Environment) -> Played:
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
        place, fix = f"{plan.env}, episode {bad[0]}", "fix the environment's rewards"
        raise BadData(f"a return of {every.returns[bad[0]]}", where=place, fix=fix)
    counts = zip(("nan-in-observations", "infinite-in-observations"), every.not_finite.sum(axis=0).tolist(), strict=True)
    by_agent = {agent: every.by_agent[:, number] for number, agent in enumerate(environment.agents or ())}
    return Played(every.returns, every.lengths, {kind: count for kind, count in counts if count}, by_agent)
