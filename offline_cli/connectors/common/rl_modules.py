"""What pieces ask of a module, one or several, ours or RLlib's; refuses stateful modules without a length of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.errors import BadConfig
from offline_cli.trees import Tree, map_leaves

__all__ = ["DEFAULT_MODULE_ID", "initial_state", "is_multi", "is_stateful", "max_seq_len", "module_of"]

DEFAULT_MODULE_ID: Final = "default_policy"  # RLlib's name for the only module there is


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
    """How many timesteps a row of a train batch has. Raises BadConfig where a stateful module does not say."""
    config = getattr(module, "model_config", None)
    length = config.get("max_seq_len") if isinstance(config, Mapping) else getattr(config, "max_seq_len", None)
    if length is None or int(length) < 1:
        raise BadConfig(
            f"a stateful {type(module).__name__} without a length of sequences (max_seq_len is {length})",
            where="AddTimeDimToBatchAndZeroPad",
            fix='give the module model_config={"max_seq_len": 20}',
        )
    return int(length)


def initial_state(module: Any) -> Tree:
    """The state of one row before its first step, as arrays."""
    return map_leaves(_array, module.get_initial_state())


def _array(leaf: Any) -> Any:
    """A copy: the module may keep what it gives."""
    return leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else np.array(leaf)
