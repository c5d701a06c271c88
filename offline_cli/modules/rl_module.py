"""RLModule, the interface of every policy: named tensors in, named tensors out. Of several agents a mapping has them by id.

The three forward methods follow RLlib: `forward_inference` to play greedily, `forward_exploration` to play with sampled actions
and `forward_train` inside an update. Each takes a batch (`Columns.OBS` at least) and returns a dict with
`Columns.ACTION_DIST_INPUTS`, from which `action_head` makes actions, their likelihood and their entropy. They are within the
head's limits already: what is learned, played and recorded is one distribution.

Classes written for RLlib run after changing their import line. They are made from spaces and a `model_config`, make networks in
`setup()`, and define `_forward`, or `_forward_inference` and `_forward_exploration`. Their outputs are inputs of the action
head that fits the action space, or of distribution classes that they name, or actions; as in RLlib, they are not limited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

DEFAULT_MODULE_ID: Final = "default_policy"  # RLlib's name for the only module there is


class RLModule(nn.Module):
    """A policy over the given spaces. Subclasses define `_forward`, and override another forward where it differs.

    `action_head` is None where the class names distributions of its own (`get_inference_action_dist_cls` and its like, or the
    attribute `action_dist_cls`): those play between connector pipelines, and are not trained here.
    """

    catalog: Any = None  # RLlib's modules have one; here networks are made in `setup`
    action_dist_cls: Any = None
    action_head: ActionHead

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        action_head: ActionHead | None = None,
        model_config: Mapping[str, Any] | None = None,
        *,
        inference_only: bool = False,
        catalog_class: Any = None,
    ) -> None:
        """`model_config`: what connector pieces ask for by RLlib's names: `max_seq_len` of a stateful module.

        Without `action_head` the class is taken for one in RLlib's manner, and Box actions for normalized ones. Raises
        BadConfig for a `catalog_class`, UnsupportedSpace.
        """
        super().__init__()
        if catalog_class is not None:
            what, fix = f"{type(self).__name__} wants a catalog ({catalog_class!r})", "make the networks in setup()"
            raise BadConfig(what, where="RLModule", fix=fix)
        self.model_config = dict(model_config or {})
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.in_rllibs_manner = action_head is None
        self.setup()
        if not isinstance(getattr(self, "action_head", None), (ActionHead, type(None))):
            what = f"{type(self).__name__}.setup() makes a network called action_head, which is the name of the distribution"
            raise BadConfig(what, where="RLModule", fix="give the network another name, for example self.logits")
        if action_head is None and not self.names_distributions:
            action_head = build_head(action_space, action_scale="normalized")
        self.action_head = cast(ActionHead, action_head)

    def setup(self) -> None:
        """Make the networks: called once, when spaces and `model_config` are there."""

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """`batch[OBS]`: a tree of leaves (B, *shape). Gives at least ACTION_DIST_INPUTS, (B, action_head.size), not limited."""
        name = type(self).__name__
        fix = "define _forward(self, batch), or _forward_inference and _forward_exploration"
        raise BadConfig(f"{name} does not say what it puts out", where=f"module {name}", fix=fix)

    def _forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._forward(batch)

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing greedily."""
        return self._limited(self._forward_inference(batch))

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For playing with sampled actions."""
        return self._limited(self._forward_exploration(batch))

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For an update: gradients flow."""
        return self._limited(self._forward_train(batch))

    def _limited(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """`outputs` with ACTION_DIST_INPUTS within the limits of the action head. Raises BadConfig where they do not fit it."""
        inputs, head = outputs.get(Columns.ACTION_DIST_INPUTS), self.action_head
        if inputs is None or not isinstance(head, ActionHead) or Columns.ACTIONS in outputs:
            return outputs
        shape = tuple(getattr(inputs, "shape", ()))
        if len(shape) < 2 or shape[-1] != head.size:
            kind, name = type(self).__name__, Columns.ACTION_DIST_INPUTS
            got = f"width {shape[-1]}, as shape {shape}" if shape else "no shape"
            what = f"{kind} puts out {name!r} of {got}; its distribution of {self.action_space} takes width {head.size}"
            raise BadConfig(what, where=f"module {kind}", fix=f"have its forward methods give {name!r} (B, {head.size})")
        return outputs if self.in_rllibs_manner else {**outputs, Columns.ACTION_DIST_INPUTS: head.limited(inputs)}

    @property
    def names_distributions(self) -> bool:
        """Whether the class names distributions of its own."""
        own = type(self).get_inference_action_dist_cls is not RLModule.get_inference_action_dist_cls
        return own or self.action_dist_cls is not None

    def get_inference_action_dist_cls(self) -> Any:
        """The class of the distribution to play greedily by, where the module names one: RLlib's, or one with its methods."""
        return self.action_dist_cls

    def get_exploration_action_dist_cls(self) -> Any:
        """The same, for playing with sampled actions."""
        return self.action_dist_cls or self.get_inference_action_dist_cls()

    def get_initial_state(self) -> dict[str, Any]:
        """The state of one row before its first step; empty: the module remembers nothing between steps."""
        return {}

    def is_stateful(self) -> bool:
        """Whether the module remembers something between steps, and wants `state_in` and a time axis."""
        return bool(self.get_initial_state())

    def act(self, observations: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tree:
        """Actions (B, ...) for observations (B, ...): the likeliest, or drawn with `generator`.

        Box actions are in the units of networks, about [-1, 1]; `action_units.ForEnvironment` makes them the environment's.
        """
        with torch.inference_mode():
            batch = {Columns.OBS: observations}
            outputs = self.forward_exploration(batch) if explore else self.forward_inference(batch)
            inputs: Tensor = outputs[Columns.ACTION_DIST_INPUTS]
            return self.action_head.sample(inputs, generator) if explore else self.action_head.greedy(inputs)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within it the module is in evaluation mode, dropout and the like off; afterwards each part is as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


# ---- what connector pieces ask of a module, one or several, ours or RLlib's ----


def is_multi(rl_module: Any) -> bool:
    """Whether these are several modules by id: a mapping, or RLlib's MultiRLModule."""
    return isinstance(rl_module, Mapping) or hasattr(rl_module, "foreach_module")


def is_stateful(rl_module: Any) -> bool:
    """Whether the module, or any of several, has a state; False for None."""
    if isinstance(rl_module, Mapping):
        return any(map(is_stateful, rl_module.values()))
    return rl_module is not None and bool(rl_module.is_stateful())


def module_of(rl_module: Any, module_id: Any) -> Any:
    """The one module that acts for `module_id`; None there: a single agent."""
    if not is_multi(rl_module):
        return rl_module if module_id is None or not hasattr(rl_module, "__getitem__") else rl_module[module_id]
    return rl_module[DEFAULT_MODULE_ID if module_id is None or module_id not in rl_module else module_id]


def max_seq_len(module: Any) -> int:
    """How many timesteps of its own a row of a train batch has. Raises BadConfig where a stateful module does not say."""
    length = _configured(module, "max_seq_len")
    if length is None or int(length) < 1:
        what = f"a stateful {type(module).__name__} without a length of sequences (max_seq_len is {length})"
        raise BadConfig(what, where="AddTimeDimToBatchAndZeroPad", fix='give the module model_config={"max_seq_len": 20}')
    return int(length)


def burn_in(module: Any) -> int:
    """How many timesteps lead in to those."""
    return int(_configured(module, "burn_in") or 0)


def _configured(module: Any, name: str) -> Any:
    config = getattr(module, "model_config", None)
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def initial_state(module: Any) -> Tree:
    """The state of one row before its first step, as arrays: copies, for the module may keep what it gives."""

    def array(leaf: Any) -> Any:
        return leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)

    return map_leaves(array, module.get_initial_state())


def hash_of_weights(module: nn.Module, more: bytes = b"") -> str:
    """The SHA-256 of `more` and of the weights by name, as hexadecimal digits."""
    digest = hashlib.sha256(more)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
