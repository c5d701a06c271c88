"""Models of stable-baselines3 (`sb3:FILE`), and all else that has `predict(observations, deterministic=...)`.

A model file holds pickled Python objects, and loading one can run any code that its maker put in. One is loaded because the
user named the file, and for no other reason: no dataset, manifest or run folder can bring one in.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import zipfile
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, StorageNotFound
from offline_cli.policies.function_policy import FunctionPolicy
from offline_cli.policies.policy import PolicyOptions, State, fitting, seeded
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["SB3", "fitting_model", "model_policy", "open_model"]

SB3: Final = "sb3:"
ALGORITHMS: Final = {  # what loads and plays a model, by the module of its policy's class; DDPG's policies are TD3's
    "stable_baselines3.common.policies": "PPO",
    **{f"stable_baselines3.{name.lower()}.policies": name for name in ("PPO", "A2C", "DQN", "SAC", "TD3")},
}
NORMALIZING: Final = "*vec*normalize*.pkl"  # as stable-baselines3's guide, its callbacks and its zoo name them


def open_model(name: str, environment: Environment | None, options: PolicyOptions) -> FunctionPolicy:
    """The policy of the model in `sb3:FILE`, which `model.save` wrote. Runs what code is pickled in the file.

    Raises StorageNotFound, MissingPackage, SpaceMismatch; BadConfig for algorithms that are not known, and beside a file of
    VecNormalize; BadData for other files.
    """
    options.refuse_pieces(name)
    file, where = name.removeprefix(SB3), f"--policy {name}"
    path = Path(file) if Path(file).is_file() else Path(f"{file}.zip")  # `save` adds the ending itself
    if not path.is_file():
        raise StorageNotFound(f"{file} does not exist", where=where, fix="check the path")
    try:
        with zipfile.ZipFile(path) as archive:  # which says in plain JSON what its policy is
            home = str(json.loads(archive.read("data"))["policy_class"]["__module__"])
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as err:
        fix = "name a file that model.save of stable-baselines3 wrote"
        raise BadData(f"not a model of stable-baselines3: {err}", where=where, fix=fix) from err
    if home not in ALGORITHMS:
        what, fix = f"a policy of {home}, which is none of {', '.join(ALGORITHMS)}", "python:package.module:attribute"
        raise BadConfig(what, where=where, fix=f"load it in Python, and name it with {fix}")
    _refuse_normalizing(path)
    try:
        kind = getattr(importlib.import_module("stable_baselines3"), ALGORITHMS[home])
        # A replay buffer of the size used in training takes gigabytes, and is not used here.
        model = kind.load(str(path), device=options.device, custom_objects={"buffer_size": 1})
    except ModuleNotFoundError as err:
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix="pip install 'offline-cli[sb3]'") from err
    except Exception as err:  # the file decides what runs here, and so what is raised
        fix = "save it again with the installed version of stable-baselines3"
        raise BadData(f"the model cannot be loaded: {err!r}", where=where, fix=fix) from err
    return model_policy(model, environment, hashlib.sha256(path.read_bytes()).hexdigest(), name)


def _refuse_normalizing(model: Path) -> None:
    """Raise BadConfig where statistics of VecNormalize lie beside the model: it learned from observations divided by them."""
    home = model.parent  # of the zoo: ENV_1/ENV.zip beside ENV_1/ENV/vecnormalize.pkl
    folders = home, home / model.stem, home / home.resolve().name.rpartition("_")[0]
    if found := [file for folder in folders for file in sorted(folder.glob(NORMALIZING))]:
        what = f"{found[0]} lies beside the model: it was trained on normalised observations, and would see raw ones"
        fix = "name a Python object whose predict() calls normalize_obs(), python:module:attribute; or move the file away"
        raise BadConfig(what, where=str(model), fix=fix)


def model_policy(model: Any, environment: Environment | None, fingerprint: str, name: str) -> FunctionPolicy:
    """The policy of a model with `predict`. Where it explores, its libraries' generators draw. Raises SpaceMismatch."""

    def act(observations: Tree, state: State, explore: bool) -> Any:
        if not explore:
            return model.predict(observations, deterministic=True)[0]
        with seeded(state) as seed:
            if isinstance(drawn_from := getattr(model, "action_space", None), gym.Space):  # DQN draws from its space
                drawn_from.seed(seed % (1 << 31))
            return model.predict(observations, deterministic=False)[0]

    policy = FunctionPolicy(act, fitting_model(model, name, environment), fingerprint, name)
    policy.needs_finite = True
    return policy


def fitting_model(model: Any, name: str, environment: Environment | None) -> Environment:
    """As `fitting`, for what may have no spaces, or see images with channels first, as stable-baselines3 turns them."""
    seen = getattr(model, "observation_space", None)
    if isinstance(seen, gym.Space) and environment is not None:
        seen = _with_channels_last(seen, environment.observation_space)
    return fitting((seen, getattr(model, "action_space", None)), name, environment)


def _with_channels_last(model: Space, environment: Space) -> Space:
    """The model's space; the environment's own for images whose channels stable-baselines3 put first, also by key of a Dict."""
    if isinstance(model, spaces.Dict) and isinstance(environment, spaces.Dict):
        ours = environment.spaces
        return spaces.Dict({key: _with_channels_last(one, ours[key]) if key in ours else one for key, one in model.items()})
    if not (isinstance(model, spaces.Box) and isinstance(environment, spaces.Box)) or len(environment.shape) != 3:
        return model
    height, width, channels = environment.shape
    is_turned = model.shape == (channels, height, width) and model.dtype == environment.dtype == np.uint8
    return environment if is_turned else model
