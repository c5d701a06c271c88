"""ModulePolicy: an RLModule without memory or pieces as a policy; all others play as `PolicyForPieces`.

Extra model outputs follow RLlib: `action_dist_inputs`, and `action_logp`, which is 0 for greedy actions, because they are
certain. Box actions are recorded as RLlib's are, with the scale `normalized`: the module's own outputs, which may lie beyond
[-1, 1], before they are stretched to the bounds and clipped. Integer boxes are recorded as the environment takes them; their
`action_logp` is of the action before it was rounded.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.environments import Environment
from offline_cli.modules.action_units import ForEnvironment
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.piece_policy import is_of_floats, piece_policy
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import ActInput, ActOutput, Policy, PolicyOptions, State, check_fits
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, leaves, map_leaves, unflatten_like

__all__ = ["ModulePolicy", "hash_of_weights", "open_module", "played_module"]


class ModulePolicy(Policy):
    """See Policy."""

    needs_finite = True

    def __init__(self, module: RLModule, action_space: Space, *, explore: bool, device: Any, fingerprint: str) -> None:
        """`action_space`: the environment's, which the module fits."""
        self.fingerprint = fingerprint
        self._module = module.to(device).eval()
        self._head: ActionHead = module.action_head
        self._device, self._explore = device, explore
        self.chance_size = self._head.chance_size if explore else 0
        self._for_env = ForEnvironment(action_space, self._head.stretched_by(action_space))
        self._raw = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(action_space).items() if is_of_floats(leaf)}
        self.action_scale = "normalized" if self._raw else "env"

    def act(self, given: ActInput, state: State) -> ActOutput:
        """See Policy."""
        inputs = self._inputs(given.obs)
        if given.chance is not None and self._explore:
            chance = torch.as_tensor(given.chance, dtype=inputs.dtype, device=inputs.device)
            drawn = self._head.drawn(inputs, chance)
            logp = _array(self._head.logp(inputs, drawn))
        else:
            drawn, logp = self._head.greedy(inputs), np.zeros(len(inputs), np.float32)
        extras: dict[str, Tree] = {Columns.ACTION_DIST_INPUTS: _array(inputs), Columns.ACTION_LOGP: logp}
        return ActOutput(*self._both(drawn), extras)

    def _inputs(self, observations: Tree) -> Tensor:
        """What the distribution of actions is made of, (B, size)."""
        if isinstance(observations, np.ndarray):  # the usual case
            tensors: Tree = torch.from_numpy(observations).to(self._device)
        else:
            tensors = map_leaves(lambda leaf: torch.as_tensor(leaf, device=self._device), observations)
        with torch.inference_mode():
            forward = self._module.forward_exploration if self._explore else self._module.forward_inference
            inputs: Tensor = forward({Columns.OBS: tensors})[Columns.ACTION_DIST_INPUTS]
            return inputs

    def _both(self, actions: Tree) -> tuple[Tree, Tree]:
        """Actions as they are recorded, and as the environment takes them."""
        arrays = _array(actions) if isinstance(actions, Tensor) else map_leaves(_array, actions)
        for_env = self._for_env(arrays)
        if not self._raw:
            return for_env, for_env
        pairs = zip(flatten(arrays), leaves(for_env), strict=True)
        typed = [raw.astype(self._raw[path], copy=False) if path in self._raw else whole for (path, raw), whole in pairs]
        return unflatten_like(arrays, typed), for_env


def played_module(
    module: RLModule, pieces: PlaySpec | None, environment: Environment, *, explore: bool, device: Any, fingerprint: str = ""
) -> Policy:
    """The policy of a module in an environment that it fits, between `pieces`; None: between none.

    Raises what `PlaySpec.build_in` raises.
    """
    how: dict[str, Any] = {"explore": explore, "device": device, "fingerprint": fingerprint}
    if pieces is None:
        return ModulePolicy(module, environment.action_space, **how)
    return piece_policy(module, pieces, environment, **how)


def open_module(
    module: RLModule,
    name: str,
    environment: Environment,
    options: PolicyOptions,
    *,
    fingerprint: str,
    trained: PipelineSpec | None = None,
) -> Policy:
    """The policy of a module. It plays between pieces where the user gave some, it was trained through some, or remembers.

    Raises SpaceMismatch, BadConfig.
    """
    how: dict[str, Any] = {"explore": options.explore, "device": torch.device(options.device), "fingerprint": fingerprint}
    play = replace(options.pieces, trained=trained)
    if options.pieces.is_default and trained is None and not module.is_stateful():
        check_fits((module.observation_space, module.action_space), name, environment)
        return played_module(module, play if module.in_rllibs_manner else None, environment, **how)
    play.check(environment, module.observation_space, module.action_space, where=f"--policy {name} in {environment.name}")
    play.tell_unlike_training()
    return played_module(module, play, environment, **how)


def hash_of_weights(module: torch.nn.Module, more: bytes = b"") -> str:
    """Of `more`, and of the weights by name."""
    digest = hashlib.sha256(more)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.cpu().numpy()
    return found
