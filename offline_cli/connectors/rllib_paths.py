"""RLlib's import paths, so that code written for RLlib runs after its import line is changed.

RLlib has a module for each piece, here pieces that belong together share one. `offline_cli.connectors.learner.frame_stacking`
and the others below are modules without a file, whose names are those of `offline_cli.connectors`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

__all__ = ["give_paths", "lookup_in"]

PATHS: Final = {
    "common": (
        *("add_observations_from_episodes_to_batch", "add_states_from_episodes_to_batch", "add_time_dim_to_batch_and_zero_pad"),
        *("agent_to_module_mapping", "batch_individual_items", "flatten_observations", "module_to_agent_unmapping"),
        *("numpy_to_tensor", "prev_actions_prev_rewards", "tensor_to_numpy"),
    ),
    "env_to_module": (
        *("env_to_module_pipeline", "flatten_observations", "frame_stacking", "gymnasium_wrapper", "mean_std_filter"),
        *("one_hot", "prev_actions_prev_rewards", "write_observations_to_episodes"),
    ),
    "learner": (
        *("add_columns_from_episodes_to_train_batch", "add_infos_from_episodes_to_train_batch"),
        *("add_next_observations_from_episodes_to_train_batch", "compute_returns_to_go", "frame_stacking"),
        *("general_advantage_estimation", "learner_connector_pipeline"),
    ),
    "module_to_env": (
        *("get_actions", "listify_data_for_vector_env", "module_to_env_pipeline", "normalize_and_clip_actions"),
        *("remove_single_ts_time_rank_from_batch", "unbatch_to_individual_items"),
    ),
}
"""RLlib's modules that have no file here, by package."""
SHORTHANDS: Final = {"FrameStackingEnvToModule": False, "FrameStackingLearner": True}
"""RLlib's names for `FrameStacking` with `as_learner_connector` set."""


def give_paths(package: str) -> None:
    """Make the modules of `PATHS` below `package`, such as `offline_cli.connectors.learner`. Imports no piece."""
    for name in PATHS[package.rpartition(".")[2]]:
        path = f"{package}.{name}"
        module = ModuleType(path, "RLlib's import path; see offline_cli.connectors.rllib_paths.")
        module.__getattr__ = lookup_in(path)  # type: ignore[method-assign]
        sys.modules.setdefault(path, module)


def lookup_in(path: str) -> Callable[[str], Any]:
    """The `__getattr__` of the module at `path`: the public names of `offline_cli.connectors`, imported when asked for."""

    def lookup(name: str) -> Any:
        import offline_cli.connectors as connectors

        if name in SHORTHANDS:
            return partial(connectors.FrameStacking, as_learner_connector=SHORTHANDS[name])
        if name not in connectors.__all__ or name.islower():  # RLlib has modules, not functions, under the lower-case names
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        return getattr(connectors, name)

    return lookup
