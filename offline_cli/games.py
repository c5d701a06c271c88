"""Environments of several agents (PettingZoo, parallel and AEC API) as one gymnasium environment whose parts are the agents.

A game is one play of such an environment, from its reset until no agent is left. Observations are a Dict by agent of what the
agent saw last (`OBS`) and of `STATE`, six numbers: whether the agent is SHOWN something now, whether it ACTS on it, whether it
has TERMINATED or was TRUNCATED, its REWARD since it was last shown something, and its RETURN so far. Actions are a Dict by
agent, of which those of agents that act are taken. So games are played, seeded and recorded in slots as all environments are.

What an agent is shown, one after the other, is its episode: the last with its end. In the AEC API that is what `last()` says at
its turns; in the parallel API what `reset` and `step` return. The reward of an action is all that the agent gets until it is
shown something again. An environment that breaks PettingZoo's rules (an agent that comes back after its end, or leaves without
one, or ends without a last observation) raises ValueError.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from offline_cli.errors import BadConfig
from offline_cli.spaces import Space, describe, same_space
from offline_cli.step_values import flag_of, reward_of
from offline_cli.trees import rows_of

OBS, STATE = "obs", "state"
SHOWN, ACTS, TERMINATED, TRUNCATED, REWARD, RETURN = range(6)  # of a state (..., 6), float64


def game_of(made: Any, name: str) -> Any:
    """`made`, as a Game where it is an environment of PettingZoo. Raises BadConfig for one that does not list its agents."""
    known = sys.modules.get("pettingzoo.utils.env")  # who made such an environment has imported it
    if known is None or isinstance(made, gym.Env):
        return made
    if isinstance(made, known.ParallelEnv):
        return ParallelGame(made, name)
    return TurnGame(made, name) if isinstance(made, known.AECEnv) else made


def common_spaces(agents: Mapping[str, tuple[Space, Space]], name: str) -> tuple[Space, Space]:
    """The spaces of observations and actions that all agents have. Raises BadConfig where they differ."""
    first = next(iter(agents.values()))
    if any(not all(map(same_space, own, first)) for own in agents.values()):
        told = [f"{agent}: {describe(own[0])}, {describe(own[1])}" for agent, own in agents.items()]
        fix = "pad observations and actions to one size, with a --wrapper of your own or of SuperSuit (pad_observations_v0)"
        raise BadConfig(f"agents of several spaces: {'; '.join(told)}", where=f"--env {name}", fix=fix)
    return first


class Game(gym.Env[Any, Any]):
    """See the module. Subclasses define `_begin` and `_play`, which call `_show`."""

    def __init__(self, played: Any, name: str) -> None:
        listed = getattr(played, "possible_agents", None)
        if not listed:
            what = f"{name} does not list its agents (possible_agents)"
            raise BadConfig(what, where=f"--env {name}", fix="give the environment a list of all agents that may take part")
        self._played, self._called = played, {str(agent): agent for agent in listed}
        self.spaces_of: dict[str, tuple[Space, Space]] = {
            agent: (played.observation_space(own), played.action_space(own)) for agent, own in self._called.items()
        }
        state = spaces.Box(-np.inf, np.inf, (6,), np.float64)
        parts = {agent: spaces.Dict([(OBS, own[0]), (STATE, state)]) for agent, own in self.spaces_of.items()}
        self.observation_space = spaces.Dict(list(parts.items()))
        self.action_space = spaces.Dict([(agent, own[1]) for agent, own in self.spaces_of.items()])
        self._nothing = {agent: rows_of(create_empty_array(own[0]), 0) for agent, own in self.spaces_of.items()}
        self._seen: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._infos: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self._seen, self._infos = dict(self._nothing), {}
        self._state = {agent: np.zeros(6) for agent in self._called}
        self._begin(seed)
        if not any(state[ACTS] for state in self._state.values()):
            raise ValueError("no agent acts after reset")
        return self._shown(), self._infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of all agents that act; the reward is the sum of theirs."""
        acting = [agent for agent, state in self._state.items() if state[ACTS]]
        for state in self._state.values():
            state[[SHOWN, ACTS, REWARD]] = 0
        self._infos = {}
        self._play(acting, action)
        over = not any(state[ACTS] for state in self._state.values())
        for agent, state in self._state.items() if over else ():
            if self._seen[agent] is not self._nothing[agent] and not state[[TERMINATED, TRUNCATED]].any():
                raise ValueError(f"the game is over, and {agent} neither terminated nor truncated")
        return self._shown(), float(sum(state[REWARD] for state in self._state.values())), over, False, self._infos

    def close(self) -> None:
        """Close the environment."""
        self._played.close()

    def _shown(self) -> dict[str, Any]:
        return {agent: {OBS: self._seen[agent], STATE: state} for agent, state in self._state.items()}

    def _show(self, own: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> bool:
        """Show an agent an observation with what came since the last; whether it acts on it."""
        agent = str(own)
        if agent not in self._state:
            raise ValueError(f"agent {agent!r} is none of possible_agents: {', '.join(self._called)}")
        state = self._state[agent]
        if state[TERMINATED] or state[TRUNCATED]:
            raise ValueError(f"agent {agent!r} comes back after its end")
        if observation is None:
            raise ValueError(f"agent {agent!r} is shown no observation")
        self._seen[agent] = observation
        reward, flags = reward_of(reward), (flag_of(terminated), flag_of(truncated))
        state[:] = 1, not any(flags), *flags, reward, state[RETURN] + reward
        if info:
            self._infos[agent] = dict(info)
        return bool(state[ACTS])

    def _begin(self, seed: int | None) -> None:
        raise NotImplementedError

    def _play(self, acting: list[str], action: Any) -> None:
        raise NotImplementedError


class ParallelGame(Game):
    """All agents that are there act at once."""

    def _begin(self, seed: int | None) -> None:
        observations, infos = self._played.reset(seed=seed)
        for agent in self._played.agents:
            self._show(agent, observations.get(agent), 0.0, False, False, infos.get(agent))

    def _play(self, acting: list[str], action: Any) -> None:
        given = {self._called[agent]: action[agent] for agent in acting}
        observations, rewards, terminated, truncated, infos = self._played.step(given)
        there = self._played.agents
        for agent in [*given, *(one for one in there if one not in given)]:
            ends, cut = (agent in given and flags.get(agent, False) for flags in (terminated, truncated))
            if agent not in there and not (ends or cut):
                raise ValueError(f"agent {agent!r} leaves, neither terminated nor truncated")
            self._show(agent, observations.get(agent), rewards.get(agent, 0.0), ends, cut, infos.get(agent))


class TurnGame(Game):
    """One agent acts at a time."""

    def _begin(self, seed: int | None) -> None:
        self._played.reset(seed=seed)
        self._next_turn()

    def _play(self, acting: list[str], action: Any) -> None:
        self._played.step(action[acting[0]])
        self._next_turn()

    def _next_turn(self) -> None:
        """On to the next agent that acts; those that have ended are shown that on the way."""
        played = self._played
        while played.agents and not self._show(played.agent_selection, *played.last()):
            played.step(None)
