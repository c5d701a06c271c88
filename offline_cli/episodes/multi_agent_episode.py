"""MultiAgentEpisode: the episodes of agents that act in turns or together in one environment.

Names and meaning are those of RLlib's class: construction, steps, getters by agent, `cut` and states. Data of an agent is a
SingleAgentEpisode, `agent_episodes[agent]`, with setters, slices and joins of its own. docs/rllib.md lists what differs.

All agents share one clock. Each has a timeline with one tag per environment timestep, lookback buffer included: the agent's own
timestep (counted in the whole episode) whose observation it got then, or SKIP. What has no place in a step yet *hangs*: the
action and outputs of an agent that has not seen the next observation, the rewards since its last one, and the rewards of agents
that have not seen anything yet. The agent's next observation completes the step.
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
ALL = "__all__"  # the key of flags that hold for every agent
TURNS = "give an action and a reward once per observation, a first and a last observation without, a done agent its flags alone"
HANGING = ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end")  # of agents seen before
PLAIN = (
    *("id_", "agent_to_module_mapping_fn", "observation_space", "action_space", "env_t_started", "env_t"),
    *("is_terminated", "is_truncated", "custom_data"),
)  # what a state holds as it is

AgentID = Any  # whatever hashable the environment uses
Agents = Collection[AgentID] | AgentID | None
ByAgent = Mapping[AgentID, Any]
Steps = Sequence[ByAgent]
Flags = Mapping[AgentID, bool]
MappingFn = Callable[[AgentID, Any], str]  # (agent id, episode) to module id


class AgentOptions(GetterOptions, total=False):
    """Options of getters: those of one agent's, and whose timesteps are meant."""

    env_steps: bool  # the environment's; False: each agent's own


class Timeline(InfiniteLookbackBuffer):
    """Tags of one agent, a list that never becomes arrays. RLlib's own code can read it, in states for RLlib."""

    def get(self, indices: Indices = None, *, _ignore_last_ts: bool = False, **options: Any) -> Any:
        """As `InfiniteLookbackBuffer.get`. `_ignore_last_ts`, RLlib's word: for data that ends a step earlier."""
        if _ignore_last_ts:
            return InfiniteLookbackBuffer(self.data[:-1], self.lookback).get(indices, **options)
        return super().get(indices, **options)


class Turn(NamedTuple):
    """One agent's data of a step, hanging data included; None: nothing."""

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
    """Single-agent episodes by agent, on one clock: `env_t_started` (0 but for chunks) to `env_t`, in environment steps."""

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
        """An episode that is empty, or holds the steps given, replayed by `add_env_step`.

        Args:
            observations, infos: K dicts by agent, one per environment timestep.
            actions, rewards, extra_model_outputs: K - 1 dicts by agent, one per step between them.
            terminateds, truncateds: Of the last step: by agent and under "__all__", or a bool for all. An agent without an
                action after its last observation, while others continued, is terminated too.
            env_t_started, agent_t_started: Timesteps of the first step after the lookback buffer; 0 where missing.
            len_lookback_buffer: How many of the first environment steps are lookback buffer; "auto" means all of them.
            agent_module_ids: Modules of agents that are not to be asked of `agent_to_module_mapping_fn`.
            agent_to_module_mapping_fn: (agent id, episode) to module id; None: "default_policy" for all.

        Raises BadEpisode where lengths disagree, or where an agent acts or sees out of turn.
        """
        self.id_ = str(id_ or uuid.uuid4().hex)
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or default_module
        self._agent_to_module_mapping = dict(agent_module_ids or {})
        self.observation_space, self.action_space = observation_space or {}, action_space or {}
        self.agent_episodes: dict[AgentID, SingleAgentEpisode] = {}  # in the order in which agents came
        self.env_t_to_agent_t: dict[AgentID, Timeline] = {}
        self.env_t = self.env_t_started = 0  # the next timestep, and the first one after the lookback buffer
        self._lookback = 0  # environment timesteps before the first of this chunk
        self.is_terminated = self.is_truncated = False
        self._hanging_actions_end: dict[AgentID, Any] = {}  # agents that acted and wait for the result
        self._hanging_extra_model_outputs_end: dict[AgentID, dict[str, Any]] = {}  # of the same agents
        self._hanging_rewards_end: dict[AgentID, float] = {}  # rewards since an agent's last observation
        self._hanging_rewards_begin: dict[AgentID, float] = {}  # rewards of agents before their first one
        self.custom_data: dict[str, Any] = {}  # of the episode as a whole; kept by `cut` (as a copy) and in states
        none: list[ByAgent] = [{}] * len(observations or ())
        given: list[Steps] = [observations or (), none if infos is None else infos, actions or (), rewards or ()]
        given.append(none[1:] if extra_model_outputs is None else extra_model_outputs)
        ends = [{ALL: flags} if isinstance(flags, bool) else flags or {} for flags in (terminateds, truncateds)]
        self._replay(given, ends)
        lookback = self.env_t if len_lookback_buffer == "auto" else len_lookback_buffer
        if not isinstance(lookback, int) or lookback < 0:
            raise self._bad(f"len_lookback_buffer={lookback!r}", fix='"auto", or a number from 0 on')
        self._shift(min(lookback, self.env_t), int(env_t_started or 0), agent_t_started or {})
        for agent, part in self.agent_episodes.items():
            part.id_ = str((agent_episode_ids or {}).get(agent, part.id_))

    def _replay(self, lists: Sequence[Steps], ends: Sequence[Flags]) -> None:
        """Add the steps given; `ends` are the flags, terminated and truncated, of the last."""
        observations, infos, actions, rewards, extra = lists
        lengths = [len(kind) for kind in (actions, rewards, extra)]
        if len(infos) != len(observations) or set(lengths) != {max(len(observations) - 1, 0)}:
            what = f"{len(observations)} observations, {len(infos)} infos, {lengths} actions, rewards and extra outputs"
            fix = "one dict of observations and infos per environment timestep, of the rest per step between"
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
            del self.agent_episodes[agent], self.env_t_to_agent_t[agent]  # nothing to learn from

    def _shift(self, lookback: int, env_t_started: int, agent_t_started: Mapping[AgentID, int]) -> None:
        """Make the first `lookback` environment timesteps lookback buffer, and set the start of the clocks."""
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

    # ---- what it is ----

    def __len__(self) -> int:
        """Steps of the environment, without the lookback buffer."""
        return self.env_t - self.env_t_started

    env_steps = __len__

    def agent_steps(self) -> int:
        """Steps of all agents together, without their lookback buffers and without steps that hang."""
        return sum(len(part) for part in self.agent_episodes.values())

    @property
    def _moments(self) -> int:
        """The environment timesteps at which there may be observations, lookback buffer included."""
        return self._lookback + len(self) + 1

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

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards, undiscounted, in the environment's units, lookback buffers left out.

        Rewards that hang, because no step holds them yet, are added if asked for.
        """
        total = sum(part.get_return() for part in self.agent_episodes.values())
        if include_hanging_rewards:
            total += sum(self._hanging_rewards_begin.values()) + sum(self._hanging_rewards_end.values())
        return float(total)

    def __repr__(self) -> str:
        state = "done" if self.is_done else "going on"
        returns = ", ".join(f"{agent}: {part.get_return():g}" for agent, part in self.agent_episodes.items())
        return f"MultiAgentEpisode({self.id_}: {len(self)} steps from {self.env_t_started}, {state}, returns {{{returns}}})"

    # ---- filling ----

    def add_env_reset(self, *, observations: ByAgent, infos: ByAgent | None = None) -> None:
        """Add what `env.reset()` returned; infos of agents without an observation have no place and are left out.

        Raises BadEpisode unless the episode is empty and at timestep 0.
        """
        if self.is_reset or self.is_done or self.env_t or self.env_t_started:
            raise self._bad("a reset of an episode that has begun", fix="begin a new MultiAgentEpisode for each env.reset()")
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
        """Add the actions taken, what `env.step(actions)` returned, and the modules' outputs with the actions, by agent.

        An agent that acted and got an observation completes a step. One that acted only has its action hang until its next
        observation; rewards add up meanwhile, and what an ended agent is owed goes to its last step. One that was not there
        before comes in with its first observation. A terminated agent whose action hangs gets its last observation again. The
        episode is done by "__all__", or once all agents are: truncated if all of them are, terminated otherwise.

        Raises BadEpisode, leaving the episode as it was: after its end, for data of agents that are done, for actions before
        the first observation or without one in between, for observations without an action in between, for a completed step
        without a reward, for a truncated agent without a last observation, and as `SingleAgentEpisode.add_env_step`.
        """
        if self.is_done:
            raise self._bad("a step after the episode was done", fix="begin a new MultiAgentEpisode")
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
        """The agent's data of this step, with what hangs. Raises BadEpisode for an impossible turn and other spaces."""
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
            raise self._bad(f"agent {agent!r} acts, sees or ends out of turn", fix=TURNS)
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
            if turn.reward:
                self._hanging_rewards_begin[agent] = self._hanging_rewards_begin.get(agent, 0.0) + turn.reward
        elif part.is_done:
            return
        elif turn.action is None:  # it waits; if it ends, its last step gets what it is owed
            part.is_terminated, part.is_truncated = turn.terminated, turn.truncated
            if turn.reward:
                self._hanging_rewards_end[agent] = turn.reward
            if turn.is_done and len(part) and agent in self._hanging_rewards_end:  # a chunk without a step leaves it hanging
                part.set_rewards(new_data=part.get_rewards(-1) + self._hanging_rewards_end.pop(agent), at_indices=-1)
        elif turn.observation is None and not turn.is_done:
            self._hanging_actions_end[agent] = turn.action
            self._hanging_extra_model_outputs_end[agent] = dict(turn.extra)
            self._hanging_rewards_end[agent] = turn.reward
        else:
            repeats = turn.observation is None  # terminated without one: not used in training
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
        if turn.is_done:
            self._hanging_rewards_begin.pop(agent, None)

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
        """Turn each agent's steps into arrays, in place, as `SingleAgentEpisode.to_numpy`. What hangs stays as it is."""
        for part in self.agent_episodes.values():
            part.to_numpy()
        return self

    # ---- getters: by environment timesteps, or with `env_steps=False` each agent's own; `agent_ids` one, several or None ----

    def get_observations(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Observations by agent; one that got none then is left out, or with `fill` filled. Raises EpisodeIndexError."""
        return self._get("observations", indices, agent_ids, **options)

    def get_infos(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Infos by agent, dicts in lists, numpy'ized or not; else as `get_observations`."""
        return self._get("infos", indices, agent_ids, **options)

    def get_actions(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[AgentOptions]) -> Any:
        """Actions by agent, as `get_observations`; one that hangs counts as the agent's last."""
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
        is_one = isinstance(agent_ids, str) or (isinstance(agent_ids, Hashable) and agent_ids in self.agent_episodes)
        wanted: Any = self.agent_episodes if agent_ids is None else (agent_ids,) if is_one else agent_ids
        agents = [agent for agent in self.agent_episodes if agent in wanted]
        buffers = {agent: buffer for agent in agents if (buffer := self._buffer(agent, name, is_output)) is not None}
        if agents and not buffers:
            known = sorted({str(key) for part in self.agent_episodes.values() for key in part.extra_model_outputs})
            where, fix = f"multi-agent episode {self.id_}", f"one of: {', '.join(known) or 'there are none'}"
            raise EpisodeKeyError(f"no extra model output {name!r}", where=where, fix=fix)
        found = {}
        try:
            if env_steps and buffers:
                count = self._moments - (is_output or name in ("actions", "rewards"))
                clock = InfiniteLookbackBuffer.over(range(count), self._lookback, None, finalized=False)
                fill = None if options.get("fill") is None else -1  # of moments outside
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
        """One kind of an agent's data, with what hangs at its end."""
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
        """The agent's own indices for these moments, back into its lookback buffer; None where it has none of them."""
        part, tags, count = self.agent_episodes[agent], self.env_t_to_agent_t[agent].data, buffer.len_incl_lookback()
        before = part.observations.lookback - part.t_started
        found = [
            count if at < 0 or tags[at] == SKIP else min(tags[at] + before, count)
            for at in ([moments] if isinstance(moments, int) else moments)
        ]
        own = [at - buffer.lookback for at in found if at < count or filled]  # at the count: to be filled
        return (own[0] if isinstance(moments, int) else own) if own else None

    # ---- chunks and states ----

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The chunk in which this episode continues: same ids, length 0, `env_t_started` where this one ends.

        It looks back on up to `len_lookback_buffer` environment steps of this chunk, and on as many more as it takes to show
        the last observation of every agent that continues. Agents that ended are in it only with steps to look back on. What
        hangs hangs on in it. Arrays are shared until one side is written.

        Raises BadEpisode when the episode is done, and for a negative length.
        """
        check_cut(self, len_lookback_buffer)
        chunk = copy.copy(self)
        chunk.env_t_started, chunk.custom_data = self.env_t, copy.deepcopy(self.custom_data)
        chunk._agent_to_module_mapping = dict(self._agent_to_module_mapping)
        for name in ("agent_episodes", "env_t_to_agent_t", "_hanging_rewards_begin", *HANGING):
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
        """The episode in RLlib's state layout, which RLlib's `from_state` takes too. Arrays are not copied.

        As RLlib's, it holds a function, spaces and timelines as objects: it can be pickled, and is not plain data.
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
            **{name: defaultdict(float, getattr(self, name)) for name in ("_hanging_rewards_end", "_hanging_rewards_begin")},
            "agent_episodes": [(agent, part.get_state()) for agent, part in self.agent_episodes.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a state by RLlib 2.60 or by `get_state`, over the state's arrays.

        Raises BadEpisode for a state of another form or with parts that contradict each other.
        """
        name = state.get("id_", "(no id)") if isinstance(state, Mapping) else "(no id)"
        episode = cls()
        try:
            episode._read(state)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise state_error(err, "a multi-agent episode", f"state of multi-agent episode {name}", "RLlib 2.60") from err
        episode.validate()
        return episode

    def _read(self, state: Mapping[str, Any]) -> None:
        for name in PLAIN:
            setattr(self, name, state[name])
        self._agent_to_module_mapping = dict(state["_agent_to_module_mapping"])
        self.agent_episodes = {agent: SingleAgentEpisode.from_state(part) for agent, part in state["agent_episodes"]}
        self._hanging_actions_end = dict(state["_hanging_actions_end"])
        extra = state["_hanging_extra_model_outputs_end"]
        self._hanging_extra_model_outputs_end = {agent: dict(extra.get(agent) or {}) for agent in self._hanging_actions_end}
        # RLlib has empty entries for agents of which nothing hangs.
        for name in ("_hanging_rewards_end", "_hanging_rewards_begin"):
            setattr(self, name, {agent: float(reward) for agent, reward in state[name].items() if reward})
        self._hanging_rewards_end = {**dict.fromkeys(self._hanging_actions_end, 0.0), **self._hanging_rewards_end}
        timelines = state["env_t_to_agent_t"].items()
        self._lookback = max((int(timeline.lookback) for _, timeline in timelines), default=0)
        for agent, timeline in timelines:
            tags, part = list(timeline.data), self.agent_episodes.get(agent)
            self._mend(tags, done=part is not None and part.is_done)
            self.env_t_to_agent_t[agent] = Timeline(tags, self._lookback)

    def _mend(self, tags: list[Any], *, done: bool) -> None:
        """Skips that RLlib 2.60 added (for a repeated observation, a late agent) or left out (after an early end), in place."""
        at = [number for number, tag in enumerate(tags) if tag != SKIP] or [len(tags)]
        if done and len(tags) > self._moments and at[-1] > 0 and tags[at[-1] - 1] == SKIP:
            del tags[at[-1] - 1]
        early = len(tags) - self._moments
        if 0 < early <= at[0]:
            del tags[:early]
        tags.extend([SKIP] * (self._moments - len(tags)))

    def validate(self) -> None:
        """Raise BadEpisode, naming the agent, where lengths, timelines and hanging steps do not fit each other."""
        for agent, part in self.agent_episodes.items():
            part.validate()
            timeline = self.env_t_to_agent_t.get(agent, Timeline())
            steps = _seen(timeline.data)
            if (
                (len(timeline.data), timeline.lookback) != (self._moments, self._lookback)
                or steps != list(range(part.t + 1 - len(steps), part.t + 1))
                or len(steps) > part.observations.len_incl_lookback()
                or (part.is_done and agent in self._hanging_actions_end)
            ):
                what = f"agent {agent!r} has a timeline of {len(timeline.data)} timesteps and {len(steps)} observations"
                raise self._bad(f"{what}, which contradicts its episode", fix="write the state again from its source")

    def _bad(self, what: str, *, fix: str) -> BadEpisode:
        return BadEpisode(what, where=f"multi-agent episode {self.id_}, environment timestep {self.env_t}", fix=fix)


def default_module(agent_id: AgentID, episode: Any) -> str:
    """The default module of every agent; the name is RLlib's."""
    return "default_policy"


def _seen(tags: list[Any]) -> list[int]:
    """The agent's timesteps among `tags`, in order."""
    return [tag for tag in tags if tag != SKIP]
