"""Policies by name: `random`, a run folder, `sb3:FILE`, `onnx:FILE`, `rllib:FOLDER`, `python:module:attribute`; their spaces
must fit the environment's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import torch

from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import PipelineSpec
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError, SpaceMismatch, StorageNotFound
from offline_cli.modules.python_network import module_in_rllibs_manner
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies.agents_policy import open_agents
from offline_cli.policies.module_policy import fingerprint_of, hash_of_weights, played_module
from offline_cli.policies.onnx_model import read_model
from offline_cli.policies.onnx_policy import OnnxPolicy
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Policy, RandomPolicy
from offline_cli.policies.python_policy import FunctionPolicy, imported
from offline_cli.policies.rllib_policy import CLASS, read_checkpoint
from offline_cli.policies.run_policy import LoadedPolicy, load_policy
from offline_cli.policies.sb3_policy import ModelPolicy, load_model, with_channels_last
from offline_cli.spaces import Space
from offline_cli.storage.local_files import not_found
from offline_cli.trees import Tree, map_leaves

__all__ = ["ONNX", "PolicyOptions", "files_of", "is_named", "open_policies", "open_policy", "stand_in"]

RANDOM, SB3, PYTHON, ONNX, RLLIB = "random", "sb3:", "python:", "onnx:", "rllib:"
FORMS: Final = f"{RANDOM}, a run folder of train-bc, {SB3}FILE, {ONNX}FILE, {RLLIB}FOLDER or {PYTHON}package.module:attribute"
CODE: Final = re.compile(r"[^:]*[^:/]:[^\W\d][\w.]*")  # module:attribute, file.py:attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """How policies are opened."""

    explore: bool = False  # sample actions, where the policy can; `random` always does
    device: str = "cpu"
    pieces: PlaySpec = field(default_factory=PlaySpec)  # pipelines that the user gave
    storage_options: Mapping[str, Any] | None = None
    plugins: Sequence[str] = ()  # packages whose code a run folder may name
    trust_pickle: bool = False  # run the code that is pickled in a checkpoint of RLlib's
    loaded: LoadedPolicy | None = None  # the policy of the run folder that is named, where it has been read


def is_named(name: str) -> bool:
    """Whether that names another policy than a run folder."""
    return name == RANDOM or name.startswith((SB3, PYTHON, ONNX, RLLIB))


def files_of(texts: Sequence[str]) -> list[str]:
    """The run folders and ONNX files among policies, `AGENT=POLICY` or not: what storage options are for."""
    names = [text.partition("=")[2] or text for text in texts] if len(texts) > 1 else list(texts)
    return [name.removeprefix(ONNX) for name in names if name.startswith(ONNX) or not is_named(name)]


def open_policies(texts: Sequence[str], environment: Environment, options: PolicyOptions, *, seed: int) -> Policy:
    """The policy of an environment, of several agents those of all: one text for all, or `AGENT=POLICY` each. `seed`: of the
    episode that shows what observations look like.

    Raises what `open_policy` raises; BadConfig for several policies of one agent, for pipelines around those of several agents,
    and as `assigned` does.
    """
    if environment.agents is None:
        if len(texts) > 1:
            what = f"{environment.name} is not an environment of several agents, and {len(texts)} policies are given"
            raise BadConfig(what, where="--policy", fix="one --policy")
        return open_policy(texts[0], environment, options, lambda: environment.singles(1)[0].reset(seed=seed)[0])
    if not options.pieces.is_default:
        fix = "leave out --env-to-module and --module-to-env; wrappers of the environment see all agents: --wrapper"
        raise BadConfig("pieces go around the module of one agent, and several play", where=environment.name, fix=fix)

    def opened(text: str, agent: str, spaces: tuple[Space, Space], example: Tree | None) -> Policy:
        alone = stand_in(f"{environment.name}, agent {agent}", spaces)
        own = replace(options, storage_options=options.storage_options if files_of([text]) else None, loaded=None)
        return open_policy(text, alone, own, lambda: zero_row(spaces[0]) if example is None else example)

    return open_agents(texts, environment, opened, seed=seed)


def zero_row(space: Space) -> Tree:
    """One observation of zeros."""
    return map_leaves(lambda leaf: leaf[0], zero_rows(space, 1))


def open_policy(name: str, environment: Environment, options: PolicyOptions, example: Callable[[], Tree]) -> Policy:
    """The policy of that name, ready to play in the environment. `example` gives a real observation, for a policy that raises
    for invented ones. A module plays between pieces where the user gave some, it was trained through some, or carries a state.

    Raises SpaceMismatch, naming both sides; BadConfig for what is not a policy, and for pipelines around what is not a module;
    MissingPackage; what `load_policy` raises for a run folder, and BadData for a policy that raises when it is imported, loaded
    or tried.
    """
    if name == RANDOM:
        _refuse_pieces("random", name, options)
        return RandomPolicy(environment.action_space)
    if name.startswith(SB3):
        _refuse_pieces("a model of stable-baselines3", name, options)
        model, fingerprint = load_model(name.removeprefix(SB3), device=options.device)
        _check_model(model, environment, name)
        return ModelPolicy(model, environment.action_space, explore=options.explore, fingerprint=fingerprint)
    if name.startswith(ONNX):
        _refuse_pieces("an ONNX model", name, options)
        onnx = read_model(name.removeprefix(ONNX), options.storage_options)
        _check_fits((onnx.space("observation_space"), onnx.space("action_space")), name, environment)
        return OnnxPolicy(onnx, environment.observation_space, environment.action_space, explore=options.explore)
    if name.startswith(RLLIB):
        _refuse_pieces("a checkpoint of RLlib's, with the pieces that it has,", name, options)
        checkpoint = read_checkpoint(name.removeprefix(RLLIB), trust_pickle=options.trust_pickle)
        _check_fits(checkpoint.spaces, name, environment)
        return checkpoint.policy(environment, options.device)
    if name.startswith(PYTHON):
        return _python(name, environment, options, example)
    loaded = _run(name, options) if options.loaded is None else options.loaded
    return _module(loaded.module, name, environment, options, loaded.trained, fingerprint_of(loaded))


def _run(name: str, options: PolicyOptions) -> LoadedPolicy:
    try:
        return load_policy(name, options.storage_options, plugins=options.plugins)
    except NoData as err:
        err.fix = _meant(name) or err.fix
        raise
    except StorageNotFound as err:
        if "://" in name or Path(name).exists():
            raise
        what, fix = f"no folder {name} exists, and no policy has that name", _meant(name) or FORMS
        raise not_found(name, what, where="--policy", fix=fix) from err


def _meant(name: str) -> str:
    """What a name without prefix was likely meant to be; empty: a run folder."""
    if name.endswith(".zip"):
        return f"did you mean {SB3}{name}?"
    if "://" not in name and CODE.fullmatch(name):
        return f"did you mean {PYTHON}{name}?"
    if name.endswith(".onnx"):
        return f"did you mean {ONNX}{name}?"
    if "://" not in name and Path(name, CLASS).is_file():
        return f"did you mean {RLLIB}{name}?"
    return f"did you mean {PYTHON}{name}:its_name?" if name.endswith(".py") else ""


def _module(
    module: RLModule,
    name: str,
    environment: Environment,
    options: PolicyOptions,
    trained: PipelineSpec | None,
    fingerprint: str,
) -> Policy:
    if options.explore and getattr(module, "action_head", None) is None:  # as some classes in RLlib's manner have it
        what = f"{type(module).__name__} draws from a distribution class of its own, and those draws follow no seed"
        fix = "--no-explore, or leave the distribution to the action head that fits the action space"
        raise BadConfig(what, where=f"--policy {name}", fix=fix)
    how: dict[str, Any] = {"explore": options.explore, "device": torch.device(options.device), "fingerprint": fingerprint}
    asked = options.pieces
    if asked.is_default and trained is None and not module.is_stateful():
        _check_fits((module.observation_space, module.action_space), name, environment)
        _check_outputs(module.to(options.device), name, environment, options)
        pieces = asked if module.in_rllibs_manner else None
        return played_module(module, pieces, environment, **how)
    play = replace(asked, trained=trained)
    play.check(environment, module.observation_space, module.action_space, where=f"--policy {name} in {environment.name}")
    play.tell_unlike_training()
    return played_module(module, play, environment, **how)


def _check_outputs(module: RLModule, name: str, environment: Environment, options: PolicyOptions) -> None:
    """Raise BadConfig, naming what is missing, where it puts out nothing to act on; BadData where it raises."""
    kind, where = type(module).__name__, f"--policy {name}"
    rows = zero_rows(environment.observation_space, 1)
    seen = map_leaves(lambda leaf: torch.as_tensor(leaf, device=options.device), rows)
    forward = module.eval().forward_exploration if options.explore else module.eval().forward_inference
    try:
        with torch.inference_mode():
            outputs: Collection[str] = forward({Columns.OBS: seen})
    except OfflineCliError:
        raise
    except Exception as err:
        fix = "check the module by itself, in Python"
        raise BadData(f"{kind} raised {err!r} for an observation of zeros", where=where, fix=fix) from err
    wanted = (Columns.ACTIONS, Columns.ACTION_DIST_INPUTS)
    if not any(one in outputs for one in wanted):
        what = f"{kind} puts out {sorted(map(str, outputs))}, neither {wanted[0]!r} nor {wanted[1]!r}"
        raise BadConfig(what, where=where, fix="return one of the two from its forward methods")


def _python(name: str, environment: Environment, options: PolicyOptions, example: Callable[[], Tree]) -> Policy:
    found = imported(name.removeprefix(PYTHON), lambda kind: _made(kind, environment))
    if isinstance(found, RLModule):
        return _module(found, name, environment, options, None, hash_of_weights(found))
    predicts = callable(getattr(found, "predict", None))
    if not (predicts or callable(found)):
        what = f"it is {type(found).__name__}, which cannot be called"
        raise BadConfig(what, where=f"--policy {name}", fix="name a function")
    _refuse_pieces("an object with predict" if predicts else "a function", name, options)
    _check_model(found, environment, name)
    if predicts:
        return ModelPolicy(found, environment.action_space, explore=options.explore, fingerprint=name)
    spaces = environment.observation_space, environment.action_space
    return FunctionPolicy(found, name.removeprefix(PYTHON), *spaces, explore=options.explore, example=example)


def _made(kind: type[Any], environment: Environment) -> Any:
    """An object of this class: without arguments, or of the environment's spaces where it is a module in RLlib's manner."""
    if not issubclass(kind, RLModule):
        return kind()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # weights that are not loaded are the same in each process
        return module_in_rllibs_manner(kind, environment.observation_space, environment.action_space, {})


# ---- what fits ----


def _refuse_pieces(what: str, name: str, options: PolicyOptions) -> None:
    """Raise BadConfig where the user gave pipelines, which need a network between them."""
    if not options.pieces.is_default:
        fix = "--wrapper changes what it sees and does; or an RLModule: a run folder, python:package.module:attribute"
        raise BadConfig(f"{what} plays, and pipelines go around an RLModule", where=f"--policy {name}", fix=fix)


def _check_model(model: Any, environment: Environment, name: str) -> None:
    """As `_check_fits`, for what may have no spaces, or see images another way round."""
    seen = getattr(model, "observation_space", None)
    if isinstance(seen, gym.Space):
        seen = with_channels_last(seen, environment.observation_space)
    _check_fits((seen, getattr(model, "action_space", None)), name, environment)


def _check_fits(theirs: tuple[Any, Any], name: str, environment: Environment) -> None:
    """Raise SpaceMismatch, with every difference, for a policy of these spaces (observations, actions), where it has any."""
    ours = environment.observation_space, environment.action_space
    problems = [
        text.replace("the data has", "the policy has", 1)
        for space, own, what in zip(theirs, ours, ("observations", "actions"), strict=True)
        if isinstance(space, gym.Space)
        for text in misfits(space, own, inferred=False, what=what)
    ]
    if problems:
        fix = "an environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=f"--policy {name} in {environment.name}", fix=fix)


class _SpacesAlone(gym.Env[Any, Any]):
    """The spaces of an environment that is not here."""

    def __init__(self, spaces: tuple[Space, Space]) -> None:
        self.observation_space, self.action_space = spaces


def stand_in(name: str, spaces: tuple[Space, Space]) -> Environment:
    """Of an environment that is not here, or of one agent of several."""
    return Environment(name, lambda: _SpacesAlone(spaces))
