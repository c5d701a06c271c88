"""The policy of a run as files: description in JSON, weights in safetensors, what connector pieces learned in msgpack.

Version 1 plays as it is. Version 2 was trained through a learner pipeline and does not play without its pieces: the description
has the pipeline file's content, null where Python objects were given, and the hash of the pieces' state. Version 3 has a
network of another package, and a pipeline or none. What reads them is in
`policies/run_policy.py`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from offline_cli.connectors.connector_v2 import state_to_bytes
from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.errors import BadConfig
from offline_cli.modules.network_registry import MLP, network_package
from offline_cli.modules.networks import BY_BOUNDS, has_uint8
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies.run_policy import ALONE, FORMAT, OF_NETWORK, UINT8_SCALING, WITH_PIECES
from offline_cli.spaces import space_to_json
from offline_cli.training.config import BCConfig
from offline_cli.training.training_data import TrainingData

__all__ = ["describe_policy", "learned_bytes"]


def describe_policy(data: TrainingData, config: BCConfig) -> dict[str, Any]:
    """What `load_policy` needs besides the weights and `learned_bytes` of a new run, as JSON values.

    Raises BadConfig for a pipeline file with options that JSON does not have.
    """
    name = config.network["name"]
    of_package = {"network": dict(config.network), "package": network_package(name)}
    network = {"hidden": list(config.hidden), "activation": config.activation} if name == MLP else of_package
    told: dict[str, Any] = {
        "format": FORMAT,
        "version": OF_NETWORK if name != MLP else ALONE if data.trained is None else WITH_PIECES,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        **network,
        "environment": config.env,
    }
    module = data.seen.get("module")
    if module not in (None, DEFAULT_MODULE_ID):
        told["module"] = module  # whose episodes it learned from, for people: a run holds one policy
    if has_uint8(data.observation_space):
        told[UINT8_SCALING] = BY_BOUNDS
    return told if data.trained is None else told | {"pipeline": _pipeline(data.trained)}


def _pipeline(trained: TrainedPipeline) -> dict[str, Any]:
    told = {
        "document": trained.document,
        "pieces": list(trained.pieces),
        "state_sha256": hashlib.sha256(_packed(trained)).hexdigest(),
    }
    try:
        json.dumps(told)
    except TypeError as err:
        what = f"options of pieces that cannot be kept with the policy: {err}"
        raise BadConfig(what, where=trained.where, fix="give dates and times as text") from err
    return told


def learned_bytes(data: TrainingData) -> bytes | None:
    """What the pieces of the learner pipeline learned, for the run folder; None: the policy plays without pieces."""
    return None if data.trained is None else _packed(data.trained)


def _packed(trained: TrainedPipeline) -> bytes:
    return state_to_bytes(trained.state, where=trained.where)
