"""Models of stable-baselines3 (`sb3:FILE`), which play as all else that has `predict(observations, deterministic=...)`.

A model file holds pickled Python objects, and loading one can run any code that its maker put in. One is loaded because the
user named the file, and for no other reason: no dataset, manifest or run folder can bring one in.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import zipfile
from pathlib import Path
from typing import Final

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, StorageNotFound
from offline_cli.policies.policy import PolicyOptions
from offline_cli.policies.python_policy import FunctionPolicy, model_policy

__all__ = ["SB3", "open_model"]

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
    # In stable-baselines3's zoo ENV_1/ENV.zip lies beside ENV_1/ENV/vecnormalize.pkl.
    beside = path.parent, path.parent / path.stem, path.parent / path.parent.resolve().name.rpartition("_")[0]
    if found := [one for folder in beside for one in sorted(folder.glob(NORMALIZING))]:
        what = f"{found[0]} lies beside the model: it was trained on normalised observations, and would see raw ones"
        fix = "name a Python object whose predict() calls normalize_obs(), python:module:attribute; or move the file away"
        raise BadConfig(what, where=where, fix=fix)
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
