"""Connectors: pieces between episodes and modules, and the pipelines that are made of them."""

from offline_cli.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from offline_cli.connectors.common.batch_individual_items import BatchIndividualItems
from offline_cli.connectors.common.numpy_to_tensor import NumpyToTensor
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import AddColumnsFromEpisodesToBatch

__all__ = [
    "AddColumnsFromEpisodesToBatch",
    "AddObservationsFromEpisodesToBatch",
    "BatchIndividualItems",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "NumpyToTensor",
]
