"""Connectors: pieces between episodes and modules, and pipelines of such pieces.

RLlib's import paths work here, so that code written for RLlib runs after changing its import line. RLlib has one module for
each piece, in four packages; here related pieces share a file. RLlib's other module paths, such as
`offline_cli.connectors.learner.frame_stacking`, are modules without a file that contain the names of this package.
"""

# ruff: noqa: F403  `__all__` in each file lists its public names
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
    """Register the modules without a file in `sys.modules`: one for each class, in each of RLlib's packages."""
    names = {name: value for name, value in globals().items() if name[0].isupper() and callable(value)}
    for package in ("common", "env_to_module", "learner", "module_to_env"):
        sys.modules[f"{__name__}.{package}"].__dict__.update(names)
        for name in names:
            path = f"{__name__}.{package}.{snake(name)}"
            module = types.ModuleType(path, "RLlib's import path; see offline_cli.connectors.")
            module.__dict__.update(names)
            sys.modules.setdefault(path, module)


_give_rllibs_paths()
