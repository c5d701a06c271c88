"""Plays the policy of a run and measures its return."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from offline_cli.converting.fitting import misfits
from offline_cli.engines.overseer import Overseer
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.errors import BadConfig, SpaceMismatch, TargetNotMet
from offline_cli.files.blanking import blanked_call, blanked_values
from offline_cli.files.locations import Location, open_location
from offline_cli.formats.opening import AskedEnvironment
from offline_cli.modules.devices import choose_device, choose_threads, use_threads
from offline_cli.modules.rl_module import RLModule
from offline_cli.options.keywords import takes
from offline_cli.options.playing import EvaluateOptions
from offline_cli.playing.plan import ROUND, EvaluationPlan
from offline_cli.playing.returns import EvaluateResult, Played, played_by_runners, played_here, played_with, way_to_step
from offline_cli.playing.runner_factory import policy_of
from offline_cli.policies.agents_by_name import modules_of_run
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.policies.run_files import MODULES_FOLDER
from offline_cli.policies.run_policy import LoadedPolicy, known_environments, load_policy
from offline_cli.progress import OnProgress, Progress, no_progress

__all__ = ["evaluate"]

_log = logging.getLogger(__name__)


@takes(EvaluateOptions)
def evaluate(
    run: str | os.PathLike[str] | Location,
    *,
    on_progress: OnProgress = no_progress,
    **options: Unpack[EvaluateOptions],
) -> EvaluateResult:
    """Play `episodes` whole episodes greedily, or with drawn actions where `explore`; the first that start, all to their end.

    A policy that was trained through a pipeline plays between the pieces of it that belong beside the environment, as they were
    after training. `env_to_module` takes their place: a pipeline file of that kind, or the learner's, pieces, or what builds
    them; what pieces of the same names learned in training goes to them. `module_to_env` likewise, after the policy.

    The result is the same for any `num_envs` and `num_env_runners`, but for pieces that learn while they play. An environment's
    own vector class, which plays where there are no pieces, has as many copies as its rounds have.

    Of a run that is not finished the policy of its last checkpoint plays.

    In an environment of several agents a run of several modules plays all of them, and a run of one module each agent; `policy`
    gives some of them others. Then a return is that of a game, the sum over its agents, and `return_by_agent` has each agent's.

    `run` may be a URL; `env` None: a gymnasium id that the run was trained with. The same seed and number of episodes give the
    same result; none of these episodes is played during training.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, for wrong pipelines, and
    for a policy that was trained through other code where `env_to_module` is not given; UnknownEnvironment, SpaceMismatch;
    BadData where the environment or a piece raises, or a step takes longer than `step_timeout`; MissingPackage where it lacks
    something; MissingDevice; UsageError for options outside their limits; TargetNotMet for a mean below `min_return`.
    """
    episodes, seed, explore, min_return = options["episodes"], options["seed"], options["explore"], options["min_return"]
    num_envs, num_env_runners, step_timeout = options["num_envs"], options["num_env_runners"], options["step_timeout"]
    target, name = choose_device(options["device"]), run.url if isinstance(run, Location) else os.fspath(run)
    asked = PlaySpec.of(options["env_to_module"], options["module_to_env"], options["lookback"])
    if num_env_runners:
        asked.check_travels()
    place = open_location(run, options["storage_options"])
    several = modules_of_run(place)
    shown = place if several is None else place.join(MODULES_FOLDER).join(several.modules[0])
    loaded = load_policy(shown, options["storage_options"], plugins=options["plugins"])
    module = loaded.module

    def report(done: int) -> None:
        on_progress(Progress("evaluating", done, episodes, "episodes"))

    played_in, threads = _environment(options, loaded.description, name), choose_threads(module, ROUND)
    with (
        Overseer(played_in.id, step_timeout=None if num_env_runners else step_timeout) as overseer,
        overseer.guarding(),
        open_environment(played_in.id, played_in.kwargs, played_in.wrappers) as environment,
        use_threads(threads),
    ):
        agents = _agents(environment, several is not None, name, options)
        pieces = None if agents else _pieces(loaded, asked, environment, name)
        plan = EvaluationPlan(
            env=played_in.id,
            env_kwargs=played_in.kwargs,
            wrappers=played_in.wrappers,
            policy=name,
            explore=explore,
            seed=seed,
            vectorize=way_to_step(environment, pieces),
            num_envs=num_envs,
            runners=max(1, num_env_runners),
            device=target.type,
            episodes=episodes,
            pieces=asked,
            in_processes=num_env_runners > 0,
            step_timeout=step_timeout,
            threads=threads,
            files=None if agents else loaded.files,
            storage_options=options["storage_options"],
            plugins=tuple(options["plugins"]),
            policies=agents,
        )
        if num_env_runners:
            played = played_by_runners(plan, environment, on_episodes=report)
        elif agents:
            played = played_with(plan, policy_of(plan, environment), environment, on_episodes=report)
        else:
            played = played_here(plan, module.to(target), environment, pieces, on_episodes=report)
    between = {} if pieces is None else pieces.as_dict()
    result = replace(_result(played, played_in, explore, seed, loaded.checkpoint), pieces=between)
    if played.observations_not_finite:
        counts = ", ".join(f"{kind} {times:,}" for kind, times in played.observations_not_finite.items())
        _log.warning("note: the policy acted on observations that are not finite: %s", counts)
    return _checked(result, min_return, where=f"{run} in {environment.name}")


def _agents(environment: Environment, of_run: bool, run: str, options: EvaluateOptions) -> tuple[str, ...]:
    """What the agents of the environment play by, see `open_agents`; none: it is of one agent. Raises BadConfig."""
    others = tuple(options["policy"] or ())
    if environment.agents is not None:
        return (f"*={run}", *others)
    if of_run or others:
        given = f"{run} has modules of several agents" if of_run else "--policy AGENT=P is for several agents"
        fix = "an environment of PettingZoo; or one module's run folder, RUN/modules/NAME" if of_run else "leave it out"
        raise BadConfig(f"{given}, and {environment.name} is of one", where="--env" if of_run else "--policy", fix=fix)
    return ()


def _checked(result: EvaluateResult, min_return: float | None, *, where: str) -> EvaluateResult:
    """Raise TargetNotMet where the mean return is below `min_return`; NaN fails it."""
    if min_return is not None and not result.return_mean >= min_return:
        what = f"a mean return of {result.return_mean:.2f} ± {result.return_ci95:.2f}, {min_return:g} wanted"
        raise TargetNotMet(what, where=where, fix="train longer or on better data", details=result.as_dict())
    return result


def _pieces(loaded: LoadedPolicy, asked: PlaySpec, environment: Environment, run: str) -> PlaySpec | None:
    """The pieces around the policy; None: none are given, it was trained without any, and it has no state.

    Raises what keeps the policy from playing there, with them or without.
    """
    module = loaded.module
    if asked.is_default and loaded.trained is None and not module.is_stateful():
        _check_fits(module, environment, run)
        return None
    pieces = replace(asked, trained=loaded.trained)
    pieces.check(environment, module.observation_space, module.action_space, where=run)
    for note in pieces.as_dict()["unlike_training"]:
        _log.warning("note: %s", note)
    return pieces


def _check_fits(module: RLModule, environment: Environment, run: str) -> None:
    """Raise SpaceMismatch, with every difference, unless the policy can play there."""
    problems = [
        *misfits(module.observation_space, environment.observation_space, inferred=False, what="observations"),
        *misfits(module.action_space, environment.action_space, inferred=False, what="actions"),
    ]
    if problems:
        fix = "name the environment that the policy was trained for, wrapped as it was"
        raise SpaceMismatch.of([text.replace("the data", "the policy") for text in problems], where=run, fix=fix)


def _environment(options: EvaluateOptions, description: Mapping[str, Any], run: str) -> EnvironmentSpec:
    """The environment to play in, made as the run says where the caller does not.

    A `module:` or `python:` one is code, which a run folder does not get to choose.
    """
    known, name = known_environments(description), options["env"]
    if name is None:
        name = description["environment"]
        if name is None or ":" in name:
            likely = name or (known[0].id if known else None)
            fix = f"--env {shlex.quote(likely)}" if likely else "--env with the environment to play in"
            raise BadConfig("no environment to play in", where=run, fix=fix)
    asked = AskedEnvironment.of({**options, "env": name})
    assert asked is not None
    return asked.among((run, one) for one in [one for one in known if one.id == name] or known)


def _result(played: Played, environment: EnvironmentSpec, explore: bool, seed: int, checkpoint: int | None) -> EvaluateResult:
    return EvaluateResult(
        episodes=len(played.returns),
        return_mean=played.mean,
        return_std=played.std,
        return_ci95=played.ci95,
        return_min=float(played.returns.min()),
        return_max=float(played.returns.max()),
        length_mean=float(played.lengths.mean()),
        environment=environment.id,
        env_kwargs=blanked_values(environment.kwargs),
        wrappers=[*map(blanked_call, environment.wrappers)],
        explore=explore,
        seed=seed,
        checkpoint=checkpoint,
        observations_not_finite=played.observations_not_finite,
        return_by_agent=played.return_by_agent,
    )
