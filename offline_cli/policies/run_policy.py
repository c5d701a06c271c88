"""The policy of a run folder, read from its files; files that do not fit each other are BadData.

The description is in JSON: spaces, action scale, the network with its options, `gaussian` (how Box actions follow from what
the network puts out, where that is not as in behaviour cloning), the pipeline file that it was trained through (null where
Python objects were given, absent without one) with the hash of its pieces' state. Weights are in safetensors, what connector
pieces learned in msgpack. A network of another package is imported where the user names that package.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, Uncommitted, UnsupportedSpace
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm
from offline_cli.modules.images import NATURE, encoder_kind
from offline_cli.modules.images import OURS as OUR_ENCODERS
from offline_cli.modules.network import OURS, Network, PythonNetwork, network_kind
from offline_cli.modules.rl_module import RLModule, hash_of_weights
from offline_cli.plugins import ENCODERS, NETWORKS, OPTION, PYTHON, check_plugins, package_of, with_network
from offline_cli.policies.run_files import (
    CONFIG,
    LEARNED,
    MODULES,
    OF_POLICY,
    POLICY,
    RESULT,
    TENSORS,
    WEIGHTS,
    check_learned,
    checkpoint_bytes,
    json_object,
    part,
)
from offline_cli.schema_files import mistakes_by
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location, open_location

__all__ = ["ENCODER_PACKAGE", "ENVIRONMENTS", "FORMAT", "GIVEN_SPACE", "MEANINGS", "NETWORK", "VERSION", "LoadedPolicy"]
__all__ += ["described_form", "environment_spaces", "fingerprint_of", "known_environments", "load_policy"]

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

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Described:
        """Raises ValueError, in one line."""
        try:
            found = cls.model_validate(dict(description))
        except pydantic.ValidationError as err:
            told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in err.errors(include_url=False)]
            raise ValueError("; ".join(told)) from err
        if not all(isinstance(found.network.get(key, default), str) for key, default in (("name", None), ("encoder", ""))):
            raise ValueError("it names no network")
        return found


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
    text = folder.join(POLICY).read_bytes()
    learned = folder.join(LEARNED).read_bytes() if folder.join(LEARNED).is_file() else None
    update, weights = (None, folder.join(WEIGHTS).read_bytes()) if last is None else last
    code = with_network(plugins, network)
    with _reading(POLICY, where):
        description = json_object(text)
        told = Described.of(description)
    with _reading(WEIGHTS if update is None else TENSORS, where):
        tensors = load(weights) if update is None else part(load(weights), f"{MODULES}{OF_POLICY}")
    module = _module_of(told, tensors, where, code)
    with _reading(LEARNED, where):
        trained = _trained(description, learned, where, code)
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
        raise BadData(f"the policy cannot be read: {file}: {err}", where=where, fix="train again") from err


def _module_of(told: Described, tensors: Mapping[str, Tensor], where: str, plugins: Collection[str]) -> RLModule:
    """The module with its weights."""
    kind = _kind_of_network(told, where, plugins)
    is_code = issubclass(kind, PythonNetwork)  # then mistakes are in what the user named
    with _reading(POLICY, where):
        spaces = [space_from_json(one, where=where) for one in (told.observation_space, told.action_space)]
    with nullcontext() if is_code else _reading(POLICY, where):
        options = {name: value for name, value in told.network.items() if name != "name"}
        if wrong := mistakes_by(options, {"additionalProperties": False, **kind.schema, "type": "object"}):
            raise ValueError(f"options of its network: {'; '.join(wrong)}")
        form: dict[str, Any] = {} if told.gaussian == CLONING else {"gaussian": told.gaussian}
        module = kind(options).policy(*spaces, action_scale=told.action_scale, **form)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as err:
        if is_code:
            what = f"--network makes another network than the run's weights are of: {err}"
            raise BadConfig(what, where=where, fix="name the code that the run was trained with") from err
        raise BadData(f"the policy cannot be read: its weights: {err}", where=where, fix="train again") from err
    for name, parameter in module.named_parameters():  # buffers may hold them: a mask of -inf, for instance
        if not bool(torch.isfinite(parameter).all()):
            what = f"the weights hold NaN or infinity: {name}, so training diverged"
            raise BadData(what, where=where, fix="play an earlier checkpoint, or train again with a smaller --lr")
    return module


def _kind_of_network(told: Described, where: str, plugins: Collection[str]) -> type[Network]:
    """The class of its network; its encoder is imported, too."""
    name, encoder = told.network["name"], told.network.get("encoder", NATURE)
    code = next((one for one in plugins if one.startswith(PYTHON)), None)
    if name in OURS and code is not None:
        fix = "leave --network out: the run says itself which network it has"
        raise BadConfig(f"the run has the network {name}, not {code}", where=where, fix=fix)
    known = {*OURS, *OUR_ENCODERS}
    for group, one, package in ((NETWORKS, name, told.package), (ENCODERS, encoder, told.encoder_package)):
        if one not in known and not one.startswith(PYTHON) and package_of(group, one) is None:
            kind = "network" if group == NETWORKS else "encoder"
            what = f"the {kind} {one!r} of the run is not installed; the run says that the package {package!r} registers it"
            fix = f"install that package if you trust it, and give {OPTION} with its name"
            raise MissingPackage(what, where=where, fix=fix)
    encoder_kind(encoder, named=plugins)
    return network_kind(name, named=plugins)


def _trained(
    description: Mapping[str, Any], learned: bytes | None, where: str, plugins: Collection[str]
) -> PipelineSpec | None:
    """What the description and `LEARNED` say of the pipeline. Raises ValueError, KeyError, BadData where they are broken."""
    if learned is None and "pipeline" not in description:
        return None
    told: Any = description.get("pipeline")
    content = check_learned(learned, told)
    state = copy.deepcopy(state_from_bytes(content, where=f"{where}/{LEARNED}"))  # arrays of a copy can be written to
    return PipelineSpec.from_json(told, state, where=f"{where}/{POLICY}", plugins=plugins)


# ---- what a run says of itself ----


def described_form(head: ActionHead) -> dict[str, Any]:
    """How Box actions follow from the network's outputs, by its key; empty where that is as in behaviour cloning."""
    forms = head.forms()  # one: a head is built with it
    return {GAUSSIAN: {"mean": forms[0].mean, "log_std": list(forms[0].log_std)}} if forms and forms[0] != CLONING else {}


def known_environments(description: Mapping[str, Any]) -> list[EnvironmentSpec]:
    """Where a run was measured, and what its data is of. Raises ValueError for a broken description."""
    return Described.of(description).environments if description.get(ENVIRONMENTS) else []


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
