"""Connectors: pieces between episodes and modules, and the pipelines made of them; imports nothing until a name is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the names below are, for type checkers and editors
    from offline_cli.connectors.common.add_observations_from_episodes_to_batch import (
        AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    )
    from offline_cli.connectors.common.add_states_from_episodes_to_batch import (
        AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    )
    from offline_cli.connectors.common.add_time_dim_to_batch_and_zero_pad import (
        AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
    )
    from offline_cli.connectors.common.agent_to_module_mapping import AgentToModuleMapping as AgentToModuleMapping
    from offline_cli.connectors.common.batch_individual_items import BatchIndividualItems as BatchIndividualItems
    from offline_cli.connectors.common.flatten_observations import FlattenObservations as FlattenObservations
    from offline_cli.connectors.common.frame_stacking import FrameStacking as FrameStacking
    from offline_cli.connectors.common.mean_std_filter import MeanStdFilter as MeanStdFilter
    from offline_cli.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping as ModuleToAgentUnmapping
    from offline_cli.connectors.common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
    from offline_cli.connectors.common.observation_transform import ObservationTransform as ObservationTransform
    from offline_cli.connectors.common.prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards
    from offline_cli.connectors.common.tensor_to_numpy import TensorToNumpy as TensorToNumpy
    from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2 as ConnectorPipelineV2
    from offline_cli.connectors.connector_v2 import ConnectorV2 as ConnectorV2
    from offline_cli.connectors.env_to_module.atari import AtariImages as AtariImages
    from offline_cli.connectors.env_to_module.atari import AtariRam as AtariRam
    from offline_cli.connectors.env_to_module.default_pipeline import EnvToModulePipeline as EnvToModulePipeline
    from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline as env_to_module_pipeline
    from offline_cli.connectors.env_to_module.gymnasium_wrapper import GymnasiumWrapper as GymnasiumWrapper
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
    )
    from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor as ObservationPreprocessor
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
    )
    from offline_cli.connectors.env_to_module.one_hot import OneHot as OneHot
    from offline_cli.connectors.env_to_module.write_observations_to_episodes import (
        WriteObservationsToEpisodes as WriteObservationsToEpisodes,
    )
    from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import (
        AddColumnsFromEpisodesToBatch as AddColumnsFromEpisodesToBatch,
    )
    from offline_cli.connectors.learner.add_columns_from_episodes_to_batch import (
        AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.add_infos_from_episodes_to_train_batch import (
        AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
        AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
    )
    from offline_cli.connectors.learner.add_one_ts_to_episodes_and_truncate import (
        AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
    )
    from offline_cli.connectors.learner.clip_rewards import ClipRewards as ClipRewards
    from offline_cli.connectors.learner.compute_returns_to_go import ComputeReturnsToGo as ComputeReturnsToGo
    from offline_cli.connectors.learner.default_pipeline import LearnerConnectorPipeline as LearnerConnectorPipeline
    from offline_cli.connectors.learner.default_pipeline import learner_pipeline as learner_pipeline
    from offline_cli.connectors.learner.general_advantage_estimation import (
        GeneralAdvantageEstimation as GeneralAdvantageEstimation,
    )
    from offline_cli.connectors.learner.n_step_returns import NStepReturns as NStepReturns
    from offline_cli.connectors.module_to_env.default_pipeline import ModuleToEnvPipeline as ModuleToEnvPipeline
    from offline_cli.connectors.module_to_env.default_pipeline import module_to_env_pipeline as module_to_env_pipeline
    from offline_cli.connectors.module_to_env.get_actions import GetActions as GetActions
    from offline_cli.connectors.module_to_env.listify_data_for_vector_env import (
        ListifyDataForVectorEnv as ListifyDataForVectorEnv,
    )
    from offline_cli.connectors.module_to_env.normalize_and_clip_actions import (
        NormalizeAndClipActions as NormalizeAndClipActions,
    )
    from offline_cli.connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
        RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch,
    )
    from offline_cli.connectors.module_to_env.unbatch_to_individual_items import (
        UnBatchToIndividualItems as UnBatchToIndividualItems,
    )

_HOMES = {
    "AddColumnsFromEpisodesToBatch": "learner.add_columns_from_episodes_to_batch",
    "AddColumnsFromEpisodesToTrainBatch": "learner.add_columns_from_episodes_to_batch",
    "AddInfosFromEpisodesToTrainBatch": "learner.add_infos_from_episodes_to_train_batch",
    "AddNextObservationsFromEpisodesToTrainBatch": "learner.add_next_observations_from_episodes_to_train_batch",
    "AddObservationsFromEpisodesToBatch": "common.add_observations_from_episodes_to_batch",
    "AddOneTsToEpisodesAndTruncate": "learner.add_one_ts_to_episodes_and_truncate",
    "AddStatesFromEpisodesToBatch": "common.add_states_from_episodes_to_batch",
    "AddTimeDimToBatchAndZeroPad": "common.add_time_dim_to_batch_and_zero_pad",
    "AgentToModuleMapping": "common.agent_to_module_mapping",
    "AtariImages": "env_to_module.atari",
    "AtariRam": "env_to_module.atari",
    "BatchIndividualItems": "common.batch_individual_items",
    "ClipRewards": "learner.clip_rewards",
    "ComputeReturnsToGo": "learner.compute_returns_to_go",
    "ConnectorPipelineV2": "connector_pipeline_v2",
    "ConnectorV2": "connector_v2",
    "EnvToModulePipeline": "env_to_module.default_pipeline",
    "FlattenObservations": "common.flatten_observations",
    "FrameStacking": "common.frame_stacking",
    "GeneralAdvantageEstimation": "learner.general_advantage_estimation",
    "GetActions": "module_to_env.get_actions",
    "GymnasiumWrapper": "env_to_module.gymnasium_wrapper",
    "LearnerConnectorPipeline": "learner.default_pipeline",
    "ListifyDataForVectorEnv": "module_to_env.listify_data_for_vector_env",
    "MeanStdFilter": "common.mean_std_filter",
    "ModuleToAgentUnmapping": "common.module_to_agent_unmapping",
    "ModuleToEnvPipeline": "module_to_env.default_pipeline",
    "MultiAgentObservationPreprocessor": "env_to_module.observation_preprocessor",
    "NStepReturns": "learner.n_step_returns",
    "NormalizeAndClipActions": "module_to_env.normalize_and_clip_actions",
    "NumpyToTensor": "common.numpy_to_tensor",
    "ObservationPreprocessor": "env_to_module.observation_preprocessor",
    "ObservationTransform": "common.observation_transform",
    "OneHot": "env_to_module.one_hot",
    "PrevActionsPrevRewards": "common.prev_actions_prev_rewards",
    "RemoveSingleTsTimeRankFromBatch": "module_to_env.remove_single_ts_time_rank_from_batch",
    "SingleAgentObservationPreprocessor": "env_to_module.observation_preprocessor",
    "TensorToNumpy": "common.tensor_to_numpy",
    "UnBatchToIndividualItems": "module_to_env.unbatch_to_individual_items",
    "WriteObservationsToEpisodes": "env_to_module.write_observations_to_episodes",
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
