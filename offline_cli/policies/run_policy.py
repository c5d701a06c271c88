"""The files of a run folder, and the policy that is read from them; files that do not fit each other are BadData.

The description is in JSON: spaces, action scale, the network with its options, `gaussian` (how Box actions follow from what
the network puts out, where that is not as in behaviour cloning), the pipeline file that it was trained through (null where
Python objects were given, absent without one) with the hash of its pieces' state. Weights are in safetensors, what connector
pieces learned in msgpack. A network of another package is imported where the user names that package.

The tensors of a checkpoint by name:

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.network.0.weight.exp_avg   of the optimizer of each group, by its number
    sum.nll                           losses added up since the last row of metrics
    best.network.0.weight             the policy of the best check
    refreshed.policy...               the modules that columns were last computed with, where they are recomputed
    generator, generator_cuda         torch's random generators

The counters of the run are metadata of the same file, so that both are of one moment.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.datasets.file_names import RUN_CONFIG, RUN_POLICY
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, Uncommitted, UnsupportedSpace
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm
from offline_cli.modules.encoders import NATURE, encoder_kind
from offline_cli.modules.encoders import OURS as OUR_ENCODERS
from offline_cli.modules.network import OURS, PythonNetwork, network_kind
from offline_cli.modules.rl_module import RLModule, hash_of_weights
from offline_cli.plugins import ENCODERS, NETWORKS, OPTION, PYTHON, check_plugins, package_of, with_network
from offline_cli.schema_files import from_json, mistakes_by
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file

__all__ = [
    "BEST",
    "CONFIG",
    "CURVE",
    "ENCODER_PACKAGE",
    "ENVIRONMENTS",
    "FORMAT",
    "GIVEN_SPACE",
    "LEARNED",
    "MEANINGS",
    "METRICS",
    "MODULES",
    "NETWORK",
    "OF_POLICY",
    "POLICY",
    "REFRESHED",
    "RESULT",
    "STATE",
    "STEPPED",
    "TENSORS",
    "TRACKERS",
    "VERSION",
    "WEIGHTS",
    "LoadedPolicy",
    "check_learned",
    "checkpoint_bytes",
    "copy_into",
    "described_form",
    "environment_spaces",
    "fingerprint_of",
    "json_bytes",
    "json_object",
    "known_environments",
    "load_policy",
    "part",
    "prefixed",
    "state_in",
    "tensor_bytes",
]


MODULES: Final = "modules."
BEST: Final = "best."
REFRESHED: Final = "refreshed."
OF_POLICY: Final = "policy."
STEPPED: Final = "stepped."  # of the policy, where what is kept is a moving average

TENSORS, STATE = "state.safetensors", "state.json"
COUNTERS: Final = "state"  # the key of the metadata
CONFIG, POLICY = RUN_CONFIG, RUN_POLICY
LEARNED, WEIGHTS, METRICS = "connectors.msgpack", "policy.safetensors", "metrics.jsonl"
RESULT, CURVE, TRACKERS = "result.json", "curve.png", "trackers.json"


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names with `prefix` before them."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names have `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copy_into(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of the same names into `own`, in place, without gradients."""
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def checkpoint_bytes(run: Location) -> tuple[int, bytes] | None:
    """Update and tensors of the checkpoint; None: there is none. Raises StorageError, BadData for a broken file."""
    content = whole_file(run.join(TENSORS))
    if content is None:
        return None
    try:
        return int(state_in(content)["update"]), content
    except (ValueError, TypeError, KeyError) as err:
        raise BadData(f"{TENSORS} cannot be read: {err}", where=run.url, fix="train again with --overwrite") from err


def state_in(checkpoint: bytes) -> dict[str, Any]:
    """The counters in a checkpoint's file. Raises ValueError, TypeError or KeyError for another file."""
    size = int.from_bytes(checkpoint[:8], "little")
    return json_object(json_object(checkpoint[8 : 8 + size])["__metadata__"][COUNTERS].encode())


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """The file of a JSON object."""
    return (json.dumps(value) + "\n").encode()


def json_object(content: bytes) -> dict[str, Any]:
    """The object in such a file. Raises ValueError for other files."""
    loaded = from_json(content)
    if not isinstance(loaded, dict):
        raise ValueError("no JSON object")
    return loaded


def tensor_bytes(tensors: Mapping[str, Tensor], counters: str | None = None) -> bytes:
    """The safetensors file of `tensors`; `counters`: of a checkpoint, as JSON.

    By way of memory: the library's own writer reports a full disk as an error of the format.
    """
    metadata = None if counters is None else {COUNTERS: counters}
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, metadata)


def check_learned(content: bytes | None, told: Any) -> bytes:
    """`content`. Raises ValueError unless it (None: no file) is what the pieces learned, as policy.json says."""
    if content is None:
        raise ValueError(f"{LEARNED} is missing, which holds what its connector pieces learned")
    if not isinstance(told, dict) or hashlib.sha256(content).hexdigest() != told.get("state_sha256"):
        raise ValueError(f"{LEARNED} is not the one that {POLICY} was written with")
    return content


_log = logging.getLogger(__name__)

FORMAT = "offline-cli-policy"
VERSION = 1
NETWORK = "network"
MEANINGS = "meanings"  # names, categories and units of the columns that the run learned from
ENCODER_PACKAGE = "encoder_package"
GAUSSIAN = "gaussian"
ENVIRONMENTS = "environments"  # that the run was measured in, and that its data is of
GIVEN_SPACE = "given_observation_space"  # of what the pieces get, where the policy plays between some
BROKEN: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, SafetensorError, BadConfig, UnsupportedSpace)


class Described(pydantic.BaseModel):
    """policy.json, as far as a policy is built from it."""

    format: Literal["offline-cli-policy"]
    version: Literal[1]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    action_scale: str
    network: dict[str, Any]
    package: str | None = None  # that registers the network
    encoder_package: str | None = None
    environment: str | None
    environments: list[EnvironmentSpec] = []
    gaussian: GaussianForm = CLONING


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """The policy of a run folder."""

    module: RLModule  # on the CPU
    description: Mapping[str, Any]  # policy.json
    trained: PipelineSpec | None  # what it takes to play it; None: it plays without pieces
    sha256: str  # of the file with its weights
    checkpoint: int | None = None  # the update of the checkpoint that it is from, in a run that is not finished


def load_policy(
    run: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    plugins: Sequence[str] = (),
    network: str | None = None,
) -> LoadedPolicy:
    """The policy of a run, local or remote; of one that is not finished the last checkpoint's, and a note says so.

    `plugins`: packages whose networks and pieces may be imported because the run folder names them; `network`: the code of its
    network, `python:package.module:build`, where it has such a one.

    Raises StorageNotFound, NoData for a folder that is not a run, Uncommitted without a checkpoint yet, BadData for broken
    files; MissingPackage for a package that is not installed, or cannot be imported; BadConfig for a network of a package, or
    code, that is not named, and for weights that are not those of `network`.
    """
    check_plugins(plugins)
    folder = open_location(run, storage_options)
    where, exists = str(folder), folder.exists()
    if exists and not folder.join(CONFIG).is_file():
        fix = f"onnx:{run}" if str(run).endswith(".onnx") else "name the folder that train-bc --out made"
        raise NoData("not a run folder of train-bc", where=where, fix=fix)
    last = None if folder.join(RESULT).is_file() else checkpoint_bytes(replace(folder, cache=None))
    if exists and not (folder.join(POLICY).is_file() and (last is not None or folder.join(WEIGHTS).is_file())):
        fix = f"`offline-cli train-bc ... --out {run} --resume`, with what it was started with, finishes it"
        raise Uncommitted("the run is not finished and holds no policy yet", where=where, fix=fix)
    update, weights = last or (None, folder.join(WEIGHTS).read_bytes())
    code = with_network(plugins, network)
    with _reading(POLICY, where):
        description = json_object(folder.join(POLICY).read_bytes())
        told = Described.model_validate(description)
    with _reading(WEIGHTS if update is None else TENSORS, where):
        tensors = load(weights) if update is None else part(load(weights), f"{MODULES}{OF_POLICY}")
    module = _module_of(told, tensors, where, code)
    learned, trained = folder.join(LEARNED).read_bytes() if folder.join(LEARNED).is_file() else None, None
    if learned is not None or "pipeline" in description:
        with _reading(LEARNED, where):
            state = state_from_bytes(check_learned(learned, description.get("pipeline")), where=f"{where}/{LEARNED}")
            state = copy.deepcopy(state)  # arrays of a copy can be written to
            trained = PipelineSpec.from_json(description["pipeline"], state, where=f"{where}/{POLICY}", plugins=code)
    if update is not None:
        what = "note: %s holds a run that is not finished: the policy is that of its last checkpoint, of update %d"
        _log.warning(what, where, update)
    return LoadedPolicy(module, description, trained, hashlib.sha256(weights).hexdigest(), update)


@contextmanager
def _reading(file: str, where: str) -> Iterator[None]:
    """What is broken in that file of a run is BadData."""
    try:
        yield
    except BROKEN as err:
        lines = [line.strip() for line in str(err).splitlines() if "errors.pydantic.dev" not in line]
        raise BadData(f"the policy cannot be read: {file}: {' '.join(lines)}", where=where, fix="train again") from err


def _module_of(told: Described, tensors: Mapping[str, Tensor], where: str, code: Collection[str]) -> RLModule:
    """The module with its weights, of networks of ours and those that `code` names."""
    with _reading(POLICY, where):
        name, encoder = str(told.network["name"]), str(told.network.get("encoder", NATURE))
        spaces = [space_from_json(one, where=where) for one in (told.observation_space, told.action_space)]
    if name in OURS and any(one.startswith(PYTHON) for one in code):
        fix = "leave --network out: the run says itself which network it has"
        raise BadConfig(f"the run has the network {name}, and not code", where=where, fix=fix)
    ours = {*OURS, *OUR_ENCODERS}
    for group, one, package in ((NETWORKS, name, told.package), (ENCODERS, encoder, told.encoder_package)):
        if one not in ours and not one.startswith(PYTHON) and package_of(group, one) is None:
            kind = "network" if group == NETWORKS else "encoder"
            what = f"the {kind} {one!r} of the run is not installed; the run says that the package {package!r} registers it"
            fix = f"install that package if you trust it, and give {OPTION} with its name"
            raise MissingPackage(what, where=where, fix=fix)
    encoder_kind(encoder, named=code)
    made_by = network_kind(name, named=code)
    options = {option: value for option, value in told.network.items() if option != "name"}
    form: dict[str, Any] = {} if told.gaussian == CLONING else {"gaussian": told.gaussian}
    if issubclass(made_by, PythonNetwork):  # mistakes are in what the user named
        module = made_by(options).policy(*spaces, action_scale=told.action_scale, **form)
    else:
        with _reading(POLICY, where):
            if wrong := mistakes_by(options, {"additionalProperties": False, **made_by.schema, "type": "object"}):
                raise ValueError(f"options of its network: {'; '.join(wrong)}")
            module = made_by(options).policy(*spaces, action_scale=told.action_scale, **form)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as err:
        what = f"the weights are not those of its network {name}: {err}"
        if issubclass(made_by, PythonNetwork):
            raise BadConfig(what, where=where, fix="name the code that the run was trained with") from err
        raise BadData(f"the policy cannot be read: {what}", where=where, fix="train again") from err
    for name, parameter in module.named_parameters():  # buffers may hold them: a mask of -inf, for instance
        if not bool(torch.isfinite(parameter).all()):
            what = f"the weights hold NaN or infinity: {name}, so training diverged"
            raise BadData(what, where=where, fix="play an earlier checkpoint, or train again with a smaller --lr")
    return module


# ---- what a run says of itself ----


def described_form(head: ActionHead) -> dict[str, Any]:
    """How Box actions follow from the network's outputs, by its key; empty where that is as in behaviour cloning."""
    forms = head.forms()  # one: a head is built with it
    return {GAUSSIAN: {"mean": forms[0].mean, "log_std": list(forms[0].log_std)}} if forms and forms[0] != CLONING else {}


def known_environments(description: Mapping[str, Any]) -> list[EnvironmentSpec]:
    """Where a run was measured, and what its data is of. Raises ValueError for a broken description."""
    return Described.model_validate(description).environments if description.get(ENVIRONMENTS) else []


def environment_spaces(loaded: LoadedPolicy, where: str) -> tuple[Space, Space]:
    """Of observations and actions, in the environment that the policy of a run is for: before its pieces. Raises BadData."""
    module = loaded.module
    if loaded.trained is None:
        return module.observation_space, module.action_space
    with _reading(POLICY, where):
        return space_from_json(loaded.description[GIVEN_SPACE], where=where), module.action_space


def fingerprint_of(loaded: LoadedPolicy) -> str:
    """Of a run's policy: weights, and description with the pieces it was trained through and a hash of what they learned.

    What the description says of environments does not count: ids of recorded episodes follow from the fingerprint.
    """
    played = {name: value for name, value in loaded.description.items() if name not in (ENVIRONMENTS, GIVEN_SPACE)}
    return hash_of_weights(loaded.module, json.dumps(played, sort_keys=True).encode())
