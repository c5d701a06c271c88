"""Policies by name: one table of the kinds, each of which opens its own. Their spaces must fit the environment's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from offline_cli.environments import Environment
from offline_cli.episodes.fit import fitter
from offline_cli.errors import BadConfig, NoData, StorageNotFound
from offline_cli.import_path import PYTHON
from offline_cli.policies.agents_policy import open_agents
from offline_cli.policies.module_policy import open_module
from offline_cli.policies.onnx_policy import ONNX, open_onnx
from offline_cli.policies.policy import RAISED, Policy, PolicyOptions, RandomPolicy, fitting, stand_in
from offline_cli.policies.python_policy import SB3, open_model, open_python
from offline_cli.policies.rllib_policy import RLLIB, open_checkpoint
from offline_cli.policies.run_policy import environment_spaces, fingerprint_of, load_policy
from offline_cli.spaces import Space

__all__ = ["files_of", "is_code", "is_named", "open_policies", "open_policy"]


def _random(name: str, environment: Environment | None, options: PolicyOptions) -> Policy:
    options.refuse_pieces(name)
    return RandomPolicy(fitting((None, None), name, environment))


def _run(name: str, environment: Environment | None, options: PolicyOptions) -> Policy:
    try:
        loaded = options.loaded or load_policy(name, options.storage_options, plugins=options.plugins)
    except (NoData, StorageNotFound) as err:
        err.fix = f"{err.fix}; other policies: random, sb3:FILE, onnx:FILE, rllib:FOLDER, python:module:attribute"
        raise
    if environment is None:
        known = options.pieces.is_default or loaded.trained is not None  # else pieces of the user's own come before
        environment = fitting(environment_spaces(loaded, name) if known else (None, None), name, None)
    fingerprint = fingerprint_of(loaded)
    return open_module(loaded.module, name, environment, options, fingerprint=fingerprint, trained=loaded.trained)


KINDS: Final[Mapping[str, Callable[[str, Environment | None, PolicyOptions], Policy]]] = {
    "random": _random,
    SB3: open_model,
    ONNX: open_onnx,
    RLLIB: open_checkpoint,
    PYTHON: open_python,
    "": _run,
}
"""What opens a policy, by the prefix of its name."""


def _prefix(name: str) -> str:
    """The key of the kind in KINDS; empty: it names a run folder."""
    return next(prefix for prefix in KINDS if name == prefix or (prefix[-1:] in ("", ":") and name.startswith(prefix)))


def is_named(name: str) -> bool:
    """Whether that names another policy than a run folder."""
    return bool(_prefix(name))


def is_code(name: str) -> bool:
    """Whether opening that policy runs code that its name leads to."""
    return _prefix(name) in (PYTHON, SB3, RLLIB)


def files_of(texts: Sequence[str]) -> list[str]:
    """The run folders and ONNX files among policies, `AGENT=POLICY` or not: what storage options are for."""
    names = [text.partition("=")[2] or text for text in texts] if len(texts) > 1 else list(texts)
    return [name.removeprefix(ONNX) for name in names if name.startswith(ONNX) or not is_named(name)]


def open_policy(name: str, environment: Environment | None, options: PolicyOptions) -> Policy:
    """The policy of that name, ready to play in the environment; None: in one of the spaces that it says itself.

    Raises SpaceMismatch, naming both sides; BadConfig for what is not a policy, and for pipelines around what is not a module;
    MissingPackage; what `load_policy` raises for a run folder, and BadData for a policy that raises when it is imported or
    loaded.
    """
    return KINDS[_prefix(name)](name, environment, options)


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
    of several agents, and for agents that are not there or have none.
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
