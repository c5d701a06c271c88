"""The policy of a run folder, read from its files; files that do not fit each other are BadData.

The description is in JSON: spaces, action scale, the network with its options, `gaussian` (how Box actions follow from what
the network puts out, where that is not as in behaviour cloning), the pipeline file that it was trained through (null where
Python objects were given, absent without one) with the hash of its pieces' state. Weights are in safetensors, what connector
pieces learned in msgpack. A network of another package is imported where the user names that package.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, Uncommitted, UnsupportedSpace
from offline_cli.json_documents import mistakes_by
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm
from offline_cli.modules.images import OURS as OUR_ENCODERS
from offline_cli.modules.images import encoder_kind
from offline_cli.modules.network import OURS, Mlp, Network, PythonNetwork, network_kind
from offline_cli.modules.policy_modules import fewest_numbers, fewest_remembering
from offline_cli.modules.rl_module import RLModule
from offline_cli.plugins import (
    ENCODERS,
    NETWORKS,
    OPTION,
    PYTHON,
    check_plugins,
    is_registered,
    plugin_behind,
    with_network,
)
from offline_cli.policies.run_files import (
    CONFIG,
    LEARNED,
    MODULES,
    OF_POLICY,
    POLICY,
    RESULT,
    WEIGHTS,
    check_learned,
    checkpoint_bytes,
    json_object,
    part,
)
from offline_cli.spaces import Space, space_from_json
from offline_cli.storage.locations import Location, open_location

__all__ = [
    "ENCODER_PACKAGE",
    "ENVIRONMENTS",
    "FORMAT",
    "GIVEN_SPACE",
    "NETWORK",
    "VERSION",
    "LoadedPolicy",
    "described_form",
    "environment_spaces",
    "load_policy",
    "policy_of",
]

_log = logging.getLogger(__name__)

T = TypeVar("T")

FORMAT = "offline-cli-policy"
VERSION = 1
SMALLEST = 2  # bytes of a weight
NETWORK = "network"
ENCODER_PACKAGE = "encoder_package"
GAUSSIAN = "gaussian"
ENVIRONMENTS = "environments"  # that the run was measured in, and that its data is of
GIVEN_SPACE = "given_observation_space"  # of what the pieces get, where the policy plays between some


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
    network, `python:package.module:build`, where it has such a one. Raises MissingPackage for a package that is not installed,
    or cannot be imported; BadConfig where the run has a network of a package, or code, that is not named, and for weights that
    are not those of `network`.

    Raises StorageNotFound, NoData for a folder that is not a run, Uncommitted without a checkpoint yet, BadData for broken
    files.
    """
    check_plugins(plugins)
    folder = open_location(run, storage_options)
    if folder.exists() and not folder.join(CONFIG).is_file():
        fix = f"onnx:{run}" if str(run).endswith(".onnx") else "name the folder that train-bc --out made"
        raise NoData("not a run folder of train-bc", where=str(folder), fix=fix)
    last = None if folder.join(RESULT).is_file() else checkpoint_bytes(replace(folder, cache=None))
    described = folder.join(POLICY).is_file()
    if folder.exists() and not (described and (last is not None or folder.join(WEIGHTS).is_file())):
        fix = f"`offline-cli train-bc ... --out {run} --resume`, with what it was started with, finishes it"
        raise Uncommitted("the run is not finished and holds no policy yet", where=str(folder), fix=fix)
    text = folder.join(POLICY).read_bytes()
    learned = folder.join(LEARNED).read_bytes() if folder.join(LEARNED).is_file() else None
    update, weights = (None, folder.join(WEIGHTS).read_bytes()) if last is None else last
    code = with_network(plugins, network)
    found = policy_of(text, weights, learned, where=str(folder), of_checkpoint=last is not None, plugins=code)
    if update is None:
        return found
    what = "note: %s holds a run that is not finished: the policy is that of its last checkpoint, of update %d"
    _log.warning(what, str(folder), update)
    return replace(found, checkpoint=update)


def policy_of(
    text: bytes,
    weights: bytes,
    learned: bytes | None,
    *,
    where: str,
    of_checkpoint: bool = False,
    plugins: Collection[str] = (),
) -> LoadedPolicy:
    """The policy that these files' bytes are; `learned`: None where there is no such file. Raises BadData for broken ones, and
    for a network of another package BadConfig, MissingPackage as `load_policy` does.

    `of_checkpoint`: the weights are among those of a checkpoint. `plugins`: packages whose code may be imported.
    """
    of_weights = "state.safetensors, its last checkpoint," if of_checkpoint else WEIGHTS
    description = _read(POLICY, lambda: json_object(text), where)
    tensors = _read(of_weights, lambda: load(weights), where)
    kind = _kind_of_network(description, where, plugins)
    _check_encoder(description, where, plugins)
    try:
        module = _built(description, len(weights), kind, where)
        _load(module, part(tensors, f"{MODULES}{OF_POLICY}") if of_checkpoint else tensors, kind)
        trained = _trained(description, learned, where, plugins)
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
        if issubclass(kind, PythonNetwork) and (isinstance(err, BadConfig) or plugin_behind(err) is not None):
            raise  # the mistake is in the code that the user named
        raise BadData(f"the policy cannot be read: {err}", where=where, fix="train again") from err
    broken = [name for name, parameter in module.named_parameters() if not bool(torch.isfinite(parameter).all())]
    if broken:  # buffers may: a mask of -inf, for instance
        what = f"the weights hold NaN or infinity: {broken[0]} in {of_weights}, so training diverged"
        raise BadData(what, where=where, fix="play an earlier checkpoint, or train again with a smaller --lr")
    return LoadedPolicy(module, description, trained, hashlib.sha256(weights).hexdigest())


def _load(module: RLModule, tensors: Mapping[str, Tensor], kind: type[Network]) -> None:
    """Raise BadConfig for weights that are not those of the code that the user named, RuntimeError for others."""
    if issubclass(kind, PythonNetwork):
        own = module.state_dict()
        forms = [{name: tuple(tensor.shape) for name, tensor in held.items()} for held in (own, tensors)]
        if forms[0] != forms[1]:
            name = next(name for name in {**forms[0], **forms[1]} if forms[0].get(name) != forms[1].get(name))
            here, there = (found.get(name, "none") for found in forms)
            what = f"{kind.name} makes a network whose {name} is {here}, and the run's is {there}"
            raise BadConfig(what, where=f"--network {kind.name}", fix="name the code that the run was trained with")
    module.load_state_dict(tensors)


def _read(name: str, read: Callable[[], T], where: str) -> T:
    """What `read` gives of the file called `name`. Raises BadData, naming it, where it is broken or damaged."""
    try:
        return read()
    except (ValueError, TypeError, OverflowError, SafetensorError) as err:
        raise BadData(f"the policy cannot be read: {name}: {err}", where=where, fix="train again") from err


def _trained(
    description: Mapping[str, Any], learned: bytes | None, where: str, plugins: Collection[str]
) -> PipelineSpec | None:
    """What the description and `LEARNED` say of the pipeline. Raises ValueError, KeyError, BadData where they are broken."""
    if learned is None and "pipeline" not in description:
        return None
    told = description.get("pipeline")
    check_learned(learned, told)
    assert learned is not None
    assert told is not None
    state = copy.deepcopy(state_from_bytes(learned, where=f"{where}/{LEARNED}"))  # arrays of a copy can be written to
    return PipelineSpec.from_json(told, state, where=f"{where}/{POLICY}", plugins=plugins)


def _kind_of_network(description: Mapping[str, Any], where: str, plugins: Collection[str]) -> type[Network]:
    """Raises BadConfig, MissingPackage for code that is not named, or not there."""
    code = next((one for one in plugins if one.startswith(PYTHON)), None)
    told = description.get(NETWORK)
    name = told.get("name") if isinstance(told, Mapping) else None
    if not isinstance(name, str):
        raise BadData(f"the policy cannot be read: {POLICY} names no network", where=where, fix="train again")
    if name in OURS:
        if code is not None:
            fix = "leave --network out: the run says itself which network it has"
            raise BadConfig(f"the run has the network {name}, not {code}", where=where, fix=fix)
        return network_kind(name)
    if not name.startswith(PYTHON) and not is_registered(NETWORKS, name):
        package = description.get("package")
        what = f"the network {name!r} of the run is not installed; the run says that the package {package!r} registers it"
        raise MissingPackage(what, where=where, fix=f"install that package if you trust it, and give {OPTION} with its name")
    try:
        return network_kind(name, named=plugins)
    except BadConfig as err:
        err.where = where if name.startswith(PYTHON) else err.where
        raise


def _check_encoder(description: Mapping[str, Any], where: str, plugins: Collection[str]) -> None:
    """Import the encoder of a package. Raises as `_kind_of_network` does."""
    name = description[NETWORK].get("encoder")
    if not isinstance(name, str) or name in OUR_ENCODERS:
        return
    if not is_registered(ENCODERS, name):
        package = description.get(ENCODER_PACKAGE)
        what = f"the encoder {name!r} of the run is not installed; the run says that the package {package!r} registers it"
        raise MissingPackage(what, where=where, fix=f"install that package if you trust it, and give {OPTION} with its name")
    encoder_kind(name, named=plugins)


def described_form(head: ActionHead) -> dict[str, Any]:
    """How Box actions follow from the network's outputs, by its key; empty where that is as in behaviour cloning."""
    forms = head.forms()
    if not forms or forms[0] == CLONING:
        return {}
    assert all(form == forms[0] for form in forms), "a head is built with one form"
    return {GAUSSIAN: {"mean": forms[0].mean, "log_std": list(forms[0].log_std)}}


def _form_of(description: Mapping[str, Any]) -> GaussianForm:
    """Raises KeyError, TypeError, ValueError where the description is broken."""
    if GAUSSIAN not in description:
        return CLONING
    told = description[GAUSSIAN]
    low, high = (float(limit) for limit in told["log_std"])
    return GaussianForm(told["mean"], (low, high))


def known_environments(description: Mapping[str, Any]) -> list[EnvironmentSpec]:
    """Where a run was measured, and what its data is of. Raises ValueError, KeyError, TypeError where the description of the
    policy is broken."""
    found = []
    for one in description.get(ENVIRONMENTS, []):
        parts = one["id"], one["kwargs"], one["wrappers"]
        if [*map(type, parts)] != [str, dict, list] or any(type(text) is not str for text in parts[2]):
            raise ValueError(f"its environment is {one!r}")
        found.append(EnvironmentSpec(parts[0], parts[1], tuple(parts[2])))
    return found


def environment_spaces(loaded: LoadedPolicy, where: str) -> tuple[Space, Space]:
    """Of observations and actions, in the environment that the policy of a run is for: before its pieces. Raises BadData."""
    module = loaded.module
    if loaded.trained is None:
        return module.observation_space, module.action_space
    try:
        return space_from_json(loaded.description[GIVEN_SPACE], where=where), module.action_space
    except (ValueError, TypeError, KeyError, AttributeError, UnsupportedSpace) as err:
        raise BadData(f"the policy cannot be read: {GIVEN_SPACE}: {err}", where=where, fix="train again") from err


def _built(description: Mapping[str, Any], size: int, kind: type[Network], where: str) -> RLModule:
    """`size`: bytes of the weights. Raises ValueError where these cannot be the description's: its sizes are only words."""
    if (description["format"], description["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format {description['format']} version {description['version']}")
    if not isinstance(description["environment"], (str, type(None))):
        raise ValueError(f"its environment is {description['environment']!r}")
    known_environments(description)
    observation_space = space_from_json(description["observation_space"], where=where)
    action_space = space_from_json(description["action_space"], where=where)
    form = _form_of(description)
    options = {name: value for name, value in description[NETWORK].items() if name != "name"}
    if issubclass(kind, Mlp):
        hidden = [int(width) for width in options["hidden"]]
        sizes = observation_space, action_space, hidden, Mlp(options).images
        if min(hidden, default=1) < 1 or fewest_numbers(*sizes) * SMALLEST > size:
            raise ValueError(f"a network of {hidden[:4]} hidden units, and {size} bytes of weights")
    wrong = mistakes_by(options, {"additionalProperties": False, **kind.schema, "type": "object"})
    if wrong:
        raise ValueError(f"options of its network: {'; '.join(wrong)}")
    if fewest_remembering(options) * SMALLEST > size:
        raise ValueError(f"a memory of {options}, and {size} bytes of weights")
    return kind(options).policy(
        observation_space,
        action_space,
        action_scale=description["action_scale"],
        **({} if form == CLONING else {"gaussian": form}),
    )
