"""Targets of fuzzing that need torch: pipeline files, what their pieces learned, policies."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache

import numpy as np
from fuzz_targets import PLACE, Wrong
from gymnasium import spaces
from safetensors.torch import save as save_tensors

from offline_cli.connectors.common.mean_std_filter import MeanStdFilter
from offline_cli.connectors.connector_v2 import state_from_bytes, state_to_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.errors import SpaceMismatch
from offline_cli.modules.policy_modules import build_module
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.policies.run_policy import policy_of
from offline_cli.spaces import space_to_json

BOX, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
TRAINED = {"kind": "learner", "pieces": [{"name": "mean_std_filter"}, {"name": "frame_stacking", "num_frames": 2}]}


def pipeline(data: bytes) -> None:
    """A pipeline file, with the pieces for observations that are numbers and for ones that are choices."""
    file = PipelineSpec.from_bytes(data, where=PLACE, plugins=())
    for observations in (BOX, CHOICES):
        with suppress(SpaceMismatch):
            file.build(Setting(observations, CHOICES))
    file.beside_environment()


def pieces_state(data: bytes) -> None:
    """What the pieces of a policy have learned, and an observation that they see."""
    trained = PipelineSpec("learner", TRAINED, state=state_from_bytes(data, where=PLACE), where=PLACE, plugins=())
    both = PlaySpec(trained=trained).build(Setting(BOX, CHOICES))
    for _, piece in both.env_to_module.named():
        if isinstance(piece, MeanStdFilter):
            seen = piece.transform(np.ones((4, 3), np.float32), BOX, None)
            if seen.shape != (4, 3):
                raise Wrong(f"observations of shape {seen.shape}")


def policy(data: bytes) -> None:
    """policy.json, beside weights and a state that belong to the seeds; then the pieces that it tells of."""
    weights, learned = policy_files()
    loaded = policy_of(data, weights, learned, where=PLACE)
    if loaded.trained is not None:
        PlaySpec(trained=loaded.trained).build(Setting(BOX, CHOICES))


def tensors(data: bytes) -> None:
    """policy.safetensors, beside a policy.json that is sound."""
    policy_of(json.dumps(POLICY).encode(), data, None, where=PLACE)


@cache
def policy_files() -> tuple[bytes, bytes]:
    """(weights, what pieces learned) of a small policy."""
    module = build_module(BOX, CHOICES, hidden=(4,), activation="tanh")
    return save_tensors(module.state_dict()), state_to_bytes({}, where=PLACE)


POLICY = {
    "format": "offline-cli-policy",
    "version": 1,
    "observation_space": space_to_json(BOX),
    "action_space": space_to_json(CHOICES),
    "action_scale": "env",
    "network": {"name": "mlp", "hidden": [4], "activation": "tanh"},
    "environment": "CartPole-v1",
}
