"""Observation preprocessors and the default env-to-module pipeline.

The result of a preprocessor replaces the observation in the episode, for all later pieces and the module. In an env-to-module
pipeline it takes the last observation of each episode, as in RLlib. Recordings hold raw observations, so a learner pipeline
needs the same preprocessor with `as_learner_connector=True`: there it takes all observations of each episode, lookback buffer
included.

`env_to_module_pipeline` builds the default pipeline. Custom pieces come first, in the given order. Then, as in RLlib: the last
observations, a time axis of one step and states for stateful modules, the mapping to modules for several agents, stacking,
tensors. The pieces for stateful modules are always present and do nothing for others, so one pipeline serves any module.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.batching import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
)
from offline_cli.connectors.common.flattening import (
    ObservationTransform,
    change_observations,
    check_no_obs,
)
from offline_cli.connectors.common.states_and_time import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.connectors.torch_forms import Flat
from offline_cli.episodes.episode_spaces import hot_size, one_hot_leaf
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.spaces import Space, describe
from offline_cli.trees import Tree

__all__ = [
    "EnvToModulePipeline",
    "MultiAgentObservationPreprocessor",
    "ObservationPreprocessor",
    "OneHot",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
    "env_to_module_pipeline",
]


class _Preprocessor(ConnectorV2):
    """Base class: call `preprocess`, which subclasses define."""

    writes_episodes = True

    @abstractmethod
    def preprocess(self, *args: Any, **kwargs: Any) -> Any:
        """`preprocess(self, observation)` or `preprocess(self, observation, episode)`: the new observation."""

    def _preprocessing(self) -> Callable[[Any, Any], Any]:
        """`preprocess` as a function of (observation, episode); it gets the episode if it has a second parameter."""
        parameters = inspect.signature(self.preprocess).parameters.values()
        if any(p.name == "episode" and p.kind is p.KEYWORD_ONLY for p in parameters):
            return lambda observation, episode: self.preprocess(observation, episode=episode)
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_two = len(placed) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        return self.preprocess if takes_two else lambda observation, _: self.preprocess(observation)

    def _own_space(self, agent_id: Any) -> Space | None:
        """The observation space of one episode after this piece: its agent's part if the space is a Dict by agent."""
        space: Any = self.observation_space
        part: Space | None = space[agent_id] if isinstance(space, spaces.Dict) and agent_id in space.spaces else space
        return part


class SingleAgentObservationPreprocessor(_Preprocessor, TwoSidedPiece):
    """Call `preprocess` with each observation of each agent. Subclasses define it, and the resulting space.

    For whole arrays, derive from `ObservationTransform` instead.
    """

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """Change the episodes in place and return the unchanged batch. Raises BadPiece if the batch already has `obs`."""
        check_no_obs(self, batch)
        preprocess = self._preprocessing()

        def each(episode: Any, space: Space | None, rows: Tree) -> Tree:
            return stack([preprocess(one, episode) for one in unstack(rows)], space)

        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            space = self._own_space(episode.agent_id)
            if self._as_learner_connector:
                change_observations(episode, partial(each, episode, space), space)
            else:
                changed = preprocess(episode.get_observations(-1), episode)
                episode.observation_space = space  # first, because the old space may not contain the new observation
                episode.set_observations(at_indices=-1, new_data=changed)
        return batch


class MultiAgentObservationPreprocessor(_Preprocessor):
    """Call `preprocess` with the last observations of all agents that stepped, a dict by agent; it returns such a dict."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The unchanged batch. Raises BadPiece for an agent that is not in the episode, and if the batch already has `obs`."""
        check_no_obs(self, batch)
        for episode in episodes:
            given: Any = episode
            for agent_id, observation in self._preprocessing()(given.get_observations(-1), given).items():
                agent = given.agent_episodes.get(agent_id)
                if agent is None:
                    what = f"preprocess returned an observation for {agent_id!r}, which is not in episode {given.id_}"
                    raise self.bad(what, fix="return observations only for the agents in its argument")
                if self.observation_space is not None:
                    agent.observation_space = self._own_space(agent_id)
                agent.set_observations(at_indices=-1, new_data=observation)
        return batch


ObservationPreprocessor = SingleAgentObservationPreprocessor


class OneHot(ObservationTransform):
    """Encode Discrete and MultiDiscrete observations as one-hot vectors, float32, counted from `start`.

    Discrete(3), 1 -> [0, 1, 0]; MultiDiscrete([3, 4]), [1, 3] -> [0, 1, 0, 0, 0, 0, 1].
    """

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0, 1). Raises SpaceMismatch for spaces other than Discrete and MultiDiscrete."""
        return spaces.Box(0.0, 1.0, (hot_size(self._counted(observations)),), np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, size) for N observations. Raises BadEpisode for a value outside the space."""
        vectors = one_hot_leaf(rows, self._counted(space), where=f"piece {type(self).__name__}")
        return vectors.reshape(len(vectors), -1)  # single choices may be arrays of length 1

    def to_torch(self) -> Any:
        return Flat(self.space_before(None))

    def _counted(self, space: Space) -> spaces.Discrete[Any] | spaces.MultiDiscrete:
        """The space. Raises SpaceMismatch unless it is Discrete or MultiDiscrete."""
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return space
        got = f"observations of {describe(space)}"
        raise self.misfit(got, "Discrete or MultiDiscrete", fix="use flatten_observations, which takes any space")


# ---- the default pipeline ----


class WriteObservationsToEpisodes(ConnectorV2):
    """Write the batch's observations back as the last observation of each episode. Only for env-to-module pipelines."""

    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without observations and for numpy'ized episodes, ValueError for a wrong number."""
        if Columns.OBS not in batch:
            fix = "put AddObservationsFromEpisodesToBatch before it"
            raise self.bad(f"no column {Columns.OBS!r} among {sorted(batch)}", fix=fix)
        for episode, observation in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[Columns.OBS]):
            if episode.is_numpy:
                what = f"episode {episode.id_} is numpy'ized; only ongoing episodes can be changed"
                raise self.bad(what, fix="use this piece in env-to-module pipelines only")
            episode.observation_space = self.observation_space
            episode.set_observations(at_indices=-1, new_data=observation)
        return batch


class EnvToModulePipeline(ConnectorPipelineV2):
    """Pipeline from ongoing episodes to the batch of a forward pass, one row per episode or agent."""


def env_to_module_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: Custom = None,
    mapping: AgentToModuleMapping | None = None,
    env: Any = None,
    device: Any = None,
    num_envs: int = 1,
    add_default_connectors_to_env_to_module_pipeline: bool = True,
) -> EnvToModulePipeline:
    """Build a pipeline of custom pieces and, unless turned off, the default ones.

    `mapping`: the module of each agent, for several agents. `device`: of tensors, and passed to builders. Raises BadConfig like
    `custom_pieces`, and what the pieces raise for spaces that do not fit.
    """
    pieces = custom_pieces(custom, "env_to_module", observation_space, action_space, env=env, device=device, num_envs=num_envs)
    if add_default_connectors_to_env_to_module_pipeline:
        pieces += default_pieces(mapping, device)
    return EnvToModulePipeline(observation_space, action_space, connectors=pieces)


def default_pieces(mapping: AgentToModuleMapping | None, device: Any) -> list[ConnectorV2]:
    """The default pieces, in order."""
    return [
        AddObservationsFromEpisodesToBatch(),
        AddTimeDimToBatchAndZeroPad(),
        AddStatesFromEpisodesToBatch(),
        *([] if mapping is None else [mapping]),
        BatchIndividualItems(multi_agent=mapping is not None),
        NumpyToTensor(device=device),
    ]
