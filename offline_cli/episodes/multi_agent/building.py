"""A multi-agent episode built from lists of dicts, and its getters and setters, one pair per kind of data.

* `build`: the lists are replayed step by step, by the same rules as `add_env_step`; lists whose lengths, or agents whose turns,
  do not fit each other raise. Then the first steps become lookback buffer.
* `MultiAgentAccessors`: every getter takes the same: `indices` are environment timesteps, or with `env_steps=False` each
  agent's own; `agent_ids` one agent, several, or None for all; `return_list` gives one dict per environment timestep instead of
  one dict by agent. An agent that got no observation then is left out, or with `fill` filled. The rest is as in
  `SingleAgentEpisode`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.buffers.lookback_buffer import GetterOptions, SetterOptions
from offline_cli.episodes.multi_agent.episode_data import SKIP, AgentID, MultiAgentData, last_seen, seen
from offline_cli.episodes.multi_agent.reading import EXTRA, Question, answer, answer_as_list
from offline_cli.episodes.multi_agent.stepping import ALL, credit, drop_hanging, enter, hang
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import EpisodeKeyError

__all__ = ["ByAgent", "Flags", "Lists", "MultiAgentAccessors", "build", "shift"]

ByAgent = Mapping[AgentID, Any]
Flags = Mapping[AgentID, bool] | bool  # a bool holds for every agent

Agents = Collection[AgentID] | AgentID | None


class Asking(GetterOptions, total=False):
    """Options of getters: those of one agent's, and which timesteps are meant, in which form."""

    env_steps: bool  # of the environment; False: each agent's own
    return_list: bool  # one dict by agent per environment timestep


@dataclass(frozen=True, slots=True)
class Lists:
    """K observations by agent, one dict per environment timestep; K - 1 of the rest, or K where the last actions hang."""

    observations: Sequence[ByAgent]
    actions: Sequence[ByAgent]
    rewards: Sequence[ByAgent]
    infos: Sequence[ByAgent]
    extra: Sequence[ByAgent]

    @classmethod
    def of(cls, *kinds: Sequence[ByAgent] | None) -> Lists:
        """Lists as a caller gives them, in the order of the fields: None for infos and extra outputs: there are none."""
        observations, actions, rewards, *others = (None if kind is None else list(kind) for kind in kinds)
        none: list[ByAgent] = [{}] * len(observations or ())
        return cls(observations or [], actions or [], rewards or [], *(none if kind is None else kind for kind in others))

    def wrong_lengths(self) -> list[str]:
        """The lengths that do not fit the number of observations; empty when all do."""
        count = len(self.observations)
        steps = (count - 1, count) if count else (0,)
        lengths = {
            "infos": (len(self.infos), (count,)),
            "actions": (len(self.actions), steps),
            "rewards": (len(self.rewards), steps),
            "extra model outputs": (len(self.extra), steps),
        }
        wrong = {name: pair for name, pair in lengths.items() if pair[0] not in pair[1]}
        return [f"{have} {name} ({' or '.join(map(str, want))} wanted)" for name, (have, want) in wrong.items()]


def build(
    episode: MultiAgentData, add_env_step: Callable[..., None], lists: Lists, terminateds: Flags, truncateds: Flags
) -> None:
    """Fill an empty episode by its `add_env_step`, all of it after an empty lookback buffer. Raises BadEpisode."""
    wrong = lists.wrong_lengths()
    if wrong:
        fix = "give one dict of observations and infos per environment timestep, one of the rest per step between them"
        raise episode._bad(f"{len(lists.observations)} observations, {', '.join(wrong)}", fix=fix)
    for agent, observation in lists.observations[0].items() if lists.observations else ():
        enter(episode, agent, observation, lists.infos[0].get(agent))
    for t, observations in enumerate(lists.observations[1:], 1):
        actions = lists.actions[t - 1]
        add_env_step(
            observations=observations,
            actions=actions,
            rewards={**dict.fromkeys(actions, 0.0), **lists.rewards[t - 1]},
            infos=lists.infos[t],
            extra_model_outputs=lists.extra[t - 1],
        )
    _hang_last(episode, lists)
    _set_flags(episode, _by_agent(terminateds), _by_agent(truncateds))
    episode._start_time = episode._last_step_time = None
    for part in episode.agent_episodes.values():
        part._start_time = part._last_step_time = None


def _hang_last(episode: MultiAgentData, lists: Lists) -> None:
    """Actions beside the last observations: the environment has not answered them yet."""
    last = len(lists.observations) - 1
    for agent, action in lists.actions[last].items() if len(lists.actions) > last >= 0 else ():
        if agent not in episode.agent_episodes or agent in episode._hanging_actions_end:
            raise episode._bad(f"agent {agent!r} acts last without an observation to act on", fix="leave the action out")
        reward = lists.rewards[last].get(agent) if len(lists.rewards) > last else None
        hang(episode, agent, action, reward, lists.extra[last].get(agent) if len(lists.extra) > last else None)


def _by_agent(flags: Flags) -> Mapping[AgentID, bool]:
    return {ALL: bool(flags)} if isinstance(flags, (bool, int)) or flags is None else flags


def _set_flags(episode: MultiAgentData, terminateds: Mapping[AgentID, bool], truncateds: Mapping[AgentID, bool]) -> None:
    """Flags of the agents and of the episode; an agent that no longer acts while others continue is terminated."""
    for agent, part in list(episode.agent_episodes.items()):
        terminated, truncated = (bool(flags.get(agent, flags.get(ALL, False))) for flags in (terminateds, truncateds))
        hangs, timeline = agent in episode._hanging_actions_end, episode.env_t_to_agent_t[agent]
        if not (terminated or truncated or hangs):
            terminated = last_seen(timeline.data) < episode.moments - 1
        if not (terminated or truncated):
            continue
        if hangs:
            _close(episode, agent, part, truncated)
        part.is_terminated, part.is_truncated = terminated, truncated
        credit(episode, agent)
        if part.observations.len_incl_lookback() == 1:  # nothing to learn from
            drop_hanging(episode, agent)
            del episode.agent_episodes[agent], episode.env_t_to_agent_t[agent]
    episode.is_terminated, episode.is_truncated = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))


def _close(episode: MultiAgentData, agent: AgentID, part: SingleAgentEpisode, truncated: bool) -> None:
    """Complete the step under way of a terminated agent with its last observation, at the last environment timestep."""
    timeline = episode.env_t_to_agent_t[agent]
    if truncated or timeline.data[-1] != SKIP:
        what = f"agent {agent!r} is done, yet acted without an observation after it"
        raise episode._bad(what, fix="give it a last observation")
    part.add_env_step(
        part.get_observations(-1),
        episode._hanging_actions_end[agent],
        episode._hanging_rewards_end.get(agent, 0.0),
        part.get_infos(-1),
        extra_model_outputs=episode._hanging_extra_model_outputs_end[agent],
    )
    timeline.data[-1] = part.t
    drop_hanging(episode, agent)


def shift(episode: MultiAgentData, lookback: int, env_t_started: int, agent_t_started: Mapping[AgentID, int]) -> None:
    """Make the first `lookback` environment timesteps lookback buffer, and set the start of the clocks."""
    steps = episode.env_t
    episode._lookback, episode.env_t_started = lookback, env_t_started
    episode.env_t = env_t_started + steps - lookback
    for agent, part in episode.agent_episodes.items():
        timeline = episode.env_t_to_agent_t[agent]
        before = min(len(seen(timeline.data[:lookback])), len(part))
        part.t_started = int(agent_t_started.get(agent, 0))
        part.t = part.t_started + len(part.rewards) - before
        for buffer in (part.observations, part.actions, part.rewards, part._infos, *part.extra_model_outputs.values()):
            if buffer is not None:
                buffer.lookback = before
        moved = part.t_started - before
        timeline.data = [tag if tag == SKIP else tag + moved for tag in timeline.data]
        timeline.lookback = lookback


class MultiAgentAccessors(MultiAgentData):
    """Getters and setters for observations, actions, rewards, infos and extra model outputs, by agent."""

    __slots__ = ()

    # ---- getters ----

    def get_observations(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[Asking]) -> Any:
        """By agent, one observation for an int; several otherwise: a list, or leaves (K, *obs_shape).

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get("observations", indices, agent_ids, **options)

    def get_infos(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[Asking]) -> Any:
        """By agent, one info dict for an int; a list of them otherwise, numpy'ized or not.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get("infos", indices, agent_ids, **options)

    def get_actions(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[Asking]) -> Any:
        """By agent, one action for an int; several otherwise: a list, or leaves (K, *action_shape). Those that hang are there.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get("actions", indices, agent_ids, **options)

    def get_rewards(self, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[Asking]) -> Any:
        """By agent, one reward for an int; several otherwise: a list, or an array (K,) float64; of steps that hang: so far.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get("rewards", indices, agent_ids, **options)

    def get_extra_model_outputs(
        self, key: str | None = None, indices: Indices = None, agent_ids: Agents = None, **options: Unpack[Asking]
    ) -> Any:
        """By agent, the outputs of name `key`, or a dict of all by name: one for an int, a list or leaves (K, ...) otherwise.

        Agents whose module has no such output are left out. Raises EpisodeKeyError where none has, EpisodeIndexError outside
        the episode and its lookback buffer without `fill`.
        """
        return self._get(EXTRA, indices, agent_ids, key, **options)

    def _get(
        self,
        kind: str,
        indices: Indices,
        agents: Agents,
        key: str | None = None,
        *,
        env_steps: bool = True,
        return_list: bool = False,
        **options: Unpack[GetterOptions],
    ) -> Any:
        question = Question(kind, indices, agents, env_steps, options, key)
        return answer_as_list(self, question) if return_list else answer(self, question)

    # ---- setters: of the agents' own timesteps ----

    def set_observations(self, *, new_data: ByAgent, **where: Unpack[SetterOptions]) -> None:
        """`SingleAgentEpisode.set_observations` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("observations", new_data, **where)

    def set_actions(self, *, new_data: ByAgent, **where: Unpack[SetterOptions]) -> None:
        """`SingleAgentEpisode.set_actions` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("actions", new_data, **where)

    def set_rewards(self, *, new_data: ByAgent, **where: Unpack[SetterOptions]) -> None:
        """`SingleAgentEpisode.set_rewards` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("rewards", new_data, **where)

    def set_extra_model_outputs(self, *, key: str, new_data: ByAgent, **where: Unpack[SetterOptions]) -> None:
        """`SingleAgentEpisode.set_extra_model_outputs` by agent. Raises EpisodeKeyError for unknown agents."""
        self._set("extra_model_outputs", new_data, key=key, **where)

    def _set(self, kind: str, new_data: ByAgent, **options: Any) -> None:
        unknown = [agent for agent in new_data if agent not in self.agent_episodes]
        if unknown:
            known = ", ".join(map(str, self.agent_episodes)) or "there are none"
            what = f"no agent {unknown[0]!r} in this episode"
            raise EpisodeKeyError(what, where=f"multi-agent episode {self.id_}", fix=f"one of: {known}")
        for agent, data in new_data.items():
            getattr(self.agent_episodes[agent], f"set_{kind}")(new_data=data, **options)
