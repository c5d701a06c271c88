"""A network that is code of the user's own, `python:package.module:build`: called with spaces and options, wrapped, checked.

What the name stands for gives the whole policy: a function of (observation_space, action_space, options), or an RLModule in
RLlib's manner, whose `model_config` the options are. A function gives an RLModule, or any module from observations (B, ...)
to inputs of the action's distribution (B, `action_inputs(action_space)`). Every mistake against that is found with two rows of
made-up observations, before any data is read (`check_policy`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, OfflineCliError
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.rl_module import RLModule, evaluating, initial_state, max_seq_len
from offline_cli.plugins import plugin_behind
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["OwnPolicy", "action_inputs", "check_policy", "made_by", "module_in_rllibs_manner", "own_policy"]

ROWS: Final = 2  # of made-up observations
WANTED: Final = "a function of (observation_space, action_space, options) that returns a torch module, or a class of RLModule"


def action_inputs(action_space: Space) -> int:
    """How many numbers the distribution of one action takes: one for each choice, two for each number of a Box."""
    return build_head(action_space, action_scale="normalized").size


def made_by(found: Any, name: str, observation_space: Space, action_space: Any, options: Mapping[str, Any]) -> nn.Module:
    """What the object `found`, which is called `name`, makes. Raises BadConfig where it is no builder, or makes no module."""
    where, given = f"--network {name}", copy.deepcopy(dict(options))
    if isinstance(found, type) and issubclass(found, RLModule):
        return module_in_rllibs_manner(found, observation_space, action_space, given)
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as err:  # it cannot be called, or not so
        raise BadConfig(f"{name} is {_kind(found)}, and cannot be called so", where=where, fix=f"name {WANTED}") from err
    except ValueError:  # without a signature: only calling it shows
        pass
    made = found(observation_space, action_space, given)
    if not isinstance(made, nn.Module):
        raise BadConfig(f"{name} returns {_kind(made)}, which is no torch.nn.Module", where=where, fix=WANTED)
    return made


def _kind(value: Any) -> str:
    is_function = inspect.isfunction(value)
    return f"{value.__name__}{inspect.signature(value)}" if is_function else f"an object of {type(value).__name__}"


def module_in_rllibs_manner(
    kind: type[RLModule], observation_space: Space, action_space: Space, model_config: Mapping[str, Any]
) -> RLModule:
    """An object of a class that makes its networks in `setup()`, with as much of these as its `__init__` takes."""
    parameters = inspect.signature(kind).parameters
    given: dict[str, Any] = {"observation_space": observation_space, "action_space": action_space}
    given["model_config"] = dict(model_config)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return kind(**{name: value for name, value in given.items() if takes_any or name in parameters})


class OwnPolicy(RLModule):
    """A module from observations (B, ...) to the inputs of the action's distribution (B, head.size), as a policy."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, network: nn.Module) -> None:
        super().__init__(observation_space, action_space, head)
        self.network = network

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: outputs.float() if isinstance(outputs, Tensor) else outputs}


def own_policy(made: nn.Module, name: str, observation_space: Space, action_space: Space, head: ActionHead) -> RLModule:
    """A module that `made_by` gave as a policy whose actions are those of `head`. Raises BadConfig for one with a distribution
    of its own, which is not trained here.
    """
    if not isinstance(made, RLModule):
        return OwnPolicy(observation_space, action_space, head, made)
    if made.names_distributions:
        fix = "leave get_inference_action_dist_cls and action_dist_cls out: the distribution that fits the space is taken"
        raise BadConfig(f"{type(made).__name__} names a distribution of its own", where=f"--network {name}", fix=fix)
    made.action_head, made.in_rllibs_manner = head, False
    return made


def check_policy(policy: RLModule, name: str) -> RLModule:
    """The policy. Raises BadConfig, naming what is wrong, for one that nothing can be learned with: outputs of another width
    than its distribution takes, or without a gradient, layers that do not fit, a memory without `state_out`, or one without a
    length of sequences. An error that the user's code is on the way of passes, with its line.
    """
    where, axes = f"--network {name}", 1
    batch: dict[str, Any] = {Columns.OBS: map_leaves(_made_up, space_tree(policy.observation_space))}
    try:
        if policy.is_stateful():
            max_seq_len(policy)
            axes = 2
            batch[Columns.OBS] = map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS])
            repeated = map_leaves(lambda leaf: np.repeat(leaf[None], ROWS, 0), initial_state(policy))
            batch[Columns.STATE_IN] = map_leaves(torch.from_numpy, repeated)
        with evaluating(policy), torch.enable_grad():
            outputs = policy.forward_train(batch)
    except OfflineCliError as err:
        err.where = f"{where}, {err.where}"
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as err:
        if plugin_behind(err) is not None or "memory" in str(err).lower():  # the code's own, or the machine's
            raise
        fix = "make its layers for the shapes of the observation space, which it is given"
        raise BadConfig(f"the network of {name} raised {err!r}", where=where, fix=fix) from err
    shape = (*leaves(batch[Columns.OBS])[0].shape[:axes], policy.action_head.size)
    if wrong := _fault(policy, outputs, batch, shape):
        fix = f"have its forward give {Columns.ACTION_DIST_INPUTS!r} {shape} made of its parameters, without detach() or "
        raise BadConfig(f"the network of {name} {wrong}", where=where, fix=f"{fix}torch.no_grad()")
    return policy


def _fault(policy: RLModule, outputs: Any, batch: Mapping[str, Any], shape: tuple[int, ...]) -> str:
    """What is wrong with the outputs for `batch`; empty: nothing."""
    name = Columns.ACTION_DIST_INPUTS
    inputs = outputs.get(name) if isinstance(outputs, Mapping) else None
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        return "has no parameter to train"
    if not isinstance(inputs, Tensor):
        return f"puts out {sorted(map(str, outputs)) if isinstance(outputs, Mapping) else _kind(outputs)}, and no {name!r}"
    if inputs.shape != shape:
        return f"puts out {name!r} of shape {tuple(inputs.shape)}, where {shape} is needed"
    if not inputs.requires_grad:
        return f"puts out {name!r} without a gradient"
    if Columns.STATE_IN in batch and not _same_form(outputs.get(Columns.STATE_OUT), batch[Columns.STATE_IN]):
        return f"puts out no {Columns.STATE_OUT!r} of the form of its initial state, leaves (B, ...)"
    return ""


def _same_form(one: Any, other: Tree) -> bool:
    try:
        return all(leaves(map_leaves(lambda left, right: left.shape == right.shape, one, other)))
    except (AttributeError, TypeError, KeyError, ValueError):
        return False


def _made_up(leaf: Space) -> Tensor:
    """ROWS of values of a leaf space, as training gives them: float32 for wider floats, int64 for wider unsigned numbers."""
    first = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
    values = np.broadcast_to(np.asarray(first, leaf.dtype), (ROWS, *(leaf.shape or ())))
    wider = {"f": np.float32, "u": np.int64}.get(values.dtype.kind, values.dtype)
    return torch.from_numpy(values.astype(values.dtype if values.dtype in (np.float16, np.uint8) else wider))
