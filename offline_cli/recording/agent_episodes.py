"""Divides recorded games into the episodes of their agents, by whole arrays.

An episode is what its agent was shown, in order; it has the id of the game with module and agent, as episodes of other sources
with several agents have (`agent_episode_id`). A dataset has one observation and one action space: agents of other spaces have a
dataset of their own. A reward that an agent got before its first action belongs to its first step. An
agent that never acted has no episode; it is counted.

A resumed recording plays the last game of which anything is there again, and writes what is missing of it (`begun`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UsageError
from offline_cli.formats.step_rows import agent_episode_id
from offline_cli.games import OBS, STATE, has_ended, is_acting, is_shown, rewards_in
from offline_cli.playing.plan import Plan
from offline_cli.policies.agents_policy import AgentsPolicy
from offline_cli.policies.policy import Policy
from offline_cli.spaces import Space, same_space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AgentEpisodes"]


@dataclass(slots=True, eq=False)
class AgentEpisodes:
    """Of the agents of one kind, in the games of one recording."""

    spaces: tuple[Space, Space]  # of each agent's observations and actions
    module_of: Mapping[str, str]  # by agent, in order
    name: str  # of their dataset, below the recording's folder; empty: all agents are of one kind
    written: frozenset[str] = frozenset()  # ids that are there already
    without_steps: int = 0  # agents of games that never acted
    _seen: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, environment: Environment, policy: Policy, plan: Plan) -> list[AgentEpisodes | None]:
        """Of each kind of agents; [None]: the environment is of one agent. Raises UsageError for a number of steps."""
        if environment.agents is None or not isinstance(policy, AgentsPolicy):
            return [None]
        if plan.steps is not None:
            raise UsageError("games of several agents are counted, not their steps", where="--steps", fix="--episodes N")
        kinds: list[tuple[tuple[Space, Space], dict[str, str]]] = []
        for agent, spaces in environment.agents.items():
            alike = [agents for known, agents in kinds if all(map(same_space, known, spaces))]
            if not alike:
                kinds.append((spaces, {}))
            (alike[0] if alike else kinds[-1][1])[agent] = policy.module_of[agent]
        return [cls(spaces, agents, "" if len(kinds) == 1 else next(iter(agents))) for spaces, agents in kinds]

    def begun(self, plan: Plan, fingerprint: str, written: frozenset[str]) -> int:
        """How many games are whole where episodes of these ids are there; what is there of the next one is left out."""
        self.written = written
        games = {name.partition("-")[0] for name in written}
        last = plan.ids(fingerprint, np.array([plan.first + max(0, len(games) - 1)]))[0]
        return len(games) - (last in games)  # ids of games before a change are others: the last of those stays as it is

    def divided(self, games: EpisodeBatch) -> EpisodeBatch | None:
        """The episodes of all agents, game by game, but those that are there; None: there are none."""
        parts, numbers = [], []
        for order, (agent, module) in enumerate(self.module_of.items()):
            part, which = self._of_agent(games, agent, module)
            if len(part):
                parts.append(part)
                numbers.append(which * len(self.module_of) + order)
        if not parts:
            return None
        whole, place = EpisodeBatch.concat(parts), np.concatenate(numbers)
        index = np.argsort(place, kind="stable")
        if self.written:
            index = index[[whole.ids[at] not in self.written for at in index.tolist()]]
        return whole.select(index) if len(index) else None

    def _of_agent(self, games: EpisodeBatch, agent: str, module: str) -> tuple[EpisodeBatch, NDArray[np.int64]]:
        """Its episodes, and which games they are of."""
        state: NDArray[Any] = games.obs[agent][STATE]
        shown, acting = is_shown(state), is_acting(state)
        game = np.repeat(np.arange(len(games)), games.lengths + 1)
        acts = np.bincount(game[acting], minlength=len(games))
        self.without_steps += int(np.count_nonzero((acts == 0) & (np.bincount(game[shown], minlength=len(games)) > 0)))
        with_steps = acts > 0
        rows = np.flatnonzero(shown & with_steps[game])
        which = np.flatnonzero(with_steps)
        starts = np.concatenate([[0], np.cumsum(acts[which])]).astype(np.int64)
        first = starts[:-1] + np.arange(len(which))  # of each episode, among `rows`
        last = starts[1:] + np.arange(len(which))
        rewards = rewards_in(state[rows])
        earlier = rewards[first]
        rewards = np.delete(rewards, first)
        rewards[starts[:-1]] += earlier
        step = np.flatnonzero((acting & with_steps[game])[games.step_rows()])
        terminated, truncated = has_ended(state[rows[last]])
        ids = tuple(games.ids[number] for number in which.tolist())
        found = EpisodeBatch(
            ids=tuple(agent_episode_id(name, module, agent) for name in ids),
            starts=starts,
            obs=_rows(games.obs[agent][OBS], rows),
            actions=_rows(games.actions[agent], step),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            extra={name: _rows(tree, step) for name, tree in games.extra.get(agent, {}).items()},
            infos=None if games.infos is None else [games.infos[row].get(agent) or {} for row in rows.tolist()],
            agent_ids=(agent,) * len(which),
            module_ids=(module,) * len(which),
            multi_agent_ids=ids,
            observation_space=self.spaces[0],
            action_space=self.spaces[1],
        )
        return found, which


def _rows(tree: Tree, rows: NDArray[np.int64]) -> Tree:
    return map_leaves(lambda leaf: leaf.take(rows, axis=0), tree)
