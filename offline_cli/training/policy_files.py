"""A policy as files, and back: description in JSON, weights in safetensors, what connector pieces learned in msgpack; refuses
files that do not fit each other.

Version 1 plays as it is. Version 2 was trained through a learner pipeline and does not play without its pieces: the description
has the pipeline file's content, null where Python objects were given, and the hash of the pieces' state.

Where observations have uint8 boxes, `uint8_scaling` says how the network takes them: `bounds`, from the bounds of their space
to [0, 1]. A description without it is of a policy that was trained on them divided by 255.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from offline_cli.connectors.common.rl_modules import DEFAULT_MODULE_ID
from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.connectors.state_bytes import state_from_bytes, state_to_bytes
from offline_cli.errors import BadConfig, BadData, NoData, Uncommitted, UnsupportedSpace
from offline_cli.modules.networks import BY_255, BY_BOUNDS, has_uint8
from offline_cli.modules.policy import build_module, fewest_numbers
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import space_from_json, space_to_json
from offline_cli.storage.locations import Location, open_location
from offline_cli.training.config import BCConfig
from offline_cli.training.data import TrainingData
from offline_cli.training.run_files import (
    CONFIG,
    LEARNED,
    POLICY,
    POLICY_KEYS,
    RESULT,
    UNSEALED,
    WEIGHTS,
    check_learned,
    json_object,
    tensors_of,
)
from offline_cli.training.run_folder import RunFolder

__all__ = ["LoadedPolicy", "describe_policy", "learned_bytes", "load_policy", "new_policy", "policy_of", "scaling_of"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = "offline-cli-policy"
SMALLEST = 2  # bytes of a weight
ALONE, WITH_PIECES = 1, 2  # versions
UINT8_SCALING = "uint8_scaling"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """The policy of a run folder."""

    module: RLModule  # on the CPU
    description: Mapping[str, Any]  # policy.json
    trained: TrainedPipeline | None  # what it takes to play it; None: it plays without pieces
    checkpoint: int | None = None  # the update of the checkpoint that it is from, in a run that is not finished
    is_sealed: bool = True  # whether each of its files has a hash, which fits


def new_policy(data: TrainingData, config: BCConfig, *, uint8_scaling: str = BY_BOUNDS) -> RLModule:
    """A policy with fresh weights for `data`. Raises BadConfig for Box actions of unknown scale."""
    return build_module(
        data.observation_space,
        data.action_space,
        hidden=config.hidden,
        activation=config.activation,
        action_scale=data.action_scale,
        uint8_scaling=uint8_scaling,
        seed=config.seed,
    )


def scaling_of(description: Mapping[str, Any], *, where: str) -> str:
    """How the described policy takes uint8 observations. Raises BadData for a way that is not known."""
    found = description.get(UINT8_SCALING, BY_255)
    if found not in (BY_BOUNDS, BY_255):
        fix = "play it with the version of offline-cli that it was trained with, or a newer one"
        raise BadData(f"{UINT8_SCALING} is {found!r} in {POLICY}, which this version does not know", where=where, fix=fix)
    return str(found)


def describe_policy(data: TrainingData, config: BCConfig) -> dict[str, Any]:
    """What `load_policy` needs besides the weights and `learned_bytes` of a new run, as JSON values.

    Raises BadConfig for a pipeline file with options that JSON does not have.
    """
    told: dict[str, Any] = {
        "format": FORMAT,
        "version": ALONE if data.trained is None else WITH_PIECES,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        "hidden": list(config.hidden),
        "activation": config.activation,
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


def load_policy(run: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> LoadedPolicy:
    """The policy of a run, local or remote; of one that is not finished the last checkpoint's, and a note says so.

    Raises StorageNotFound, NoData for a folder that is no run, Uncommitted for one without a checkpoint yet, BadData for broken
    files.
    """
    folder = open_location(run, storage_options)
    if folder.exists() and not folder.join(CONFIG).is_file():
        raise NoData("not a run folder of train-bc", where=str(folder), fix="name the folder that train-bc --out made")
    last = None if folder.join(RESULT).is_file() else RunFolder(folder).checkpoint_bytes()
    described = folder.join(POLICY).is_file()
    if folder.exists() and not (described and (last is not None or folder.join(WEIGHTS).is_file())):
        fix = f"`offline-cli train-bc ... --out {run} --resume`, with what it was started with, finishes it"
        raise Uncommitted("the run is not finished and holds no policy yet", where=str(folder), fix=fix)
    text = folder.join(POLICY).read_bytes()
    learned = folder.join(LEARNED).read_bytes() if folder.join(LEARNED).is_file() else None
    if last is None:
        loaded = policy_of(text, folder.join(WEIGHTS).read_bytes(), learned, where=str(folder))
    else:
        update, tensors = last
        _log.warning(
            "note: %s holds a run that is not finished: the policy is that of its last checkpoint, of update %d", folder, update
        )
        loaded = replace(policy_of(text, tensors, learned, where=str(folder), flat=True), checkpoint=update)
    if not loaded.is_sealed:
        _log.warning(UNSEALED, folder)
    return loaded


def policy_of(text: bytes, weights: bytes, learned: bytes | None, *, where: str, flat: bool = False) -> LoadedPolicy:
    """The policy that these files' bytes are; `learned`: None where there is no such file. Raises BadData for broken ones.

    `flat`: the weights are a checkpoint's, all in one tensor.
    """
    of_weights = "tensors.safetensors of its last checkpoint" if flat else WEIGHTS
    description, has_seal = _read(POLICY, lambda: json_object(text, POLICY_KEYS), where)
    tensors, have_seal = _read(of_weights, lambda: tensors_of(weights), where)
    try:
        module = _built(description, len(weights), where)
        if flat:
            _take_flat(module, tensors["weights"])
        else:
            module.load_state_dict(tensors)
        trained = _trained(description, learned, where)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        OverflowError,
        BadConfig,
        UnsupportedSpace,
        SafetensorError,
    ) as err:
        raise BadData(f"the policy cannot be read: {err}", where=where, fix="train again") from err
    return LoadedPolicy(module, description, trained, is_sealed=has_seal and have_seal)


def _read(name: str, read: Callable[[], tuple[T, bool]], where: str) -> tuple[T, bool]:
    """What `read` gives of the file called `name`. Raises BadData, naming it, where it is broken or damaged."""
    try:
        return read()
    except (ValueError, TypeError, OverflowError, SafetensorError) as err:
        raise BadData(f"the policy cannot be read: {name}: {err}", where=where, fix="train again") from err


def _take_flat(module: RLModule, weights: Tensor) -> None:
    """Copy a checkpoint's weights into the module. Raises ValueError where they are not as many."""
    parameters = list(module.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    if weights.shape != (count,):
        raise ValueError(f"weights of shape {tuple(weights.shape)} for a network of {count}")
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(weights, [one.numel() for one in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))


def _trained(description: Mapping[str, Any], learned: bytes | None, where: str) -> TrainedPipeline | None:
    """What the description and `LEARNED` say of the pipeline. Raises ValueError, KeyError, BadData where they are broken."""
    if description["version"] == ALONE:
        return None
    told = description["pipeline"]
    document, pieces = told["document"], told["pieces"]
    if not isinstance(document, (dict, type(None))) or not isinstance(pieces, list):
        raise ValueError(f"{POLICY} tells of no pipeline")
    check_learned(learned, told)
    assert learned is not None
    state = copy.deepcopy(state_from_bytes(learned, where=f"{where}/{LEARNED}"))  # arrays of a copy can be written to
    return TrainedPipeline(document, state, f"{where}/{POLICY}", tuple(map(str, pieces)))


def _built(description: Mapping[str, Any], size: int, where: str) -> RLModule:
    """`size`: bytes of the weights. Raises ValueError where these cannot be the description's: its sizes are only words."""
    if description["format"] != FORMAT or description["version"] not in (ALONE, WITH_PIECES):
        raise ValueError(f"format {description['format']} version {description['version']}")
    if not isinstance(description["environment"], (str, type(None))):
        raise ValueError(f"its environment is {description['environment']!r}")
    observation_space = space_from_json(description["observation_space"], where=where)
    action_space = space_from_json(description["action_space"], where=where)
    hidden = [int(width) for width in description["hidden"]]
    if min(hidden, default=1) < 1 or fewest_numbers(observation_space, action_space, hidden) * SMALLEST > size:
        raise ValueError(f"a network of {hidden[:4]} hidden units, and {size} bytes of weights")
    return build_module(
        observation_space,
        action_space,
        hidden=hidden,
        activation=description["activation"],
        action_scale=description["action_scale"],
        uint8_scaling=scaling_of(description, where=where),
    )
