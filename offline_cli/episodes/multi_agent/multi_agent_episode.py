"""MultiAgentEpisode: agents that act when they like, in one environment; impossible turns of an agent raise.

The API and meaning are those that RLlib documents in its class of that name. Agents come late, skip steps and end early; an
action that has no answer yet hangs, with the rewards since, until the agent's next observation completes the step. Data of an
agent is a SingleAgentEpisode, `agent_episodes[agent]`; timelines map times of the environment to times of agents,
`env_t_to_agent_t[agent]`.

What differs: errors are BadEpisode with names, raised before anything is changed; no reward is lost; an agent that is truncated
is not also made terminated; `cut` and `slice` keep every agent that continues, its infos and its timesteps; timelines of all
agents have one length. docs/rllib.md lists the differences. `get_sample_batch` belongs to RLlib's old API stack and is not
here.

Datasets hold single-agent episodes. `agent_episodes` is the way out: each says its agent, module and multi-agent episode.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from offline_cli.episodes.multi_agent import pieces
from offline_cli.episodes.multi_agent.building import ByAgent, Flags, Lists, MultiAgentAccessors, build, shift
from offline_cli.episodes.multi_agent.episode_data import AgentID, MappingFn, default_module
from offline_cli.episodes.multi_agent.reading import table
from offline_cli.episodes.multi_agent.stepping import Step, enter
from offline_cli.episodes.pieces import gone
from offline_cli.spaces import Space

__all__ = ["MultiAgentEpisode"]

Part = slice  # the class has a method of that name


class MultiAgentEpisode(MultiAgentAccessors):
    """Single-agent episodes by agent, on one clock: `env_t_started` (0 but for chunks) to `env_t`, in environment steps."""

    __slots__ = ()

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
        terminateds: Flags = False,
        truncateds: Flags = False,
        extra_model_outputs: Sequence[ByAgent] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: MappingFn | None = None,
    ) -> None:
        """An episode that is empty, or holds the steps given: K dicts of observations and infos, K - 1 of the rest.

        Args:
            id_: Unique name; None makes one up.
            observations, infos: One dict by agent per environment timestep: of the agents that got an observation then.
            actions, rewards, extra_model_outputs: One dict by agent per step between two of them: the actions at the first,
                and their results by the second. With K of them, the last actions hang.
            observation_space, action_space: Spaces by agent.
            terminateds, truncateds: By agent, and under "__all__" for the episode and the agents not named; or a bool for all.
                An agent without an action after its last observation, while others continued, is terminated too.
            env_t_started, agent_t_started: The timesteps of the first step after the lookback buffer, of the environment and
                by agent; 0 where missing.
            len_lookback_buffer: How many of the first environment steps are lookback buffer; "auto" means all of them.
            agent_episode_ids: Ids of the agents' episodes, by agent; made up where missing.
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
        self._custom_data = {}
        self._start_time = self._last_step_time = None
        lists = Lists.of(observations, actions, rewards, infos, extra_model_outputs)
        build(self, self.add_env_step, lists, terminateds, truncateds)
        shift(self, self._lookback_of(len_lookback_buffer), int(env_t_started or 0), agent_t_started or {})
        for agent, part in self.agent_episodes.items():
            part.id_ = str((agent_episode_ids or {}).get(agent, part.id_))

    def _lookback_of(self, asked: int | str) -> int:
        if asked == "auto":
            return self.env_t
        if not isinstance(asked, (int, np.integer)) or asked < 0:
            raise self._bad(f"len_lookback_buffer={asked!r}", fix='"auto", or a number from 0 on')
        return min(int(asked), self.env_t)

    # ---- filling ----

    def add_env_reset(self, *, observations: ByAgent, infos: ByAgent | None = None) -> None:
        """Add what `env.reset()` returned; infos of agents without an observation have no place and are left out.

        Raises BadEpisode unless the episode is empty and at timestep 0.
        """
        if self.is_reset or self.is_done or self.env_t or self.env_t_started:
            raise self._bad("a reset of an episode that has begun", fix="begin a new MultiAgentEpisode for each env.reset()")
        for agent, observation in observations.items():
            enter(self, agent, observation, (infos or {}).get(agent))
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observations: ByAgent,
        actions: ByAgent,
        rewards: ByAgent,
        infos: ByAgent | None = None,
        *,
        terminateds: Mapping[AgentID, bool] | None = None,
        truncateds: Mapping[AgentID, bool] | None = None,
        extra_model_outputs: Mapping[AgentID, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add the actions taken, what `env.step(actions)` returned, and the modules' outputs with the actions, by agent.

        An agent that acted and got an observation completes a step. One that acted only has its action hang until its next
        observation; rewards add up meanwhile. One that was not there before comes in with its first observation. A terminated
        agent whose action hangs gets its last observation again. The episode is done by "__all__", or once all agents are:
        truncated if all of them are, terminated otherwise.

        Raises BadEpisode, leaving the episode as it was: after its end, for data of agents that are done, for actions before
        the first observation or without one in between, for observations without an action in between, for a completed step
        without a reward, for a truncated agent without a last observation, and as `SingleAgentEpisode.add_env_step`.
        """
        if self.is_done:
            raise self._bad("a step after the episode was done", fix="begin a new MultiAgentEpisode")
        Step(
            self,
            observations=observations,
            actions=actions,
            rewards=rewards,
            infos=infos or {},
            terminateds=terminateds or {},
            truncateds=truncateds or {},
            extra=extra_model_outputs or {},
        ).checked()()
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def to_numpy(self) -> Self:
        """Turn each agent's lists of steps into arrays, in place; see `SingleAgentEpisode.to_numpy`. What hangs stays as it is.

        Raises BadEpisode, naming the agent's episode, the data, leaf and step, where steps differ in structure or shape.
        """
        for part in self.agent_episodes.values():
            part.to_numpy()
        return self

    # ---- pieces ----

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """The chunk in which this episode continues: same ids, length 0, `env_t_started` where this one ends.

        It looks back on up to `len_lookback_buffer` environment steps of this chunk, and on as many more as it takes to show
        the last observation of every agent that continues. Actions that hang, and their rewards, hang on in it.

        Raises BadEpisode when the episode is done, and for a negative length.
        """
        return pieces.cut(self, len_lookback_buffer)

    def slice(self, slice_: Part, *, len_lookback_buffer: int | None = None) -> Self:
        """The environment steps `slice_.start` to `slice_.stop` as an episode: their actions, and one observation more.

        Bounds count from timestep 0 or from the end, and are cut to the episode as in Python. The steps before the slice become
        its lookback buffer: as many as this one's, or `len_lookback_buffer` where there are so many. An agent's step belongs to
        the slice in which it begins, and hangs there if it is not completed there. Flags are kept where it shows the end.

        Raises BadEpisode for a step other than 1 and for a negative length.
        """
        return pieces.part(self, slice_, len_lookback_buffer)

    def __getitem__(self, item: Part) -> Self:
        """`episode[2:5]`: as `slice`."""
        if not isinstance(item, Part):
            raise self._bad(f"episode[{item!r}]", fix="episode[a:b] for a piece, get_observations(i) and its like for a step")
        return self.slice(item)

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Add the chunk in which this one continues, as `cut` makes it, its lookback buffer left out; `other` is not changed.

        Raises BadEpisode, leaving the episode as it was, unless ids agree, this chunk is not done, `other` begins at the
        timestep that this one ends with, and each agent's chunk continues where it ends here.
        """
        pieces.append(self, other)

    # ---- states and text ----

    def get_state(self) -> dict[str, Any]:
        """The episode in RLlib's state layout, which RLlib's `from_state` takes too. Arrays are not copied."""
        return pieces.state_of(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The episode of a state by RLlib 2.60 or by `get_state`, over the state's arrays.

        Raises BadEpisode for a state of another form or with parts that contradict each other.
        """
        return pieces.episode_of(cls, state)

    def print(self) -> None:
        """Write a table to stdout: which agent got an observation at which environment timestep."""
        sys.stdout.write(table(self) + "\n")

    add_temporary_timestep_data = get_temporary_timestep_data = gone
