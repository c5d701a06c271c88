"""The default module-to-env pipeline; refuses custom pieces that are no connectors.

Custom pieces come where the documents have them: the module's outputs are items of episodes there, and actions are drawn, but
not yet in the units of the environment. A piece that has to come before the drawing, to change logits, is put there by
`pipeline.insert_before("GetActions", piece)`, or with `before = "GetActions"` in a pipeline file.
"""

from __future__ import annotations

from typing import Any

from offline_cli.connectors.common.batching import ModuleToAgentUnmapping
from offline_cli.connectors.common.tensors import TensorToNumpy
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from offline_cli.connectors.module_to_env.unbatching import (
    GetActions,
    ListifyDataForVectorEnv,
    RemoveSingleTsTimeRankFromBatch,
    UnBatchToIndividualItems,
)
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.spaces import Space

__all__ = ["ModuleToEnvPipeline", "module_to_env_pipeline"]


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """From what a forward pass put out to actions that an environment takes."""


def module_to_env_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: Custom = None,
    multi_agent: bool = False,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    env: Any = None,
    num_envs: int = 1,
    add_default_connectors_to_module_to_env_pipeline: bool = True,
) -> ModuleToEnvPipeline:
    """Custom pieces and, unless told not to, the default ones around them.

    `normalize_actions` (RLlib's default) fits modules that put out Box actions in [-1, 1]; for one that puts out the
    environment's units say `normalize_actions=False, clip_actions=True`. Raises BadConfig as `custom_pieces` does.
    """
    pieces = custom_pieces(custom, "module_to_env", observation_space, action_space, env=env, num_envs=num_envs)
    if add_default_connectors_to_module_to_env_pipeline:
        before, after = default_pieces(multi_agent, normalize_actions, clip_actions)
        pieces = [*before, *pieces, *after]
    return ModuleToEnvPipeline(observation_space, action_space, connectors=pieces)


def default_pieces(
    multi_agent: bool, normalize_actions: bool, clip_actions: bool
) -> tuple[list[ConnectorV2], list[ConnectorV2]]:
    """The default pieces before custom ones and after them, in order."""
    before: list[ConnectorV2] = [
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        *([ModuleToAgentUnmapping()] if multi_agent else []),
        RemoveSingleTsTimeRankFromBatch(),
    ]
    after: list[ConnectorV2] = [
        NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions),
        ListifyDataForVectorEnv(),
    ]
    return before, after
