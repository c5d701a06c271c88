"""A module between its connector pipelines, as a policy that plays in slots.

That is what plays where a user names a pipeline, where a run was trained through one, and where a module carries a state from
step to step. All others take the quicker way (`Blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from offline_cli.connectors.slot_player import SlotPlayer
from offline_cli.environments import Environment
from offline_cli.modules.drawing import chance_size
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.module_policy import ForwardPass, is_of_floats
from offline_cli.policies.observation_rows import block_rows
from offline_cli.policies.pieces import PlayPieces
from offline_cli.spaces import leaf_spaces

__all__ = ["PipedPolicy"]


class PipedPolicy:
    """A module in evaluation mode and the two pipelines it plays between, in one environment."""

    def __init__(
        self,
        module: RLModule,
        play: PlayPieces,
        environment: Environment,
        *,
        explore: bool,
        device: torch.device,
        fingerprint: str = "",
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        """For pieces that fit (`PlayPieces.check`). `learned`: states that they begin with. Raises what `PlayPieces.pipelines`
        raises."""
        self.fingerprint = fingerprint
        self.spaces = environment.observation_space, environment.action_space
        self.device = device
        self.pipelines = play.pipelines(environment, device=self.device)
        self._module = module.to(self.device).eval()
        self._explore, self._lookback, self._frozen = explore, play.lookback, play.trained is not None
        self.chance_size = chance_size(module.action_head) if explore else 0
        self.action_scale = self._scale()
        if learned is not None:
            self.go_on_from(learned)

    def _scale(self) -> str:
        """Of the recorded actions: boxes of floats are as the module put them out, and the pipeline says what that means."""
        floats = any(is_of_floats(leaf) for leaf in leaf_spaces(self.spaces[1]).values())
        pieces = self.pipelines.module_to_env.pieces()
        stretched = any(isinstance(piece, NormalizeAndClipActions) and piece.normalize_actions for piece in pieces)
        return "normalized" if floats and stretched else "env"

    def slot_player(self, slots: int, *, block: int | None) -> SlotPlayer:
        """What plays in so many slots. `block`: rows of a forward pass, whose results an episode has in any number of slots;
        None: those of so many slots."""
        return SlotPlayer(
            self._module,
            self.pipelines,
            self.spaces,
            slots=slots,
            explore=self._explore,
            rows=slots if block is None else self._rows(slots, block),
            lookback=self._lookback,
        )

    def _rows(self, slots: int, block: int) -> int:
        """Of a forward pass."""
        seen = self.pipelines.env_to_module.observation_space or self.spaces[0]
        try:
            tried = ForwardPass(self._module, seen, explore=self._explore, device=self.device)
        except Exception:  # noqa: BLE001  no values can be invented for whatever a user's module has for a state
            return 1
        return block_rows(tried, tried.observation_space, slots, block)

    @property
    def piece_names(self) -> dict[str, list[str]]:
        """The names of the pieces on either side."""
        sides = {"env_to_module": self.pipelines.env_to_module, "module_to_env": self.pipelines.module_to_env}
        return {side: [name for name, _ in pipeline.named()] for side, pipeline in sides.items()}

    # ---- what is learned while recording ----

    @property
    def may_learn(self) -> bool:
        """Whether a piece keeps a state that may change; not so for those that a run has brought its state for."""
        beside = [_learns(piece, frozen=self._frozen) for piece in self.pipelines.env_to_module.pieces()]
        return any(beside) or any(_learns(piece, frozen=False) for piece in self.pipelines.module_to_env.pieces())

    def go_on_from(self, learned: Mapping[str, Any]) -> None:
        """Have the pieces begin with what they had learned, by side and name."""
        self.pipelines.env_to_module.set_state(learned.get("env_to_module", {}))
        self.pipelines.module_to_env.set_state(learned.get("module_to_env", {}))


def _learns(piece: ConnectorV2, *, frozen: bool) -> bool:
    """Whether it keeps a state, and is not kept from changing it."""
    kind = type(piece)
    if kind.get_state is ConnectorV2.get_state or (frozen and kind.freeze is not ConnectorV2.freeze):
        return False
    return bool(getattr(piece, "update_stats", True))
