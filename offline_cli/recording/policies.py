"""Policies by name: `random`, a run folder, `sb3:FILE`, `python:module:attribute`; refuses spaces that do not fit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch

from offline_cli.errors import BadConfig, SpaceMismatch
from offline_cli.modules.rl_module import RLModule
from offline_cli.recording.model_policy import ModelPolicy, is_transposed_image, load_model
from offline_cli.recording.policy import Policy
from offline_cli.recording.python_policy import FunctionPolicy, imported
from offline_cli.recording.random_policy import RandomPolicy
from offline_cli.recording.run_policy import ModulePolicy, run_policy
from offline_cli.spaces import Space
from offline_cli.training.misfits import misfits
from offline_cli.trees import Tree

__all__ = ["open_policy"]

RANDOM, SB3, PYTHON = "random", "sb3:", "python:"
KINDS = ("observations", "actions")


def open_policy(
    name: str,
    observation_space: Space,
    action_space: Space,
    *,
    env: str,
    explore: bool,
    device: str = "cpu",
    storage_options: Mapping[str, Any] | None = None,
    example: Callable[[], Tree] | None = None,
) -> Policy:
    """The policy of that name, ready to play in the environment `env` with these spaces.

    `explore`: with chance, where the policy knows any; `random` always is. `example`: gives a real observation, for a policy
    that raises for invented ones. Raises SpaceMismatch, naming both sides; BadConfig
    for what is no policy; MissingPackage; what `load_policy` raises for a run folder, and BadData for a policy that raises
    when it is imported, loaded or tried.
    """
    if name == RANDOM:
        return RandomPolicy(action_space)
    if name.startswith(SB3):
        model, fingerprint = load_model(name.removeprefix(SB3), device=device)
        _check_model(model, observation_space, action_space, name, env)
        return ModelPolicy(model, action_space, explore=explore, fingerprint=fingerprint)
    if name.startswith(PYTHON):
        return _python(name, observation_space, action_space, env, explore=explore, device=device, example=example)
    if "://" not in name and name.split(":")[0] in ("rllib", "onnx"):
        raise BadConfig("this kind of policy cannot be recorded yet", where=f"--policy {name}", fix=_forms())
    policy, *theirs = run_policy(name, explore=explore, device=torch.device(device), storage_options=storage_options)
    _check_fits(list(zip(theirs, [observation_space, action_space], KINDS, strict=True)), name, env)
    policy.play_in(action_space)
    return policy


def _forms() -> str:
    return f"{RANDOM}, a run folder of train-bc, {SB3}FILE or {PYTHON}package.module:attribute"


def _python(
    name: str,
    observation_space: Space,
    action_space: Space,
    env: str,
    *,
    explore: bool,
    device: str,
    example: Callable[[], Tree] | None,
) -> Policy:
    found = imported(name.removeprefix(PYTHON))
    predicts = callable(getattr(found, "predict", None))
    if not (isinstance(found, RLModule) or predicts or callable(found)):
        what = f"it is {type(found).__name__}, which cannot be called"
        raise BadConfig(what, where=f"--policy {name}", fix="name a function")
    _check_model(found, observation_space, action_space, name, env)
    if isinstance(found, RLModule):
        return _module_policy(found, action_space, name, explore=explore, device=device)
    if predicts:
        return ModelPolicy(found, action_space, explore=explore, fingerprint=name)
    own_name = name.removeprefix(PYTHON)
    return FunctionPolicy(found, own_name, observation_space, action_space, explore=explore, example=example)


def _module_policy(module: RLModule, action_space: Space, name: str, *, explore: bool, device: str) -> Policy:
    digest = hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in module.state_dict().values()))
    policy = ModulePolicy(module, explore=explore, device=torch.device(device), fingerprint=digest.hexdigest(), name=name)
    policy.play_in(action_space)
    return policy


def _check_model(model: Any, observation_space: Space, action_space: Space, name: str, env: str) -> None:
    """As `_check_fits`, for what may have no spaces, or see images another way round."""
    theirs = [getattr(model, "observation_space", None), getattr(model, "action_space", None)]
    if isinstance(theirs[0], gym.Space) and is_transposed_image(theirs[0], observation_space):
        theirs[0] = observation_space
    ours = [observation_space, action_space]
    triples = zip(theirs, ours, KINDS, strict=True)
    _check_fits([(left, right, what) for left, right, what in triples if isinstance(left, gym.Space)], name, env)


def _check_fits(sides: list[tuple[Space, Space, str]], name: str, env: str) -> None:
    """Raise SpaceMismatch, with every difference, for sides (the policy's, the environment's, what of)."""
    problems = [
        text.replace("the data has", "the policy has", 1)
        for theirs, ours, what in sides
        for text in misfits(theirs, ours, inferred=False, what=what)
    ]
    if problems:
        fix = "an environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=f"--policy {name} in {env}", fix=fix)
