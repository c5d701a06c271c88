"""Files of a run folder, and loading its policy; inconsistent files raise BadData.

policy.json has the spaces, action scale, network with its options, `gaussian` (the form of Box actions, unless it is that of
behaviour cloning), and the pipeline file of training (null for Python objects, absent without pieces) with the hash of the
pieces' state. Weights are safetensors, learned state of connector pieces is msgpack. A network of another package is imported
only if the user names that package.

The tensors of a checkpoint by name:

    modules.policy.network.0.weight   parameters and buffers of every module
    adam.0.network.0.weight.exp_avg   optimizer state of each group, by number
    sum.nll                           losses summed since the last row of metrics
    best.network.0.weight             the policy of the best check
    refreshed.policy...               the modules that last computed columns, if columns are recomputed
    generator, generator_cuda         torch's random generators

The counters of the run are metadata of the same file, so that both are written atomically.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    "SEEDS",
    "STATE",
    "STEPPED",
    "TENSORS",
    "TRACKERS",
    "VERSION",
    "WEIGHTS",
    "LoadedPolicy",
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
STEPPED: Final = "stepped."  # the optimizer's policy, if the kept one is a moving average

TENSORS, STATE = "state.safetensors", "state.json"
COUNTERS: Final = "state"  # metadata key
CONFIG, POLICY = RUN_CONFIG, RUN_POLICY
LEARNED, WEIGHTS, METRICS = "connectors.msgpack", "policy.safetensors", "metrics.jsonl"
RESULT, CURVE, TRACKERS = "result.json", "curve.png", "trackers.json"
SEEDS: Final = "seeds.json"  # in a folder with a run for each seed


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with `prefix` prepended to their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copy_into(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into those of the same name in `own`, in place, without gradients."""
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _checkpoint_bytes(run: Location) -> tuple[int, bytes] | None:
    """Update number and bytes of the checkpoint; None without one. Raises StorageError, BadData for a corrupt file."""
    content = whole_file(run.join(TENSORS))
    if content is None:
        return None
    try:
        return int(state_in(content)["update"]), content
    except (ValueError, TypeError, KeyError) as err:
        raise BadData(f"{TENSORS} cannot be read: {err}", where=run.url, fix="train again with --overwrite") from err


def state_in(checkpoint: bytes) -> dict[str, Any]:
    """The counters of a checkpoint file. Raises ValueError, TypeError or KeyError for another file."""
    size = int.from_bytes(checkpoint[:8], "little")
    return json_object(json_object(checkpoint[8 : 8 + size])["__metadata__"][COUNTERS].encode())


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """A JSON object as file content."""
    return (json.dumps(value) + "\n").encode()


def json_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other content."""
    loaded = from_json(content)
    if not isinstance(loaded, dict):
        raise ValueError("not a JSON object")
    return loaded


def tensor_bytes(tensors: Mapping[str, Tensor], counters: str | None = None) -> bytes:
    """The safetensors file content of `tensors`; `counters`: JSON counters of a checkpoint.

    In memory, because safetensors' file writer reports a full disk as a format error.
    """
    metadata = None if counters is None else {COUNTERS: counters}
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, metadata)


_log = logging.getLogger(__name__)

FORMAT = "offline-cli-policy"
VERSION = 1
NETWORK = "network"
MEANINGS = "meanings"  # names, categories and units of the columns of the training data
ENCODER_PACKAGE = "encoder_package"
GAUSSIAN = "gaussian"
ENVIRONMENTS = "environments"  # environments of the run's checks and of its data
GIVEN_SPACE = "given_observation_space"  # before the pieces, if the policy plays with pieces
BROKEN: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, SafetensorError, BadConfig, UnsupportedSpace)


class Described(pydantic.BaseModel):
    """The fields of policy.json that build the policy."""

    format: Literal["offline-cli-policy"]
    version: Literal[1]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    action_scale: str
    network: dict[str, Any]
    package: str | None = None  # package that registers the network
    encoder_package: str | None = None
    environment: str | None
    environments: list[EnvironmentSpec] = []
    gaussian: GaussianForm = CLONING


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPolicy:
    """The policy of a run folder."""

    module: RLModule  # on the CPU
    description: Mapping[str, Any]  # policy.json
    trained: PipelineSpec | None  # its pieces; None: it plays without pieces
    sha256: str  # of the weights file
    checkpoint: int | None = None  # update of the checkpoint, for an unfinished run


def load_policy(
    run: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    plugins: Sequence[str] = (),
    network: str | None = None,
) -> LoadedPolicy:
    """Load the policy of a run, local or remote; for an unfinished run, that of the last checkpoint, with a note in the log.

    `plugins`: packages whose networks and pieces the run folder may import; `network`: the code of its network,
    `python:package.module:build`, if it was trained with one.

    Raises StorageNotFound, NoData for a folder that is not a run, Uncommitted without a checkpoint, BadData for corrupt files;
    MissingPackage for a package that is missing or cannot be imported; BadConfig for a network whose package or code is not
    named, and for weights that do not fit `network`.
    """
    check_plugins(plugins)
    folder = open_location(run, storage_options)
    where, exists = str(folder), folder.exists()
    if exists and not folder.join(CONFIG).is_file():
        if folder.join(SEEDS).is_file():
            runs = sorted(one.name for one in folder.children() if one.join(CONFIG).is_file())
            fix = f"name one of them, such as {run}/{runs[0]}" if runs else "train them with --resume"
            raise NoData("the folder holds a run for each seed, and is no run itself", where=where, fix=fix)
        fix = f"onnx:{run}" if str(run).endswith(".onnx") else "name a folder written by train --out or train-bc --out"
        raise NoData("not a run folder", where=where, fix=fix)
    last = None if folder.join(RESULT).is_file() else _checkpoint_bytes(folder)
    if exists and not (folder.join(POLICY).is_file() and (last is not None or folder.join(WEIGHTS).is_file())):
        fix = f"finish it with the same options: `offline-cli train-bc ... --out {run} --resume`"
        raise Uncommitted("the run is unfinished and has no policy yet", where=where, fix=fix)
    update, weights = last or (None, folder.join(WEIGHTS).read_bytes())
    code = with_network(plugins, network)
    with _reading(POLICY, where):
        description = json_object(folder.join(POLICY).read_bytes())
        described = Described.model_validate(description)
    with _reading(WEIGHTS if update is None else TENSORS, where):
        tensors = load(weights) if update is None else part(load(weights), f"{MODULES}{OF_POLICY}")
    module = _module_of(described, tensors, where, code)
    trained = None
    if "pipeline" in description:
        with _reading(LEARNED, where):
            state = state_from_bytes(folder.join(LEARNED).read_bytes(), where=f"{where}/{LEARNED}")
            state = copy.deepcopy(state)  # the copy's arrays are writable
            trained = PipelineSpec.from_json(description["pipeline"], state, where=f"{where}/{POLICY}", plugins=code)
    if update is not None:
        what = "note: the run %s is unfinished: using the policy of its last checkpoint, update %d"
        _log.warning(what, where, update)
    return LoadedPolicy(module, description, trained, hashlib.sha256(weights).hexdigest(), update)


@contextmanager
def _reading(file: str, where: str) -> Iterator[None]:
    """Context manager: turn errors in that file of a run into BadData."""
    try:
        yield
    except BROKEN as err:
        lines = [line.strip() for line in str(err).splitlines() if "errors.pydantic.dev" not in line]
        raise BadData(f"the policy cannot be read: {file}: {' '.join(lines)}", where=where, fix="train again") from err


def _module_of(described: Described, tensors: Mapping[str, Tensor], where: str, code: Collection[str]) -> RLModule:
    """Build the module and load its weights; its network must be built-in or named in `code`."""
    with _reading(POLICY, where):
        name, encoder = str(described.network["name"]), str(described.network.get("encoder", NATURE))
        spaces = [space_from_json(one, where=where) for one in (described.observation_space, described.action_space)]
    if name in OURS and any(one.startswith(PYTHON) for one in code):
        fix = "leave out --network: the run folder names its network"
        raise BadConfig(f"the run has the network {name}, not user code", where=where, fix=fix)
    ours = {*OURS, *OUR_ENCODERS}
    for group, one, package in ((NETWORKS, name, described.package), (ENCODERS, encoder, described.encoder_package)):
        if one not in ours and not one.startswith(PYTHON) and package_of(group, one) is None:
            kind = "network" if group == NETWORKS else "encoder"
            what = f"the run's {kind} {one!r}, registered by the package {package!r}, is not installed"
            fix = f"install that package if you trust it, and name it with {OPTION}"
            raise MissingPackage(what, where=where, fix=fix)
    encoder_kind(encoder, named=code)
    made_by = network_kind(name, named=code)
    options = {option: value for option, value in described.network.items() if option != "name"}
    form: dict[str, Any] = {} if described.gaussian == CLONING else {"gaussian": described.gaussian}
    if issubclass(made_by, PythonNetwork):  # errors come from the user's code
        module = made_by(options).policy(*spaces, action_scale=described.action_scale, **form)
    else:
        with _reading(POLICY, where):
            if wrong := mistakes_by(options, {"additionalProperties": False, **made_by.schema, "type": "object"}):
                raise ValueError(f"network options: {'; '.join(wrong)}")
            module = made_by(options).policy(*spaces, action_scale=described.action_scale, **form)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as err:
        what = f"the weights do not fit the network {name}: {err}"
        if issubclass(made_by, PythonNetwork):
            raise BadConfig(what, where=where, fix="name the code that the run was trained with") from err
        raise BadData(f"the policy cannot be read: {what}", where=where, fix="train again") from err
    for name, parameter in module.named_parameters():  # buffers may hold infinity, such as a mask of -inf
        if not bool(torch.isfinite(parameter).all()):
            what = f"training diverged: the weights {name} hold NaN or infinity"
            raise BadData(what, where=where, fix="play an earlier checkpoint, or train again with a smaller --lr")
    return module


# ---- the description of a run ----


def described_form(head: ActionHead) -> dict[str, Any]:
    """The GaussianForm of a head as an entry of policy.json; empty if it is that of behaviour cloning."""
    forms = head.forms()  # all equal
    return {GAUSSIAN: {"mean": forms[0].mean, "log_std": list(forms[0].log_std)}} if forms and forms[0] != CLONING else {}


def known_environments(description: Mapping[str, Any]) -> list[EnvironmentSpec]:
    """The environments of a run's checks and data. Raises ValueError for an invalid description."""
    return Described.model_validate(description).environments if description.get(ENVIRONMENTS) else []


def environment_spaces(loaded: LoadedPolicy, where: str) -> tuple[Space, Space]:
    """Observation and action space of the environment of a run's policy, before its pieces. Raises BadData."""
    module = loaded.module
    if loaded.trained is None:
        return module.observation_space, module.action_space
    with _reading(POLICY, where):
        return space_from_json(loaded.description[GIVEN_SPACE], where=where), module.action_space


def fingerprint_of(loaded: LoadedPolicy) -> str:
    """The hash of a run's weights, of its description, which includes its pieces, and of their state.

    Environments are excluded, because ids of recorded episodes are derived from the fingerprint.
    """
    played = {name: value for name, value in loaded.description.items() if name not in (ENVIRONMENTS, GIVEN_SPACE)}
    state = b"" if loaded.trained is None else loaded.trained.state_bytes()
    return hash_of_weights(loaded.module, json.dumps(played, sort_keys=True).encode() + state)
