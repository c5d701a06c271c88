"""RLModule, the interface of every policy: a dict of tensors in, a dict of tensors out. Several agents: a mapping by module id.

The three forward methods follow RLlib: `forward_inference` for greedy actions, `forward_exploration` for sampled actions and
`forward_train` for updates. Each takes a batch (at least `Columns.OBS`) and returns a dict with `Columns.ACTION_DIST_INPUTS`,
from which `action_head` computes actions, likelihood and entropy. The inputs are already limited by the head, so that training,
playing and recording use one distribution.

A class of your own builds its networks in `__init__`, after `super().__init__(observation_space, action_space,
model_config=model_config)`, and defines `_forward`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

DEFAULT_MODULE_ID: Final = "default_policy"  # RLlib's name for a single module


class RLModule(nn.Module):
    """A policy for the given spaces. Subclasses define `_forward`, and override the other forward methods as needed."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        action_head: ActionHead | None = None,
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        """`action_head`: None for Box actions in [-1, 1]. `model_config`: settings that connector pieces read by RLlib's names,
        such as `max_seq_len` of a stateful module. Raises UnsupportedSpace.
        """
        super().__init__()
        self.model_config = dict(model_config or {})
        self.observation_space = observation_space
        self.action_space = action_space
        self.action_head = action_head or build_head(action_space, action_scale="normalized")

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """`batch[OBS]`: leaves (B, *shape). Returns at least ACTION_DIST_INPUTS, (B, action_head.size), not limited."""
        name = type(self).__name__
        fix = "define _forward(self, batch), or _forward_inference and _forward_exploration"
        raise BadConfig(f"{name} defines no _forward method", where=f"module {name}", fix=fix)

    def _forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs for greedy actions."""
        return self._limited(self._forward_inference(batch))

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs for sampled actions."""
        return self._limited(self._forward_exploration(batch))

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs for an update, with gradients."""
        return self._limited(self._forward_train(batch))

    def _limited(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """`outputs` with ACTION_DIST_INPUTS limited by the action head. Raises BadConfig if their width does not fit it,
        or a stateful module returns no state.
        """
        inputs: Any = outputs.get(Columns.ACTION_DIST_INPUTS)
        head = self.action_head
        shape = tuple(getattr(inputs, "shape", ()))
        if len(shape) < 2 or shape[-1] != head.size:
            kind, name = type(self).__name__, Columns.ACTION_DIST_INPUTS
            what = f"{kind} returns {name!r} of shape {shape}; the distribution for {self.action_space} needs width {head.size}"
            raise BadConfig(what, where=f"module {kind}", fix=f"return {name!r} (B, {head.size}) from its forward methods")
        if Columns.STATE_OUT not in outputs and self.is_stateful():
            kind = type(self).__name__
            what = f"{kind} has an initial state, but returns no {Columns.STATE_OUT!r}: it would have no memory"
            fix = f"return {Columns.STATE_OUT!r}, the state after the last step, from its forward methods"
            raise BadConfig(what, where=f"module {kind}", fix=fix)
        return {**outputs, Columns.ACTION_DIST_INPUTS: head.limited(inputs)}

    def get_initial_state(self) -> dict[str, Any]:
        """The recurrent state of one row before its first step; empty for a stateless module."""
        return {}

    def is_stateful(self) -> bool:
        """Whether the module has a recurrent state, and needs `state_in` and a time axis."""
        return bool(self.get_initial_state())

    def act(self, observations: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tree:
        """Actions (B, ...) for observations (B, ...): greedy, or sampled with `generator`.

        Box actions are in network units, about [-1, 1]; `distributions.ForEnvironment` converts them to the environment's.
        """
        with torch.inference_mode():
            batch = {Columns.OBS: observations}
            outputs = self.forward_exploration(batch) if explore else self.forward_inference(batch)
            inputs: Tensor = outputs[Columns.ACTION_DIST_INPUTS]
            return self.action_head.sample(inputs, generator) if explore else self.action_head.greedy(inputs)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Context manager: put the module in evaluation mode, then restore the mode of each submodule."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


# ---- queries of connector pieces, for one module or several, ours or RLlib's ----


def is_multi(rl_module: Any) -> bool:
    """Whether `rl_module` holds several modules by id: a mapping, or RLlib's MultiRLModule."""
    return isinstance(rl_module, Mapping) or hasattr(rl_module, "foreach_module")


def is_stateful(rl_module: Any) -> bool:
    """Whether the module, or any of several, has a recurrent state; False for None."""
    if isinstance(rl_module, Mapping):
        return any(map(is_stateful, rl_module.values()))
    return rl_module is not None and bool(rl_module.is_stateful())


def module_of(rl_module: Any, module_id: Any) -> Any:
    """The module called `module_id`; None means a single agent."""
    if not is_multi(rl_module):
        return rl_module if module_id is None or not hasattr(rl_module, "__getitem__") else rl_module[module_id]
    return rl_module[DEFAULT_MODULE_ID if module_id is None or module_id not in rl_module else module_id]


def max_seq_len(module: Any) -> int:
    """Timesteps per row of a train batch. Raises BadConfig if a stateful module does not set it."""
    config = getattr(module, "model_config", None)
    length = config.get("max_seq_len") if isinstance(config, Mapping) else getattr(config, "max_seq_len", None)
    if length is None or int(length) < 1:
        what = f"the stateful module {type(module).__name__} sets no sequence length (max_seq_len is {length})"
        raise BadConfig(what, where="AddTimeDimToBatchAndZeroPad", fix='give the module model_config={"max_seq_len": 20}')
    return int(length)


def initial_state(module: Any) -> Tree:
    """The recurrent state of one row before its first step, as copied arrays."""

    def array(leaf: Any) -> Any:
        return leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)

    return map_leaves(array, module.get_initial_state())


def hash_of_weights(module: nn.Module, more: bytes = b"") -> str:
    """The SHA-256 hex digest of `more` and of the weights by name."""
    digest = hashlib.sha256(more)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
