"""A module's forward pass as something that can be asked in blocks, to find how many rows it may see; refuses to play.

`block_rows` tries it with invented observations, and invented states where the module carries one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.tensors import NumpyToTensor
from offline_cli.connectors.play_inputs import PolicyInput
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["ForwardPass"]


class ForwardPass:
    """See Policy: all that the module puts out is in `extras`, and the actions are nothing."""

    fingerprint = ""
    action_scale = "env"
    chance_size = 0
    rows_alike = False
    shows_numbers = True

    def __init__(self, module: RLModule, observation_space: Space, *, explore: bool, device: torch.device) -> None:
        """`observation_space`: of what comes out of the env-to-module pipeline."""
        self._forward = module.forward_exploration if explore else module.forward_inference
        self._stateful = module.is_stateful()
        self._to_tensor, self._input = NumpyToTensor(device=device), PolicyInput(module)
        parts = {Columns.OBS: observation_space}
        if self._stateful:
            parts[Columns.STATE_IN] = _space_of(initial_state(module))
        self.observation_space: Space = spaces.Dict(parts)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy. Observations: of `observation_space`, leaves (B, ...), the state in them."""
        batch: dict[str, Any] = dict(observations)
        if self._stateful:
            batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS])  # an axis of one step
        with torch.inference_mode():
            outputs = self._forward(self._input(self._to_tensor(batch=batch)))
        none = np.zeros(len(chance))
        return Acted(none, none, {name: map_leaves(lambda leaf: leaf.cpu().numpy(), tree) for name, tree in outputs.items()})


def _space_of(state: Tree) -> Space:
    """A space whose values look like the state."""
    if isinstance(state, dict):
        return spaces.Dict({name: _space_of(part) for name, part in state.items()})
    if isinstance(state, (tuple, list)):
        return spaces.Tuple([_space_of(part) for part in state])
    return spaces.Box(-np.inf, np.inf, state.shape, state.dtype)
