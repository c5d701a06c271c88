"""Plays a policy and measures its return: that of a run folder, or another by name."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offline_cli.checked_keywords import checked
from offline_cli.choices import Count, Device, Whole
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.converting.fitting import misfits
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.errors import BadConfig, SpaceMismatch, TargetNotMet, UsageError
from offline_cli.files.blanking import blanked_call, blanked_values
from offline_cli.files.locations import Location, open_location
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.modules.devices import choose_device, choose_threads, use_threads
from offline_cli.modules.rl_module import RLModule
from offline_cli.playing.plan import ROUND, EvaluationPlan
from offline_cli.playing.returns import EvaluateResult, Played, played_by_runners, played_here, played_with, way_to_step
from offline_cli.playing.runner_factory import policy_of
from offline_cli.plugins import with_network
from offline_cli.policies.by_name import is_named
from offline_cli.policies.piped_policy import PipedPolicy, PlaySpec
from offline_cli.policies.run_policy import LoadedPolicy, known_environments, load_policy
from offline_cli.progress import OnProgress, Progress, no_progress

__all__ = ["evaluate"]

_log = logging.getLogger(__name__)


@checked
def evaluate(
    run: str | os.PathLike[str] | Location,
    *,
    env: str | None = None,
    plugins: Sequence[str] = (),
    network: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    seed: Whole = 0,
    explore: bool = False,
    env_to_module: Given = None,
    module_to_env: Given = None,
    lookback: Count | None = None,
    trust_pickle: bool = False,
    policy: Sequence[str] | None = None,
    episodes: Count = 100,
    min_return: float | None = None,
    device: Device = "auto",
    num_envs: Count = 16,
    num_env_runners: Whole = 0,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> EvaluateResult:
    """Play `episodes` whole episodes greedily, or with drawn actions where `explore`; the first that start, all to their end.

    A policy that was trained through a pipeline plays between the pieces of it that belong beside the environment, as they were
    after training. `env_to_module` takes their place: a pipeline file of that kind, or the learner's, pieces, or what builds
    them; what pieces of the same names learned in training goes to them. `module_to_env` likewise, after the policy.

    The result is the same for any `num_envs` and `num_env_runners`. An environment's
    own vector class, which plays where there are no pieces, has as many copies as its rounds have.

    Of a run that is not finished the policy of its last checkpoint plays. `network`: the code of the run's network, where it
    was trained with `network`.

    `run` may be a URL, or name a policy of another kind, as in `record`: `onnx:FILE`, `rllib:FOLDER`, `sb3:FILE`,
    `python:module:attribute`, `random`. `env` None: a gymnasium id that the run was trained with. The same seed and number of
    episodes give the same result; none of these episodes is played during training.

    In an environment of several agents the policy plays each of them; `policy` gives some of them others. Then a return is that
    of a game, the sum over its agents, and `return_by_agent` has each agent's.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, for wrong pipelines, and
    for a policy that was trained through other code where `env_to_module` is not given; UnknownEnvironment, SpaceMismatch;
    BadData where the environment or a piece raises; MissingPackage where it lacks something; MissingDevice; UsageError for
    options outside their limits; TargetNotMet for a mean below `min_return`.
    """
    options = dict(locals())
    name = run.url if isinstance(run, Location) else os.fspath(run)
    asked = PlaySpec.of(options["env_to_module"], options["module_to_env"], options["lookback"])
    if options["num_env_runners"]:
        asked.check_travels()
    if is_named(name) and options["network"] is not None:
        fix = "leave it out" if not options["policy"] else "leave it out, or name a run folder first"
        raise UsageError(f"--network is the code of a run's network, and {name} is no run folder", where="--network", fix=fix)
    loaded = None
    if not is_named(name):
        how: dict[str, Any] = {name: options[name] for name in ("plugins", "network")}
        loaded = load_policy(open_location(run, options["storage_options"]), options["storage_options"], **how)
    played_in = _environment(options, {"environment": None} if loaded is None else loaded.description, name)
    threads = 1 if loaded is None else choose_threads(loaded.module, ROUND)
    with (
        open_environment(played_in.id, played_in.kwargs, played_in.wrappers) as environment,
        use_threads(threads),
    ):
        agents = _agents(environment, name, options)
        plan = _plan(name, options, played_in, asked, threads, agents)
        if loaded is None or agents:
            played, between = _played_by_name(plan, environment, options, on_progress)
        else:
            played, between = _played_run(plan, loaded, environment, options, on_progress)
    checkpoint = None if loaded is None else loaded.checkpoint
    result = replace(_result(played, played_in, options["explore"], options["seed"], checkpoint), pieces=between)
    if played.observations_not_finite:
        counts = ", ".join(f"{kind} {times:,}" for kind, times in played.observations_not_finite.items())
        _log.warning("note: the policy acted on observations that are not finite: %s", counts)
    return _checked(result, options["min_return"], where=f"{run} in {environment.name}")


Between = dict[str, list[str]]


def _plan(
    name: str, options: Mapping[str, Any], played_in: EnvironmentSpec, asked: PlaySpec, threads: int, agents: tuple[str, ...]
) -> EvaluationPlan:
    """Of single copies, until it is known whether the policy may play in the environment's own vector class."""
    return EvaluationPlan(
        env=played_in.id,
        env_kwargs=played_in.kwargs,
        wrappers=played_in.wrappers,
        policy=name,
        explore=options["explore"],
        seed=options["seed"],
        vectorize="sync",
        num_envs=options["num_envs"],
        runners=max(1, options["num_env_runners"]),
        device=choose_device(options["device"]).type,
        episodes=options["episodes"],
        storage_options=options["storage_options"],
        pieces=asked,
        plugins=tuple(with_network(options["plugins"], options["network"])),
        trust_pickle=options["trust_pickle"],
        threads=threads,
        policies=agents,
    )


def _reports(options: Mapping[str, Any], on_progress: OnProgress) -> Callable[[int], None]:
    return lambda done: on_progress(Progress("evaluating", done, options["episodes"], "episodes"))


def _played_run(
    plan: EvaluationPlan, loaded: LoadedPolicy, environment: Environment, options: Mapping[str, Any], on_progress: OnProgress
) -> tuple[Played, Between]:
    """The policy of a run folder, and the pieces that it plays between."""
    pieces, module = _pieces(loaded, plan.pieces, environment, plan.policy), loaded.module
    between = Between() if pieces is None else pieces.as_dict()
    plan = replace(plan, vectorize=way_to_step(environment, pieces), files=loaded.files)
    report = _reports(options, on_progress)
    if options["num_env_runners"]:
        return played_by_runners(plan, environment, on_episodes=report), between
    return played_here(plan, module.to(plan.device), environment, pieces, on_episodes=report), between


def _played_by_name(
    plan: EvaluationPlan, environment: Environment, options: Mapping[str, Any], on_progress: OnProgress
) -> tuple[Played, Between]:
    """A policy of another kind, or those of several agents, opened as `record` opens them."""
    policy = policy_of(plan, environment)
    between = isinstance(policy, PipedPolicy)
    plan = replace(plan, vectorize=way_to_step(environment, plan.pieces if between else None))
    report = _reports(options, on_progress)
    if options["num_env_runners"]:
        return played_by_runners(plan, environment, on_episodes=report), Between()
    return played_with(plan, policy, environment, on_episodes=report), Between()


def _agents(environment: Environment, run: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the agents of the environment play by, see `open_agents`; none: it is of one agent. Raises BadConfig."""
    others = tuple(options["policy"] or ())
    if environment.agents is not None:
        return (f"*={run}", *others)
    if others:
        what = f"--policy AGENT=P is for several agents, and {environment.name} is of one"
        raise BadConfig(what, where="--policy", fix="leave it out")
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


def _environment(options: Mapping[str, Any], description: Mapping[str, Any], run: str) -> EnvironmentSpec:
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
