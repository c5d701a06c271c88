"""Plays `rllib:FOLDER`: a checkpoint of an RLModule or an Algorithm of RLlib, by RLlib itself and through its own connectors.

RLlib's checkpoints are pickles, and loading one can run any code that its maker put in. So one is loaded only where the user
says that he trusts it (`trust_pickle`), by RLlib, which is imported here and nowhere else. Pieces play with the state they
have: a filter counts no further observations. An RLModule alone plays between RLlib's default pieces.

    FOLDER/module_state.pkl (or .msgpack)                                      an RLModule
    FOLDER/learner_group/learner/rl_module/default_policy/module_state.pkl     an Algorithm, and
    FOLDER/env_runner/{env_to_module_connector,module_to_env_connector}/
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from torch import nn

from offline_cli.connectors.pipeline_player import PipelinePlayer
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData
from offline_cli.policies.piece_policy import PolicyForPieces, is_of_floats
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.storage.local_files import not_found

__all__ = ["CLASS", "RLlibCheckpoint", "read_checkpoint"]

CLASS: Final = "class_and_ctor_args.pkl"
STATES: Final = ("module_state.pkl", "module_state.msgpack")
MODULES: Final = ("learner_group/learner/rl_module", "learner/rl_module", "rl_module", ".")
RUNNERS: Final = ("env_runner", ".")
BESIDE, AFTER = "env_to_module_connector", "module_to_env_connector"
FIX: Final = "save it again with the installed version of RLlib"


class RLlibCheckpoint:
    """RLlib's module, and where its connectors are."""

    def __init__(self, module: Any, folder: Path, place: Path, where: str) -> None:
        """`place`: the module's own folder, in `folder`."""
        self.module, self._folder, self._place, self._where = module, folder, place, where
        self._runner = next((one for name in RUNNERS if ((one := folder / name) / BESIDE).is_dir()), None)

    @property
    def spaces(self) -> tuple[Space | None, Space]:
        """What an environment has to give and take; None: pieces come first, and their pipeline finds out."""
        return self.module.observation_space if self._runner is None else None, self.module.action_space

    def policy(self, environment: Environment, device: str) -> PolicyForPieces:
        """The policy in an environment. Raises BadData where RLlib cannot load or build its connectors."""
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        try:
            beside, after = self._connectors(environment, device)
            for pipeline in (beside, after):
                _freeze(pipeline)
        except Exception as err:  # the files decide what runs here, and so what is raised
            raise _cannot("its connectors", err, self._folder) from err
        stretches = any(getattr(piece, "normalize_actions", False) for piece in after.connectors)
        floats = any(is_of_floats(leaf) for leaf in leaf_spaces(environment.action_space).values())
        return PolicyForPieces(
            PipelinePlayer(self.module.to(device).eval(), beside, after),
            environment.action_space,
            fingerprint=self._fingerprint(),
            action_scale="normalized" if floats and stretches else "env",
            observation_space=environment.observation_space,
            episode_kind=SingleAgentEpisode,
        )

    def _connectors(self, environment: Environment, device: str) -> tuple[Any, Any]:
        from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
        from ray.rllib.connectors.env_to_module import EnvToModulePipeline
        from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline

        if self._runner is not None:
            beside = EnvToModulePipeline.from_checkpoint(str((self._runner / BESIDE).resolve()))
            return beside, ModuleToEnvPipeline.from_checkpoint(str((self._runner / AFTER).resolve()))
        spaces = environment.observation_space, environment.action_space
        given = {"__env__": spaces, "__env_single__": spaces}
        config: Any = AlgorithmConfig()
        return (
            config.build_env_to_module_connector(spaces=given, device=device),
            config.build_module_to_env_connector(spaces=given),
        )

    def _fingerprint(self) -> str:
        """Of the files of the module and of its connectors."""
        digest = hashlib.sha256()
        roots = [self._place] if self._runner is None else [self._place, self._runner / BESIDE, self._runner / AFTER]
        for root in roots:
            for file in sorted(one for one in root.rglob("*") if one.is_file()):
                digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
        return digest.hexdigest()


def read_checkpoint(name: str, *, trust_pickle: bool) -> RLlibCheckpoint:
    """The checkpoint in folder `name`.

    Raises StorageNotFound, NoData; BadConfig without `trust_pickle`, for several modules and for another framework than torch;
    MissingPackage; BadData where RLlib cannot load it.
    """
    folder, where = Path(name), f"rllib:{name}"
    if not folder.is_dir():
        raise not_found(name, f"no folder {name} exists", where=where, fix="check the path")
    place = _module_folder(folder, where)
    if not trust_pickle:
        what = "a checkpoint of RLlib's is a pickle, and loading one runs the code that is in it"
        raise BadConfig(what, where=where, fix="--trust-pickle, where you trust who made it")
    try:
        from ray.rllib.core.rl_module.rl_module import RLModule
    except ImportError as err:
        fix = "pip install 'offline-cli[ray]'"
        raise MissingPackage(f"the package {err.name} is missing", where=where, fix=fix) from err
    try:
        module = RLModule.from_checkpoint(str(place.resolve()))
    except Exception as err:  # the files decide what runs here, and so what is raised
        raise _cannot("the module", err, place) from err
    if not isinstance(module, nn.Module):
        raise BadConfig(f"{type(module).__name__} is no module of torch", where=where, fix="a checkpoint made with torch")
    return RLlibCheckpoint(module, folder, place, where)


def _cannot(what: str, error: BaseException, place: Path) -> BadData:
    return BadData(f"RLlib cannot load {what}: {type(error).__name__}: {error}"[:500], where=str(place), fix=FIX)


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
    return (folder / CLASS).is_file() and any((folder / name).is_file() for name in STATES)


def _freeze(pipeline: Any) -> None:
    """Have filters count nothing more."""
    for piece in pipeline.connectors:
        if hasattr(piece, "connectors"):
            _freeze(piece)
        elif hasattr(piece, "_update_stats"):
            piece._update_stats = False
