"""Connectors: pieces between episodes and modules, and the pipelines made of them.

RLlib's import paths lead to them, so that code written for RLlib runs after its import line is changed. RLlib has a module for
each piece, in each of four packages; here pieces that belong together share one. So beside the files there are modules without
a file, such as `offline_cli.connectors.learner.frame_stacking`, whose names are those of this package.
"""

# ruff: noqa: F403  each file says in `__all__` what is public
import sys
import types

from offline_cli.connectors.common.batching import *
from offline_cli.connectors.common.flattening import *
from offline_cli.connectors.common.frame_stacking import *
from offline_cli.connectors.common.mean_std_filter import *
from offline_cli.connectors.common.states_and_time import *
from offline_cli.connectors.connector_pipeline_v2 import *
from offline_cli.connectors.connector_v2 import *
from offline_cli.connectors.env_to_module.observation_preprocessor import *
from offline_cli.connectors.learner.added_columns import *
from offline_cli.connectors.learner.returns import *
from offline_cli.connectors.module_to_env.default_pipeline import *
from offline_cli.connectors.piece_makers import snake


def _give_rllibs_paths() -> None:
    """Enter the modules without a file: one for each class, in each of RLlib's packages."""
    names = {name: value for name, value in globals().items() if name[0].isupper() and callable(value)}
    for package in ("common", "env_to_module", "learner", "module_to_env"):
        sys.modules[f"{__name__}.{package}"].__dict__.update(names)
        for name in names:
            path = f"{__name__}.{package}.{snake(name)}"
            module = types.ModuleType(path, "RLlib's import path; see offline_cli.connectors.")
            module.__dict__.update(names)
            sys.modules.setdefault(path, module)


_give_rllibs_paths()
