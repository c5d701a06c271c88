"""Plays the policy of a finished run and measures its return; refuses environments that the policy does not fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadConfig, SpaceMismatch, TargetNotMet
from offline_cli.modules.rl_module import RLModule
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.training.devices import choose_device, choose_threads, use_threads
from offline_cli.training.misfits import misfits
from offline_cli.training.playing import MAX_VECTOR_SLOTS, Played, play
from offline_cli.training.policy_files import load_policy
from offline_cli.training.results import EvaluateResult
from offline_cli.training.seeds import Purpose

__all__ = ["evaluate"]


def evaluate(
    run: str | os.PathLike[str],
    *,
    env: str | None = None,
    episodes: int = 100,
    seed: int = 0,
    explore: bool = False,
    min_return: float | None = None,
    device: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> EvaluateResult:
    """Play `episodes` whole episodes greedily, or with drawn actions where `explore`; the first that start, all to their end.

    `run` may be a URL; `env` None: a gymnasium id that the run was trained with. The same seed and number of episodes give the
    same result; none of these episodes is played during training.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, UnknownEnvironment,
    SpaceMismatch; BadData where the environment raises, MissingPackage where it lacks something; MissingDevice; TargetNotMet
    for a mean below `min_return`.
    """
    if episodes < 1:
        raise BadConfig("nothing to play: episodes must be at least 1", where=f"--episodes {episodes}", fix="--episodes 100")
    target = choose_device(device)
    module, description = load_policy(os.fspath(run), storage_options)

    def report(done: int) -> None:
        on_progress(Progress("evaluating", done, episodes, "episodes"))

    with (
        open_environment(_named(env, description["environment"], os.fspath(run))) as environment,
        use_threads(choose_threads(module, MAX_VECTOR_SLOTS)),
    ):
        _check_fits(module, environment, os.fspath(run))
        played = play(
            module.to(target),
            environment,
            episodes,
            seed=seed,
            purpose=Purpose.EVALUATE,
            explore=explore,
            on_episodes=report,
        )
    result = _result(played, environment.name, explore, seed)
    if min_return is not None and not played.mean >= min_return:  # so that a NaN passes no gate
        raise TargetNotMet(
            f"a mean return of {played.mean:.2f} ± {played.ci95:.2f}, {min_return:g} wanted",
            where=f"{run} in {environment.name}",
            fix="train longer or on better data",
            details=result.as_dict(),
        )
    return result


def _check_fits(module: RLModule, environment: Environment, run: str) -> None:
    """Raise SpaceMismatch, with every difference, unless the policy can play there."""
    problems = [
        *misfits(module.observation_space, environment.observation_space, inferred=False, what="observations"),
        *misfits(module.action_space, environment.action_space, inferred=False, what="actions"),
    ]
    if problems:
        fix = "name the environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of([text.replace("the data", "the policy") for text in problems], where=run, fix=fix)


def _named(asked: str | None, trained_with: str | None, run: str) -> str:
    """The environment's name. A `module:` or `python:` one is code, which a run folder does not get to choose."""
    if asked is not None:
        return asked
    if trained_with is None or ":" in trained_with:
        known = f"--env {trained_with}" if trained_with else "--env with the environment to play in"
        raise BadConfig("no environment to play in", where=run, fix=known)
    return trained_with


def _result(played: Played, environment: str, explore: bool, seed: int) -> EvaluateResult:
    return EvaluateResult(
        episodes=len(played.returns),
        return_mean=played.mean,
        return_std=played.std,
        return_ci95=played.ci95,
        return_min=float(played.returns.min()),
        return_max=float(played.returns.max()),
        length_mean=float(played.lengths.mean()),
        environment=environment,
        explore=explore,
        seed=seed,
    )
