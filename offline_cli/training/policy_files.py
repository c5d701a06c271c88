"""A policy as files, and back: description in JSON, weights in safetensors; refuses weights that do not fit the description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from offline_cli.errors import BadData, NoData, Uncommitted
from offline_cli.modules.policy import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import space_from_json, space_to_json
from offline_cli.storage.locations import open_location
from offline_cli.training.config import BCConfig
from offline_cli.training.data import TrainingData
from offline_cli.training.run_folder import CONFIG, POLICY, WEIGHTS

__all__ = ["describe_policy", "load_policy", "new_policy"]

FORMAT = "offline-cli-policy"
VERSION = 1


def new_policy(data: TrainingData, config: BCConfig) -> RLModule:
    """A policy with fresh weights for `data`. Raises BadConfig for Box actions of unknown scale."""
    return build_module(
        data.observation_space,
        data.action_space,
        hidden=config.hidden,
        activation=config.activation,
        action_scale=data.action_scale,
        seed=config.seed,
    )


def describe_policy(data: TrainingData, config: BCConfig) -> dict[str, Any]:
    """What `load_policy` needs besides weights, as JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        "hidden": list(config.hidden),
        "activation": config.activation,
        "environment": config.env,
    }


def load_policy(run: str, storage_options: Mapping[str, Any] | None = None) -> tuple[RLModule, dict[str, Any]]:
    """The policy of a finished run, local or remote, on the CPU, and its description.

    Raises StorageNotFound, NoData for a folder that is no run, Uncommitted for an unfinished one, BadData for broken files.
    """
    folder = open_location(run, storage_options)
    if folder.exists() and not folder.join(CONFIG).is_file():
        raise NoData("not a run folder of train-bc", where=str(folder), fix="name the folder that train-bc --out made")
    if folder.exists() and not folder.join(WEIGHTS).is_file():
        fix = f"`offline-cli train-bc ... --out {run} --resume`, with what it was started with, finishes it"
        raise Uncommitted("the run is not finished and holds no policy yet", where=str(folder), fix=fix)
    text, weights = folder.join(POLICY).read_bytes(), folder.join(WEIGHTS).read_bytes()
    try:
        description: dict[str, Any] = json.loads(text)
        module = _built(description, str(folder))
        module.load_state_dict(load_tensors(weights))
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as err:
        raise BadData(f"the policy cannot be read: {err}", where=str(folder), fix="train again") from err
    return module, description


def _built(description: Mapping[str, Any], where: str) -> RLModule:
    if (description["format"], description["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {description['format']} version {description['version']}")
    return build_module(
        space_from_json(description["observation_space"], where=where),
        space_from_json(description["action_space"], where=where),
        hidden=description["hidden"],
        activation=description["activation"],
        action_scale=description["action_scale"],
    )
