"""Policies by name: one table of the kinds, each of which opens its own. Their spaces must fit the environment's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, NoData, StorageNotFound
from offline_cli.policies.agents_policy import open_agents
from offline_cli.policies.module_policy import open_module
from offline_cli.policies.onnx_policy import ONNX, open_onnx, spaces_of_file
from offline_cli.policies.policy import RAISED, Policy, PolicyOptions, RandomPolicy, fitter
from offline_cli.policies.python_policy import PYTHON, open_python
from offline_cli.policies.rllib_policy import RLLIB, open_checkpoint
from offline_cli.policies.run_policy import environment_spaces, fingerprint_of, load_policy
from offline_cli.policies.sb3_policy import SB3, open_model, spaces_of_model
from offline_cli.spaces import Space
from offline_cli.storage.local_files import not_found
from offline_cli.trees import Tree

__all__ = ["files_of", "is_named", "known_spaces", "open_policies", "open_policy", "stand_in"]

Spaces = tuple[Space | None, Space | None]  # of observations and actions


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of policies."""

    form: str  # as --policy takes it
    open: Callable[[str, Environment, PolicyOptions], Policy]
    spaces: Callable[[str, PolicyOptions], Spaces] = lambda name, options: (None, None)  # that it says itself
    suffix: str = ""  # of what is likely meant where the prefix is missing


def _random(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    options.refuse_pieces("random", name)
    return RandomPolicy(environment.action_space)


def _run(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    loaded = options.loaded
    try:
        loaded = loaded or load_policy(name, options.storage_options, plugins=options.plugins)
    except NoData as err:
        err.fix = _meant(name) or err.fix
        raise
    except StorageNotFound as err:
        if "://" in name or Path(name).exists():
            raise
        what, forms = f"no folder {name} exists, and no policy has that name", ", ".join(kind.form for kind in KINDS.values())
        raise not_found(name, what, where="--policy", fix=_meant(name) or forms) from err
    fingerprint = fingerprint_of(loaded)
    return open_module(loaded.module, name, environment, options, fingerprint=fingerprint, trained=loaded.trained)


def _spaces_of_run(name: str, options: PolicyOptions) -> Spaces:
    if options.loaded is None or not (options.pieces.is_default or options.loaded.trained is not None):
        return None, None  # before pieces of the user's own
    return environment_spaces(options.loaded, name)


KINDS: Final[Mapping[str, Kind]] = {
    "random": Kind("random", _random),
    SB3: Kind("sb3:FILE", open_model, spaces_of_model, ".zip"),
    ONNX: Kind("onnx:FILE", open_onnx, spaces_of_file, ".onnx"),
    RLLIB: Kind("rllib:FOLDER", open_checkpoint),
    PYTHON: Kind("python:package.module:attribute", open_python, suffix=".py"),
    "": Kind("a run folder", _run, _spaces_of_run),
}


def _kind(name: str) -> Kind:
    return next(
        kind for prefix, kind in KINDS.items() if name == prefix or (prefix[-1:] in ("", ":") and name.startswith(prefix))
    )


def _meant(name: str) -> str:
    """What a name without prefix was likely meant to be; empty: a run folder."""
    file = name.partition(":")[0] if "://" not in name else name
    for prefix, kind in KINDS.items():
        if kind.suffix and file.endswith(kind.suffix):
            return f"did you mean {prefix}{name}?"
    return f"did you mean {PYTHON}{name}?" if ":" in name and "://" not in name else ""


def is_named(name: str) -> bool:
    """Whether that names another policy than a run folder."""
    return _kind(name) is not KINDS[""]


def files_of(texts: Sequence[str]) -> list[str]:
    """The run folders and ONNX files among policies, `AGENT=POLICY` or not: what storage options are for."""
    names = [text.partition("=")[2] or text for text in texts] if len(texts) > 1 else list(texts)
    return [name.removeprefix(ONNX) for name in names if name.startswith(ONNX) or not is_named(name)]


def known_spaces(name: str, options: PolicyOptions) -> tuple[Space, Space] | None:
    """Of observations and actions, where the policy says both itself. Raises what reading it raises."""
    observations, actions = _kind(name).spaces(name, options)
    return None if observations is None or actions is None else (observations, actions)


def open_policy(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    """The policy of that name, ready to play in the environment.

    Raises SpaceMismatch, naming both sides; BadConfig for what is not a policy, and for pipelines around what is not a module;
    MissingPackage; what `load_policy` raises for a run folder, and BadData for a policy that raises when it is imported or
    loaded.
    """
    return _kind(name).open(name, environment, options)


def open_policies(
    texts: Sequence[str],
    environment: Environment,
    options: PolicyOptions,
    *,
    seed: int,
    given: Mapping[str, Policy] | None = None,
) -> Policy:
    """The policy of an environment, of several agents those of all: one text for all, or `AGENT=POLICY` each; it is tried on
    what an episode of `seed` begins with. `given`: policies by agent that are open already.

    Raises what `open_policy` and `Policy.tried` raise; BadConfig for several policies of one agent, for pipelines around those
    of several agents, and as `assigned` does.
    """
    if environment.agents is None:
        if len(texts) > 1:
            what = f"{environment.name} is not an environment of several agents, and {len(texts)} policies are given"
            raise BadConfig(what, where="--policy", fix="one --policy")
        policy, shown = open_policy(texts[0], environment, options), first_observation(environment, seed)
        if shown is not None:
            policy.tried(shown, where=f"--policy {texts[0]}")
        return policy
    if not options.pieces.is_default:
        fix = "leave out --env-to-module and --module-to-env; wrappers of the environment see all agents: --wrapper"
        raise BadConfig("pieces go around the module of one agent, and several play", where=environment.name, fix=fix)

    def opened(text: str, agent: str, spaces: tuple[Space, Space]) -> Policy:
        own = replace(options, storage_options=options.storage_options if files_of([text]) else None, loaded=None)
        return open_policy(text, stand_in(f"{environment.name}, agent {agent}", spaces), own)

    return open_agents(texts, environment, opened, given or {}, first_observation(environment, seed) or {})


def first_observation(environment: Environment, seed: int) -> Tree | None:
    """What an episode of this seed begins with; None: resetting goes wrong, which is reported where it is played."""
    try:
        return fitter(environment.observation_space)(environment.singles(1)[0].reset(seed=seed)[0])
    except RAISED:
        return None


class _SpacesAlone(gym.Env[Any, Any]):
    """The spaces of an environment that is not here."""

    def __init__(self, spaces: tuple[Space, Space]) -> None:
        self.observation_space, self.action_space = spaces


def stand_in(name: str, spaces: tuple[Space, Space]) -> Environment:
    """Of an environment that is not here, or of one agent of several."""
    return Environment(name, lambda: _SpacesAlone(spaces))
