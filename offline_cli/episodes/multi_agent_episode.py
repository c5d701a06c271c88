"""MultiAgentEpisode: agents that act when they like, in one environment; impossible turns of an agent raise.

Names and meaning are those of RLlib's class: construction, steps, getters by agent, `cut` and states. Agents come late, skip
steps and end early; an action that has no answer yet hangs, with the rewards since, until the agent's next observation
completes the step. Data of an agent is a SingleAgentEpisode, `agent_episodes[agent]`, with setters, slices and joins of its
own. docs/rllib.md lists what differs.
"""

from __future__ import annotations

import copy
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from offline_cli.episodes import pieces
from offline_cli.episodes.episode_data import REWARD_SPACE
from offline_cli.episodes.multi_agent_data import SKIP, AgentID, MappingFn, MultiAgentData, Timeline, seen
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode
from offline_cli.spaces import Space

__all__ = ["MultiAgentEpisode"]

ALL = "__all__"  # the key of flags that hold for every agent
TURNS = "give an action once per observation, a first and a last observation without one, and a done agent its flags alone"
STATE = "write the state again from its source"

PLAIN = (
    *("id_", "agent_to_module_mapping_fn", "observation_space", "action_space", "env_t_started", "env_t"),
    *("is_terminated", "is_truncated", "custom_data"),
)  # what a state holds as it is

ByAgent = Mapping[AgentID, Any]
Flags = Mapping[AgentID, bool]


class Share(NamedTuple):
    """What one agent was given in a step; None: nothing."""

    observation: Any
    action: Any
    reward: Any
    infos: Any
    extra: Any
    terminated: bool
    truncated: bool

    @property
    def is_done(self) -> bool:
        return self.terminated or self.truncated


class MultiAgentEpisode(MultiAgentData):
    """Single-agent episodes by agent, on one clock: `env_t_started` (0 but for chunks) to `env_t`, in environment steps."""

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[ByAgent] | None = None,
        observation_space: Mapping[AgentID, Space] | None = None,
        infos: Sequence[ByAgent] | None = None,
        actions: Sequence[ByAgent] | None = None,
        action_space: Mapping[AgentID, Space] | None = None,
        rewards: Sequence[ByAgent] | None = None,
        terminateds: Flags | bool = False,
        truncateds: Flags | bool = False,
        extra_model_outputs: Sequence[ByAgent] | None = None,
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
        self.agent_episodes, self.env_t_to_agent_t = {}, {}
        self.env_t = self.env_t_started = self._lookback = 0
        self.is_terminated = self.is_truncated = False
        self._hanging_actions_end, self._hanging_extra_model_outputs_end = {}, {}
        self._hanging_rewards_end, self._hanging_rewards_begin = {}, {}
        self.custom_data = {}
        none: list[ByAgent] = [{}] * len(observations or ())
        self._replay(
            list(observations or ()),
            none if infos is None else list(infos),
            list(actions or ()),
            list(rewards or ()),
            none[1:] if extra_model_outputs is None else list(extra_model_outputs),
            *({ALL: flags} if isinstance(flags, bool) else flags or {} for flags in (terminateds, truncateds)),
        )
        lookback = self.env_t if len_lookback_buffer == "auto" else len_lookback_buffer
        if not isinstance(lookback, int) or lookback < 0:
            raise self._bad(f"len_lookback_buffer={lookback!r}", fix='"auto", or a number from 0 on')
        self._shift(min(lookback, self.env_t), int(env_t_started or 0), agent_t_started or {})
        for agent, part in self.agent_episodes.items():
            part.id_ = str((agent_episode_ids or {}).get(agent, part.id_))

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
        named = [*observations, *actions, *rewards, *flags[0], *flags[1]]
        everybody = self.agent_episodes if flags[0].get(ALL) or flags[1].get(ALL) else ()
        shares = {
            agent: Share(
                observations.get(agent),
                actions.get(agent),
                rewards.get(agent),
                (infos or {}).get(agent),
                (extra_model_outputs or {}).get(agent),
                *(bool(flag.get(agent) or flag.get(ALL)) for flag in flags),
            )
            for agent in dict.fromkeys([*named, *everybody])
            if agent != ALL
        }
        for agent, share in shares.items():
            self._check(agent, share)
        ends = self._ends(shares, flags)
        self.env_t += 1
        for agent, share in shares.items():
            self._add(agent, share)
        for timeline in self.env_t_to_agent_t.values():
            timeline.extend([SKIP] * (self.moments - len(timeline.data)))
        self.is_terminated, self.is_truncated = ends

    def _check(self, agent: AgentID, share: Share) -> None:
        """Raise BadEpisode where `_add` would fail, or the agent cannot have got this share."""
        part, hangs = self.agent_episodes.get(agent), agent in self._hanging_actions_end
        problem = _problem(part, share, hangs)
        if problem:
            raise self._bad(f"agent {agent!r} {problem}", fix=TURNS)
        if part is None or part.is_done or not (hangs or share.action is not None):
            return
        try:
            if share.observation is not None or share.is_done:
                part.check_step(*self._completed(agent, part, share))
            elif not hangs:
                part.check_outputs(share.extra or {})
        except BadEpisode as err:
            err.where = f"multi-agent episode {self.id_}, agent {agent!r}, {err.where}"
            raise

    def _add(self, agent: AgentID, share: Share) -> None:
        part = self.agent_episodes.get(agent)
        if part is None and share.observation is not None and not share.is_done:
            self._enter(agent, share.observation, share.infos)
        if part is None:
            _owe(self._hanging_rewards_begin, agent, 0.0 if share.is_done else share.reward)
        elif part.is_done:
            return
        elif share.action is None and agent not in self._hanging_actions_end:
            self._wait(agent, part, share)
        elif share.observation is None and not share.is_done:
            self._hang(agent, share)
        else:
            observation, action, reward, extra = self._completed(agent, part, share)
            infos = part.get_infos(-1) if share.observation is None else share.infos
            flags = {"terminated": share.terminated, "truncated": share.truncated}
            part.add_env_step(observation, action, reward, infos, extra_model_outputs=extra, **flags)
            self.env_t_to_agent_t[agent].append(part.t)
            for hanging in (self._hanging_actions_end, self._hanging_extra_model_outputs_end, self._hanging_rewards_end):
                hanging.pop(agent, None)
        if share.is_done:
            self._hanging_rewards_begin.pop(agent, None)

    def _completed(self, agent: AgentID, part: SingleAgentEpisode, share: Share) -> tuple[Any, Any, float, Mapping[str, Any]]:
        """Observation, action, reward and outputs of a step that ends.

        An agent terminated without an observation sees its last one again, which is not used in training.
        """
        hangs = agent in self._hanging_actions_end
        observation = part.get_observations(-1) if share.observation is None else share.observation
        reward = self._hanging_rewards_end.get(agent, 0.0) + (share.reward or 0.0)
        if hangs:
            return observation, self._hanging_actions_end[agent], reward, self._hanging_extra_model_outputs_end[agent]
        return observation, share.action, reward, share.extra or {}

    def _ends(self, shares: Mapping[AgentID, Share], flags: Sequence[Flags]) -> tuple[bool, bool]:
        """Whether the episode is terminated, and truncated: as `__all__` says, or once all agents are done, newcomers too."""
        terminated, truncated = (bool(flag.get(ALL)) for flag in flags)
        known = self.agent_episodes
        if terminated or truncated or not known:
            return terminated, truncated
        came = [share for agent, share in shares.items() if agent not in known and share.observation is not None]
        ends = [(share.terminated, share.truncated) for share in came]
        for agent, part in known.items():
            ended_before = part.is_done or agent not in shares
            ends.append((part.is_terminated, part.is_truncated) if ended_before else shares[agent][-2:])
        terminated = any(pair[0] for pair in ends)
        return (terminated, not terminated) if all(map(any, ends)) else (False, False)

    def _enter(self, agent: AgentID, observation: Any, infos: Any) -> None:
        """Let an agent in with its first observation, at the environment timestep that is the last one now."""
        part = SingleAgentEpisode(
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
        )
        part.add_env_reset(observation, infos)
        self.agent_episodes[agent] = part
        self.env_t_to_agent_t[agent] = Timeline([*[SKIP] * (self.moments - 1), 0], self._lookback)

    def _hang(self, agent: AgentID, share: Share) -> None:
        """Keep an action until the agent sees its result, and the rewards until then."""
        if share.action is not None:
            self._hanging_actions_end[agent] = share.action
            self._hanging_extra_model_outputs_end[agent] = dict(share.extra or {})
        self._hanging_rewards_end[agent] = self._hanging_rewards_end.get(agent, 0.0) + (share.reward or 0.0)

    def _wait(self, agent: AgentID, part: SingleAgentEpisode, share: Share) -> None:
        """Of an agent that has not acted since its last observation: what it is owed; if it ends, its last step gets that."""
        part.is_terminated, part.is_truncated = share.terminated, share.truncated
        _owe(self._hanging_rewards_end, agent, share.reward)
        if part.is_done and len(part) and agent in self._hanging_rewards_end:  # a chunk without a step leaves it hanging
            part.set_rewards(new_data=part.get_rewards(-1) + self._hanging_rewards_end.pop(agent), at_indices=-1)

    # ---- construction ----

    def _replay(
        self,
        observations: list[ByAgent],
        infos: list[ByAgent],
        actions: list[ByAgent],
        rewards: list[ByAgent],
        extra: list[ByAgent],
        terminateds: Flags,
        truncateds: Flags,
    ) -> None:
        lengths = [len(kind) for kind in (actions, rewards, extra)]
        if len(infos) != len(observations) or set(lengths) != {max(len(observations) - 1, 0)}:
            what = f"{len(observations)} observations, {len(infos)} infos, {lengths} actions, rewards and extra outputs"
            raise self._bad(
                what, fix="one dict of observations and infos per environment timestep, of the rest per step between"
            )
        for agent, observation in observations[0].items() if observations else ():
            self._enter(agent, observation, infos[0].get(agent))
        for t, seen_now in enumerate(observations[1:]):
            flags: dict[str, Flags] = {}
            if t == len(actions) - 1:
                acting = {*actions[t], *self._hanging_actions_end, *seen_now}
                left = {agent: True for agent, part in self.agent_episodes.items() if not (part.is_done or agent in acting)}
                flags = {"terminateds": {**left, **terminateds}, "truncateds": truncateds}
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
            before = min(len(seen(timeline.data[:lookback])), len(part))
            part.t_started = int(agent_t_started.get(agent, 0))
            part.t = part.t_started + len(part.rewards) - before
            for buffer in (part.observations, part.actions, part.rewards, part.infos, *part.extra_model_outputs.values()):
                buffer.lookback = before
            moved = part.t_started - before
            timeline.data = [tag if tag == SKIP else tag + moved for tag in timeline.data]
            timeline.lookback = lookback

    # ---- arrays and chunks ----

    def to_numpy(self) -> Self:
        """Turn each agent's steps into arrays, in place, as `SingleAgentEpisode.to_numpy`. What hangs stays as it is."""
        for part in self.agent_episodes.values():
            part.to_numpy()
        return self

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The chunk in which this episode continues: same ids, length 0, `env_t_started` where this one ends.

        It looks back on up to `len_lookback_buffer` environment steps of this chunk, and on as many more as it takes to show
        the last observation of every agent that continues. Agents that ended are in it only with steps to look back on. What
        hangs hangs on in it. Arrays are shared until one side is written.

        Raises BadEpisode when the episode is done, and for a negative length.
        """
        pieces.check_cut(self, len_lookback_buffer)
        chunk = type(self)(
            id_=self.id_,
            observation_space=self.observation_space,
            action_space=self.action_space,
            env_t_started=self.env_t,
            agent_module_ids=self._agent_to_module_mapping,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
        )
        chunk.custom_data = copy.deepcopy(self.custom_data)
        last_seen = [
            max(at for at, tag in enumerate(self.env_t_to_agent_t[agent].data) if tag != SKIP)
            for agent, part in self.agent_episodes.items()
            if not part.is_done
        ]
        first = max(0, min([self.moments - 1 - len_lookback_buffer, *last_seen]))
        chunk._lookback = self.moments - 1 - first
        for agent, part in self.agent_episodes.items():
            tags = self.env_t_to_agent_t[agent].data[first:]
            steps = seen(tags)
            if len(steps) <= part.is_done:
                continue
            before = min(len(seen(tags[:-1])), len(steps) - 1)
            mine = pieces.piece_of(part, steps[before] - part.t_started, steps[-1] - part.t_started, before)
            mine.rewards.space = REWARD_SPACE
            mine.is_terminated, mine.is_truncated = part.is_terminated, part.is_truncated
            mine.custom_data.update(copy.deepcopy(part.custom_data))
            chunk.agent_episodes[agent], chunk.env_t_to_agent_t[agent] = mine, Timeline(tags, chunk._lookback)
            for name in ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end"):
                if agent in getattr(self, name):
                    getattr(chunk, name)[agent] = getattr(self, name)[agent]
        return chunk

    # ---- states and checks ----

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
            "_hanging_rewards_end": defaultdict(float, self._hanging_rewards_end),
            "_hanging_rewards_begin": defaultdict(float, self._hanging_rewards_begin),
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
            raise pieces.state_error(
                err, "a multi-agent episode", f"state of multi-agent episode {name}", "RLlib 2.60"
            ) from err
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
        if done and len(tags) > self.moments and at[-1] > 0 and tags[at[-1] - 1] == SKIP:
            del tags[at[-1] - 1]
        early = len(tags) - self.moments
        if 0 < early <= at[0]:
            del tags[:early]
        tags.extend([SKIP] * (self.moments - len(tags)))

    def validate(self) -> None:
        """Raise BadEpisode, naming the agent, where lengths, timelines and hanging steps do not fit each other."""
        for agent, part in self.agent_episodes.items():
            part.validate()
            timeline = self.env_t_to_agent_t.get(agent, Timeline())
            if len(timeline.data) != self.moments or timeline.lookback != self._lookback:
                wanted = f"{timeline.lookback} + {len(timeline)}, {self._lookback} + {self.moments - self._lookback} wanted"
                raise self._bad(f"agent {agent!r} has a timeline of so many timesteps: {wanted}", fix=STATE)
            steps, count = seen(timeline.data), part.observations.len_incl_lookback()
            if steps != list(range(part.t + 1 - len(steps), part.t + 1)) or len(steps) > count:
                known = f"{len(steps)} up to {steps[-1:]} by its timeline, {count} up to {part.t} by its episode"
                raise self._bad(f"agent {agent!r} has these observations: {known}", fix=STATE)
            if part.is_done and agent in self._hanging_actions_end:
                raise self._bad(f"agent {agent!r} is done, with an action that hangs", fix=STATE)

    def __repr__(self) -> str:
        state = "done" if self.is_done else "going on"
        returns = ", ".join(f"{agent}: {part.get_return():g}" for agent, part in self.agent_episodes.items())
        return f"MultiAgentEpisode({self.id_}: {len(self)} steps from {self.env_t_started}, {state}, returns {{{returns}}})"


def default_module(agent_id: AgentID, episode: Any) -> str:
    """The default module of every agent; the name is RLlib's."""
    return "default_policy"


def _problem(part: SingleAgentEpisode | None, share: Share, hangs: bool) -> str:
    """Why an agent cannot have got this share; empty where it can."""
    acts, sees = share.action is not None, share.observation is not None
    if part is None:
        return "acts before its first observation" if acts else ""
    if part.is_done:
        return "is done, yet was given data" if any(kind is not None for kind in share[:5]) else ""
    if acts and hangs:
        return "acts again before the next observation"
    if sees and not (acts or hangs or share.is_done):
        return "got another observation without having acted"
    if acts and sees and share.reward is None:
        return "acted and got an observation, but no reward"
    return "acted and was truncated without a last observation" if share.truncated and (acts or hangs) and not sees else ""


def _owe(rewards: dict[AgentID, float], agent: AgentID, reward: Any) -> None:
    if reward:
        rewards[agent] = rewards.get(agent, 0.0) + reward
