"""Plays `rllib:FOLDER`: a checkpoint of an RLModule or an Algorithm of RLlib, 2.40 to 2.60, through its connector pipelines.

RLlib's checkpoints are pickles, and loading one can run any code that its maker put in. So one is loaded only where the user
says that he trusts it (`trust_pickle`), by RLlib itself, which is imported here and nowhere else. A folder of arrays with a
description in JSON (`rllib_arrays.py`), as `export` writes it, needs neither.

The module is RLlib's own. Of the pipelines our pieces take the place of RLlib's by name, with the options and the state that
the checkpoint has; a filter counts no further observations. A piece that we do not have is BadConfig. An RLModule alone plays
between RLlib's default pieces.

    FOLDER/module_state.pkl (.pt in 2.40, .msgpack where told to)              an RLModule
    FOLDER/learner_group/learner/rl_module/default_policy/module_state.pkl     an Algorithm, and
    FOLDER/env_runner/{env_to_module_connector,module_to_env_connector}/
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.piece_makers import own_pieces, snake
from offline_cli.connectors.piece_options import signature_of
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.policies.rllib_arrays import is_of_arrays, module_of_arrays
from offline_cli.policies.rllib_pickles import CLASS, OF_2_40, module_of_2_40, state_of_piece, unpickled
from offline_cli.storage.local_files import not_found
from offline_cli.trees import Tree, flatten

__all__ = ["CLASS", "RLlibCheckpoint", "RLlibModule", "read_checkpoint"]

STATE: Final = "module_state"
MODULES: Final = ("learner_group/learner/rl_module", "learner/rl_module", "rl_module", ".")
RUNNERS: Final = ("env_runner", ".")
BESIDE, AFTER = "env_to_module_connector", "module_to_env_connector"
DISTRIBUTIONS: Final = ("TorchCategorical", "TorchDiagGaussian", "TorchMultiCategorical")  # that our heads read the same way
THEIRS: Final = "ray.rllib.connectors."
DEFAULT: Final = {  # RLlib's default pieces, by side
    BESIDE: {
        "AddObservationsFromEpisodesToBatch",
        "AddTimeDimToBatchAndZeroPad",
        "AddStatesFromEpisodesToBatch",
        "BatchIndividualItems",
        "NumpyToTensor",
    },
    AFTER: {
        "GetActions",
        "TensorToNumpy",
        "UnBatchToIndividualItems",
        "RemoveSingleTsTimeRankFromBatch",
        "NormalizeAndClipActions",
        "ListifyDataForVectorEnv",
    },
}
NEEDED: Final = {BESIDE: "BatchIndividualItems", AFTER: "ListifyDataForVectorEnv"}  # RLlib adds all default pieces, or none
BY_US: Final = {"multi_agent", "as_learner_connector", "input_observation_space", "input_action_space", "update_stats"}
FIX: Final = "--policy python:package.module:attribute, for a module with pieces of your own"


class RLlibModule(RLModule):
    """A module of RLlib's as one of ours: the same tensors in and out, in evaluation mode."""

    def __init__(self, theirs: Any) -> None:
        """`theirs`: a TorchRLModule, whose distribution our head reads, unless it has one of another kind."""
        kind = theirs.get_inference_action_dist_cls()
        name = getattr(getattr(kind, "func", kind), "__name__", "")  # of several choices a partial
        if name not in DISTRIBUTIONS:
            self.action_dist_cls = kind
        super().__init__(theirs.observation_space, theirs.action_space)
        self.theirs = theirs

    def get_initial_state(self) -> dict[str, Any]:
        """See RLModule."""
        return dict(self.theirs.get_initial_state() or {}) if hasattr(self, "theirs") else {}

    def _forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self.theirs.forward_inference(dict(batch)))

    def _forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self.theirs.forward_exploration(dict(batch)))


@dataclass(frozen=True, slots=True, eq=False)
class RLlibCheckpoint:
    """A module, and what it plays between."""

    module: RLModule
    pieces: PlaySpec
    fingerprint: str
    is_plain: bool  # nothing but RLlib's default pieces, which stretch actions to the bounds, and nothing remembered


def read_checkpoint(name: str, *, trust_pickle: bool) -> RLlibCheckpoint:
    """The checkpoint in folder `name`.

    Raises StorageNotFound, NoData; BadConfig without `trust_pickle`, for several modules, for another framework than torch and
    for pieces that we do not have; MissingPackage; BadData where RLlib cannot load it.
    """
    folder, where = Path(name), f"rllib:{name}"
    if not folder.is_dir():
        raise not_found(name, f"no folder {name} exists", where=where, fix="check the path")
    place = _module_folder(folder, where)
    if place == folder and is_of_arrays(place):
        arrays = module_of_arrays(place, where)
        return _checkpoint(arrays, _Side(), _Side(), where)
    if not trust_pickle:
        what = "a checkpoint of RLlib's is a pickle, and loading one runs the code that is in it"
        raise BadConfig(what, where=where, fix="--trust-pickle, where you trust who made it")
    theirs = _loaded(place, where)
    if not isinstance(theirs, nn.Module):
        raise BadConfig(f"{type(theirs).__name__} is no module of torch", where=where, fix="a checkpoint made with torch")
    sides = next((found for one in RUNNERS if (found := folder / one / BESIDE).is_dir()), None)
    beside = _Side.read(sides, BESIDE, where) if sides is not None else _Side()
    after = _Side.read(sides.parent / AFTER, AFTER, where) if sides is not None else _Side()
    return _checkpoint(RLlibModule(theirs), beside, after, where)


def _checkpoint(module: RLModule, beside: _Side, after: _Side, where: str) -> RLlibCheckpoint:
    spec = PlaySpec(
        PipelineSpec.from_document({"kind": "env_to_module", "pieces": list(beside.pieces)}, "env_to_module", where=where),
        PipelineSpec.from_document(
            {"kind": "module_to_env", **after.scaling, "pieces": list(after.pieces)}, "module_to_env", where=where
        ),
        learned={"env_to_module": beside.states, "module_to_env": after.states},
    )
    has_head = getattr(module, "action_head", None) is not None
    stretches = after.scaling.get("normalize_actions", True)
    is_plain = stretches and has_head and not (beside.pieces or after.pieces or module.is_stateful())
    return RLlibCheckpoint(module, spec, _fingerprint(module, beside, after), is_plain)


def _module_folder(folder: Path, where: str) -> Path:
    """The folder of the only module. Raises NoData, BadConfig."""
    for one in (folder / part for part in MODULES):
        if not one.is_dir():
            continue
        inner = sorted(child for child in one.iterdir() if child.is_dir() and _has_state(child))
        if len(inner) > 1:
            what = f"a checkpoint of several modules: {', '.join(child.name for child in inner)}"
            raise BadConfig(what, where=where, fix=f"rllib:{inner[0]}, one module's own folder")
        if inner or _has_state(one):
            return inner[0] if inner else one
    fix = "the folder that save_to_path of an RLModule or an Algorithm (new API stack) made"
    raise NoData("no checkpoint of an RLModule or an Algorithm of RLlib", where=where, fix=fix)


def _has_state(folder: Path) -> bool:
    named = (f"{STATE}.pkl", f"{STATE}.msgpack", OF_2_40)
    whole = any((folder / name).is_file() for name in named) and (folder / CLASS).is_file()
    return whole or is_of_arrays(folder)


def _loaded(place: Path, where: str) -> Any:
    """RLlib's module. Raises MissingPackage, BadData."""
    try:
        from ray.rllib.core.rl_module.rl_module import RLModule as Theirs
    except ImportError as err:
        fix = "pip install 'offline-cli[ray]'"
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix=fix) from err
    try:
        return module_of_2_40(place) if (place / OF_2_40).is_file() else Theirs.from_checkpoint(str(place.resolve()))
    except BadData:
        raise
    except Exception as err:  # the files decide what runs here, and so what is raised
        what = f"RLlib cannot load the module: {type(err).__name__}: {err}"[:500]
        raise BadData(what, where=str(place), fix="save it again with the installed version of RLlib") from err


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One pipeline of a checkpoint as a document of ours, and what its pieces learned, by name."""

    pieces: tuple[Mapping[str, Any], ...] = ()
    states: Mapping[str, Any] = ()  # type: ignore[assignment]  # see __post_init__
    scaling: Mapping[str, bool] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", dict(self.states))
        object.__setattr__(self, "scaling", dict(self.scaling))

    @classmethod
    def read(cls, folder: Path, side: str, where: str) -> _Side:
        """The pipeline in `folder`. Raises BadConfig for pieces that we do not have, BadData."""
        told = unpickled(folder / CLASS)
        try:
            listed = [
                (getattr(kind, "func", kind), dict(options))  # what was a class became a partial: FlattenObservations
                for kind, _, options in told["ctor_args_and_kwargs"][1]["connectors"]
            ]
        except (KeyError, TypeError, ValueError, IndexError) as err:
            raise BadData(f"no pipeline of RLlib's: {err!r}", where=str(folder), fix=FIX) from err
        names = [_called(kind) for kind, _ in listed]
        problems = [problem for kind, options in listed for problem in _misfit(kind, options, side)]
        if NEEDED[side] not in names:
            problems.append(f"the pipeline has no {NEEDED[side]}: RLlib's default pieces are turned off")
        if problems:
            raise BadConfig.of(problems, where=f"{where}, {side}", fix=FIX)
        own = [(name, options) for name, (_, options) in zip(names, listed, strict=True) if name not in DEFAULT[side]]
        scaling = next(
            (options for name, (_, options) in zip(names, listed, strict=True) if name == "NormalizeAndClipActions"), {}
        )
        scaling = {name: bool(scaling[name]) for name in ("normalize_actions", "clip_actions") if name in scaling}
        states = {name: state_of_piece(folder / name) for name, _ in own}
        return cls(
            tuple(_entry(name, options) for name, options in own), {name: one for name, one in states.items() if one}, scaling
        )


def _misfit(kind: Any, options: Mapping[str, Any], side: str) -> Iterator[str]:
    """Why a piece cannot be played here, if so."""
    name, called = f"{kind.__module__}.{kind.__qualname__}", _called(kind)
    if options.get("multi_agent"):
        yield f"{name} is for several agents"
    elif not kind.__module__.startswith(THEIRS):
        yield f"{name} is a piece of other code"
    elif called not in DEFAULT[side] and _ours(called) is None:
        yield f"{name} is a piece that we do not have"
    elif called not in DEFAULT[side] and _entry(called, options).keys() - {"name"} - _options_of(called):
        yield f"{name} has options that ours has not: {', '.join(sorted(options))}"


def _called(kind: Any) -> str:
    return str(kind.__name__).lstrip("_")  # FrameStacking was private once


def _ours(name: str) -> type[ConnectorV2] | None:
    return own_pieces().get(snake(name))


def _options_of(name: str) -> set[str]:
    kind = _ours(name)
    return set() if kind is None else set(signature_of(kind).options)


def _entry(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A piece as a pipeline file has it; filters count nothing."""
    told = {key: value for key, value in options.items() if key not in BY_US}
    return {"name": snake(name), **told, **({"update_stats": False} if "update_stats" in _options_of(name) else {})}


def _fingerprint(module: RLModule, *sides: _Side) -> str:
    """Of weights, pieces and what these learned."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    for side in sides:
        digest.update(repr((side.pieces, sorted(side.scaling.items()))).encode())
        digest.update(repr(sorted((name, _plain(state)) for name, state in side.states.items())).encode())
    return digest.hexdigest()


def _plain(state: Tree) -> list[tuple[str, Any]]:
    return [
        (path, np.asarray(leaf).tolist() if isinstance(leaf, (np.ndarray, torch.Tensor)) else leaf)
        for path, leaf in flatten(state)
    ]
