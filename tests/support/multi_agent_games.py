"""Random games of several agents that a multi-agent episode is told, as RLlib's class plays them without its known faults.

Agents act in turns, all at once or as they like; they come late, skip steps and end early. Left out is what RLlib gets wrong
(docs/explanation/rllib.md): rewards between an observation and the action, ends without an observation, a last step that
truncates.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from rllib_answers import Trail, brief

__all__ = ["played"]

AGENTS = ["a", "b", "c"]
OBSERVATIONS = {name: gym.spaces.Box(-9.0, 9.0, (2,) if name < "c" else (), np.float32) for name in AGENTS}
ACTIONS = {name: gym.spaces.Discrete(4) if name != "b" else gym.spaces.Box(-1.0, 1.0, (1,), np.float32) for name in AGENTS}


class Game:
    """One game of 12 steps, told to an episode of the class given; `trail` keeps what it answered."""

    def __init__(self, cls: Any, seed: int) -> None:
        self.rng, self.trail, self.count = random.Random(seed), [], 0
        self.sees = self.rng.choice([1.0, 0.5, 0.3])
        self.late = self.rng.choice(AGENTS)
        self.episode = cls(
            id_="e",
            observation_space=OBSERVATIONS,
            action_space=ACTIONS,
            agent_to_module_mapping_fn=lambda agent, episode: f"m-{agent}",
        )

    def play(self) -> Trail:
        first = {agent: self.observation(agent) for agent in AGENTS if agent != self.late or self.sees == 1}
        self.episode.add_env_reset(observations=first, infos={agent: {"n": self.count} for agent in first})
        for _ in range(8):
            self.step()
            self.get()
        self.cut()
        for _ in range(4):
            self.step()
        self.note("state", whole(type(self.episode).from_state(self.episode.get_state())))
        self.episode.to_numpy()
        self.note("arrays", whole(self.episode))
        return self.trail

    def note(self, call: str, answer: Any) -> None:
        self.trail.append((call, brief(answer)))

    def observation(self, agent: str) -> Any:
        self.count += 1
        return np.full(OBSERVATIONS[agent].shape, self.count % 9, np.float32)

    def step(self) -> None:
        episode, rng = self.episode, self.rng
        step: dict[str, dict[str, Any]] = {name: {} for name in ("observations", "actions", "rewards", "infos", "terminateds")}
        step["extra_model_outputs"] = {}
        for agent, part in episode.agent_episodes.items():
            hangs = agent in episode._hanging_actions_end
            if part.is_done or not (hangs or rng.random() < 0.8):
                continue
            if not hangs:
                step["actions"][agent] = rng.randint(0, 3) if agent != "b" else np.array([rng.randint(-4, 4) / 4], np.float32)
                step["extra_model_outputs"][agent] = {"logp": np.float32(rng.randint(0, 8))}
            step["rewards"][agent] = float(rng.randint(-3, 3))
            if rng.random() < self.sees:
                step["observations"][agent] = self.observation(agent)
                step["infos"][agent] = {"n": self.count}
                step["terminateds"][agent] = agent == "b" and rng.random() < 0.1
        if self.late not in episode.agent_episodes and not episode.env_t_started and rng.random() < 0.4:
            step["observations"][self.late] = self.observation(self.late)
        episode.add_env_step(**step)
        self.note(f"add_env_step({step})", whole(episode))
        self.note("agents", [sorted(episode.get_agents_that_stepped()), sorted(episode.get_agents_to_act())])
        self.note("return", float(episode.get_return()))

    def get(self) -> None:
        rng, steps = self.rng, len(self.episode)
        for indices in (rng.randrange(steps), -1, [0, rng.randrange(steps)], slice(rng.randrange(steps), steps)):
            for kind in ("observations", "actions", "rewards"):
                agents = rng.choice([None, "a", ["a", "c"]])
                self.note(f"get_{kind}({indices}, {agents})", getattr(self.episode, f"get_{kind}")(indices, agents))
        self.note("by agents", self.episode.get_observations(-1, env_steps=False))
        self.note("filled", self.episode.get_observations(slice(-2, 2), fill=0.0, neg_index_as_lookback=True))

    def cut(self) -> None:
        self.episode = self.episode.cut(len_lookback_buffer=self.rng.randint(1, 4))
        self.note("cut", whole(self.episode))


def whole(episode: Any) -> dict[str, Any]:
    """What an episode holds: of RLlib's timelines and buffers the data, of hanging rewards those that are not 0."""
    return {
        "t": [episode.env_t_started, episode.env_t, len(episode), episode.env_steps(), episode.agent_steps()],
        "done": [bool(episode.is_terminated), bool(episode.is_truncated)],
        "timelines": {agent: episode.env_t_to_agent_t[agent].data for agent in episode.agent_episodes},
        "actions": dict(episode._hanging_actions_end),
        "rewards": {agent: float(reward) for agent, reward in episode._hanging_rewards_end.items() if reward},
        "agents": {
            agent: [
                *(getattr(part, kind).data for kind in ("observations", "actions", "rewards", "infos")),
                *(part.observations.lookback, part.t_started, part.t, bool(part.is_done), part.module_id),
                {name: buffer.data for name, buffer in part.extra_model_outputs.items() if buffer.len_incl_lookback()},
            ]
            for agent, part in episode.agent_episodes.items()
        },
    }


def played(cls: Any, seed: int) -> Trail:
    """What an episode of this class answers in the game of this seed."""
    return Game(cls, seed).play()
