"""Models with `predict(observations, deterministic=...)`, stable-baselines3's above all; refuses a file that is none of its.

A file of stable-baselines3 holds pickled Python objects, and loading one can run any code that its maker put in. It is loaded
because the user named the file, and for no other reason: no dataset, manifest or run folder can bring one in.
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
from numpy.typing import NDArray

from offline_cli.errors import BadConfig, BadData, MissingPackage
from offline_cli.modules.drawing import seed_generators
from offline_cli.policies.observation_rows import rows_of
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.storage.local_files import not_found
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["ModelPolicy", "load_model"]

MAKERS: Final = {  # by the module of the policy's class: what loads and plays it; A2C's policies are PPO's, DDPG's are TD3's
    "stable_baselines3.common.policies": ("stable_baselines3", "PPO"),
    "stable_baselines3.ppo.policies": ("stable_baselines3", "PPO"),
    "stable_baselines3.a2c.policies": ("stable_baselines3", "A2C"),
    "stable_baselines3.dqn.policies": ("stable_baselines3", "DQN"),
    "stable_baselines3.sac.policies": ("stable_baselines3", "SAC"),
    "stable_baselines3.td3.policies": ("stable_baselines3", "TD3"),
}
SEED_BITS = 53  # of a uniform number
SMALL: Final = {"buffer_size": 1}  # a replay buffer of the size used in training takes gigabytes, and nobody replays here


class ModelPolicy:
    """A model that predicts actions in the environment's units."""

    rows_alike = False
    shows_numbers = False
    action_scale = "env"

    def __init__(self, model: Any, action_space: Space, *, explore: bool, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._model, self._explore = model, explore
        self._dtypes = {path: np.dtype(leaf.dtype) for path, leaf in leaf_spaces(action_space).items()}
        self.chance_size = int(explore)

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Policy. With exploration a row at a time: the model draws from torch's generator, seeded for each row."""
        actions = self._drawn(observations, chance) if self._explore else self._predicted(observations)
        typed = iter([np.asarray(leaf).astype(self._dtypes[path], copy=False) for path, leaf in flatten(actions)])
        actions = map_leaves(lambda _: next(typed), actions)
        return Acted(actions, actions)

    def _predicted(self, observations: Tree) -> Tree:
        return self._model.predict(observations, deterministic=not self._explore)[0]

    def _drawn(self, observations: Tree, chance: NDArray[np.float64]) -> Tree:
        rows = []
        with torch.random.fork_rng():
            for row in range(len(chance)):
                seed_generators(int(chance[row, 0] * 2.0**SEED_BITS))
                rows.append(self._predicted(rows_of(observations, slice(row, row + 1))))
        return map_leaves(lambda *parts: np.concatenate(parts), *rows)


def load_model(file: str, *, device: str) -> tuple[Any, str]:
    """The model in a file that `model.save` of stable-baselines3 wrote, and its fingerprint.

    Runs what code is pickled in the file. Raises StorageNotFound, MissingPackage, BadConfig for algorithms that are not known,
    BadData for other files.
    """
    path = Path(file) if Path(file).is_file() else Path(f"{file}.zip")  # `save` adds the ending itself
    if not path.is_file():
        raise not_found(file, f"{file} does not exist", where=f"--policy sb3:{file}", fix="check the path")
    described = _described(path)
    module, name = _maker(described, path)
    try:
        maker = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as err:
        fix = "pip install 'offline-cli[sb3]'"
        raise MissingPackage(f"the package {err.name} is missing", where=f"--policy sb3:{file}", fix=fix) from err
    try:
        return maker.load(str(path), device=device, custom_objects=SMALL), hashlib.sha256(path.read_bytes()).hexdigest()
    except Exception as err:  # the file decides what runs here, and so what is raised
        fix = "save it again with the installed version of stable-baselines3"
        raise BadData(f"the model cannot be loaded: {err!r}", where=str(path), fix=fix) from err


def _described(path: Path) -> dict[str, Any]:
    fix = "name a file that model.save of stable-baselines3 wrote"
    try:
        with zipfile.ZipFile(path) as archive:
            described: dict[str, Any] = json.loads(archive.read("data"))
            return described
    except (zipfile.BadZipFile, KeyError, ValueError) as err:
        raise BadData(f"not a model of stable-baselines3: {err}", where=str(path), fix=fix) from err


def _maker(described: dict[str, Any], path: Path) -> tuple[str, str]:
    """Module and class that load it, by what the file says of its policy in plain JSON."""
    policy = described.get("policy_class")
    home = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    if home not in MAKERS:
        what = f"a policy of {home or 'an unknown class'}, which is none of {', '.join(sorted(MAKERS))}"
        raise BadConfig(what, where=str(path), fix="load it in Python, and name it with python:package.module:attribute")
    return MAKERS[home]


def is_transposed_image(model: Space, environment: Space) -> bool:
    """Whether the model saw the environment's images with channels first, as stable-baselines3 turns them by itself."""
    if not (isinstance(model, spaces.Box) and isinstance(environment, spaces.Box)) or len(environment.shape) != 3:
        return False
    height, width, channels = environment.shape
    return model.shape == (channels, height, width) and model.dtype == environment.dtype == np.uint8
