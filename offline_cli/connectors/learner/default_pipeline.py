"""The default learner pipeline and its builders; refuses pieces that are not connectors."""

from __future__ import annotations

from typing import Any

from offline_cli.connectors.builders import Custom, custom_pieces
from offline_cli.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from offline_cli.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from offline_cli.connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from offline_cli.connectors.common.batch_individual_items import BatchIndividualItems
from offline_cli.connectors.common.numpy_to_tensor import NumpyToTensor
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import AddColumnsFromEpisodesToBatch
from offline_cli.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from offline_cli.spaces import Space

__all__ = ["LearnerPipeline", "default_pieces", "learner_pipeline"]

LearnerPipeline = Custom
"""A builder in RLlib's form, `lambda obs_space, act_space: piece or pieces`; or the pieces themselves."""


def learner_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: LearnerPipeline = None,
    mapping: AgentToModuleMapping | None = None,
    device: Any = None,
    add_default_connectors_to_learner_pipeline: bool = True,
) -> LearnerConnectorPipeline:
    """Custom pieces first, then, unless told not to, the default ones.

    `mapping` (made with `as_learner_connector=True`): which module learns from each agent's data, for several agents. `device`:
    where tensors go, the CPU unless told. Raises BadPiece where `custom` gives something else than pieces, SpaceMismatch where
    spaces do not fit.
    """
    pieces = [] if custom is None else custom_pieces(custom, "learner", observation_space, action_space)
    if add_default_connectors_to_learner_pipeline:
        pieces += default_pieces(mapping, device)
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=pieces)
    pipeline.multi_agent = mapping is not None
    return pipeline


def default_pieces(mapping: AgentToModuleMapping | None = None, device: Any = None) -> list[ConnectorV2]:
    """The default pieces, in order; those for stateful modules are always there, and do nothing for others."""
    return [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToBatch(),
        AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        AddStatesFromEpisodesToBatch(as_learner_connector=True),
        *([] if mapping is None else [mapping]),
        BatchIndividualItems(multi_agent=mapping is not None),
        NumpyToTensor(device=device),
    ]
