"""One step of the environment, agent by agent; a step that is impossible for an agent raises before anything is written.

What each agent was given decides what becomes of it: it completes a step, begins one that hangs until its next observation,
comes in with its first observation, keeps waiting, or ends. Rewards are never lost: they wait for the step that is under way,
or for the first one; a last reward without a step under way is added to the agent's last step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from offline_cli.episodes.multi_agent.episode_data import SKIP, AgentID, MultiAgentData, Timeline
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadEpisode

__all__ = ["ALL", "Step", "credit", "drop_hanging", "enter", "hang"]

T = TypeVar("T")
ALL = "__all__"  # the key of flags that hold for every agent


@dataclass(slots=True)  # not frozen: that would triple the cost of making one per agent and step
class Share:
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

    @property
    def has_data(self) -> bool:
        return any(part is not None for part in (self.observation, self.action, self.reward, self.infos, self.extra))


@dataclass(slots=True)
class Step:
    """A step by kind of data, each a dict by agent. Raises BadEpisode from `checked` only."""

    episode: MultiAgentData
    observations: Mapping[AgentID, Any]
    actions: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, Any]
    infos: Mapping[AgentID, Any]
    terminateds: Mapping[AgentID, bool]
    truncateds: Mapping[AgentID, bool]
    extra: Mapping[AgentID, Any]

    def checked(self) -> Callable[[], None]:
        """A function that adds this step, and cannot fail any more."""
        shares = {agent: self._share(agent) for agent in self._agents()}
        commits = [self._planned(agent, share) for agent, share in shares.items()]
        terminated, truncated = self._ends(shares)
        episode = self.episode

        def commit() -> None:
            episode.env_t += 1
            for add in commits:
                add()
            for timeline in episode.env_t_to_agent_t.values():
                if len(timeline.data) < episode.moments:
                    timeline.append(SKIP)
            episode.is_terminated, episode.is_truncated = terminated, truncated

        return commit

    def _agents(self) -> list[AgentID]:
        """The agents to process, in an order that does not change from run to run."""
        given = (self.observations, self.actions, self.rewards, self.terminateds, self.truncateds)
        named = dict.fromkeys(agent for part in given for agent in part if agent != ALL)
        if self.terminateds.get(ALL) or self.truncateds.get(ALL):
            named.update(dict.fromkeys(self.episode.agent_episodes))
        return list(named)

    def _share(self, agent: AgentID) -> Share:
        kinds = self.observations, self.actions, self.rewards, self.infos, self.extra
        data: list[Any] = [kind.get(agent) for kind in kinds]
        return Share(*data, *(bool(flags.get(agent) or flags.get(ALL)) for flags in (self.terminateds, self.truncateds)))

    def _ends(self, shares: Mapping[AgentID, Share]) -> tuple[bool, bool]:
        """Whether the episode is terminated, and whether truncated: as `__all__` says, or once every agent is done.

        It then counts as truncated only where all agents are: with one of them terminated, it is terminated.
        """
        terminated, truncated = bool(self.terminateds.get(ALL)), bool(self.truncateds.get(ALL))
        known = self.episode.agent_episodes
        came = [agent for agent, share in shares.items() if agent not in known and share.observation is not None]
        if terminated or truncated or not known or not all(shares[agent].is_done for agent in came):
            return terminated, truncated
        flags = [self._flags(agent, episode, shares.get(agent)) for agent, episode in known.items()]
        if not all(any(pair) for pair in flags):
            return False, False
        return any(pair[0] for pair in flags), not any(pair[0] for pair in flags)

    @staticmethod
    def _flags(agent: AgentID, episode: SingleAgentEpisode, share: Share | None) -> tuple[bool, bool]:
        if episode.is_done or share is None:
            return episode.is_terminated, episode.is_truncated
        return share.terminated, share.truncated

    # ---- one agent ----

    def _planned(self, agent: AgentID, share: Share) -> Callable[[], None]:
        episode = self.episode.agent_episodes.get(agent)
        if episode is not None and episode.is_done:
            if share.has_data:
                raise self._bad(agent, "is done, yet was given data", "give done agents nothing but their flags")
            return _nothing
        waits = agent in self.episode._hanging_actions_end
        if share.action is None and not waits:
            return self._not_acting(agent, episode, share)
        self._check_action(agent, episode, share, waits)
        if share.observation is not None or share.is_done:
            return self._completed(agent, self.episode.agent_episodes[agent], share, waits)
        if share.action is None:
            return lambda: _owe(self.episode._hanging_rewards_end, agent, share.reward)
        self._located(agent, self.episode.agent_episodes[agent].check_outputs, share.extra or {})
        return lambda: hang(self.episode, agent, share.action, share.reward, share.extra)

    def _check_action(self, agent: AgentID, episode: SingleAgentEpisode | None, share: Share, waits: bool) -> None:
        if episode is None:
            raise self._bad(agent, "acts before its first observation", "give its first observation without an action")
        if share.action is not None and waits:
            raise self._bad(agent, "acts again before the next observation", "give an action once per observation")
        if share.action is not None and share.observation is not None and share.reward is None:
            raise self._bad(agent, "acted and got an observation, but no reward", "give 0.0 where there is none")
        if share.observation is None and share.truncated:
            what, fix = "acted and was truncated without a last observation", "give the observation to estimate a value from"
            raise self._bad(agent, what, fix)

    def _completed(self, agent: AgentID, episode: SingleAgentEpisode, share: Share, waits: bool) -> Callable[[], None]:
        """The step's end; an agent terminated without an observation sees its last one again, which is not used in training."""
        whole, again = self.episode, share.observation is None
        observation, infos = (
            (episode.get_observations(-1), episode.get_infos(-1)) if again else (share.observation, share.infos)
        )
        action = whole._hanging_actions_end[agent] if waits else share.action
        reward = whole._hanging_rewards_end.get(agent, 0.0) + (0.0 if share.reward is None else share.reward)
        extra = whole._hanging_extra_model_outputs_end.get(agent) if waits else share.extra
        given = observation, action, reward, infos, share.terminated, share.truncated, extra or {}
        add = self._located(agent, episode.checked_step, *given)

        def commit() -> None:
            add()
            whole.env_t_to_agent_t[agent].append(episode.t)
            drop_hanging(whole, agent)

        return commit

    def _not_acting(self, agent: AgentID, episode: SingleAgentEpisode | None, share: Share) -> Callable[[], None]:
        whole = self.episode
        if episode is None:
            return self._outside(agent, share)
        if share.is_done:
            return lambda: self._end_waiting(agent, episode, share)
        if share.observation is not None:
            fix = "give observations to agents that are to act next, and to agents that acted"
            raise self._bad(agent, "got another observation without having acted", fix)
        return lambda: _owe(whole._hanging_rewards_end, agent, share.reward)

    def _outside(self, agent: AgentID, share: Share) -> Callable[[], None]:
        """An agent that has seen nothing so far: it comes in unless it is done at once."""
        whole = self.episode
        if share.is_done:
            return lambda: drop_hanging(whole, agent)
        if share.observation is None:
            return lambda: _owe(whole._hanging_rewards_begin, agent, share.reward)

        def commit() -> None:
            enter(whole, agent, share.observation, share.infos)
            _owe(whole._hanging_rewards_begin, agent, share.reward)

        return commit

    def _end_waiting(self, agent: AgentID, episode: SingleAgentEpisode, share: Share) -> None:
        """The end of an agent that has not acted since its last observation; one without an action has no place."""
        episode.is_terminated, episode.is_truncated = share.terminated, share.truncated
        self.episode._hanging_rewards_begin.pop(agent, None)
        _owe(self.episode._hanging_rewards_end, agent, share.reward)
        credit(self.episode, agent)

    def _located(self, agent: AgentID, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """The result of `call`; its errors name the agent."""
        try:
            return call(*args, **options)
        except BadEpisode as err:
            err.where = f"multi-agent episode {self.episode.id_}, agent {agent!r}, {err.where}"
            raise

    def _bad(self, agent: AgentID, what: str, fix: str) -> BadEpisode:
        where = f"multi-agent episode {self.episode.id_}, environment timestep {self.episode.env_t + 1}"
        return BadEpisode(f"agent {agent!r} {what}", where=where, fix=fix)


def _nothing() -> None:
    """For agents that were done before and got nothing."""


def _owe(rewards: dict[AgentID, float], agent: AgentID, reward: Any) -> None:
    if reward:
        rewards[agent] = rewards.get(agent, 0.0) + reward


def enter(whole: MultiAgentData, agent: AgentID, observation: Any, infos: Any) -> None:
    """Let an agent in with its first observation, at the environment timestep that is the last one now."""
    episode = SingleAgentEpisode(
        agent_id=agent,
        module_id=whole.module_for(agent),
        multi_agent_episode_id=whole.id_,
        observation_space=whole.observation_space.get(agent),
        action_space=whole.action_space.get(agent),
    )
    episode.add_env_reset(observation, infos)
    whole.agent_episodes[agent] = episode
    whole.env_t_to_agent_t[agent] = Timeline([*[SKIP] * (whole.moments - 1), 0], whole._lookback)


def hang(whole: MultiAgentData, agent: AgentID, action: Any, reward: Any, extra: Any) -> None:
    """Keep an action until the agent sees its result."""
    whole._hanging_actions_end[agent] = action
    whole._hanging_extra_model_outputs_end[agent] = dict(extra or {})
    whole._hanging_rewards_end[agent] = whole._hanging_rewards_end.get(agent, 0.0) + (0.0 if reward is None else reward)


def credit(whole: MultiAgentData, agent: AgentID) -> None:
    """Add an ended agent's rewards that no step holds to its last step; they keep hanging where this chunk has none."""
    episode, owed = whole.agent_episodes[agent], whole._hanging_rewards_end.get(agent, 0.0)
    if owed and len(episode):
        episode.set_rewards(new_data=episode.get_rewards(-1) + owed, at_indices=-1)
        del whole._hanging_rewards_end[agent]


def drop_hanging(whole: MultiAgentData, agent: AgentID) -> None:
    """Forget what hangs for an agent: it has found its step, or never will."""
    for hanging in (whole._hanging_actions_end, whole._hanging_extra_model_outputs_end, whole._hanging_rewards_end):
        hanging.pop(agent, None)
    if agent not in whole.agent_episodes or whole.agent_episodes[agent].is_done:
        whole._hanging_rewards_begin.pop(agent, None)
