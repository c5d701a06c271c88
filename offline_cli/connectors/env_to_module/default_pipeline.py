"""The default env-to-module pipeline; refuses custom pieces that are no connectors.

Custom pieces come first, in the order given. Then, as the documents have it: the last observations, for stateful modules a time
axis of one step and the states, for several agents the mapping to modules, stacking, tensors. The pieces for stateful modules
are always there and do nothing for others, so that one pipeline serves any module.
"""

from __future__ import annotations

from typing import Any

from offline_cli.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from offline_cli.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from offline_cli.connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from offline_cli.connectors.common.batch_individual_items import BatchIndividualItems
from offline_cli.connectors.common.numpy_to_tensor import NumpyToTensor
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.spaces import Space

__all__ = ["EnvToModulePipeline", "env_to_module_pipeline"]


class EnvToModulePipeline(ConnectorPipelineV2):
    """From episodes that go on to the batch of a forward pass, one row per episode or agent."""


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
    """Custom pieces and, unless told not to, the default ones.

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
        NumpyToTensor(device="cpu" if device is None else device),
    ]
