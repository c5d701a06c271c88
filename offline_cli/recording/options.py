"""A plan from what a caller asked for; refuses what makes no sense, all of it at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gymnasium.vector import AutoresetMode

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, SpaceMismatch, UsageError
from offline_cli.recording.own_vector_slots import resets_by
from offline_cli.recording.pieces import read_pieces
from offline_cli.recording.plan import OWN_CLASS, Plan
from offline_cli.storage.secret_names import blanked_keys
from offline_cli.training.devices import choose_device
from offline_cli.training.given_pipelines import Given

__all__ = ["FORMATS", "VECTORIZE", "checked_plan", "resolved_plan"]

FORMATS: Final = ("episodes", "columns")
VECTORIZE: Final = ("auto", "sync", "async", OWN_CLASS)


def checked_plan(
    *,
    env: str,
    policy: str,
    episodes: int | None,
    steps: int | None,
    format: str,
    num_envs: int,
    num_env_runners: int,
    vectorize: str,
    explore: bool,
    seed: int,
    first_episode: int,
    env_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[str],
    device: str,
    storage_options: Mapping[str, Any] | None,
    env_to_module: Given,
    module_to_env: Given,
    lookback: int | None,
    step_timeout: float | None,
) -> Plan:
    """The plan, `vectorize` as given. Raises UsageError, MissingDevice, BadConfig for kwargs that are no JSON values, and what
    `read_pieces` raises."""
    counts = {"--episodes": episodes, "--steps": steps, "--num-envs": num_envs, "--lookback": lookback}
    wrong = [f"{name} {value} is less than 1" for name, value in counts.items() if value is not None and value < 1]
    others = {"--num-env-runners": num_env_runners, "--seed": seed, "--first-episode": first_episode}
    wrong += [f"{name} {value} is less than 0" for name, value in others.items() if value < 0]
    if step_timeout is not None and not step_timeout > 0:
        wrong.append(f"--step-timeout {step_timeout:g} is not above 0")
    if (episodes is None) == (steps is None):
        wrong.append("how much is to be recorded? one of --episodes and --steps")
    choices = (("--format", format, FORMATS), ("--vectorize", vectorize, VECTORIZE))
    wrong += [f"{name} {value!r} is none of {', '.join(known)}" for name, value, known in choices if value not in known]
    if wrong:
        raise UsageError("; ".join(wrong), where="offline-cli record", fix="--episodes 100, or --steps 100000")
    pieces = read_pieces(env_to_module, module_to_env, lookback)
    if num_env_runners:
        pieces.check_travels()
    return Plan(
        env=env,
        env_kwargs=_plain(env_kwargs or {}),
        wrappers=tuple(wrappers),
        policy=policy,
        explore=explore,
        seed=seed,
        vectorize=vectorize,
        num_envs=num_envs,
        runners=max(1, num_env_runners),
        device=choose_device(device).type,
        first=first_episode,
        episodes=episodes,
        steps=steps,
        storage_options=storage_options,
        pieces=pieces,
        in_processes=num_env_runners > 0,
        step_timeout=step_timeout,
    )


def _plain(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`kwargs` as the manifest will hold them."""
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(dict(kwargs), allow_nan=False))
    except (TypeError, ValueError) as err:
        fix = "numbers, texts, lists and objects; for anything else write a function and name it python:module:make_env"
        raise BadConfig(f"no JSON values: {err}", where="--env-kwargs", fix=fix) from err
    unknown = blanked_keys(plain)
    if unknown:
        asked = json.dumps({**plain, **{name.partition(".")[0]: "..." for name in unknown}})
        what = f"the values of {', '.join(unknown)} were blanked out where they are from, and are not known"
        raise BadConfig(what, where="--env-kwargs", fix=f"give them again: --env-kwargs {shlex.quote(asked)}")
    return plain


def resolved_plan(plan: Plan, environment: Environment) -> Plan:
    """`plan` with a definite `vectorize`. Raises BadConfig for a vector class that is not there, or cannot be used,
    SpaceMismatch for one of other spaces."""
    if plan.vectorize == "auto":
        return replace(plan, vectorize=OWN_CLASS if _can_use_own_class(environment) else "sync")
    if plan.vectorize == OWN_CLASS:
        if not environment.has_vector_class:
            why = "inside wrappers" if plan.wrappers else "of its own"
            raise BadConfig(f"{plan.env} has no vector class {why}", where="--vectorize", fix="--vectorize sync, or async")
        differences = environment.vector_misfits()
        if differences:
            fix = "--vectorize sync, or async"
            raise SpaceMismatch.of(differences, where=f"--vectorize {OWN_CLASS} of {plan.env}", fix=fix)
        resets_by(environment.vector(plan.num_envs), plan.env)
    return plan


def _can_use_own_class(environment: Environment) -> bool:
    """Whether it has one that plays in the environment's spaces and says how it resets itself."""
    if not environment.vector_class_fits:
        return False
    said = (environment.vector(1).metadata or {}).get("autoreset_mode")
    return isinstance(said, AutoresetMode) or said in {mode.value for mode in AutoresetMode}
