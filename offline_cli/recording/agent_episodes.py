"""Divides recorded games into the episodes of their agents, by whole arrays.

An episode is what its agent was shown, in order; it has the id of the game with module and agent, as episodes of other sources
with several agents have (`agent_episode_id`). A dataset has one observation and one action space: agents of other spaces have a
dataset of their own. A reward that an agent got before its first action belongs to its first step. An agent that never acted
has no episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.step_rows import agent_episode_id
from offline_cli.games import ACTS, OBS, REWARD, SHOWN, STATE, TERMINATED, TRUNCATED
from offline_cli.spaces import Space, same_space
from offline_cli.trees import rows_of

__all__ = ["AgentEpisodes"]


@dataclass(frozen=True, slots=True, eq=False)
class AgentEpisodes:
    """Of the agents of one kind, in the games of one recording."""

    spaces: tuple[Space, Space]  # of each agent's observations and actions
    module_of: dict[str, str]  # by agent, in order

    @classmethod
    def kinds(cls, agents: Mapping[str, tuple[Space, Space]], module_of: Mapping[str, str]) -> list[AgentEpisodes]:
        """Of each kind of agents, whose spaces and modules these are."""
        found: list[AgentEpisodes] = []
        for agent, spaces in agents.items():
            kind = next((one for one in found if all(map(same_space, one.spaces, spaces))), None)
            if kind is None:
                kind = cls(spaces, {})
                found.append(kind)
            kind.module_of[agent] = module_of[agent]
        return found

    def divided(self, games: EpisodeBatch, written: frozenset[str]) -> EpisodeBatch | None:
        """The episodes of all agents, game by game, but those that are `written` already; None: there are none."""
        parts = [self._of_agent(games, agent, module) for agent, module in self.module_of.items()]
        whole = EpisodeBatch.concat([part for part, _ in parts if len(part)]) if any(len(part) for part, _ in parts) else None
        if whole is None:
            return None
        game = np.concatenate([which for _, which in parts])
        index = [at for at in np.argsort(game, kind="stable").tolist() if whole.ids[at] not in written]
        return whole.select(index) if index else None

    def _of_agent(self, games: EpisodeBatch, agent: str, module: str) -> tuple[EpisodeBatch, NDArray[np.int64]]:
        """Its episodes, and which games they are of."""
        state: NDArray[np.float64] = games.obs[agent][STATE]
        acting, game = state[:, ACTS] > 0, np.repeat(np.arange(len(games)), games.lengths + 1)
        acts = np.bincount(game[acting], minlength=len(games))
        rows, which = np.flatnonzero((state[:, SHOWN] > 0) & (acts > 0)[game]), np.flatnonzero(acts)
        starts = np.concatenate([[0], np.cumsum(acts[which])]).astype(np.int64)
        first, last = starts[:-1] + np.arange(len(which)), starts[1:] + np.arange(len(which))  # of each episode, among `rows`
        shown_rewards = state[rows, REWARD]
        rewards = np.delete(shown_rewards, first)
        rewards[starts[:-1]] += shown_rewards[first]
        step, ends = np.flatnonzero(acting[games.step_rows()]), state[rows[last]]
        ids = tuple(games.ids[number] for number in which.tolist())
        found = EpisodeBatch(
            ids=tuple(agent_episode_id(name, module, agent) for name in ids),
            starts=starts,
            obs=rows_of(games.obs[agent][OBS], rows),
            actions=rows_of(games.actions[agent], step),
            rewards=rewards,
            terminated=ends[:, TERMINATED] > 0,
            truncated=ends[:, TRUNCATED] > 0,
            extra={name: rows_of(tree, step) for name, tree in games.extra.get(agent, {}).items()},
            infos=None if games.infos is None else [games.infos[row].get(agent) or {} for row in rows.tolist()],
            agent_ids=(agent,) * len(which),
            module_ids=(module,) * len(which),
            multi_agent_ids=ids,
            observation_space=self.spaces[0],
            action_space=self.spaces[1],
        )
        return found, which
