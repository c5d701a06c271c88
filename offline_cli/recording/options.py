"""How much is recorded: so many episodes, or the fewest that have so many steps; refuses to give out one more.

A plan from what a caller asked for; refuses what makes no sense, all of it at once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, SpaceMismatch, UsageError
from offline_cli.modules.drawing import choose_device
from offline_cli.options.keywords import wrong_values
from offline_cli.options.playing import RecordOptions
from offline_cli.playing.own_vector_slots import resets_by
from offline_cli.playing.plan import OWN_CLASS, Plan
from offline_cli.policies.piped_policy import read_pieces
from offline_cli.progress import Progress
from offline_cli.storage.blanking import blanked_keys

__all__ = ["Amount", "checked_plan", "is_enough", "limited", "progress_at", "resolved_plan", "rest_of"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Whole episodes and their steps."""

    episodes: int = 0
    steps: int = 0

    def plus(self, batch: EpisodeBatch) -> Amount:
        return Amount(self.episodes + len(batch), self.steps + batch.num_steps)


def is_enough(plan: Plan, have: Amount) -> bool:
    """Whether `have` is all that `plan` asks for."""
    return have.episodes >= plan.episodes if plan.episodes is not None else have.steps >= (plan.steps or 0)


def rest_of(plan: Plan, have: Amount) -> Plan:
    """What is left of `plan` to play; it may be nothing, which `is_enough` tells."""
    return replace(
        plan,
        first=plan.first + have.episodes,
        episodes=None if plan.episodes is None else max(0, plan.episodes - have.episodes),
        steps=None if plan.steps is None else max(0, plan.steps - have.steps),
    )


def limited(batches: Iterator[EpisodeBatch], plan: Plan) -> Iterator[EpisodeBatch]:
    """The first of the episodes, as many as `plan` asks for."""
    have = Amount()
    for batch in batches:
        kept = batch.select(slice(0, _wanted(batch, plan, have)))
        have = have.plus(kept)
        yield kept
        if is_enough(plan, have):
            return


def _wanted(batch: EpisodeBatch, plan: Plan, have: Amount) -> int:
    """How many of the batch's episodes."""
    if plan.episodes is not None:
        return min(len(batch), plan.episodes - have.episodes)
    last = int(np.searchsorted(np.cumsum(batch.lengths), (plan.steps or 0) - have.steps))  # the one that reaches them
    return min(len(batch), last + 1)


def progress_at(plan: Plan, have: Amount, batch: EpisodeBatch) -> Progress:
    """Where the recording is, after `batch`, whose mean return and length are told."""
    figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
    if plan.episodes is not None:
        return Progress("recording", have.episodes, plan.episodes, "episodes", {**figures, "steps": float(have.steps)})
    steps = plan.steps or 0
    return Progress("recording", min(have.steps, steps), steps, "steps", {**figures, "episodes": float(have.episodes)})


def checked_plan(env: str, options: RecordOptions) -> Plan:
    """The plan, `vectorize` as given, without storage options. Raises UsageError, MissingDevice, BadConfig for kwargs that are
    no JSON values, and what `read_pieces` raises."""
    wrong = wrong_values(RecordOptions, options)
    fix = "offline-cli record --help"
    if (options["episodes"] is None) == (options["steps"] is None):
        wrong.append("give exactly one of --episodes and --steps")
        fix = "--episodes 100, or --steps 100000"
    if callable(options["policy"]):
        fix = "write the function to a file, my_policy.py, and give policy='python:my_policy:its_name'"
    if wrong:
        raise UsageError("; ".join(wrong), where="offline-cli record", fix=fix)
    num_env_runners = options["num_env_runners"]
    pieces = read_pieces(options["env_to_module"], options["module_to_env"], options["lookback"])
    if num_env_runners:
        pieces.check_travels()
    return Plan(
        env=env,
        env_kwargs=_plain(options["env_kwargs"] or {}),
        wrappers=tuple(options["wrappers"]),
        policy=options["policy"],
        explore=options["explore"],
        seed=options["seed"],
        vectorize=options["vectorize"],
        num_envs=options["num_envs"],
        runners=max(1, num_env_runners),
        device=choose_device(options["device"]).type,
        first=options["first_episode"],
        episodes=options["episodes"],
        steps=options["steps"],
        pieces=pieces,
        in_processes=num_env_runners > 0,
        plugins=tuple(options["plugins"]),
        step_timeout=options["step_timeout"],
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
