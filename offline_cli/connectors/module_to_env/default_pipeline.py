"""The default module-to-env pipeline, and the piece that puts actions into the units of an environment.

Custom pieces, which must be connectors, come where RLlib documents them: the module's outputs are items of episodes there, and
actions are drawn, but not yet in the units of the environment. A piece that has to come before the drawing, to change logits,
is put there by `pipeline.insert_before("GetActions", piece)`, or with `before = "GetActions"` in a pipeline file.

`NormalizeAndClipActions` leaves `actions` themselves alone, because what the module put out is recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.common.batch_columns import TensorToNumpy
from offline_cli.connectors.common.batching import ModuleToAgentUnmapping
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.module_to_env.unbatching import (
    GetActions,
    ListifyDataForVectorEnv,
    RemoveSingleTsTimeRankFromBatch,
    UnBatchToIndividualItems,
)
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.episodes.stacking import unstack
from offline_cli.modules.action_units import ForEnvironment
from offline_cli.spaces import Space
from offline_cli.trees import map_leaves

__all__ = ["ModuleToEnvPipeline", "NormalizeAndClipActions", "module_to_env_pipeline"]


class NormalizeAndClipActions(ConnectorV2):
    """A new column `actions_for_env` beside `actions`; without either setting no column, and the actions go as they are.

    normalize_actions: Box actions of floats in about [-1, 1] are stretched to the bounds of the space, then clipped to them.
    clip_actions: only clipped. A Box without bounds on both sides cannot be stretched to; other spaces get their dtype.

    `stretched_by`: a space of the same structure, to whose bounds actions are stretched in place of the action space's own:
    those by which a policy's data was scaled down. Who plays the policy sets it.
    """

    def __init__(self, *spaces: Space | None, normalize_actions: bool, clip_actions: bool, **kwargs: Any) -> None:
        self.normalize_actions, self.clip_actions = normalize_actions, clip_actions
        self.stretched_by: Space | None = None
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without actions, and without an action space to fit them to."""
        if not (self.normalize_actions or self.clip_actions):
            return batch
        space = self.input_action_space
        if space is None:
            raise self.bad("no action space to fit actions to", fix="put it into a pipeline that has an input_action_space")
        if Columns.ACTIONS not in batch:
            raise self.bad(f"no actions among the columns {sorted(batch)}", fix="put GetActions before it")
        held = batch[Columns.ACTIONS]
        if not is_filed(held):
            fit = ForEnvironment(space, self.stretched_by, normalized=self.normalize_actions)
            batch[Columns.ACTIONS_FOR_ENV] = _each(held, fit) if isinstance(held, list) else fit(held)
            return batch
        by_agent: dict[Any, list[tuple[Any, ...]]] = {}  # a call for each of many environments would take longer than networks
        for key in held:
            by_agent.setdefault(key[1] if len(key) > 1 and isinstance(space, spaces.Dict) else None, []).append(key)
        fitted: dict[tuple[Any, ...], list[Any]] = {key: [] for key in held}
        both: list[Any] = [space, self.stretched_by]
        for agent, keys in by_agent.items():
            own, by = (part if agent is None or part is None else part[agent] for part in both)
            fit = ForEnvironment(own, by, normalized=self.normalize_actions)
            items = iter(_each([item for key in keys for item in held[key]], fit))
            fitted |= {key: [next(items) for _ in held[key]] for key in keys}
        batch[Columns.ACTIONS_FOR_ENV] = fitted
        return batch


def _each(items: list[Any], fit: ForEnvironment) -> list[Any]:
    return unstack(fit(map_leaves(lambda *leaves: np.stack(leaves), *items))) if items else []


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
    """Custom pieces and, unless turned off, the default ones around them.

    `normalize_actions` (RLlib's default) fits modules that put out Box actions in [-1, 1]; for one that puts out the
    environment's units say `normalize_actions=False, clip_actions=True`. Raises BadConfig as `custom_pieces` does.
    """
    pieces = custom_pieces(custom, "module_to_env", observation_space, action_space, env=env, num_envs=num_envs)
    if add_default_connectors_to_module_to_env_pipeline:
        pieces = [
            GetActions(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            *([ModuleToAgentUnmapping()] if multi_agent else []),
            RemoveSingleTsTimeRankFromBatch(),
            *pieces,
            NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions),
            ListifyDataForVectorEnv(),
        ]
    return ModuleToEnvPipeline(observation_space, action_space, connectors=pieces)
