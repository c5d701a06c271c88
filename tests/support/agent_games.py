"""Small games of several agents, in PettingZoo's parallel and AEC API, and experts for them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

LATE = 3  # step before which the helper arrives


class Walkers(ParallelEnv):
    """Each walks to a goal of its own on a line and leaves when it is there; the helper comes late."""

    metadata = {"name": "walkers_v0"}  # noqa: RUF012

    def __init__(
        self, steps: int = 20, fail_at: int | None = None, infos: bool = False, continuous: bool = False, slow: float = 0.0
    ) -> None:
        self.possible_agents = ["left", "right", "helper"]
        self.steps, self.fail_at, self.infos = steps, fail_at, infos
        self.continuous, self.slow = continuous, slow
        self.agents: list[str] = []

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1,), np.float32) if self.continuous else spaces.Discrete(3)

    def _see(self, agent):
        return np.array([self.at[agent] / 10, self.goal[agent] / 10, self.t / self.steps], np.float32)

    def reset(self, seed=None, options=None):
        self.rng, self.t = np.random.default_rng(seed), 0
        self.at = {agent: int(self.rng.integers(-10, 11)) for agent in self.possible_agents}
        self.goal = {agent: int(self.rng.integers(-10, 11)) for agent in self.possible_agents}
        self.agents = ["left", "right"]
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), f"actions of {sorted(actions)}, and {self.agents} are there"
        self.t += 1
        if self.slow:
            time.sleep(self.slow)
        if self.t == self.fail_at:
            raise RuntimeError("the field is flooded")
        acted = list(self.agents)
        for agent, action in actions.items():
            move = int(np.rint(action[0])) if self.continuous else int(action) - 1
            self.at[agent] = int(np.clip(self.at[agent] + move, -10, 10))
        there = {agent: self.at[agent] == self.goal[agent] for agent in acted}
        over = {agent: self.t == self.steps and not there[agent] for agent in acted}
        rewards = {agent: 10.0 if there[agent] else -abs(self.at[agent] - self.goal[agent]) / 20 for agent in acted}
        seen = {agent: self._see(agent) for agent in acted}
        self.agents = [agent for agent in acted if not (there[agent] or over[agent])]
        if self.t == LATE and self.agents:
            self.agents.append("helper")
            seen["helper"] = self._see("helper")
        infos = {agent: {"t": self.t} if self.infos else {} for agent in seen}
        return seen, rewards, there, over, infos


class Heap(AECEnv):
    """Two take 1 to 3 of a heap in turn; whoever leaves a multiple of four gets a point, and who takes the last two more."""

    metadata = {"name": "heap_v0"}  # noqa: RUF012

    def __init__(self, most: int = 30) -> None:
        super().__init__()
        self.possible_agents, self.most = ["first", "second"], most
        self.agents: list[str] = []

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (5,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def observe(self, agent):
        return np.array([self.heap / self.most, *(self.heap % 4 == rest for rest in range(4))], np.float32)

    def reset(self, seed=None, options=None):
        self.heap = int(np.random.default_rng(seed).integers(8, self.most + 1))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = {"first": 0.0, "second": 0.25}  # for moving second
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = "first"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        other = "second" if agent == "first" else "first"
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.heap = max(0, self.heap - int(action) - 1)
        self.rewards[agent] = float(self.heap % 4 == 0) + 2.0 * (self.heap == 0)
        self.rewards[other] = -1.0 * (self.heap == 0)
        if self.heap == 0:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = other


def walk(observation):
    """Towards the goal, for Walkers."""
    return int(np.sign(np.round(10 * (observation[1] - observation[0])))) + 1


def stay(observation):
    """Not at all."""
    return 1


def leave_four(observation):
    """For Heap: leave a multiple of four, or take one."""
    rest = int(np.argmax(observation[1:]))
    return (rest - 1) % 4 if rest else 0


class Strange(Walkers):
    """Breaks a rule of PettingZoo in its second step."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule

    def step(self, actions):
        seen, rewards, terminated, truncated, infos = super().step(actions)
        if self.t == 2 and self.rule == "leaves":
            self.agents = ["left"]
            terminated, truncated = dict.fromkeys(terminated, False), dict.fromkeys(truncated, False)
        if self.t == 2 and self.rule == "unknown":
            self.agents.append("stranger")
            seen["stranger"] = seen["left"]
        if self.t == 2 and self.rule == "nan":
            rewards["left"] = float("nan")
        if self.t == 2 and self.rule == "unseen":
            seen.pop("left")
        return seen, rewards, terminated, truncated, infos


class Unlike(Walkers):
    """Agents of two spaces."""

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (3 if agent == "left" else 4,), np.float32)

    def _see(self, agent):
        seen = super()._see(agent)
        return seen if agent == "left" else np.append(seen, np.float32(0.5))


def first_legal(observation):
    """The first action that the mask of a classic game of PettingZoo allows."""
    return int(np.argmax(observation["action_mask"]))


class Seesaw(ParallelEnv):
    """Four steps; a reward of `rider` is what `mate` does, and one of `mate` is 100."""

    metadata = {"name": "seesaw_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["rider", "mate"]
        self.agents: list[str] = []

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2 if agent == "rider" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2 if agent == "rider" else 4)

    def _see(self):
        sizes = {"rider": 2, "mate": 3}
        return {agent: self.rng.uniform(-1, 1, sizes[agent]).astype(np.float32) for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.rng, self.t, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        acted, over = list(self.agents), self.t == 4
        self.agents = [] if over else acted
        rewards = {"rider": float(actions["mate"]), "mate": 100.0}
        return self._see(), rewards, dict.fromkeys(acted, over), dict.fromkeys(acted, False), {agent: {} for agent in acted}


def push(observation):
    """For the mate of a Seesaw: three points for the rider."""
    return 3


def balance(observation):
    """For the rider: the sign of what it sees first."""
    return int(observation[0] > 0)
