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

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.errors import BadConfig, BadData, MissingPackage
from offline_cli.modules.devices import seed_generators
from offline_cli.policies.policy import Acted, Seen
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.storage.local_files import not_found
from offline_cli.trees import flatten, unflatten_like

__all__ = ["ModelPolicy", "load_model", "with_channels_last"]

ALGORITHMS: Final = {  # what loads and plays a model, by the module of its policy's class; DDPG's policies are TD3's
    "stable_baselines3.common.policies": "PPO",
    **{f"stable_baselines3.{name.lower()}.policies": name for name in ("PPO", "A2C", "DQN", "SAC", "TD3")},
}
SMALL: Final = {"buffer_size": 1}  # a replay buffer of the size used in training takes gigabytes, and is not used here


class ModelPolicy:
    """A model that predicts actions in the environment's units."""

    action_scale = "env"

    def __init__(self, model: Any, action_space: Space, *, explore: bool, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._model = model
        self._dtypes = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(action_space).items()}
        self.chance_size = int(explore)

    def act(self, seen: Seen, state: Any, explore: bool) -> Acted:
        """See Policy. A model draws with torch's generator, which is seeded for each call."""
        if explore and seen.chance is not None:
            with torch.random.fork_rng():
                seed_generators(int(seen.chance[0, 0] * 2.0**53))
                found = self._model.predict(seen.obs, deterministic=False)[0]
        else:
            found = self._model.predict(seen.obs, deterministic=True)[0]
        actions = unflatten_like(
            found, [np.asarray(leaf).astype(self._dtypes[path], copy=False) for path, leaf in flatten(found)]
        )
        return Acted(actions, actions)


def load_model(file: str, *, device: str) -> tuple[Any, str]:
    """The model in a file that `model.save` of stable-baselines3 wrote, and its fingerprint.

    Runs what code is pickled in the file. Raises StorageNotFound, MissingPackage, BadConfig for algorithms that are not known,
    BadData for other files.
    """
    path = Path(file) if Path(file).is_file() else Path(f"{file}.zip")  # `save` adds the ending itself
    if not path.is_file():
        raise not_found(file, f"{file} does not exist", where=f"--policy sb3:{file}", fix="check the path")
    name = _algorithm(path)
    try:
        maker = getattr(importlib.import_module("stable_baselines3"), name)
    except ModuleNotFoundError as err:
        fix = "pip install 'offline-cli[sb3]'"
        raise MissingPackage(f"the package {err.name} is missing", where=f"--policy sb3:{file}", fix=fix) from err
    try:
        return maker.load(str(path), device=device, custom_objects=SMALL), hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception as err:  # the file decides what runs here, and so what is raised
        fix = "save it again with the installed version of stable-baselines3"
        raise BadData(f"the model cannot be loaded: {err!r}", where=str(path), fix=fix) from err


def _algorithm(path: Path) -> str:
    """The class that loads the file, by what it says of its policy in plain JSON. Raises BadConfig, BadData."""
    try:
        with zipfile.ZipFile(path) as archive:
            policy = json.loads(archive.read("data")).get("policy_class")
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError) as err:
        fix = "name a file that model.save of stable-baselines3 wrote"
        raise BadData(f"not a model of stable-baselines3: {err}", where=str(path), fix=fix) from err
    home = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    if home not in ALGORITHMS:
        what = f"a policy of {home or 'an unknown class'}, which is not one of {', '.join(sorted(ALGORITHMS))}"
        raise BadConfig(what, where=str(path), fix="load it in Python, and name it with python:package.module:attribute")
    return ALGORITHMS[home]


def with_channels_last(model: Space, environment: Space) -> Space:
    """The space that a model was trained with; where it saw the environment's images with channels first, as stable-baselines3
    turns them by itself, the environment's own, as a whole or by key of a Dict."""
    if isinstance(model, spaces.Dict) and isinstance(environment, spaces.Dict):
        ours = environment.spaces
        return spaces.Dict({key: with_channels_last(one, ours[key]) if key in ours else one for key, one in model.items()})
    return environment if _is_turned(model, environment) else model


def _is_turned(model: Space, environment: Space) -> bool:
    if not (isinstance(model, spaces.Box) and isinstance(environment, spaces.Box)) or len(environment.shape) != 3:
        return False
    height, width, channels = environment.shape
    return model.shape == (channels, height, width) and model.dtype == environment.dtype == np.uint8
