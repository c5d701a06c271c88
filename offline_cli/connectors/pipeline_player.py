"""One step of playing through connector pipelines, as in RLlib's env runner.

The player steps no environment: the caller steps it with `actions_for_env`, and adds the outcome to each episode together with
the unchanged `actions` and `extra`, which carry the states of recurrent modules from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["Acts", "PipelinePlayer", "RecordedActions"]


class RecordedActions:
    """Split actions into those to record and those for the environment, in the dtypes of the action space.

    Float boxes are recorded as in `actions` of the module-to-env pipeline, before scaling to the environment; choices and
    integer boxes as the environment takes them. The two share no memory.
    """

    def __init__(self, space: Space) -> None:
        self._parts = leaf_spaces(space)

    def __call__(self, actions: Tree, for_env: Tree) -> tuple[Tree, Tree]:
        """Recorded actions and actions for the environment, leaves (B, ...). Raises BadPiece for wrong shapes."""
        raw, taken = self._typed(actions), self._typed(for_env)
        of_floats = (isinstance(part, spaces.Box) and np.dtype(part.dtype).kind == "f" for part in self._parts.values())
        recorded = [leaf if is_raw else taken[path] for is_raw, (path, leaf) in zip(of_floats, raw.items(), strict=True)]
        # Environments may write into their actions.
        own = [leaf.copy() if any(np.may_share_memory(leaf, one) for one in recorded) else leaf for leaf in taken.values()]
        return unflatten_like(actions, recorded), unflatten_like(for_env, own)

    def _typed(self, actions: Tree) -> dict[str, Any]:
        leaves = dict(flatten(actions))
        message = "the actions have the shapes {}, but the environment takes {}"
        _check_shapes({path: leaf.shape[1:] for path, leaf in leaves.items()}, self._parts, message, "module-to-env pipeline")
        return {path: leaves[path].astype(np.dtype(part.dtype), copy=False) for path, part in self._parts.items()}


def _check_shapes(found: Mapping[str, tuple[int, ...]], parts: Mapping[str, Space], message: str, where: str) -> None:
    """Raise BadPiece if these shapes, by path, differ from those of the leaf spaces `parts`; `message` has a {} for each."""
    wanted = {path: tuple(part.shape or ()) for path, part in parts.items()}
    if found != wanted:
        shown = (", ".join(f"{path} {shape}".strip() for path, shape in shapes.items()) for shapes in (found, wanted))
        fix = "declare changed observation shapes in recompute_output_observation_space; do not change shapes of actions"
        raise BadPiece(message.format(*shown), where=where, fix=fix)


@dataclass(frozen=True, slots=True, eq=False)
class Acts:
    """The next actions of B episodes. For multi-agent episodes every field is a list of dicts by agent."""

    actions: Tree  # leaves (B, ...): the module's actions, to store in episodes
    actions_for_env: Tree  # leaves (B, ...): for the environment
    extra: Mapping[str, Any] = field(default_factory=dict)  # extra model outputs by name: B items each, or leaves (B, ...)


class PipelinePlayer:
    """A module, or a mapping of several by id, between its two pipelines.

    Pieces of both pipelines share `shared_data` for the lifetime of the player. Everything runs in the calling process, so
    breakpoints in pieces work.
    """

    def __init__(
        self,
        rl_module: Any,
        env_to_module: ConnectorPipelineV2,
        module_to_env: ConnectorPipelineV2,
        *,
        explore: bool = False,
        metrics: Any = None,
    ) -> None:
        self.rl_module = rl_module
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        self.explore, self.metrics = explore, metrics
        self.shared_data: dict[str, Any] = {}

    def act(self, episodes: Sequence[Any], *, explore: bool | None = None, **drawing: Any) -> Acts:
        """Actions for ongoing episodes that are not numpy'ized. `explore`: None for the player's default.

        `drawing`: `chance` or `generator`, see GetActions. Raises BadPiece if the pipelines return no actions, or observations
        that the module does not take; exceptions of pieces pass through.
        """
        explore = self.explore if explore is None else explore
        call = {"rl_module": self.rl_module, "explore": explore, "shared_data": self.shared_data, "metrics": self.metrics}
        with torch.inference_mode():
            batch = self.env_to_module(batch={}, episodes=episodes, **call)
            if isinstance(self.rl_module, RLModule):  # several modules, and RLlib's own, check their input themselves
                batch = _fitting(batch, self.rl_module)
            outputs = _forward(self.rl_module, batch, explore)
            given = {name: value for name, value in drawing.items() if value is not None}
            found = self.module_to_env(batch=dict(outputs), episodes=episodes, **call, **given)
        if Columns.ACTIONS not in found:
            what = f"the module-to-env pipeline returned no {Columns.ACTIONS!r}, only {sorted(found)}"
            raise BadPiece(what, where="module-to-env pipeline", fix="keep GetActions in it, or compute actions in the module")
        actions = found.pop(Columns.ACTIONS)
        for_env = found.pop(Columns.ACTIONS_FOR_ENV, None)
        return Acts(
            actions, deepcopy(actions) if for_env is None else for_env, found
        )  # environments may overwrite their actions


def _forward(module: Any, batch: Mapping[str, Any], explore: bool) -> dict[str, Any]:
    """Outputs of a module, or of each of several by id."""
    if isinstance(module, Mapping):
        return {module_id: _forward(module[module_id], part, explore) for module_id, part in batch.items()}
    found: dict[str, Any] = module.forward_exploration(batch) if explore else module.forward_inference(batch)
    return found


def _fitting(batch: Mapping[str, Any], module: RLModule) -> dict[str, Any]:
    """The batch with `obs` in the key order of the module's space. Raises BadPiece for other keys and shapes.

    A piece may declare one space and return another, or return the keys of a Dict in another order, and networks depend on it.
    """
    where = "env-to-module pipeline"
    if Columns.OBS not in batch:
        what = f"the policy gets no {Columns.OBS!r}, only {sorted(map(str, batch))}"
        raise BadPiece(what, where=where, fix="keep the default pieces (defaults = true)")
    observations = tree_from_lists(batch[Columns.OBS], module.observation_space)
    axes = 2 if module.is_stateful() else 1  # batch, and time
    found = {path: tuple(getattr(leaf, "shape", ()))[axes:] for path, leaf in flatten(observations)}
    message = "the policy gets observations of {}, but takes {}"
    _check_shapes(found, leaf_spaces(module.observation_space), message, where)
    return {**batch, Columns.OBS: observations}
