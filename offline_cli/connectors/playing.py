"""One step of playing through connector pipelines, as RLlib's env runner does it; refuses to step any environment itself.

Episodes that go on, the env-to-module pipeline, a forward pass, the module-to-env pipeline: actions. Who calls steps the
environments with `actions_for_env`, and adds to each episode what came of it, with `actions` and `extra_of` as they are: states
of recurrent modules travel from step to step in there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.slot_windows import SlotWindows
from offline_cli.errors import BadPiece
from offline_cli.trees import Tree, map_leaves

__all__ = ["Acts", "PipelinePlayer"]


@dataclass(frozen=True, slots=True, eq=False)
class Acts:
    """What B episodes are to do next. With several agents per episode every entry is a dict by agent, in lists."""

    actions: Tree  # leaves (B, ...): as the module put them out, to be kept in episodes
    actions_for_env: Tree  # leaves (B, ...): as the environment takes them
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # extra model outputs by name: B items each

    def action_of(self, row: int) -> Any:
        """The action of one episode, as the module put it out."""
        return _row(self.actions, row)

    def action_for_env_of(self, row: int) -> Any:
        """The action of one episode, as its environment takes it."""
        return _row(self.actions_for_env, row)

    def extra_of(self, row: int) -> dict[str, Any]:
        """The extra model outputs of one episode: what `add_env_step` takes as `extra_model_outputs`, by agent if need be."""
        if not isinstance(self.actions, list):
            return {name: items[row] for name, items in self.extra.items()}
        by_agent: dict[Any, dict[str, Any]] = {agent: {} for agent in self.actions[row]}
        for name, items in self.extra.items():
            for agent, item in items[row].items():
                by_agent[agent][name] = item
        return by_agent


def _row(actions: Tree, row: int) -> Any:
    return actions[row] if isinstance(actions, list) else map_leaves(lambda leaf: leaf[row], actions)


class PipelinePlayer:
    """A module between its two pipelines.

    `shared_data` is theirs for as long as the player lives: pieces of both write and read it. Set breakpoints in a piece at
    will: all of it runs in the calling process.
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

    def act(self, episodes: Sequence[Any], *, chance: Tensor | None = None, generator: torch.Generator | None = None) -> Acts:
        """Actions for episodes that have been reset and are not done, not numpy'ized.

        `chance`: uniform numbers (B, k) per episode that actions are drawn with, k as `chance_size` of the action head says;
        else `generator` draws, or torch's own. Raises BadPiece where the pipelines give no actions; what pieces raise passes.
        """
        return self._acted(episodes, chance, generator)

    def act_on(self, slots: SlotWindows, *, chance: Tensor | None = None, generator: torch.Generator | None = None) -> Acts:
        """The same for slots that play; extra outputs are arrays (B, ...) where no piece took them apart."""
        return self._acted(slots, chance, generator)

    def _acted(self, episodes: Any, chance: Tensor | None, generator: torch.Generator | None) -> Acts:
        call: dict[str, Any] = {"rl_module": self.rl_module, "explore": self.explore}
        call |= {"shared_data": self.shared_data, "metrics": self.metrics}
        with torch.inference_mode():
            batch, episodes = _through(self.env_to_module, {}, episodes, call)
            if isinstance(episodes, SlotWindows):
                episodes.commit()
            forward = self.rl_module.forward_exploration if self.explore else self.rl_module.forward_inference
            outputs = dict(forward(batch))
            if isinstance(episodes, SlotWindows):
                episodes.is_stacked = True
            drawing: dict[str, Any] = {"chance": chance, "generator": generator}
            given: dict[str, Any] = {name: value for name, value in drawing.items() if value is not None}
            outputs, _ = _through(self.module_to_env, outputs, episodes, {**call, **given})
        return _acts(outputs)

    def observe(self, slots: SlotWindows) -> None:
        """Have the env-to-module pieces see the last observations of slots whose episodes are done."""
        with torch.inference_mode():
            self.env_to_module.observe(
                slots, rl_module=self.rl_module, explore=self.explore, shared_data=self.shared_data, metrics=self.metrics
            )

    def finish(self, episodes: Sequence[Any]) -> None:
        """Have the env-to-module pieces see the last observations of episodes that are done, as RLlib's env runner does."""
        call: dict[str, Any] = {"rl_module": self.rl_module, "episodes": episodes, "explore": self.explore}
        with torch.inference_mode():
            self.env_to_module(batch={}, shared_data=self.shared_data, metrics=self.metrics, **call)


def _through(pipeline: ConnectorPipelineV2, batch: Any, episodes: Any, call: dict[str, Any]) -> tuple[Any, Any]:
    """The batch, and what comes after it gets: slots, or episodes."""
    if isinstance(episodes, SlotWindows):
        return pipeline.on_slots(batch=batch, slots=episodes, **call)
    return pipeline(batch=batch, episodes=episodes, **call), episodes


def _acts(outputs: dict[str, Any]) -> Acts:
    if Columns.ACTIONS not in outputs:
        what = f"the module-to-env pipeline gave no {Columns.ACTIONS!r}, but {sorted(outputs)}"
        raise BadPiece(what, where="module-to-env pipeline", fix="keep GetActions in it, or make actions in the module")
    actions = outputs.pop(Columns.ACTIONS)
    if Columns.ACTIONS_FOR_ENV not in outputs:
        return Acts(actions, deepcopy(actions), outputs)  # environments may write into what they are given
    return Acts(actions, outputs.pop(Columns.ACTIONS_FOR_ENV), outputs)
