"""Connectors: pieces between episodes and modules, and the pipelines made of them; imports nothing until a name is used.

RLlib's import paths lead to them, so that code written for RLlib runs after its import line is changed. RLlib has a module for
each piece, here pieces that belong together share one: `offline_cli.connectors.learner.frame_stacking` and others
(`give_paths`) are modules without a file, whose names are those of this package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

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
    from offline_cli.connectors.env_to_module.default_pipeline import EnvToModulePipeline as EnvToModulePipeline
    from offline_cli.connectors.env_to_module.default_pipeline import (
        WriteObservationsToEpisodes as WriteObservationsToEpisodes,
    )
    from offline_cli.connectors.env_to_module.default_pipeline import env_to_module_pipeline as env_to_module_pipeline
    from offline_cli.connectors.env_to_module.observation_preprocessor import AtariImages as AtariImages
    from offline_cli.connectors.env_to_module.observation_preprocessor import AtariRam as AtariRam
    from offline_cli.connectors.env_to_module.observation_preprocessor import GymnasiumWrapper as GymnasiumWrapper
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
    )
    from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor as ObservationPreprocessor
    from offline_cli.connectors.env_to_module.observation_preprocessor import OneHot as OneHot
    from offline_cli.connectors.env_to_module.observation_preprocessor import (
        SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
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
    from offline_cli.connectors.learner.added_columns import (
        AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
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

_MODULES = {
    "common.batch_columns": "AddObservationsFromEpisodesToBatch NumpyToTensor TensorToNumpy",
    "common.batching": "AgentToModuleMapping BatchIndividualItems ModuleToAgentUnmapping",
    "common.flattening": "FlattenObservations PrevActionsPrevRewards",
    "common.frame_stacking": "FrameStacking",
    "common.mean_std_filter": "MeanStdFilter",
    "common.observation_transform": "ObservationTransform",
    "common.states_and_time": "AddStatesFromEpisodesToBatch AddTimeDimToBatchAndZeroPad",
    "connector_pipeline_v2": "ConnectorPipelineV2",
    "connector_v2": "ConnectorV2",
    "env_to_module.default_pipeline": "EnvToModulePipeline WriteObservationsToEpisodes env_to_module_pipeline",
    "env_to_module.observation_preprocessor": (
        "AtariImages AtariRam GymnasiumWrapper MultiAgentObservationPreprocessor ObservationPreprocessor OneHot "
        "SingleAgentObservationPreprocessor"
    ),
    "learner.added_columns": (
        "AddColumnsFromEpisodesToBatch AddColumnsFromEpisodesToTrainBatch AddInfosFromEpisodesToTrainBatch "
        "AddNextObservationsFromEpisodesToTrainBatch AddOneTsToEpisodesAndTruncate"
    ),
    "learner.default_pipeline": "LearnerConnectorPipeline learner_pipeline",
    "learner.returns": "ClipRewards ComputeReturnsToGo GeneralAdvantageEstimation NStepReturns",
    "module_to_env.default_pipeline": "ModuleToEnvPipeline NormalizeAndClipActions module_to_env_pipeline",
    "module_to_env.unbatching": "GetActions ListifyDataForVectorEnv RemoveSingleTsTimeRankFromBatch UnBatchToIndividualItems",
}
"""The public names of each module."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


_PATHS: Final = {
    "common": (
        *("add_observations_from_episodes_to_batch", "add_states_from_episodes_to_batch", "add_time_dim_to_batch_and_zero_pad"),
        *("agent_to_module_mapping", "batch_individual_items", "flatten_observations", "module_to_agent_unmapping"),
        *("numpy_to_tensor", "prev_actions_prev_rewards", "tensor_to_numpy"),
    ),
    "env_to_module": (
        *("env_to_module_pipeline", "flatten_observations", "frame_stacking", "gymnasium_wrapper", "mean_std_filter"),
        *("one_hot", "prev_actions_prev_rewards", "write_observations_to_episodes"),
    ),
    "learner": (
        *("add_columns_from_episodes_to_train_batch", "add_infos_from_episodes_to_train_batch"),
        *("add_next_observations_from_episodes_to_train_batch", "add_one_ts_to_episodes_and_truncate", "compute_returns_to_go"),
        *("frame_stacking", "general_advantage_estimation", "learner_connector_pipeline"),
    ),
    "module_to_env": (
        *("get_actions", "listify_data_for_vector_env", "module_to_env_pipeline", "normalize_and_clip_actions"),
        *("remove_single_ts_time_rank_from_batch", "unbatch_to_individual_items"),
    ),
}
"""RLlib's modules that have no file here, by package."""
_SHORTHANDS: Final = {"FrameStackingEnvToModule": False, "FrameStackingLearner": True}
"""RLlib's names for `FrameStacking` with `as_learner_connector` set."""


def __getattr__(name: str) -> Any:
    """Load the module behind a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def give_paths(package: str) -> None:
    """Make the modules of `_PATHS` below `package`, such as `offline_cli.connectors.learner`. Imports no piece."""
    for name in _PATHS[package.rpartition(".")[2]]:
        path = f"{package}.{name}"
        module = ModuleType(path, "RLlib's import path; see offline_cli.connectors.")
        module.__getattr__ = lookup_in(path)  # type: ignore[method-assign]
        sys.modules.setdefault(path, module)


def lookup_in(path: str) -> Callable[[str], Any]:
    """The `__getattr__` of the module at `path`: the public names of `offline_cli.connectors`, imported when asked for."""

    def lookup(name: str) -> Any:
        if name in _SHORTHANDS:
            return partial(__getattr__("FrameStacking"), as_learner_connector=_SHORTHANDS[name])
        if name not in _HOMES or name.islower():  # RLlib has modules, not functions, under the lower-case names
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        return __getattr__(name)

    return lookup
