"""The getters and setters of a multi-agent episode, one pair per kind of data; refuses to know how indices work.

Every getter takes the same: `indices` are environment timesteps, or with `env_steps=False` each agent's own; `agent_ids` one
agent, several, or None for all; `return_list` gives one dict per environment timestep instead of one dict by agent. An agent
that got no observation then is left out, or with `fill` filled. The rest is as in `SingleAgentEpisode`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from offline_cli.episodes.buffers.indexing import Indices
from offline_cli.episodes.multi_agent.episode_data import AgentID, MultiAgentData
from offline_cli.episodes.multi_agent.reading import EXTRA, Question, answer, answer_as_list
from offline_cli.errors import EpisodeKeyError

__all__ = ["MultiAgentAccessors"]

Agents = Collection[AgentID] | AgentID | None


class MultiAgentAccessors(MultiAgentData):
    """Getters and setters for observations, actions, rewards, infos and extra model outputs, by agent."""

    __slots__ = ()

    # ---- getters ----

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Agents = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """By agent, one observation for an int; several otherwise: a list, or leaves (K, *obs_shape).

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get(
            Question(
                "observations", indices, agent_ids, env_steps, neg_index_as_lookback, fill, one_hot_discrete=one_hot_discrete
            ),
            return_list,
        )

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Agents = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """By agent, one info dict for an int; a list of them otherwise, numpy'ized or not.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get(Question("infos", indices, agent_ids, env_steps, neg_index_as_lookback, fill), return_list)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Agents = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """By agent, one action for an int; several otherwise: a list, or leaves (K, *action_shape). Those that hang are there.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get(
            Question("actions", indices, agent_ids, env_steps, neg_index_as_lookback, fill, one_hot_discrete=one_hot_discrete),
            return_list,
        )

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Agents = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: float | None = None,
        return_list: bool = False,
    ) -> Any:
        """By agent, one reward for an int; several otherwise: a list, or an array (K,) float64; of steps that hang: so far.

        Raises EpisodeIndexError outside the episode and its lookback buffer without `fill`.
        """
        return self._get(Question("rewards", indices, agent_ids, env_steps, neg_index_as_lookback, fill), return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Agents = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """By agent, the outputs of name `key`, or a dict of all by name: one for an int, a list or leaves (K, ...) otherwise.

        Agents whose module has no such output are left out. Raises EpisodeKeyError where none has, EpisodeIndexError outside
        the episode and its lookback buffer without `fill`.
        """
        question = Question(EXTRA, indices, agent_ids, env_steps, neg_index_as_lookback, fill, key=key)
        return self._get(question, return_list)

    def _get(self, question: Question, return_list: bool) -> Any:
        return answer_as_list(self, question) if return_list else answer(self, question)

    # ---- setters: of the agents' own timesteps ----

    def set_observations(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """`SingleAgentEpisode.set_observations` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("observations", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """`SingleAgentEpisode.set_actions` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("actions", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """`SingleAgentEpisode.set_rewards` for each agent in `new_data`. Raises EpisodeKeyError for unknown agents."""
        self._set("rewards", new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[AgentID, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """`SingleAgentEpisode.set_extra_model_outputs` by agent. Raises EpisodeKeyError for unknown agents."""
        self._set("extra_model_outputs", new_data, key=key, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def _set(self, kind: str, new_data: Mapping[AgentID, Any], **options: Any) -> None:
        unknown = [agent for agent in new_data if agent not in self.agent_episodes]
        if unknown:
            known = ", ".join(map(str, self.agent_episodes)) or "there are none"
            raise EpisodeKeyError(
                f"no agent {unknown[0]!r} in this episode", where=f"multi-agent episode {self.id_}", fix=f"one of: {known}"
            )
        for agent, data in new_data.items():
            getattr(self.agent_episodes[agent], f"set_{kind}")(new_data=data, **options)
