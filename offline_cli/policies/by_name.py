"""Policies by name: one table of the kinds, each of which opens its own. Their spaces must fit the environment's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

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

__all__ = ["files_of", "is_named", "known_spaces", "open_policies", "open_policy", "stand_in"]


class Kind(NamedTuple):
    """A kind of policies."""

    form: str  # as --policy takes it
    open: Callable[[str, Environment, PolicyOptions], Policy]
    suffix: str = ""  # of what is likely meant where the prefix is missing


def _random(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    options.refuse_pieces("random", name)
    return RandomPolicy(environment.action_space)


def _run(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    try:
        loaded = options.loaded or load_policy(name, options.storage_options, plugins=options.plugins)
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


KINDS: Final[Mapping[str, Kind]] = {
    "random": Kind("random", _random),
    SB3: Kind("sb3:FILE", open_model, ".zip"),
    ONNX: Kind("onnx:FILE", open_onnx, ".onnx"),
    RLLIB: Kind("rllib:FOLDER", open_checkpoint),
    PYTHON: Kind("python:package.module:attribute", open_python, ".py"),
    "": Kind("a run folder", _run),
}


def _prefix(name: str) -> str:
    """The key of the kind in KINDS; empty: it names a run folder."""
    return next(prefix for prefix in KINDS if name == prefix or (prefix[-1:] in ("", ":") and name.startswith(prefix)))


def _meant(name: str) -> str:
    """What a name without prefix was likely meant to be; empty: a run folder."""
    if "://" in name:
        return ""
    file, colon, _ = name.partition(":")
    prefix = next((prefix for prefix, kind in KINDS.items() if kind.suffix and file.endswith(kind.suffix)), colon and PYTHON)
    return f"did you mean {prefix}{name}?" if prefix else ""


def is_named(name: str) -> bool:
    """Whether that names another policy than a run folder."""
    return bool(_prefix(name))


def files_of(texts: Sequence[str]) -> list[str]:
    """The run folders and ONNX files among policies, `AGENT=POLICY` or not: what storage options are for."""
    names = [text.partition("=")[2] or text for text in texts] if len(texts) > 1 else list(texts)
    return [name.removeprefix(ONNX) for name in names if name.startswith(ONNX) or not is_named(name)]


def known_spaces(name: str, options: PolicyOptions) -> tuple[Space, Space] | None:
    """Of observations and actions, where the policy says both itself; None: it does not, or plays between pieces of the user's.
    Raises what reading it raises."""
    found: tuple[Space | None, Space | None] = (None, None)
    if name.startswith(SB3):
        found = spaces_of_model(name, options)
    elif name.startswith(ONNX):
        found = spaces_of_file(name, options)
    elif options.loaded is not None and (options.pieces.is_default or options.loaded.trained is not None):
        found = environment_spaces(options.loaded, name)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def open_policy(name: str, environment: Environment, options: PolicyOptions) -> Policy:
    """The policy of that name, ready to play in the environment.

    Raises SpaceMismatch, naming both sides; BadConfig for what is not a policy, and for pipelines around what is not a module;
    MissingPackage; what `load_policy` raises for a run folder, and BadData for a policy that raises when it is imported or
    loaded.
    """
    return KINDS[_prefix(name)].open(name, environment, options)


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
    try:
        shown = fitter(environment.observation_space)(environment.singles(1)[0].reset(seed=seed)[0])
    except RAISED:  # which is reported where it is played
        shown = None
    if environment.agents is None:
        if len(texts) > 1:
            what = f"{environment.name} is not an environment of several agents, and {len(texts)} policies are given"
            raise BadConfig(what, where="--policy", fix="one --policy")
        policy = open_policy(texts[0], environment, options)
        if shown is not None:
            policy.tried(shown, explore=options.explore, where=f"--policy {texts[0]}")
        return policy
    if not options.pieces.is_default:
        fix = "leave out --env-to-module and --module-to-env; wrappers of the environment see all agents: --wrapper"
        raise BadConfig("pieces go around the module of one agent, and several play", where=environment.name, fix=fix)

    def opened(text: str, agent: str, spaces: tuple[Space, Space]) -> Policy:
        own = replace(options, storage_options=options.storage_options if files_of([text]) else None, loaded=None)
        return open_policy(text, stand_in(f"{environment.name}, agent {agent}", spaces), own)

    return open_agents(texts, environment, opened, given or {}, shown or {}, explore=options.explore)


class _SpacesAlone(gym.Env[Any, Any]):
    """The spaces of an environment that is not here."""

    def __init__(self, spaces: tuple[Space, Space]) -> None:
        self.observation_space, self.action_space = spaces


def stand_in(name: str, spaces: tuple[Space, Space]) -> Environment:
    """Of an environment that is not here, or of one agent of several."""
    return Environment(name, lambda: _SpacesAlone(spaces))
