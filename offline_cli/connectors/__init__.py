"""Connectors: pieces between episodes and modules, and the pipelines made of them; imports nothing until a name is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from offline_cli.connectors.common.batch_columns import (
        AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    )
    from offline_cli.connectors.common.batch_columns import NumpyToTensor as NumpyToTensor
    from offline_cli.connectors.common.batch_columns import TensorToNumpy as TensorToNumpy
    from offline_cli.connectors.common.batching import AgentToModuleMapping as AgentToModuleMapping
    from offline_cli.connectors.common.batching import BatchIndividualItems as BatchIndividualItems
    from offline_cli.connectors.common.batching import ModuleToAgentUnmapping as ModuleToAgentUnmapping
    from offline_cli.connectors.common.flattening import FlattenObservations as FlattenObservations
    from offline_cli.connectors.common.flattening import PrevActionsPrevRewards as PrevActionsPrevRewards
    from offline_cli.connectors.common.frame_stacking import FrameStacking as FrameStacking
    from offline_cli.connectors.common.mean_std_filter import MeanStdFilter as MeanStdFilter
    from offline_cli.connectors.common.observation_transform import ObservationTransform as ObservationTransform
    from offline_cli.connectors.common.states_and_time import (
        AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    )
    from offline_cli.connectors.common.states_and_time import (
        AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
    )
    from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2 as ConnectorPipelineV2
    from offline_cli.connectors.connector_v2 import ConnectorV2 as ConnectorV2
    from offline_cli.connectors.env_to_module.built_in_preprocessing import AtariImages as AtariImages
    from offline_cli.connectors.env_to_module.built_in_preprocessing import AtariRam as AtariRam
    from offline_cli.connectors.env_to_module.built_in_preprocessing import OneHot as OneHot
    from offline_cli.connectors.env_to_module.default_pipeline import EnvToModulePipeline as EnvToModulePipeline
    from offline_cli.connectors.env_to_module.default_pipeline import (
        WriteObservationsToEpisodes as WriteObservationsToEpisodes,
    )
    from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline as env_to_module_pipeline
    from offline_cli.connectors.env_to_module.observation_preprocessor import GymnasiumWrapper as GymnasiumWrapper
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
    )
    from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor as ObservationPreprocessor
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
    )
    from offline_cli.connectors.learner.add_one_ts_to_episodes_and_truncate import (
        AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
    )
    from offline_cli.connectors.learner.added_columns import (
        AddColumnsFromEpisodesToBatch as AddColumnsFromEpisodesToBatch,
    )
    from offline_cli.connectors.learner.added_columns import (
        AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.added_columns import (
        AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.added_columns import (
        AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.default_pipeline import LearnerConnectorPipeline as LearnerConnectorPipeline
    from offline_cli.connectors.learner.default_pipeline import learner_pipeline as learner_pipeline
    from offline_cli.connectors.learner.returns import ClipRewards as ClipRewards
    from offline_cli.connectors.learner.returns import ComputeReturnsToGo as ComputeReturnsToGo
    from offline_cli.connectors.learner.returns import (
        GeneralAdvantageEstimation as GeneralAdvantageEstimation,
    )
    from offline_cli.connectors.learner.returns import NStepReturns as NStepReturns
    from offline_cli.connectors.module_to_env.default_pipeline import ModuleToEnvPipeline as ModuleToEnvPipeline
    from offline_cli.connectors.module_to_env.default_pipeline import (
        NormalizeAndClipActions as NormalizeAndClipActions,
    )
    from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline as module_to_env_pipeline
    from offline_cli.connectors.module_to_env.unbatching import GetActions as GetActions
    from offline_cli.connectors.module_to_env.unbatching import (
        ListifyDataForVectorEnv as ListifyDataForVectorEnv,
    )
    from offline_cli.connectors.module_to_env.unbatching import (
        RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch,
    )
    from offline_cli.connectors.module_to_env.unbatching import (
        UnBatchToIndividualItems as UnBatchToIndividualItems,
    )

_HOMES = {
    "AddColumnsFromEpisodesToBatch": "learner.added_columns",
    "AddColumnsFromEpisodesToTrainBatch": "learner.added_columns",
    "AddInfosFromEpisodesToTrainBatch": "learner.added_columns",
    "AddNextObservationsFromEpisodesToTrainBatch": "learner.added_columns",
    "AddObservationsFromEpisodesToBatch": "common.batch_columns",
    "AddOneTsToEpisodesAndTruncate": "learner.add_one_ts_to_episodes_and_truncate",
    "AddStatesFromEpisodesToBatch": "common.states_and_time",
    "AddTimeDimToBatchAndZeroPad": "common.states_and_time",
    "AgentToModuleMapping": "common.batching",
    "AtariImages": "env_to_module.built_in_preprocessing",
    "AtariRam": "env_to_module.built_in_preprocessing",
    "BatchIndividualItems": "common.batching",
    "ClipRewards": "learner.returns",
    "ComputeReturnsToGo": "learner.returns",
    "ConnectorPipelineV2": "connector_pipeline_v2",
    "ConnectorV2": "connector_v2",
    "EnvToModulePipeline": "env_to_module.default_pipeline",
    "FlattenObservations": "common.flattening",
    "FrameStacking": "common.frame_stacking",
    "GeneralAdvantageEstimation": "learner.returns",
    "GetActions": "module_to_env.unbatching",
    "GymnasiumWrapper": "env_to_module.observation_preprocessor",
    "LearnerConnectorPipeline": "learner.default_pipeline",
    "ListifyDataForVectorEnv": "module_to_env.unbatching",
    "MeanStdFilter": "common.mean_std_filter",
    "ModuleToAgentUnmapping": "common.batching",
    "ModuleToEnvPipeline": "module_to_env.default_pipeline",
    "MultiAgentObservationPreprocessor": "env_to_module.observation_preprocessor",
    "NStepReturns": "learner.returns",
    "NormalizeAndClipActions": "module_to_env.default_pipeline",
    "NumpyToTensor": "common.batch_columns",
    "ObservationPreprocessor": "env_to_module.observation_preprocessor",
    "ObservationTransform": "common.observation_transform",
    "OneHot": "env_to_module.built_in_preprocessing",
    "PrevActionsPrevRewards": "common.flattening",
    "RemoveSingleTsTimeRankFromBatch": "module_to_env.unbatching",
    "SingleAgentObservationPreprocessor": "env_to_module.observation_preprocessor",
    "TensorToNumpy": "common.batch_columns",
    "UnBatchToIndividualItems": "module_to_env.unbatching",
    "WriteObservationsToEpisodes": "env_to_module.default_pipeline",
    "env_to_module_pipeline": "env_to_module.default_pipeline",
    "learner_pipeline": "learner.default_pipeline",
    "module_to_env_pipeline": "module_to_env.default_pipeline",
}

__all__ = [
    "AddColumnsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddOneTsToEpisodesAndTruncate",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "AtariImages",
    "AtariRam",
    "BatchIndividualItems",
    "ClipRewards",
    "ComputeReturnsToGo",
    "ConnectorPipelineV2",
    "ConnectorV2",
    "EnvToModulePipeline",
    "FlattenObservations",
    "FrameStacking",
    "GeneralAdvantageEstimation",
    "GetActions",
    "GymnasiumWrapper",
    "LearnerConnectorPipeline",
    "ListifyDataForVectorEnv",
    "MeanStdFilter",
    "ModuleToAgentUnmapping",
    "ModuleToEnvPipeline",
    "MultiAgentObservationPreprocessor",
    "NStepReturns",
    "NormalizeAndClipActions",
    "NumpyToTensor",
    "ObservationPreprocessor",
    "ObservationTransform",
    "OneHot",
    "PrevActionsPrevRewards",
    "RemoveSingleTsTimeRankFromBatch",
    "SingleAgentObservationPreprocessor",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
    "WriteObservationsToEpisodes",
    "env_to_module_pipeline",
    "learner_pipeline",
    "module_to_env_pipeline",
]


def __getattr__(name: str) -> Any:
    """Load the module behind a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
