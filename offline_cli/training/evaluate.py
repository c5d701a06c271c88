"""Plays the policy of a run and measures its return; refuses environments that the policy does not fit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offline_cli.converting.misfits import misfits
from offline_cli.engines.overseer import Overseer
from offline_cli.environments import Environment, open_environment
from offline_cli.errors import BadConfig, SpaceMismatch, TargetNotMet
from offline_cli.modules.rl_module import RLModule
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.storage.locations import Location
from offline_cli.training.devices import choose_device, choose_threads, use_threads
from offline_cli.training.given_pipelines import Given, read_given
from offline_cli.training.play_pieces import PlayPieces
from offline_cli.training.playing import MAX_VECTOR_SLOTS, Played, play
from offline_cli.training.policy_files import LoadedPolicy, load_policy
from offline_cli.training.results import EvaluateResult
from offline_cli.training.seeds import Purpose

__all__ = ["evaluate"]


def evaluate(
    run: str | os.PathLike[str] | Location,
    *,
    env: str | None = None,
    episodes: int = 100,
    seed: int = 0,
    explore: bool = False,
    min_return: float | None = None,
    env_to_module: Given = None,
    module_to_env: Given = None,
    lookback: int | None = None,
    device: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> EvaluateResult:
    """Play `episodes` whole episodes greedily, or with drawn actions where `explore`; the first that start, all to their end.

    A policy that was trained through a pipeline plays between the pieces of it that belong beside the environment, as they were
    after training. `env_to_module` takes their place: a pipeline file of that kind, or the learner's, pieces, or what builds
    them; what pieces of the same names learned in training goes to them. `module_to_env` likewise, after the policy.
    `lookback`: steps that pieces can look back on at least, which bounds memory; None: the whole episode.

    Of a run that is not finished the policy of its last checkpoint plays.

    `run` may be a URL; `env` None: a gymnasium id that the run was trained with. The same seed and number of episodes give the
    same result; none of these episodes is played during training.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, for wrong pipelines, and
    for a policy that was trained through other code where `env_to_module` is not given; UnknownEnvironment, SpaceMismatch;
    BadData where the environment or a piece raises, MissingPackage where it lacks something; MissingDevice; TargetNotMet for a
    mean below `min_return`.
    """
    if episodes < 1:
        raise BadConfig("nothing to play: episodes must be at least 1", where=f"--episodes {episodes}", fix="--episodes 100")
    if lookback is not None and lookback < 1:
        raise BadConfig(f"a lookback of {lookback} steps", where=f"--lookback {lookback}", fix="at least 1, or none")
    target, name = choose_device(device), run.url if isinstance(run, Location) else os.fspath(run)
    given = PlayPieces(
        read_given(env_to_module, "env_to_module", "learner"), read_given(module_to_env, "module_to_env"), lookback=lookback
    )
    loaded = load_policy(run, storage_options)
    module = loaded.module

    def report(done: int) -> None:
        on_progress(Progress("evaluating", done, episodes, "episodes"))

    played_in = _named(env, loaded.description["environment"], name)
    with (
        Overseer(played_in) as overseer,
        overseer.guarding(),
        open_environment(played_in) as environment,
        use_threads(choose_threads(module, MAX_VECTOR_SLOTS)),
    ):
        pieces = _pieces(loaded, given)
        if pieces is None:
            _check_fits(module, environment, name)
        else:
            pieces.check(environment, module.observation_space, module.action_space, where=name)
        played = play(
            module.to(target),
            environment,
            episodes,
            seed=seed,
            purpose=Purpose.EVALUATE,
            explore=explore,
            pieces=pieces,
            on_episodes=report,
        )
    result = _result(played, environment.name, explore, seed, loaded.checkpoint)
    if min_return is not None and not played.mean >= min_return:  # so that a NaN passes no gate
        raise TargetNotMet(
            f"a mean return of {played.mean:.2f} ± {played.ci95:.2f}, {min_return:g} wanted",
            where=f"{run} in {environment.name}",
            fix="train longer or on better data",
            details=result.as_dict(),
        )
    return result


def _pieces(loaded: LoadedPolicy, given: PlayPieces) -> PlayPieces | None:
    """What the policy plays between; None: nothing is given, it was trained without pieces, and it remembers nothing."""
    if given.env_to_module is None and given.module_to_env is None and loaded.trained is None:
        return given if loaded.module.is_stateful() else None
    return replace(given, trained=loaded.trained)


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
        known = f"--env {shlex.quote(trained_with)}" if trained_with else "--env with the environment to play in"
        raise BadConfig("no environment to play in", where=run, fix=known)
    return trained_with


def _result(played: Played, environment: str, explore: bool, seed: int, checkpoint: int | None) -> EvaluateResult:
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
        checkpoint=checkpoint,
    )
