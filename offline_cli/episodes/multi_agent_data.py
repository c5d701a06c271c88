"""Agents' episodes on one clock: what a multi-agent episode holds, its properties, and its getters by agent.

Each agent has a SingleAgentEpisode, and a timeline with one tag per environment timestep, lookback buffer included: the agent's
own timestep (counted in the whole episode) whose observation it got then, or SKIP. All timelines of an episode have one length
and one lookback. Data without a place in a step yet hangs: the action and outputs of an agent that has not seen the next
observation, the rewards since its last one, and the rewards of agents that have not seen anything yet.

Every getter takes the same: `indices` are environment timesteps, or with `env_steps=False` each agent's own; `agent_ids` one
agent, several, or None for all. An agent that got no observation then is left out, or with `fill` filled. A step that hangs
counts as the agent's last. The rest is as in `SingleAgentEpisode`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Unpack

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.buffers.lookback_buffer import GetterOptions, InfiniteLookbackBuffer
from offline_cli.episodes.buffers.stacking import row_count
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode, EpisodeKeyError
from offline_cli.spaces import Space

__all__ = ["SKIP", "AgentID", "MappingFn", "MultiAgentData", "Timeline", "seen"]

SKIP = "S"
SEEN = ("observations", "infos")  # there is one more of these than of the rest

AgentID = Any  # whatever hashable the environment uses
Agents = Collection[AgentID] | AgentID | None
MappingFn = Callable[[AgentID, Any], str]  # (agent id, episode) to module id


class AgentOptions(GetterOptions, total=False):
    """Options of getters: those of one agent's, and whose timesteps are meant."""

    env_steps: bool  # the environment's; False: each agent's own


class Timeline(InfiniteLookbackBuffer):
    """Tags of one agent, a list that never becomes arrays. RLlib's own code can read it, in states for RLlib."""

    __slots__ = ()

    def get(self, indices: Indices = None, *, _ignore_last_ts: bool = False, **options: Any) -> Any:
        """As `InfiniteLookbackBuffer.get`. `_ignore_last_ts`, RLlib's word: for data that ends a step earlier."""
        if _ignore_last_ts:
            return InfiniteLookbackBuffer(self.data[:-1], self.lookback).get(indices, **options)
        return super().get(indices, **options)


def seen(tags: list[Any]) -> list[int]:
    """The agent's timesteps among `tags`, in order."""
    return [tag for tag in tags if tag != SKIP]


class MultiAgentData:
    """Agents' episodes on one clock: `env_t_started` to `env_t`, in steps of the environment."""

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
    custom_data: dict[str, Any]  # of the episode as a whole; kept by `cut` (as a copy) and in states
    _agent_to_module_mapping: dict[AgentID, str]
    _hanging_actions_end: dict[AgentID, Any]  # agents that acted and wait for the result
    _hanging_extra_model_outputs_end: dict[AgentID, dict[str, Any]]  # of the same agents
    _hanging_rewards_end: dict[AgentID, float]  # rewards since an agent's last observation
    _hanging_rewards_begin: dict[AgentID, float]  # rewards of agents before their first one
    _lookback: int  # environment timesteps before the first of this chunk

    # ---- time ----

    def __len__(self) -> int:
        """Steps of the environment, without the lookback buffer."""
        return self.env_t - self.env_t_started

    def env_steps(self) -> int:
        """Steps of the environment, without the lookback buffer."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps of all agents together, without their lookback buffers and without steps that hang."""
        return sum(len(part) for part in self.agent_episodes.values())

    @property
    def moments(self) -> int:
        """P: the environment timesteps at which there may be observations, lookback buffer included."""
        return self._lookback + len(self) + 1

    # ---- agents ----

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have seen something."""
        return set(self.agent_episodes)

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
        return any(part.is_reset for part in self.agent_episodes.values())

    @property
    def is_numpy(self) -> bool:
        """Whether the steps of all agents are arrays; agents without steps do not count."""
        stepped = [part for part in self.agent_episodes.values() if part.rewards.len_incl_lookback()]
        return bool(stepped) and all(part.is_numpy for part in stepped)

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated, for all agents."""
        return self.is_terminated or self.is_truncated

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
        total = sum(part.get_return() for part in self.agent_episodes.values())
        if include_hanging_rewards:
            total += sum(self._hanging_rewards_begin.values()) + sum(self._hanging_rewards_end.values())
        return float(total)

    # ---- getters: int indices give one record by agent, all others several: a list, or leaves (K, *shape) ----

    def get_observations(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Observations by agent. Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`."""
        return self._get("observations", indices, agent_ids, **options)

    def get_infos(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Infos by agent, dicts in lists, numpy'ized or not; else as `get_observations`."""
        return self._get("infos", indices, agent_ids, **options)

    def get_actions(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Actions by agent, as `get_observations`."""
        return self._get("actions", indices, agent_ids, **options)

    def get_rewards(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Rewards by agent, as `get_observations`; of steps that hang: so far."""
        return self._get("rewards", indices, agent_ids, **options)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]
    ) -> Any:
        """Outputs of this name by agent, those without it left out. Raises EpisodeKeyError where none has it."""
        return self._get(key, indices, agent_ids, is_output=True, **options)

    def _get(
        self,
        name: str,
        indices: Indices,
        agent_ids: Agents,
        *,
        is_output: bool = False,
        env_steps: bool = True,
        **options: Unpack[GetterOptions],
    ) -> dict[AgentID, Any]:
        buffers = self._buffers(name, agent_ids, is_output)
        single = not (indices is None or isinstance(indices, slice) or hasattr(indices, "__len__"))
        found = {}
        try:
            if env_steps and buffers:
                moments = self._moments(self.moments - (is_output or name not in SEEN), indices, options)
                options["neg_index_as_lookback"] = True
            for agent, buffer in buffers.items():
                own = self._own(agent, buffer, moments, "fill" in options) if env_steps else indices
                if not (env_steps and own is None):
                    found[agent] = buffer.get(own, **options)
        except BadEpisode as err:
            err.where = f"multi-agent episode {self.id_}, {name}, {err.where}"
            raise
        return {agent: values for agent, values in found.items() if single or row_count(values)}

    def _moments(self, count: int, indices: Indices, options: GetterOptions) -> Any:
        """Positions in the timelines, one or several; -1 for those outside, which get `fill`. Raises EpisodeIndexError."""
        clock = InfiniteLookbackBuffer.over(range(count), self._lookback, None, finalized=False)
        fill = None if options.get("fill") is None else -1
        return clock.get(indices, neg_index_as_lookback=options.get("neg_index_as_lookback", False), fill=fill)

    def _own(self, agent: AgentID, buffer: InfiniteLookbackBuffer, moments: Any, filled: bool) -> Any:
        """The agent's own indices for these positions, back into its lookback buffer; None where it has none of them."""
        part, tags, count = self.agent_episodes[agent], self.env_t_to_agent_t[agent].data, buffer.len_incl_lookback()
        before = part.observations.lookback - part.t_started
        found = [
            count if at < 0 or tags[at] == SKIP else min(tags[at] + before, count)
            for at in ([moments] if isinstance(moments, int) else moments)
        ]
        own = [at - buffer.lookback for at in found if at < count or filled]  # at the count: to be filled
        return (own[0] if isinstance(moments, int) else own) if own else None

    def _buffers(self, name: str, asked: Agents, is_output: bool) -> dict[AgentID, InfiniteLookbackBuffer]:
        """By agent, the buffer of one kind of data, with what hangs at its end. Raises EpisodeKeyError."""
        is_one = isinstance(asked, str) or (isinstance(asked, Hashable) and asked in self.agent_episodes)
        wanted: Any = self.agent_episodes if asked is None else (asked,) if is_one else asked
        agents = [agent for agent in self.agent_episodes if agent in wanted]
        found = {agent: buffer for agent in agents if (buffer := self._buffer(agent, name, is_output)) is not None}
        if agents and not found:
            known = sorted({str(key) for part in self.agent_episodes.values() for key in part.extra_model_outputs})
            where, fix = f"multi-agent episode {self.id_}", f"one of: {', '.join(known) or 'there are none'}"
            raise EpisodeKeyError(f"no extra model output {name!r}", where=where, fix=fix)
        return found

    def _buffer(self, agent: AgentID, name: str, is_output: bool) -> InfiniteLookbackBuffer | None:
        part = self.agent_episodes[agent]
        hanging = dict(self._hanging_extra_model_outputs_end.get(agent, {}))
        if not is_output and agent in self._hanging_actions_end:
            hanging = {"actions": self._hanging_actions_end[agent], "rewards": self._hanging_rewards_end.get(agent, 0.0)}
        buffer = part.extra_model_outputs.get(name) if is_output else getattr(part, name)
        if name not in hanging:
            return buffer
        if buffer is None:
            return InfiniteLookbackBuffer([hanging[name]])
        data = buffer.appended(hanging[name]) if buffer.finalized else [*buffer.data, hanging[name]]
        return InfiniteLookbackBuffer.over(data, buffer.lookback, buffer.space, finalized=buffer.finalized)

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"multi-agent episode {self.id_}, environment timestep {self.env_t}", fix=fix)
