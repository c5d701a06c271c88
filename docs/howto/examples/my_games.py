"""A game of two agents, for docs/howto/agents.md."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Meeting(ParallelEnv):
    metadata = {"name": "meeting_v0"}
    possible_agents = ["red", "blue"]

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def seen(self, agent):
        return np.array([self.at[agent], self.to[agent]], np.float32) / 10

    def reset(self, seed=None, options=None):
        rng, self.agents, self.t = np.random.default_rng(seed), list(self.possible_agents), 0
        self.at, self.to = ({agent: int(rng.integers(-10, 11)) for agent in self.agents} for _ in range(2))
        return {agent: self.seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        acted, self.t = list(self.agents), self.t + 1
        for agent, action in actions.items():
            self.at[agent] = int(np.clip(self.at[agent] + action - 1, -10, 10))
        there = {agent: self.at[agent] == self.to[agent] for agent in acted}
        late = {agent: self.t == 25 and not there[agent] for agent in acted}
        self.agents = [agent for agent in acted if not (there[agent] or late[agent])]
        rewards = {agent: 10.0 if there[agent] else -0.1 for agent in acted}
        return {agent: self.seen(agent) for agent in acted}, rewards, there, late, {agent: {} for agent in acted}


def straight_on(observation):
    return int(np.sign(np.round(10 * (observation[1] - observation[0])))) + 1
