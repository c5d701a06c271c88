"""The data of a multi-agent episode and its derived properties; nothing here changes it. When agents got observations.

Each agent has a SingleAgentEpisode, and a timeline that says at which environment timesteps it got its observations. Data
without a place there yet hangs: the action (with its extra model outputs) of an agent that has not seen the next observation,
the rewards since, and the rewards of agents that have not seen anything yet.

A timeline has one tag per environment timestep, lookback buffer included: the agent's timestep whose observation it got then,
counted from the agent's first in the whole episode, or SKIP where it got none. All timelines of an episode have one length and
one lookback, so that an index means the same moment to every agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space

__all__ = [
    "SKIP",
    "AgentID",
    "MappingFn",
    "MultiAgentData",
    "Timeline",
    "default_module",
    "first_seen",
    "last_seen",
    "seen",
]

SKIP = "S"
FIX = "write the state again from its source"
AgentID = Any  # whatever hashable the environment uses
MappingFn = Callable[[AgentID, Any], str]  # (agent id, episode) to module id


def default_module(agent_id: AgentID, episode: Any) -> str:
    """The default module of every agent; the name is RLlib's."""
    return "default_policy"


class Timeline(InfiniteLookbackBuffer):
    """Tags of one agent: a list that never becomes arrays. RLlib's own code can read it, in states for RLlib."""

    __slots__ = ()

    def get(self, indices: Indices = None, *, _ignore_last_ts: bool = False, **options: Any) -> Any:
        """As `InfiniteLookbackBuffer.get`. `_ignore_last_ts`, RLlib's word: for data that ends a step earlier."""
        if _ignore_last_ts:
            return InfiniteLookbackBuffer(self.data[:-1], self.lookback).get(indices, **options)
        return super().get(indices, **options)

    def copy(self) -> Timeline:
        """The same tags, in a list of their own."""
        return Timeline(self.data, self.lookback)


def seen(tags: list[Any]) -> list[int]:
    """The agent's timesteps among `tags`, in order."""
    return [tag for tag in tags if tag != SKIP]


def first_seen(tags: list[Any]) -> int:
    """The position of the first observation; the number of tags where there is none."""
    return next((at for at, tag in enumerate(tags) if tag != SKIP), len(tags))


def last_seen(tags: list[Any]) -> int:
    """The position of the last observation; -1 where there is none."""
    return next((at for at in range(len(tags) - 1, -1, -1) if tags[at] != SKIP), -1)


class MultiAgentData:
    """Agents' episodes on one clock: `env_t_started` to `env_t`, in steps of the environment."""

    __slots__ = (
        "_agent_to_module_mapping",
        "_custom_data",
        "_hanging_actions_end",
        "_hanging_extra_model_outputs_end",
        "_hanging_rewards_begin",
        "_hanging_rewards_end",
        "_last_step_time",
        "_lookback",
        "_start_time",
        "action_space",
        "agent_episodes",
        "agent_to_module_mapping_fn",
        "env_t",
        "env_t_started",
        "env_t_to_agent_t",
        "id_",
        "is_terminated",
        "is_truncated",
        "observation_space",
    )

    SKIP_ENV_TS_TAG = SKIP

    id_: str
    agent_episodes: dict[AgentID, SingleAgentEpisode]  # in the order in which agents came
    env_t_to_agent_t: dict[AgentID, Timeline]
    env_t_started: int  # the timestep of the first step after the lookback buffer, within the whole episode
    env_t: int  # the timestep of the next step
    is_terminated: bool
    is_truncated: bool
    observation_space: Mapping[AgentID, Space]  # by agent; empty: not known
    action_space: Mapping[AgentID, Space]
    agent_to_module_mapping_fn: MappingFn
    _agent_to_module_mapping: dict[AgentID, str]
    _hanging_actions_end: dict[AgentID, Any]  # agents that acted and wait for the result
    _hanging_extra_model_outputs_end: dict[AgentID, dict[str, Any]]  # of the same agents
    _hanging_rewards_end: dict[AgentID, float]  # rewards since an agent's last observation
    _hanging_rewards_begin: dict[AgentID, float]  # rewards of agents before their first one
    _lookback: int  # environment timesteps before the first of this chunk
    _custom_data: dict[str, Any]
    _start_time: float | None
    _last_step_time: float | None

    # ---- time ----

    def __len__(self) -> int:
        """Steps of the environment, without the lookback buffer."""
        return self.env_t - self.env_t_started

    def env_steps(self) -> int:
        """Steps of the environment, without the lookback buffer."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps of all agents together, without their lookback buffers and without steps that hang."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    @property
    def moments(self) -> int:
        """P: the environment timesteps at which there may be observations, lookback buffer included."""
        return self._lookback + len(self) + 1

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        """Each agent's own timestep at which its part of this chunk starts."""
        return {agent: episode.t_started for agent, episode in self.agent_episodes.items()}

    def get_duration_s(self) -> float:
        """Seconds from the first to the last addition to this chunk; 0 before the first step."""
        if self._last_step_time is None or self._start_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    # ---- agents ----

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have seen something."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        """Each agent's episode id."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    def module_for(self, agent_id: AgentID) -> str:
        """The module that acts for this agent; the mapping function is asked once per agent and episode."""
        if agent_id not in self._agent_to_module_mapping:
            self._agent_to_module_mapping[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return self._agent_to_module_mapping[agent_id]

    def get_agents_that_stepped(self) -> set[AgentID]:
        """The agents that got an observation at the last environment timestep, done or not."""
        return {agent for agent in self.agent_episodes if self.env_t_to_agent_t[agent].data[-1] != SKIP}

    def get_agents_to_act(self) -> set[AgentID]:
        """The agents that got an observation at the last environment timestep and are not done."""
        return {agent for agent in self.get_agents_that_stepped() if not self.agent_episodes[agent].is_done}

    # ---- what it is ----

    @property
    def is_reset(self) -> bool:
        """Whether any agent has an observation."""
        return any(episode.is_reset for episode in self.agent_episodes.values())

    @property
    def is_numpy(self) -> bool:
        """Whether the steps of all agents are arrays; agents without steps do not count."""
        numpy = [episode.is_numpy for episode in self.agent_episodes.values()]
        stepped = [episode.rewards.len_incl_lookback() > 0 for episode in self.agent_episodes.values()]
        return any(numpy) and all(is_numpy or not steps for is_numpy, steps in zip(numpy, stepped, strict=True))

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated, for all agents."""
        return self.is_terminated or self.is_truncated

    @property
    def custom_data(self) -> dict[str, Any]:
        """Data of the episode as a whole, of no agent; kept by `cut` (as a copy) and in states."""
        return self._custom_data

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Whether each agent is terminated, and under "__all__" whether the episode is."""
        return {**{agent: e.is_terminated for agent, e in self.agent_episodes.items()}, "__all__": self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Whether each agent is truncated, and under "__all__" whether the episode is."""
        return {**{agent: e.is_truncated for agent, e in self.agent_episodes.items()}, "__all__": self.is_truncated}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards, undiscounted, in the environment's units, lookback buffers left out.

        Rewards that hang, because no step holds them yet, are added if asked for.
        """
        total = sum(episode.get_return() for episode in self.agent_episodes.values())
        if include_hanging_rewards:
            total += sum(self._hanging_rewards_begin.values()) + sum(self._hanging_rewards_end.values())
        return float(total)

    # ---- checks ----

    def validate(self) -> None:
        """Raise BadEpisode, naming the agent, where lengths, timelines and hanging steps do not fit each other."""
        for agent, episode in self.agent_episodes.items():
            episode.validate()
            self._check_timeline(agent, episode)
        for agent in self._hanging_actions_end:
            if agent in self.agent_episodes and self.agent_episodes[agent].is_done:
                raise self._bad(f"agent {agent!r} is done, with an action that hangs", fix=FIX)

    def _check_timeline(self, agent: AgentID, episode: SingleAgentEpisode) -> None:
        if agent not in self.env_t_to_agent_t:
            raise self._bad(f"agent {agent!r} has no timeline", fix=FIX)
        timeline = self.env_t_to_agent_t[agent]
        if len(timeline.data) != self.moments or timeline.lookback != self._lookback:
            have, wanted = f"{timeline.lookback} + {len(timeline)}", f"{self._lookback} + {self.moments - self._lookback}"
            raise self._bad(f"agent {agent!r} has a timeline of {have} timesteps, {wanted} wanted", fix=FIX)
        steps, count = seen(timeline.data), episode.observations.len_incl_lookback()
        if steps != list(range(episode.t + 1 - len(steps), episode.t + 1)) or len(steps) > count:
            known = f"{_brief(steps)} by its timeline, and {count} that end at {episode.t} by its episode"
            raise self._bad(f"agent {agent!r} has observations at its timesteps {known}", fix=FIX)

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"multi-agent episode {self.id_}, environment timestep {self.env_t}", fix=fix)

    def __repr__(self) -> str:
        state = "done" if self.is_done else "going on"
        returns = ", ".join(f"{agent}: {episode.get_return():g}" for agent, episode in self.agent_episodes.items())
        return f"MultiAgentEpisode({self.id_}: {len(self)} steps from {self.env_t_started}, {state}, returns {{{returns}}})"


def _brief(steps: Iterable[int]) -> str:
    listed = list(steps)
    return f"{listed}" if len(listed) < 8 else f"[{listed[0]}, ..., {listed[-1]}]"
