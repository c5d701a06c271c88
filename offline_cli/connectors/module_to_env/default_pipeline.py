"""The module-to-env pipeline: from a module's stacked outputs to one action for each environment of a vector.

A single-agent batch is `batch[column]`. A multi-agent batch is `batch[module id][column]` between the pieces that map agents to
modules and back; before and after them, its columns are grouped by (episode id, agent id, module id).

Custom pieces come where RLlib documents them: outputs are items by episode there, and actions are sampled, but not yet in the
environment's units. To change logits, put a piece before sampling with `pipeline.insert_before("GetActions", piece)`, or list
all pieces in a pipeline file.

`NormalizeAndClipActions` does not change `actions`, because recordings keep the module's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import SharedData, is_filed
from offline_cli.connectors.common.batching import ModuleToAgentUnmapping, TensorToNumpy
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.stacking import unstack
from offline_cli.errors import BadPiece
from offline_cli.modules.distributions import ActionHead, ForEnvironment
from offline_cli.modules.rl_module import module_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "GetActions",
    "ListifyDataForVectorEnv",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "RemoveSingleTsTimeRankFromBatch",
    "UnBatchToIndividualItems",
    "module_to_env_pipeline",
]


def _is_multi_agent(episodes: Episodes) -> bool:
    """Whether these are multi-agent episodes."""
    return not isinstance(episodes, EpisodeBatch) and bool(episodes) and hasattr(episodes[0], "agent_episodes")


def _module_parts(batch: Batch, rl_module: Any, episodes: Episodes) -> Iterator[tuple[str | None, Any, Batch]]:
    """Each (module id, module, its columns); a single agent has the id None."""
    if not _is_multi_agent(episodes):
        yield None, rl_module, batch
        return
    for module_id, part in batch.items():
        yield module_id, None if rl_module is None else module_of(rl_module, module_id), part


class GetActions(ConnectorV2):
    """Compute `actions` (B, ...) from `action_dist_inputs` (B, n), and `action_logp` (B,) unless the module returns it.

    Sampled with `explore`, else greedy with `action_logp` 0. Axes between the first and the last (time) are kept. The source of
    randomness is `chance`, uniform numbers (B, k), or `generator`, else torch's default generator.
    """

    whole_arrays = True

    def __call__(
        self, *, rl_module: Any, batch: Batch, episodes: Episodes, explore: bool | None = None, **drawing: Any
    ) -> Batch:
        """The batch with actions. `drawing`: `chance` (a single module only) or `generator`."""
        for _module_id, module, part in _module_parts(batch, rl_module, episodes):
            if Columns.ACTIONS not in part and Columns.ACTION_DIST_INPUTS in part:
                head, inputs = getattr(module, "action_head", None), part[Columns.ACTION_DIST_INPUTS]
                if isinstance(head, ActionHead):
                    part[Columns.ACTIONS], logp = _from_head(head, inputs, bool(explore), drawing)
                else:
                    part[Columns.ACTIONS], logp = _from_distribution(module, inputs, bool(explore))
                part.setdefault(Columns.ACTION_LOGP, logp)
        return batch


def _from_head(head: ActionHead, inputs: Tensor, explore: bool, drawing: Mapping[str, Any]) -> tuple[Tree, Tensor]:
    """Actions and their log-likelihood from an ActionHead."""
    rows, axes, chance = inputs.reshape(-1, inputs.shape[-1]), inputs.shape[:-1], drawing.get("chance")
    if not explore:
        actions, logp = head.greedy(rows), torch.zeros(len(rows), device=rows.device)
    else:
        actions = head.sample(rows, drawing.get("generator")) if chance is None else head.drawn(rows, chance)
        logp = head.logp(rows, actions)
    return map_leaves(lambda leaf: leaf.reshape(*axes, *leaf.shape[1:]), actions), logp.reshape(axes)


def _from_distribution(module: Any, inputs: Tensor, explore: bool) -> tuple[Tree, Any]:
    """The same from an RLlib-style module's own distribution class, which samples with torch's default generator."""
    named = module.get_exploration_action_dist_cls() if explore else module.get_inference_action_dist_cls()
    distribution = named.from_logits(inputs)
    if not explore:
        return distribution.to_deterministic().sample(), torch.zeros(inputs.shape[:-1], device=inputs.device)
    actions = distribution.sample()
    return actions, distribution.logp(actions)


class UnBatchToIndividualItems(ConnectorV2):
    """Split columns (B, ...) into items under the episode keys from which they were stacked.

    Items are views of the rows. Columns that already consist of items stay unchanged.
    """

    whole_arrays = True

    def __call__(
        self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, shared_data: SharedData = None, **_: Any
    ) -> Batch:
        """The batch in items. Raises BadPiece if a column's row count differs from the number of observations."""
        for module_id, _module, part in _module_parts(batch, rl_module, episodes):
            keys = self._keys(episodes, shared_data or {}, module_id)
            for column, held in part.items():
                if isinstance(held, list) or is_filed(held):
                    continue
                items = unstack(held)
                if len(items) != len(keys):
                    what = f"column {column!r} has {len(items)} rows for {len(keys)} observations"
                    raise self.bad(what, fix="return one row per observation from the module")
                filed: dict[tuple[Any, ...], list[Any]] = {}
                for key, item in zip(keys, items, strict=True):
                    filed.setdefault(key, []).append(item)
                part[column] = filed
        return batch

    def _keys(self, episodes: Episodes, shared_data: Mapping[str, Any], module_id: str | None) -> list[tuple[Any, ...]]:
        """The episode key of each row of a stacked batch, in order.

        The stacking piece stored them in `shared_data["memorized_map_structure"]` (RLlib's key); without it, one row per
        episode. Raises BadPiece for a module without stacked rows.
        """
        noted = shared_data.get("memorized_map_structure")
        if module_id is None:
            return [(id_,) for id_ in noted] if isinstance(noted, list) else [(episode.id_,) for episode in episodes]
        if not isinstance(noted, Mapping) or module_id not in noted:
            what = f"module {module_id!r} returned rows, but got no observations (these modules did: {list(noted or {})})"
            raise self.bad(what, fix="call env-to-module first, with the same shared_data")
        return [(episode_id, agent_id, module_id) for episode_id, agent_id in noted[module_id]]


class RemoveSingleTsTimeRankFromBatch(ConnectorV2):
    """Remove the time axis of one step: (1, ...) to (...), from every column but `state_out`, which has none.

    Only if env-to-module set `shared_data["_added_single_ts_time_rank"]` (RLlib's key); with several modules only for items of
    stateful ones.
    """

    def __call__(
        self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, shared_data: SharedData = None, **_: Any
    ) -> Batch:
        """The batch without that axis. Raises BadPiece, naming the column, for items without an axis of one step."""
        if not (shared_data or {}).get("_added_single_ts_time_rank"):
            return batch
        for column in batch:
            if column == Columns.STATE_OUT:
                continue

            def squeezed(item: Any, _episode: Any, _agent: Any, module_id: Any, column: str = column) -> Any:
                has_no_axis = module_id is not None and not module_of(rl_module, module_id).is_stateful()
                return item if has_no_axis else map_leaves(lambda leaf: self._first(leaf, column), item)

            self.foreach_batch_item_change_in_place(batch, column, squeezed)
        return batch

    def _first(self, leaf: Any, column: str) -> Any:
        shape = getattr(leaf, "shape", ())
        if not shape or shape[0] != 1:
            what = f"column {column!r} has items of shape {tuple(shape)}; expected (1, ...), with a time axis of one step"
            raise self.bad(what, fix="keep the time axis in outputs of stateful modules")
        return leaf[0]


class ListifyDataForVectorEnv(ConnectorV2):
    """Turn columns into lists with one item per episode, in episode order; stack `actions` and `actions_for_env`.

    With several agents every item is a dict by agent. Columns that are not grouped by episode stay unchanged.
    """

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece unless every column has exactly one item for each episode."""
        ids, by_agent = [episode.id_ for episode in episodes], _is_multi_agent(episodes)
        for column, held in batch.items():
            if not (is_filed(held) or (by_agent and held == {})):
                continue
            entries: dict[str, dict[Any, Any]] = {id_: {} for id_ in ids}
            for (episode_id, *agent), items in held.items():
                if episode_id not in entries or len(items) != 1:
                    raise self._wrong(column, held, ids)
                entries[episode_id][agent[0] if agent else None] = items[0]
            if by_agent:
                batch[column] = list(entries.values())
                continue
            if not all(entries.values()):
                raise self._wrong(column, held, ids)
            listed = [entry[None] for entry in entries.values()]
            stacks = column in (Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
            batch[column] = map_leaves(lambda *leaves: np.stack(leaves), *listed) if stacks else listed
        return batch

    def _wrong(self, column: str, held: Mapping[Any, list[Any]], ids: list[str]) -> BadPiece:
        counts = {key: len(items) for key, items in held.items()}
        what = f"column {column!r} has item counts {counts}; expected one for each of the episodes {ids}"
        return self.bad(what, fix="add one item per column for each episode, or agent that acts")


class NormalizeAndClipActions(ConnectorV2):
    """Add `actions_for_env`: `actions` stretched or clipped to the action space; nothing if both settings are off.

    normalize_actions: stretch float Box actions from [-1, 1] to the bounds of the space, then clip them. A Box with an infinite
    bound is not stretched.
    clip_actions: only clip. Actions of other spaces are cast to the space's dtype.

    `stretched_by`: a space of the same structure whose bounds replace those of the action space for stretching: the bounds that
    scaled the policy's training data. The caller that plays the policy sets it.
    """

    def __init__(self, *spaces: Space | None, normalize_actions: bool, clip_actions: bool, **kwargs: Any) -> None:
        self.normalize_actions, self.clip_actions = normalize_actions, clip_actions
        self.stretched_by: Space | None = None
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without actions or an action space."""
        if not (self.normalize_actions or self.clip_actions):
            return batch
        space = self.input_action_space
        if space is None:
            raise self.bad("the action space is unknown", fix="put it into a pipeline that has an input_action_space")
        if Columns.ACTIONS not in batch:
            raise self.bad(f"no actions among the columns {sorted(batch)}", fix="put GetActions before it")
        held = batch[Columns.ACTIONS]
        if not is_filed(held):
            fit = ForEnvironment(space, self.stretched_by, normalized=self.normalize_actions)
            batch[Columns.ACTIONS_FOR_ENV] = _each(held, fit) if isinstance(held, list) else fit(held)
            return batch
        by_agent: dict[Any, list[tuple[Any, ...]]] = {}  # one call per environment would be slower than the network
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
    """Pipeline from the outputs of a forward pass to actions for environments."""


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
    """Build a pipeline of custom pieces and, unless turned off, the default ones around them.

    `normalize_actions` (RLlib's default) is for modules with Box actions in [-1, 1]; for modules with actions in the
    environment's units, set `normalize_actions=False, clip_actions=True`. Raises BadConfig like `custom_pieces`.
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
