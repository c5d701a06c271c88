"""Action heads: likelihood, entropy, greedy and sampled actions for every action space that has a density.

A head reads a flat row of numbers, `action_dist_inputs`, as a distribution over actions, all on tensors and without waiting for
the device, so that a whole update can be captured as a CUDA graph. It reads them as RLlib does, so that a recording of them
tells every reader which distribution was played: the limits of the log standard deviation are in the numbers already, because
`RLModule` passes what a network puts out through `limited`. Names follow `offline_cli.spaces`: Discrete counts from its
`start`.

Box actions are Gaussian with a standard deviation per dimension, in the units of networks: about [-1, 1] within the bounds, see
`action_units`. `for_env` alone turns them into what an environment takes.
"""

from __future__ import annotations

from typing import Final, get_args

import numpy as np
from gymnasium import spaces

from offline_cli.choices import ActionScale as Scale
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions.discrete import ActionHead, Categorical, MultiBernoulli, MultiCategorical
from offline_cli.modules.distributions.gaussian import LOG_STD_RANGE, DiagonalGaussian, GaussianForm, Nested
from offline_cli.spaces import Space, check_supported

__all__ = [
    "CLONING",
    "LOG_STD_RANGE",
    "ActionHead",
    "Categorical",
    "DiagonalGaussian",
    "GaussianForm",
    "MultiBernoulli",
    "MultiCategorical",
    "Nested",
    "build_head",
    "check_scale",
]

CLONING: Final = GaussianForm()


def build_head(space: Space, *, action_scale: str, form: GaussianForm = CLONING) -> ActionHead:
    """The head for `space`; `action_scale`, of the data that will be learned from, is `env` or `normalized`, for Box alone,
    as is `form`.

    Raises UnsupportedSpace for spaces that cannot be stored, BadConfig for a Box of unknown scale.
    """
    check_supported(space, where="action space")
    return _build(space, action_scale, form)


def _build(space: Space, action_scale: str, form: GaussianForm) -> ActionHead:
    match space:
        case spaces.Discrete():
            return Categorical(space)
        case spaces.MultiDiscrete():
            return MultiCategorical(space)
        case spaces.MultiBinary():
            return MultiBernoulli(space)
        case spaces.Box():
            if np.dtype(space.dtype).kind == "f":
                check_scale(action_scale, where="action space")
            return DiagonalGaussian(space, normalized=action_scale == "normalized", form=form)
        case spaces.Dict() | spaces.Tuple():
            parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
            return Nested(space, [_build(part, action_scale, form) for part in parts])
    raise AssertionError(space)  # check_supported refuses every other type


def check_scale(action_scale: str, *, where: str) -> None:
    """Raise BadConfig, with the remedy, unless Box actions of this scale can be learned."""
    if action_scale not in get_args(Scale):
        what = f"Box actions of {action_scale} scale: env units, or a module's outputs in about [-1, 1]?"
        fix = "say --action-scale env (most recorders) or --action-scale normalized (RLlib's recordings)"
        raise BadConfig(what, where=where, fix=fix)
