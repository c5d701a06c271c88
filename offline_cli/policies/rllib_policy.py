"""The policy `rllib:FOLDER`: a checkpoint of RLlib's RLModule or Algorithm, played by RLlib with its own connectors.

RLlib's checkpoints are pickles, so loading one can run any code. It is loaded by RLlib, and only with `--trust-pickle`. Pieces
keep their state: a filter counts no further observations. An RLModule without connectors plays between RLlib's default pieces.

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
from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, StorageNotFound
from offline_cli.policies.module_policy import PolicyForPieces
from offline_cli.policies.policy import PolicyOptions, fitting

__all__ = ["RLLIB", "open_checkpoint"]

RLLIB: Final = "rllib:"
MODULE_STATE: Final = "module_state.*"  # .pkl or .msgpack
MODULES: Final = ("learner_group/learner/rl_module", "learner/rl_module", "rl_module", ".")
BESIDE, AFTER = "env_to_module_connector", "module_to_env_connector"


def open_checkpoint(name: str, environment: Environment | None, options: PolicyOptions) -> PolicyForPieces:
    """Open the policy `rllib:FOLDER`. It samples with torch's generator, seeded at each step.

    Raises StorageNotFound, NoData; BadConfig without `trust_pickle`, for several modules and for frameworks other than torch;
    MissingPackage; SpaceMismatch; BadData if RLlib cannot load it.
    """
    options.refuse_pieces(name)
    folder = Path(name.removeprefix(RLLIB))
    if not folder.is_dir():
        raise StorageNotFound(f"the folder {folder} does not exist", where=name, fix="check the path")
    place = _module_folder(folder, name)
    if not options.trust_pickle:
        what = "an RLlib checkpoint is a pickle; loading it can run any code"
        raise BadConfig(what, where=name, fix="add --trust-pickle if you trust its author")
    try:
        from ray.rllib.core.rl_module.rl_module import RLModule
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    except ImportError as err:
        raise MissingPackage(f"the package {err.name} is missing", where=name, fix="pip install 'offline-cli[ray]'") from err
    runner = next((one for one in (folder / "env_runner", folder) if (one / BESIDE).is_dir()), None)
    try:
        module: Any = RLModule.from_checkpoint(str(place.resolve()))
        if not isinstance(module, nn.Module):
            raise BadConfig(
                f"{type(module).__name__} is not a torch module", where=name, fix="use a checkpoint made with torch"
            )
        seen = module.observation_space if runner is None else None  # the checkpoint's pieces may change observations
        environment = fitting((seen, module.action_space), name, environment)
        beside, after = _connectors(runner, environment, options.device)
    except BadConfig:
        raise
    except Exception as err:  # loading may run any code and raise anything
        fix = "save it again with the installed version of RLlib"
        raise BadData(f"RLlib cannot load it: {type(err).__name__}: {err}"[:500], where=str(folder), fix=fix) from err
    files = [
        file for root in ([place] if runner is None else [place, runner / BESIDE, runner / AFTER]) for file in root.rglob("*")
    ]
    hashes = [
        [str(file.relative_to(folder)), hashlib.sha256(file.read_bytes()).hexdigest()] for file in files if file.is_file()
    ]
    return PolicyForPieces(
        PipelinePlayer(module.to(options.device).eval(), beside, after),
        environment,
        fingerprint=hashlib.sha256(repr(sorted(hashes)).encode()).hexdigest(),
        is_normalized=any(getattr(piece, "normalize_actions", False) for piece in after.connectors),
        episode_kind=SingleAgentEpisode,
    )


def _connectors(runner: Path | None, environment: Environment, device: str) -> tuple[Any, Any]:
    """The checkpoint's pipelines (None: RLlib's defaults), with filters frozen."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.connectors.env_to_module import EnvToModulePipeline
    from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline

    if runner is not None:
        beside: Any = EnvToModulePipeline.from_checkpoint(str((runner / BESIDE).resolve()))
        after: Any = ModuleToEnvPipeline.from_checkpoint(str((runner / AFTER).resolve()))
    else:
        given = dict.fromkeys(("__env__", "__env_single__"), (environment.observation_space, environment.action_space))
        config: Any = AlgorithmConfig()
        beside = config.build_env_to_module_connector(spaces=given, device=device)
        after = config.build_module_to_env_connector(spaces=given)
    pieces = [beside, after]
    for piece in pieces:  # grows while iterating
        pieces += getattr(piece, "connectors", [])
        if hasattr(piece, "_update_stats"):
            piece._update_stats = False
    return beside, after


def _module_folder(folder: Path, where: str) -> Path:
    """The folder of the only module. Raises NoData, BadConfig for several."""
    for one in (folder / part for part in MODULES):
        inner = sorted(
            {state.parent for state in one.glob(f"*/{MODULE_STATE}")}
        )  # first: a folder of modules also has a state file
        found = inner or [one] * any(one.glob(MODULE_STATE))
        if len(found) > 1:
            what = f"the checkpoint has several modules: {', '.join(child.name for child in found)}"
            raise BadConfig(what, where=where, fix=f"name one module's folder: rllib:{found[0]}")
        if found:
            return found[0]
    fix = "name a folder written by save_to_path of an RLModule or an Algorithm (new API stack)"
    raise NoData("no RLlib checkpoint of an RLModule or an Algorithm", where=where, fix=fix)
