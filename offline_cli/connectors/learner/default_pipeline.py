"""The default learner pipeline and its builders; refuses pieces that are not connectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offline_cli.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from offline_cli.connectors.common.batch_individual_items import BatchIndividualItems
from offline_cli.connectors.common.numpy_to_tensor import NumpyToTensor
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import AddColumnsFromEpisodesToBatch
from offline_cli.errors import BadConfig
from offline_cli.spaces import Space

__all__ = ["LearnerPipeline", "learner_pipeline"]

LearnerPipeline = Callable[[Space, Space], ConnectorV2 | Sequence[ConnectorV2]]
"""A builder in RLlib's form, `lambda obs_space, act_space: piece or pieces`."""


def learner_pipeline(
    observation_space: Space, action_space: Space, *, custom: LearnerPipeline | None = None
) -> ConnectorPipelineV2:
    """Custom pieces first, then observations, all other columns, stacking, tensors (on the CPU).

    The time dimension and states belong to recurrent modules and are not part of it. Raises BadConfig where `custom` gives
    something else than pieces.
    """
    made = [] if custom is None else custom(observation_space, action_space)
    pieces = list(made) if isinstance(made, Sequence) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            raise BadConfig(
                f"the pipeline's builder gave {type(piece).__name__}, not a ConnectorV2",
                where="learner pipeline",
                fix="give one piece or a list of pieces",
            )
    defaults = [
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToBatch(),
        BatchIndividualItems(),
        NumpyToTensor(),
    ]
    return ConnectorPipelineV2(observation_space, action_space, connectors=[*pieces, *defaults])
