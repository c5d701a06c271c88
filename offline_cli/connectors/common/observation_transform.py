"""ObservationTransform, the base class of pieces that replace the observations of episodes.

In an env-to-module pipeline the last observation of each episode is overwritten, as in RLlib. Recordings hold raw
observations, so a learner pipeline needs the same piece with `as_learner_connector=True`: there every observation of each
episode changes, the last one and the lookback buffer included, so that all pieces after it (frame stacking, next observations)
see one kind. With an `EpisodeBatch` the batch stays as it is, and the pieces after this one get a changed one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["ObservationTransform", "change_observations", "check_no_obs"]


class ObservationTransform(TwoSidedPiece):
    """Subclasses say how rows of observations change (`transform`), and to which space (`transformed_space`).

    `multi_agent`: the spaces are Dicts by agent, and each agent's observations are changed by its own.
    """

    whole_arrays = True
    writes_episodes = True

    def __init__(self, *spaces: Space | None, multi_agent: bool = False, **kwargs: Any) -> None:
        self._multi_agent = multi_agent
        super().__init__(*spaces, **kwargs)

    @abstractmethod
    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Leaves (N, ...) for observations (N, ...) of `space`, those of one agent."""

    @abstractmethod
    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """The space of one agent's observations after this piece. Raises SpaceMismatch."""

    def takes_arrays(self) -> bool:
        """For learners of one agent."""
        return self._as_learner_connector and not self._multi_agent

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The changed space, agent by agent where there are several."""
        if not self._multi_agent:
            return self.transformed_space(input_observation_space, input_action_space)
        if not isinstance(input_observation_space, spaces.Dict):
            got = f"observations of {input_observation_space}"
            raise self.misfit(got, "a Dict by agent", fix="multi_agent=False where there is a single agent")
        actions = input_action_space.spaces if isinstance(input_action_space, spaces.Dict) else {}
        every = input_observation_space.spaces.items()
        return spaces.Dict({agent: self.transformed_space(space, actions.get(agent)) for agent, space in every})  # type: ignore[arg-type]

    # ---- arrays ----

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, EpisodeBatch]:
        """The batch as it is, and the episodes with all observations changed. Raises BadPiece as `__call__` does."""
        check_no_obs(self, batch)
        return batch, replace(episodes, obs=self.transformed_batch(episodes), observation_space=self.observation_space)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Leaves (N+E, ...) for the observations of a batch of episodes of a single agent."""
        return self.transform(episodes.obs, self.space_before(None), None)

    # ---- a list of episodes ----

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch as it is; the episodes have other observations. Raises BadPiece where the batch has `obs` already."""
        check_no_obs(self, batch)
        assert not isinstance(episodes, EpisodeBatch), "arrays are read-only: call on_episode_batch, or a pipeline"
        groups: dict[Any, list[SingleAgentEpisode]] = {}  # changed together: all of them, or each agent's
        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            groups.setdefault(episode.agent_id if self._multi_agent else None, []).append(episode)
        for agent_id, own in groups.items():
            (self.change_all if self._as_learner_connector else self.change_last)(own, agent_id)
        return batch

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite the last observation of each."""
        space = self.space_before(agent_id)
        rows = stack([episode.get_observations(-1) for episode in episodes], space)
        changed = unstack(self.transform(rows, space, agent_id))
        for episode, observation in zip(episodes, changed, strict=True):
            episode.observation_space = self.space_after(agent_id)  # first: the old space need not contain the new observation
            episode.set_observations(at_indices=-1, new_data=observation)

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Overwrite all observations of each."""
        before, after = self.space_before(agent_id), self.space_after(agent_id)
        for episode in episodes:
            change_observations(episode, lambda rows: self.transform(rows, before, agent_id), after)

    # ---- spaces ----

    def space_before(self, agent_id: Any) -> Any:
        """The space of one agent's observations before this piece; the whole one for a single agent."""
        return self._of_agent(self.input_observation_space, agent_id)

    def space_after(self, agent_id: Any) -> Any:
        """The space of one agent's observations after this piece; the whole one for a single agent."""
        return self._of_agent(self.observation_space, agent_id)

    def _of_agent(self, space: Any, agent_id: Any) -> Any:
        if space is None:
            fix = "put it in a pipeline, or give it its input spaces"
            raise self.misfit("no spaces", "to know them before any data", fix=fix)
        if not self._multi_agent:
            return space
        if agent_id not in space.spaces:
            raise self.misfit(f"an observation of agent {agent_id!r}", f"one of {list(space.spaces)}", fix="another space")
        return space[agent_id]


def check_no_obs(piece: ConnectorV2, batch: Batch) -> None:
    """Raise BadPiece where `piece`, which changes episodes, comes after one that put their observations into the batch."""
    if Columns.OBS in batch:
        fix = f"put {type(piece).__name__} before pieces that fill obs, such as FrameStacking"
        raise piece.bad("obs are in the batch already, and would not change", fix=fix)


def change_observations(episode: SingleAgentEpisode, change: Callable[[Tree], Tree], space: Space | None) -> None:
    """Put `change(rows)` in the place of all observations (N, ...) of an episode, lookback buffer included."""
    held = episode.observations
    if held.len_incl_lookback():
        rows = change(held.shared() if held.finalized else stack(held.data, held.space))
        if held.finalized:
            held.replace(rows)
            held.shared()  # leaves that did not change are still held elsewhere
        else:
            held.data = unstack(rows)
    episode.observation_space = space
