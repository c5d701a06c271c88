"""The default env-to-module pipeline, and the piece that writes a batch's observations back into the episodes.

Custom pieces come first, in the order given, and must be connectors. Then, as documented by RLlib: the last observations, for
stateful modules a time axis of one step and the states, for several agents the mapping to modules, stacking, tensors. The
pieces for stateful modules are always there and do nothing for others, so that one pipeline serves any module.
"""

from __future__ import annotations

from typing import Any

from offline_cli.columns import Columns
from offline_cli.connectors.common.batch_columns import AddObservationsFromEpisodesToBatch, NumpyToTensor
from offline_cli.connectors.common.batching import AgentToModuleMapping, BatchIndividualItems
from offline_cli.connectors.common.states_and_time import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.spaces import Space

__all__ = ["EnvToModulePipeline", "WriteObservationsToEpisodes", "env_to_module_pipeline"]


class WriteObservationsToEpisodes(ConnectorV2):
    """Writes the batch's observations back as the last observation of each episode. Only in env-to-module pipelines."""

    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without observations and for numpy'ized episodes, ValueError for too many or too few."""
        if Columns.OBS not in batch:
            fix = "put AddObservationsFromEpisodesToBatch before it"
            raise self.bad(f"no column {Columns.OBS!r} among {sorted(batch)}", fix=fix)
        for episode, observation in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[Columns.OBS]):
            if episode.is_numpy:
                what = f"episode {episode.id_} is numpy'ized, and only one that goes on is written to"
                raise self.bad(what, fix="keep it in env-to-module pipelines")
            episode.observation_space = self.observation_space
            episode.set_observations(at_indices=-1, new_data=observation)
        return batch


class EnvToModulePipeline(ConnectorPipelineV2):
    """From growing episodes to the batch of a forward pass, one row per episode or agent."""


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
    """Custom pieces and, unless turned off, the default ones.

    `mapping`: which module each agent plays with, for episodes of several agents. `device`: where tensors go, and what builders
    get. Raises BadConfig as `custom_pieces` does, and what the pieces raise for spaces that do not fit.
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
