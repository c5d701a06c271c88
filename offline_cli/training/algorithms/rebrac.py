"""ReBRAC: TD3+BC as Tarasov et al. 2023 (arXiv 2305.09836) set it. A preset: all of it is options and settings of `td3-bc`.

The values are those of their configuration for D4RL's halfcheetah-medium-v2; `actor_bc` and `critic_bc` they tuned for each
dataset. docs/algorithms.md lists what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from offline_cli.training.algorithms.td3_bc import TD3BC

__all__ = ["ReBRAC"]

PUBLISHED: Final[Mapping[str, Any]] = {
    "alpha": 1.0,
    "policy_q": "min",
    "actor_bc": 0.001,
    "critic_bc": 0.01,
    "distance": "sum",
    "critic_layer_norm": True,
}
"""Options of td3-bc with another default; gamma, tau, both noises, normalize_q and policy_every are as they are there."""


class ReBRAC(TD3BC):
    """`td3-bc` with other defaults."""

    name = "rebrac"
    settings: ClassVar[Mapping[str, Any]] = {"hidden": [256, 256, 256], "activation": "relu", "batch_size": 1024, "lr": 1e-3}
    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            option: {**key, "default": PUBLISHED[option]} if option in PUBLISHED else key
            for option, key in TD3BC.schema["properties"].items()
        }
    }
