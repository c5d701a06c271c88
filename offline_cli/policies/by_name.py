"""Policies by name: `random`, a run folder, `sb3:FILE`, `onnx:FILE`, `rllib:FOLDER`, `python:module:attribute`; their spaces
must fit the environment's.

`open_policy` is for `record` and its like, `load_policy` for programs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import torch

from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment, open_environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError, SpaceMismatch, StorageNotFound
from offline_cli.modules.devices import choose_device
from offline_cli.modules.python_network import module_in_rllibs_manner
from offline_cli.modules.rl_module import RLModule
from offline_cli.policies import run_policy
from offline_cli.policies.module_policy import ModelPolicy, ModulePolicy, fingerprint_of, is_transposed_image, load_model
from offline_cli.policies.onnx_model import OnnxModel, read_model
from offline_cli.policies.onnx_policy import onnx_policy
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec, tell_unlike_training
from offline_cli.policies.policy import Policy, RandomPolicy
from offline_cli.policies.policy_in_use import PolicyInUse
from offline_cli.policies.python_policy import FunctionPolicy, imported
from offline_cli.policies.rllib_policy import CLASS, RLlibCheckpoint, read_checkpoint
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.spaces import Space
from offline_cli.storage.local_files import not_found
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, map_leaves

__all__ = ["ONNX", "is_named", "load_policy", "open_policy", "policy_of_run", "stand_in"]

RANDOM, SB3, PYTHON, ONNX, RLLIB = "random", "sb3:", "python:", "onnx:", "rllib:"
KINDS = ("observations", "actions")
CODE: Final = re.compile(r"[^:]*[^:/]:[^\W\d][\w.]*")  # module:attribute, file.py:attribute


def open_policy(
    name: str,
    environment: Environment,
    *,
    explore: bool,
    device: str = "cpu",
    pieces: PlaySpec | None = None,
    storage_options: Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
    example: Callable[[], Tree] | None = None,
    trust_pickle: bool = False,
) -> Policy | PipedPolicy:
    """The policy of that name, ready to play in the environment.

    `explore`: sample actions, where the policy can; `random` always does. `pieces`: pipelines that the user gave; a module is
    played through pipelines without them too, where it was trained so or carries a state. `example`: gives a real
    observation, for a policy that raises for invented ones. `plugins`: packages whose code a run folder may name.
    `trust_pickle`: run the code that is pickled in a checkpoint of RLlib's.

    Raises SpaceMismatch, naming both sides; BadConfig for what is not a policy, and for pipelines around what is not a module;
    MissingPackage; what `load_policy` raises for a run folder, what `PipedPolicy` raises, and BadData for a policy that raises
    when it is imported, loaded or tried.
    """
    play = _Play(name, environment, PlaySpec() if pieces is None else pieces, explore, device)
    if name == RANDOM:
        play.refuse_pieces("random")
        return RandomPolicy(environment.action_space)
    if name.startswith(SB3):
        play.refuse_pieces("a model of stable-baselines3")
        model, fingerprint = load_model(name.removeprefix(SB3), device=device)
        _check_model(model, environment, name)
        return ModelPolicy(model, environment.action_space, explore=explore, fingerprint=fingerprint)
    if name.startswith(PYTHON):
        return _python(play, example)
    if name.startswith(ONNX):
        return play.onnx(read_model(name.removeprefix(ONNX), storage_options))
    if name.startswith(RLLIB):
        return play.rllib(read_checkpoint(name.removeprefix(RLLIB), trust_pickle=trust_pickle))
    try:
        loaded = run_policy.load_policy(name, storage_options, plugins=plugins)
    except NoData as err:
        err.fix = _meant(name) or err.fix
        raise
    except StorageNotFound as err:
        if "://" in name or Path(name).exists():
            raise
        what, fix = f"no folder {name} exists, and no policy has that name", _meant(name) or _forms()
        raise not_found(name, what, where="--policy", fix=fix) from err
    return play.module(loaded.module, fingerprint_of(loaded), loaded.trained)


def is_named(name: str) -> bool:
    """Whether that names another policy than a run folder."""
    return name == RANDOM or name.startswith((SB3, PYTHON, ONNX, RLLIB))


def policy_of_run(
    loaded: LoadedPolicy, name: str, environment: Environment, *, explore: bool, device: str, pieces: PlaySpec
) -> Policy | PipedPolicy:
    """The same for the policy of run folder `name`, which has been read."""
    play = _Play(name, environment, pieces, explore, device)
    return play.module(loaded.module, fingerprint_of(loaded), loaded.trained)


@dataclass(frozen=True, slots=True)
class _Play:
    """What a policy is opened for."""

    name: str
    environment: Environment
    pieces: PlaySpec
    explore: bool
    device: str

    def _check_draws(self, module: RLModule) -> None:
        if self.explore and getattr(module, "action_head", None) is None:  # as some classes in RLlib's manner have it
            what = f"{type(module).__name__} draws from a distribution class of its own, and those draws follow no seed"
            fix = "--no-explore, or leave the distribution to the action head that fits the action space"
            raise BadConfig(what, where=f"--policy {self.name}", fix=fix)

    def module(self, module: RLModule, fingerprint: str, trained: PipelineSpec | None) -> Policy | PipedPolicy:
        """The quick way where nothing is in between, and nothing remembered."""
        self._check_draws(module)
        if not self.pieces.is_default or trained is not None or module.is_stateful() or module.in_rllibs_manner:
            play = replace(self.pieces, trained=trained)
            where = f"--policy {self.name} in {self.environment.name}"
            play.check(self.environment, module.observation_space, module.action_space, where=where)
            between = PipedPolicy(
                module,
                play,
                self.environment,
                explore=self.explore,
                device=torch.device(self.device),
                fingerprint=fingerprint,
            )
            if module.in_rllibs_manner and self.pieces.is_default and not module.is_stateful():
                self._check_outputs(module)
            return between
        _check_fits((module.observation_space, module.action_space), self.name, self.environment)
        return self._on_blocks(module, fingerprint)

    def _on_blocks(self, module: RLModule, fingerprint: str) -> ModulePolicy:
        policy = ModulePolicy(module, explore=self.explore, device=torch.device(self.device), fingerprint=fingerprint)
        self._check_outputs(module)
        policy.play_in(self.environment.action_space)
        return policy

    def _check_outputs(self, module: RLModule) -> Collection[str]:
        """The names of what it puts out. Raises BadConfig, naming what is missing, where that is nothing to act on; BadData."""
        kind, where = type(module).__name__, f"--policy {self.name}"
        seen = map_leaves(
            lambda leaf: torch.as_tensor(leaf, device=self.device), zero_rows(self.environment.observation_space, 1)
        )
        forward = module.forward_exploration if self.explore else module.forward_inference
        try:
            with torch.inference_mode():
                outputs = forward({Columns.OBS: seen})
        except OfflineCliError:
            raise
        except Exception as err:
            fix = "check the module by itself, in Python"
            raise BadData(f"{kind} raised {err!r} for an observation of zeros", where=where, fix=fix) from err
        wanted = (Columns.ACTIONS, Columns.ACTION_DIST_INPUTS)
        if not any(name in outputs for name in wanted):
            what = f"{kind} puts out {sorted(map(str, outputs))}, neither {wanted[0]!r} nor {wanted[1]!r}"
            raise BadConfig(what, where=where, fix="return one of the two from its forward methods")
        return outputs.keys()

    def onnx(self, model: OnnxModel) -> Policy | PipedPolicy:
        """A file's policy. Raises SpaceMismatch, BadConfig."""
        self.refuse_pieces("an ONNX model")
        _check_fits((model.space("observation_space"), model.space("action_space")), self.name, self.environment)
        return onnx_policy(model, self.environment, explore=self.explore)

    def rllib(self, checkpoint: RLlibCheckpoint) -> Policy | PipedPolicy:
        """A checkpoint's policy. Raises SpaceMismatch, BadConfig."""
        self.refuse_pieces("a checkpoint of RLlib's, with the pieces that it has,")
        self._check_draws(checkpoint.module)
        seen = checkpoint.module.observation_space if checkpoint.is_plain else None
        _check_fits((seen, checkpoint.module.action_space), self.name, self.environment)
        if checkpoint.is_plain and Columns.ACTION_DIST_INPUTS in self._check_outputs(checkpoint.module.to(self.device)):
            return self._on_blocks(checkpoint.module, checkpoint.fingerprint)
        module, where = checkpoint.module, f"--policy {self.name} in {self.environment.name}"
        checkpoint.pieces.check(self.environment, module.observation_space, module.action_space, where=where)
        device, known = torch.device(self.device), checkpoint.fingerprint
        return PipedPolicy(module, checkpoint.pieces, self.environment, explore=self.explore, device=device, fingerprint=known)

    def refuse_pieces(self, what: str) -> None:
        """Raise BadConfig where the user gave pipelines, which need a network between them."""
        if not self.pieces.is_default:
            fix = "--wrapper changes what it sees and does; or an RLModule: a run folder, python:package.module:attribute"
            raise BadConfig(f"{what} plays, and pipelines go around an RLModule", where=f"--policy {self.name}", fix=fix)


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


def _forms() -> str:
    return f"{RANDOM}, a run folder of train-bc, {SB3}FILE, {ONNX}FILE, {RLLIB}FOLDER or {PYTHON}package.module:attribute"


def _python(play: _Play, example: Callable[[], Tree] | None) -> Policy | PipedPolicy:
    name, environment = play.name, play.environment
    found = imported(name.removeprefix(PYTHON), lambda kind: _made(kind, environment))
    if isinstance(found, RLModule):
        return play.module(found, _hash_of_weights(found), None)
    predicts = callable(getattr(found, "predict", None))
    if not (predicts or callable(found)):
        what = f"it is {type(found).__name__}, which cannot be called"
        raise BadConfig(what, where=f"--policy {name}", fix="name a function")
    play.refuse_pieces("an object with predict" if predicts else "a function")
    _check_model(found, environment, name)
    if predicts:
        return ModelPolicy(found, environment.action_space, explore=play.explore, fingerprint=name)
    spaces = environment.observation_space, environment.action_space
    return FunctionPolicy(found, name.removeprefix(PYTHON), *spaces, explore=play.explore, example=example)


def _made(kind: type[Any], environment: Environment) -> Any:
    """An object of this class: without arguments, or of the environment's spaces where it is a module in RLlib's manner."""
    if not issubclass(kind, RLModule):
        return kind()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # weights that are not loaded are the same in each process
        return module_in_rllibs_manner(kind, environment.observation_space, environment.action_space, {})


def _hash_of_weights(module: RLModule) -> str:
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in module.state_dict().values())).hexdigest()


def _check_model(model: Any, environment: Environment, name: str) -> None:
    """As `_check_fits`, for what may have no spaces, or see images another way round."""
    seen = getattr(model, "observation_space", None)
    if isinstance(seen, gym.Space) and is_transposed_image(seen, environment.observation_space):
        seen = environment.observation_space
    _check_fits((seen, getattr(model, "action_space", None)), name, environment)


def _check_fits(theirs: tuple[Any, Any], name: str, environment: Environment) -> None:
    """Raise SpaceMismatch, with every difference, for a policy of these spaces (observations, actions), where it has any."""
    ours = environment.observation_space, environment.action_space
    problems = [
        text.replace("the data has", "the policy has", 1)
        for space, own, what in zip(theirs, ours, KINDS, strict=True)
        if isinstance(space, gym.Space)
        for text in misfits(space, own, inferred=False, what=what)
    ]
    if problems:
        fix = "an environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of(problems, where=f"--policy {name} in {environment.name}", fix=fix)


# ---- in a program ----


class _SpacesAlone(gym.Env[Any, Any]):
    """The spaces of an environment that is not here."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def load_policy(
    policy: str | os.PathLike[str] | Location,
    storage_options: Mapping[str, Any] | None = None,
    *,
    env: str | None = None,
    explore: bool = False,
    seed: int = 0,
    device: str = "cpu",
    env_to_module: Given = None,
    module_to_env: Given = None,
    lookback: int | None = None,
    plugins: Sequence[str] = (),
    trust_pickle: bool = False,
    network: str | None = None,
) -> PolicyInUse:
    """A policy to act with, greedily unless `explore`: a run folder, local or remote; `sb3:FILE`; `onnx:FILE`;
    `rllib:FOLDER` (`trust_pickle`: run the code that is pickled in it); `python:module:attribute`.

    `env`: the environment it acts in, by name, where its spaces are not known otherwise: for Python objects, for `random`, and
    for pipelines of yours. `seed`: of drawn actions: those of episode i, counted from 0, are those that `evaluate` draws in its
    episode i where it plays single copies. `env_to_module`, `module_to_env`, `lookback`: as in `evaluate`. `plugins`: packages
    that the run folder may name; `network`: the code of its network, where it was trained with `network`.

    Of a run that is not finished, the last checkpoint's policy, and a note says so.

    Raises StorageNotFound, NoData, Uncommitted, BadData, MissingPackage for the run; BadConfig where the spaces are not known,
    and for a policy that was trained through other code; SpaceMismatch where `env` does not fit; UnknownEnvironment;
    MissingDevice.
    """
    name = policy.url if isinstance(policy, Location) else os.fspath(policy)
    pieces = PlaySpec.of(env_to_module, module_to_env, lookback)
    target = choose_device(device).type
    if is_named(name):
        with _environment(env, lambda: _spaces_of_model(name, target, storage_options)) as environment:
            made = open_policy(
                name,
                environment,
                explore=explore,
                device=target,
                pieces=pieces,
                storage_options=storage_options,
                plugins=plugins,
                example=lambda: environment.singles(1)[0].reset(seed=0)[0],
                trust_pickle=trust_pickle,
            )
            return PolicyInUse(made, (environment.observation_space, environment.action_space), seed=seed)
    loaded = run_policy.load_policy(policy, storage_options, plugins=plugins, network=network)
    known = loaded.description["environment"] if env is None else env
    is_known = env is None and (pieces.is_default or loaded.trained is not None)
    spaces = run_policy.environment_spaces(loaded, name) if is_known else None
    if spaces is None and known is not None and env is None and ":" in known:  # code, which a run folder does not get to choose
        known = None
    with _environment(known if spaces is None else None, lambda: _found(spaces, name)) as environment:
        made = policy_of_run(loaded, name, environment, explore=explore, device=target, pieces=pieces)
        tell_unlike_training(made)
        return PolicyInUse(made, (environment.observation_space, environment.action_space), seed=seed, run=loaded)


@contextmanager
def _environment(name: str | None, spaces: Any) -> Iterator[Environment]:
    """The one of that name; without one, a stand-in of the spaces that `spaces` gives."""
    if name is not None:
        with open_environment(name) as environment:
            yield environment
        return
    yield stand_in("the spaces it was trained with", spaces())


def stand_in(name: str, spaces: tuple[Space, Space]) -> Environment:
    """Of an environment that is not here, or of one agent of several."""
    return Environment(name, lambda: _SpacesAlone(*spaces), None)


def _found(spaces: tuple[Space, Space] | None, name: str) -> tuple[Space, Space]:
    if spaces is None:
        what = "what observations its environment gives is not known: the policy plays between pieces, and the run names none"
        raise BadConfig(what, where=name, fix="load_policy(..., env=...) with the environment it was trained for")
    return spaces


def _spaces_of_model(name: str, device: str, storage_options: Mapping[str, Any] | None) -> tuple[Space, Space]:
    if name.startswith(ONNX):
        told = read_model(name.removeprefix(ONNX), storage_options)
        observations, actions = told.space("observation_space"), told.space("action_space")
        if observations is not None and actions is not None:
            return observations, actions
    if name.startswith(SB3):
        model, _ = load_model(name.removeprefix(SB3), device=device)
        return model.observation_space, model.action_space
    fix = "load_policy(..., env=...) with the environment it acts in"
    raise BadConfig("it does not say for which spaces it is", where=name, fix=fix)
