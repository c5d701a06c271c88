"""MultiAgentEpisode: the episodes of agents that act in turns or together in one environment.

API and semantics follow RLlib's class: construction, steps, getters by agent, `cut` and states. Each agent's data is a
SingleAgentEpisode, `agent_episodes[agent]`, with setters, slices and joins. docs/explanation/rllib.md lists the differences.

All agents share one clock. Each agent has a timeline with one tag per environment timestep, lookback buffer included: the
agent's own timestep (within the whole episode) of the observation it got then, or SKIP. Data of an incomplete step *hangs*: the
action and outputs of an agent that waits for its next observation, and its rewards since the last one. The agent's next
observation completes the step. Rewards before an agent's first observation are dropped.
"""

from __future__ import annotations

import copy
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Self, Unpack

from offline_cli.episodes.lookback_buffer import GetterOptions, Indices, InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode, check_cut, state_error
from offline_cli.episodes.stacking import row_count
from offline_cli.errors import BadEpisode, EpisodeKeyError
from offline_cli.spaces import Space

__all__ = ["MultiAgentEpisode"]

SKIP = "S"
ALL = "__all__"  # key of flags for every agent
TURNS = "give one action and reward per observation, except the first and last; give a done agent only its flags"
HANGING = ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end")  # after a first observation
PLAIN = (
    *("id_", "agent_to_module_mapping_fn", "observation_space", "action_space", "env_t_started", "env_t"),
    *("is_terminated", "is_truncated", "custom_data"),
)  # attributes that a state holds unchanged

AgentID = Any  # any hashable
Agents = Collection[AgentID] | AgentID | None
ByAgent = Mapping[AgentID, Any]
Steps = Sequence[ByAgent]
Flags = Mapping[AgentID, bool]
MappingFn = Callable[[AgentID, Any], str]  # (agent id, episode) to module id


class AgentOptions(GetterOptions, total=False):
    """Getter options of a single agent, and `env_steps`."""

    env_steps: bool  # indices are environment timesteps; False: each agent's own timesteps


class Timeline(InfiniteLookbackBuffer):
    """Tags of one agent, always a list. RLlib's code can read it from states."""

    def get(self, indices: Indices = None, *, _ignore_last_ts: bool = False, **options: Any) -> Any:
        """As `InfiniteLookbackBuffer.get`. `_ignore_last_ts` (RLlib's name): for data that ends one step earlier."""
        if _ignore_last_ts:
            return InfiniteLookbackBuffer(self.data[:-1], self.lookback).get(indices, **options)
        return super().get(indices, **options)


class Turn(NamedTuple):
    """One agent's data of a step, including what waits for its next observation; None: absent."""

    observation: Any
    action: Any
    reward: float
    infos: Any
    extra: Mapping[str, Any]
    terminated: bool
    truncated: bool

    @property
    def is_done(self) -> bool:
        return self.terminated or self.truncated


class MultiAgentEpisode:
    """Single-agent episodes by agent, on one clock: `env_t_started` (0 except for chunks) to `env_t`, in environment steps."""

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Steps | None = None,
        observation_space: Mapping[AgentID, Space] | None = None,
        infos: Steps | None = None,
        actions: Steps | None = None,
        action_space: Mapping[AgentID, Space] | None = None,
        rewards: Steps | None = None,
        terminateds: Flags | bool = False,
        truncateds: Flags | bool = False,
        extra_model_outputs: Steps | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: MappingFn | None = None,
    ) -> None:
        """Create an empty episode, or one with the given steps, replayed by `add_env_step`.

        Args:
            observations, infos: K dicts by agent, one per environment timestep.
            actions, rewards, extra_model_outputs: K - 1 dicts by agent, one per step between them.
            terminateds, truncateds: Of the last step: by agent and under "__all__", or a bool for all. An agent without an
                action after its last observation, while others continued, is terminated too.
            env_t_started, agent_t_started: Timesteps of the first step after the lookback buffer; 0 where missing.
            len_lookback_buffer: The number of first environment steps that are lookback buffer; "auto" means all.
            agent_module_ids: Module ids by agent, used before `agent_to_module_mapping_fn`.
            agent_to_module_mapping_fn: (agent id, episode) to module id; None: "default_policy" for all.

        Raises BadEpisode if lengths disagree, or if an agent acts or gets an observation out of turn.
        """
        self.id_ = str(id_ or uuid.uuid4().hex)
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or default_module
        self._agent_to_module_mapping = dict(agent_module_ids or {})
        self.observation_space, self.action_space = observation_space or {}, action_space or {}
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}  # in order of first observation
        self.env_t_to_agent_t: dict[AgentID, Timeline] = {}
        self.env_t = self.env_t_started = 0  # the next timestep, and the first one after the lookback buffer
        self._lookback = 0  # environment timesteps before the first of this chunk
        self.is_terminated = self.is_truncated = False
        self._hanging_actions_end: dict[AgentID, Any] = {}  # agents that acted and wait for an observation
        self._hanging_extra_model_outputs_end: dict[AgentID, dict[str, Any]] = {}  # for the same agents
        self._hanging_rewards_end: dict[AgentID, float] = {}  # rewards since an agent's last observation
        self.custom_data: dict[str, Any] = {}  # of the whole episode; copied by `cut`, and stored in states
        none: list[ByAgent] = [{}] * len(observations or ())
        given: list[Steps] = [observations or (), none if infos is None else infos, actions or (), rewards or ()]
        given.append(none[1:] if extra_model_outputs is None else extra_model_outputs)
        ends = [{ALL: flags} if isinstance(flags, bool) else flags or {} for flags in (terminateds, truncateds)]
        self._replay(given, ends)
        lookback = self.env_t if len_lookback_buffer == "auto" else len_lookback_buffer
        if not isinstance(lookback, int) or lookback < 0:
            raise self._bad(f"len_lookback_buffer={lookback!r}", fix='give "auto" or a number >= 0')
        self._shift(min(lookback, self.env_t), int(env_t_started or 0), agent_t_started or {})
        for agent, part in self.agent_episodes.items():
            part.id_ = str((agent_episode_ids or {}).get(agent, part.id_))

    def _replay(self, lists: Sequence[Steps], ends: Sequence[Flags]) -> None:
        """Add the given steps; `ends`: terminated and truncated flags of the last one."""
        observations, infos, actions, rewards, extra = lists
        lengths = [len(kind) for kind in (actions, rewards, extra)]
        if len(infos) != len(observations) or set(lengths) != {max(len(observations) - 1, 0)}:
            what = f"{len(observations)} observations, {len(infos)} infos, {lengths} actions, rewards and extra outputs"
            fix = "give K dicts of observations and infos, and K - 1 of actions, rewards and extra outputs"
            raise self._bad(what, fix=fix)
        for agent, observation in observations[0].items() if observations else ():
            self._enter(agent, observation, infos[0].get(agent))
        for t, seen_now in enumerate(observations[1:]):
            flags: dict[str, Flags] = {}
            if t == len(actions) - 1:
                acting = {*actions[t], *self._hanging_actions_end, *seen_now}
                left = {agent: True for agent, part in self.agent_episodes.items() if not (part.is_done or agent in acting)}
                flags = {"terminateds": {**left, **ends[0]}, "truncateds": ends[1]}
            given = {**dict.fromkeys(actions[t], 0.0), **rewards[t]}
            self.add_env_step(seen_now, actions[t], given, infos[t + 1], extra_model_outputs=extra[t], **flags)
        for agent in [agent for agent, part in self.agent_episodes.items() if part.is_done and not len(part)]:
            del self.agent_episodes[agent], self.env_t_to_agent_t[agent]  # it has no steps

    def _shift(self, lookback: int, env_t_started: int, agent_t_started: Mapping[AgentID, int]) -> None:
        """Turn the first `lookback` environment timesteps into lookback buffer, and set the start of the clocks."""
        self._lookback, self.env_t_started = lookback, env_t_started
        self.env_t += env_t_started - lookback
        for agent, part in self.agent_episodes.items():
            timeline = self.env_t_to_agent_t[agent]
            before = min(len(_seen(timeline.data[:lookback])), len(part))
            part.t_started = int(agent_t_started.get(agent, 0))
            part.t = part.t_started + len(part.rewards) - before
            for buffer in (part.observations, part.actions, part.rewards, part.infos, *part.extra_model_outputs.values()):
                buffer.lookback = before
            moved = part.t_started - before
            timeline.data = [tag if tag == SKIP else tag + moved for tag in timeline.data]
            timeline.lookback = lookback

    # ---- properties ----

    def __len__(self) -> int:
        """Environment steps, without the lookback buffer."""
        return self.env_t - self.env_t_started

    env_steps = __len__

    def agent_steps(self) -> int:
        """Steps summed over agents, without lookback buffers and hanging steps."""
        return sum(len(part) for part in self.agent_episodes.values())

    @property
    def _moments(self) -> int:
        """The number of environment timesteps with observations, lookback buffer included."""
        return self._lookback + len(self) + 1

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have an observation."""
        return set(self.agent_episodes)

    def module_for(self, agent_id: AgentID) -> str:
        """The module of this agent; the mapping function is called once per agent and episode."""
        if agent_id not in self._agent_to_module_mapping:
            self._agent_to_module_mapping[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return self._agent_to_module_mapping[agent_id]

    def get_agents_that_stepped(self) -> set[AgentID]:
        """The agents that got an observation at the last environment timestep, done or not."""
        return {agent for agent in self.agent_episodes if self.env_t_to_agent_t[agent].data[-1] != SKIP}

    def get_agents_to_act(self) -> set[AgentID]:
        """The agents that got an observation at the last environment timestep and are not done."""
        return {agent for agent in self.get_agents_that_stepped() if not self.agent_episodes[agent].is_done}

    @property
    def is_reset(self) -> bool:
        """Whether any agent has an observation."""
        return any(part.is_reset for part in self.agent_episodes.values())

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated, for all agents."""
        return self.is_terminated or self.is_truncated

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Whether each agent is terminated, and under "__all__" whether the episode is."""
        return {**{agent: e.is_terminated for agent, e in self.agent_episodes.items()}, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Whether each agent is truncated, and under "__all__" whether the episode is."""
        return {**{agent: e.is_truncated for agent, e in self.agent_episodes.items()}, ALL: self.is_truncated}

    def get_return(self) -> float:
        """The undiscounted sum of all agents' rewards, in the environment's units, without lookback buffers and hanging
        steps."""
        return float(sum(part.get_return() for part in self.agent_episodes.values()))

    def __repr__(self) -> str:
        state = "done" if self.is_done else "running"
        returns = ", ".join(f"{agent}: {part.get_return():g}" for agent, part in self.agent_episodes.items())
        return f"MultiAgentEpisode({self.id_}: {len(self)} steps from {self.env_t_started}, {state}, returns {{{returns}}})"

    # ---- filling ----

    def add_env_reset(self, *, observations: ByAgent, infos: ByAgent | None = None) -> None:
        """Add the result of `env.reset()`; infos of agents without an observation are dropped.

        Raises BadEpisode unless the episode is empty and at timestep 0.
        """
        if self.is_reset or self.is_done or self.env_t or self.env_t_started:
            raise self._bad("add_env_reset on a started episode", fix="create a new MultiAgentEpisode for each env.reset()")
        for agent, observation in observations.items():
            self._enter(agent, observation, (infos or {}).get(agent))

    def add_env_step(
        self,
        observations: ByAgent,
        actions: ByAgent,
        rewards: ByAgent,
        infos: ByAgent | None = None,
        *,
        terminateds: Flags | None = None,
        truncateds: Flags | None = None,
        extra_model_outputs: Mapping[AgentID, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add actions, the result of `env.step(actions)`, and the modules' outputs for the actions, by agent.

        An agent that acted and got an observation completes a step. If it only acted, its action hangs until its next
        observation; rewards accumulate meanwhile, and are added to the last step if the agent ends. A new agent joins with its
        first observation. A terminated agent whose action hangs repeats its last observation. The episode is done with
        "__all__", or once all agents are done: truncated if all are truncated, terminated otherwise.

        Raises BadEpisode, leaving the episode unchanged: after its end, for data of done agents, for actions before the first
        observation or twice without an observation, for observations twice without an action, for a completed step without a
        reward, for a truncated agent without a last observation, and as `SingleAgentEpisode.add_env_step`.
        """
        if self.is_done:
            raise self._bad("a step after the end of the episode", fix="create a new MultiAgentEpisode")
        flags = (terminateds or {}, truncateds or {})
        ends = [bool(flag.get(ALL)) for flag in flags]
        named = [*observations, *actions, *rewards, *flags[0], *flags[1], *(self.agent_episodes if any(ends) else ())]
        given = (observations, actions, rewards, infos or {}, extra_model_outputs or {}, *flags)
        turns = {agent: self._turn(agent, given) for agent in dict.fromkeys(named) if agent != ALL}
        self.env_t += 1
        for agent, turn in turns.items():
            self._add(agent, turn)
        for timeline in self.env_t_to_agent_t.values():
            timeline.data.extend([SKIP] * (self._moments - len(timeline.data)))
        parts = self.agent_episodes.values()
        if not any(ends) and parts and all(part.is_done for part in parts):
            ends = [any(part.is_terminated for part in parts), not any(part.is_terminated for part in parts)]
        self.is_terminated, self.is_truncated = ends

    def _turn(self, agent: AgentID, given: Sequence[ByAgent]) -> Turn:
        """The agent's data of this step, with its hanging data. Raises BadEpisode for an impossible turn or a wrong space."""
        observation, action, reward, infos, extra = (kind.get(agent) for kind in given[:5])
        terminated, truncated = (bool(flag.get(agent) or flag.get(ALL)) for flag in given[5:])
        part, hangs, acts = self.agent_episodes.get(agent), agent in self._hanging_actions_end, action is not None
        sees, is_done = observation is not None, terminated or truncated
        if part is None:
            is_wrong = acts
        elif part.is_done:
            is_wrong = any(kind is not None for kind in (observation, action, reward, infos, extra))
        else:
            is_wrong = (acts and (hangs or (sees and reward is None))) or (sees and not (acts or hangs or is_done))
            is_wrong |= truncated and (acts or hangs) and not sees
        if is_wrong:
            raise self._bad(f"agent {agent!r} acts, gets an observation or ends out of turn", fix=TURNS)
        if hangs:
            action, extra = self._hanging_actions_end[agent], self._hanging_extra_model_outputs_end[agent]
        owed = self._hanging_rewards_end.get(agent, 0.0) + (reward or 0.0)
        turn = Turn(observation, action, owed, infos, dict(extra or {}), terminated, truncated)
        if part is not None and not part.is_done and action is not None:
            try:
                part.check_step(observation, action, turn.extra)
            except BadEpisode as err:
                err.where = f"multi-agent episode {self.id_}, agent {agent!r}, {err.where}"
                raise
        return turn

    def _add(self, agent: AgentID, turn: Turn) -> None:
        part = self.agent_episodes.get(agent)
        if part is None:
            if turn.observation is not None and not turn.is_done:
                self._enter(agent, turn.observation, turn.infos)
        elif part.is_done:
            return
        elif turn.action is None:  # it waits; if it ends, hanging rewards go to its last step
            part.is_terminated, part.is_truncated = turn.terminated, turn.truncated
            if turn.reward:
                self._hanging_rewards_end[agent] = turn.reward
            if turn.is_done and len(part) and agent in self._hanging_rewards_end:  # without a step they keep hanging
                part.set_rewards(new_data=part.get_rewards(-1) + self._hanging_rewards_end.pop(agent), at_indices=-1)
        elif turn.observation is None and not turn.is_done:
            self._hanging_actions_end[agent] = turn.action
            self._hanging_extra_model_outputs_end[agent] = dict(turn.extra)
            self._hanging_rewards_end[agent] = turn.reward
        else:
            repeats = turn.observation is None  # a terminated agent's last observation is not used in training
            part.add_env_step(
                part.get_observations(-1) if repeats else turn.observation,
                turn.action,
                turn.reward,
                part.get_infos(-1) if repeats else turn.infos,
                terminated=turn.terminated,
                truncated=turn.truncated,
                extra_model_outputs=turn.extra,
            )
            self.env_t_to_agent_t[agent].append(part.t)
            for name in HANGING:
                getattr(self, name).pop(agent, None)

    def _enter(self, agent: AgentID, observation: Any, infos: Any) -> None:
        """Add an agent with its first observation, at the current environment timestep."""
        part = SingleAgentEpisode(
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
        )
        part.add_env_reset(observation, infos)
        self.agent_episodes[agent] = part
        self.env_t_to_agent_t[agent] = Timeline([*[SKIP] * (self._moments - 1), 0], self._lookback)

    def to_numpy(self) -> Self:
        """Convert each agent's steps to arrays, in place, as `SingleAgentEpisode.to_numpy`. Hanging data is unchanged."""
        for part in self.agent_episodes.values():
            part.to_numpy()
        return self

    # ---- getters: by environment timesteps, or the agent's own with `env_steps=False`; `agent_ids`: one, several or None ----

    def get_observations(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Observations by agent; timesteps without one are omitted, or filled with `fill`. Raises EpisodeIndexError."""
        return self._get("observations", indices, agent_ids, **options)

    def get_infos(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Info dicts by agent, in lists, numpy'ized or not; otherwise as `get_observations`."""
        return self._get("infos", indices, agent_ids, **options)

    def get_actions(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Actions by agent, as `get_observations`; a hanging action is the agent's last."""
        return self._get("actions", indices, agent_ids, **options)

    def get_rewards(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Rewards by agent, as `get_observations`; for hanging steps the sum so far."""
        return self._get("rewards", indices, agent_ids, **options)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]
    ) -> Any:
        """Outputs named `key` by agent, without agents that lack it. Raises EpisodeKeyError if all agents lack it."""
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
        is_one = isinstance(agent_ids, str) or (isinstance(agent_ids, Hashable) and agent_ids in self.agent_episodes)
        wanted: Any = self.agent_episodes if agent_ids is None else (agent_ids,) if is_one else agent_ids
        agents = [agent for agent in self.agent_episodes if agent in wanted]
        buffers = {agent: buffer for agent in agents if (buffer := self._buffer(agent, name, is_output)) is not None}
        if agents and not buffers:
            known = sorted({str(key) for part in self.agent_episodes.values() for key in part.extra_model_outputs})
            where, fix = f"multi-agent episode {self.id_}", f"use one of: {', '.join(known) or 'there are none'}"
            raise EpisodeKeyError(f"no extra model output {name!r}", where=where, fix=fix)
        found = {}
        try:
            if env_steps and buffers:
                count = self._moments - (is_output or name in ("actions", "rewards"))
                clock = InfiniteLookbackBuffer.over(range(count), self._lookback, None, finalized=False)
                fill = None if options.get("fill") is None else -1  # marks timesteps outside the episode
                indices = clock.get(indices, neg_index_as_lookback=options.get("neg_index_as_lookback", False), fill=fill)
                options["neg_index_as_lookback"] = True
            for agent, buffer in buffers.items():
                own = self._own(agent, buffer, indices, "fill" in options) if env_steps else indices
                if own is not None or not env_steps:
                    found[agent] = buffer.get(own, **options)
        except BadEpisode as err:
            err.where = f"multi-agent episode {self.id_}, {name}, {err.where}"
            raise
        several = indices is None or isinstance(indices, slice) or hasattr(indices, "__len__")
        return {agent: values for agent, values in found.items() if not several or row_count(values)}

    def _buffer(self, agent: AgentID, name: str, is_output: bool) -> InfiniteLookbackBuffer | None:
        """One kind of an agent's data, followed by hanging data."""
        part = self.agent_episodes[agent]
        hanging = dict(self._hanging_extra_model_outputs_end.get(agent, {}))
        if not is_output and agent in self._hanging_actions_end:
            hanging = {"actions": self._hanging_actions_end[agent], "rewards": self._hanging_rewards_end.get(agent, 0.0)}
        buffer = part.extra_model_outputs.get(name) if is_output else getattr(part, name)
        if name not in hanging:
            return buffer
        buffer = InfiniteLookbackBuffer() if buffer is None else buffer
        return InfiniteLookbackBuffer.over(
            buffer.appended(hanging[name]), buffer.lookback, buffer.space, finalized=buffer.finalized
        )

    def _own(self, agent: AgentID, buffer: InfiniteLookbackBuffer, moments: Any, filled: bool) -> Any:
        """The agent's own indices for these environment timesteps, negative into its lookback buffer; None if it has none."""
        part, tags, count = self.agent_episodes[agent], self.env_t_to_agent_t[agent].data, buffer.len_incl_lookback()
        before = part.observations.lookback - part.t_started
        found = [
            count if at < 0 or tags[at] == SKIP else min(tags[at] + before, count)
            for at in ([moments] if isinstance(moments, int) else moments)
        ]
        own = [at - buffer.lookback for at in found if at < count or filled]  # index `count` marks records to fill
        return (own[0] if isinstance(moments, int) else own) if own else None

    # ---- chunks and states ----

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Start the next chunk of this episode: same ids, length 0, `env_t_started` where this one ends.

        Its lookback buffer holds up to `len_lookback_buffer` environment steps of this chunk, or more if needed to include the
        last observation of every continuing agent. Ended agents are included only if they have steps in the lookback buffer.
        Hanging data moves along. Arrays are shared until one side is written.

        Raises BadEpisode if the episode is done, and for a negative length.
        """
        check_cut(self, len_lookback_buffer)
        chunk = copy.copy(self)
        chunk.env_t_started, chunk.custom_data = self.env_t, copy.deepcopy(self.custom_data)
        chunk._agent_to_module_mapping = dict(self._agent_to_module_mapping)
        for name in ("agent_episodes", "env_t_to_agent_t", *HANGING):
            setattr(chunk, name, {})
        last_seen = [
            max(at for at, tag in enumerate(self.env_t_to_agent_t[agent].data) if tag != SKIP)
            for agent, part in self.agent_episodes.items()
            if not part.is_done
        ]
        first = max(0, min([self._moments - 1 - len_lookback_buffer, *last_seen]))
        chunk._lookback = self._moments - 1 - first
        for agent, part in self.agent_episodes.items():
            tags = self.env_t_to_agent_t[agent].data[first:]
            steps = _seen(tags)
            if len(steps) <= part.is_done:
                continue
            before = min(len(_seen(tags[:-1])), len(steps) - 1)
            mine = part.chunk(steps[before] - part.t_started, steps[-1] - part.t_started, before)
            mine.is_terminated, mine.is_truncated = part.is_terminated, part.is_truncated
            chunk.agent_episodes[agent], chunk.env_t_to_agent_t[agent] = mine, Timeline(tags, chunk._lookback)
            for name in HANGING:
                if agent in getattr(self, name):
                    getattr(chunk, name)[agent] = getattr(self, name)[agent]
        return chunk

    def get_state(self) -> dict[str, Any]:
        """The state in RLlib's layout, which RLlib's `from_state` accepts. Arrays are not copied.

        Like RLlib's, it contains objects (a function, spaces, timelines): it can be pickled, but is not plain data.
        """
        timelines = {agent: Timeline(timeline.data, timeline.lookback) for agent, timeline in self.env_t_to_agent_t.items()}
        return {
            **{name: getattr(self, name) for name in PLAIN},
            **dict.fromkeys(("_start_time", "_last_step_time")),
            "_agent_to_module_mapping": dict(self._agent_to_module_mapping),
            "agent_t_started": defaultdict(int, {agent: part.t_started for agent, part in self.agent_episodes.items()}),
            "env_t_to_agent_t": defaultdict(Timeline, timelines),
            "_hanging_actions_end": dict(self._hanging_actions_end),
            "_hanging_extra_model_outputs_end": defaultdict(dict, self._hanging_extra_model_outputs_end),
            "_hanging_rewards_end": defaultdict(float, self._hanging_rewards_end),
            "_hanging_rewards_begin": defaultdict(float),
            "agent_episodes": [(agent, part.get_state()) for agent, part in self.agent_episodes.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore an episode from a state of RLlib 2.60 or of `get_state`; it shares the state's arrays.

        Raises BadEpisode for an invalid state.
        """
        name = state.get("id_", "(no id)") if isinstance(state, Mapping) else "(no id)"
        episode = cls()
        try:
            episode._read(state)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise state_error(err, "a multi-agent episode", f"state of multi-agent episode {name}", "RLlib 2.60") from err
        return episode

    def _read(self, state: Mapping[str, Any]) -> None:
        for name in PLAIN:
            setattr(self, name, state[name])
        self._agent_to_module_mapping = dict(state["_agent_to_module_mapping"])
        self.agent_episodes = {agent: SingleAgentEpisode.from_state(part) for agent, part in state["agent_episodes"]}
        self._hanging_actions_end = dict(state["_hanging_actions_end"])
        extra = state["_hanging_extra_model_outputs_end"]
        self._hanging_extra_model_outputs_end = {agent: dict(extra.get(agent) or {}) for agent in self._hanging_actions_end}
        owed = {agent: float(reward) for agent, reward in state["_hanging_rewards_end"].items() if reward}  # RLlib keeps zeros
        self._hanging_rewards_end = dict.fromkeys(self._hanging_actions_end, 0.0) | owed
        timelines = state["env_t_to_agent_t"].items()
        self._lookback = max((int(timeline.lookback) for _, timeline in timelines), default=0)
        for agent, timeline in timelines:
            tags, part = list(timeline.data), self.agent_episodes.get(agent)
            self._mend(tags, done=part is not None and part.is_done)
            self.env_t_to_agent_t[agent] = Timeline(tags, self._lookback)

    def _mend(self, tags: list[Any], *, done: bool) -> None:
        """Remove SKIP tags that RLlib 2.60 adds (repeated observation, late agent); add those it omits (early end)."""
        at = [number for number, tag in enumerate(tags) if tag != SKIP] or [len(tags)]
        if done and len(tags) > self._moments and at[-1] > 0 and tags[at[-1] - 1] == SKIP:
            del tags[at[-1] - 1]
        early = len(tags) - self._moments
        if 0 < early <= at[0]:
            del tags[:early]
        tags.extend([SKIP] * (self._moments - len(tags)))

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"multi-agent episode {self.id_}, environment timestep {self.env_t}", fix=fix)


def default_module(agent_id: AgentID, episode: Any) -> str:
    """The default module id of every agent, as in RLlib."""
    return "default_policy"


def _seen(tags: list[Any]) -> list[int]:
    """The agent's timesteps among `tags`, in order."""
    return [tag for tag in tags if tag != SKIP]
