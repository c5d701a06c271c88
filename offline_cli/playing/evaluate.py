"""Plays a policy and measures its return: that of a run folder, or another by name.

`--video FOLDER`: an episode is played once more, alone, in a copy that renders; imageio writes the film. Files are MP4 where
imageio finds ffmpeg, else GIF.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from gymnasium.wrappers import RenderCollection

from offline_cli.checked_keywords import checked
from offline_cli.choices import Count, Device, Whole
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.engines.engine import PROCESSES, EngineSpec
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, TargetNotMet, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.mean_interval import mean_interval
from offline_cli.modules.python_network import choose_threads
from offline_cli.playing.loop import Plan, opened_policy, played, played_on
from offline_cli.playing.returns import Played, Returns, played_of
from offline_cli.policies.by_name import is_named
from offline_cli.policies.module_policy import PolicyForPieces
from offline_cli.policies.policy import Policy, PolicyOptions, Purpose
from offline_cli.policies.run_policy import known_environments, load_policy
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.stop_signals import check
from offline_cli.storage.blanking import blanked_call, blanked_values
from offline_cli.storage.locations import Location, open_location


def check_video(episodes: Sequence[int], count: int) -> ModuleType:
    """imageio, which writes films. Raises MissingPackage without it, UsageError for episodes that are not played."""
    if max(episodes, default=0) >= count:
        what = f"episode {max(episodes)} is not among the {count} that are played, which count from 0"
        raise UsageError(what, where="--video-episodes", fix="name episodes below --episodes")
    try:
        return importlib.import_module("imageio.v2")
    except ImportError as err:
        fix = "pip install 'offline-cli[video]'"
        raise MissingPackage(f"videos need the package {err.name}", where="--video", fix=fix) from err


def film(plan: Plan, policy: Policy, folder: str, episodes: Sequence[int]) -> list[str]:
    """Play these episodes of the plan once more, and write a file of each: the paths.

    Raises BadConfig for an environment that renders no images, BadData where it raises.
    """
    imageio = check_video(episodes, plan.episodes or 0)
    spec, written = plan.environment, list[str]()
    ending = "mp4" if importlib.util.find_spec("imageio_ffmpeg") else "gif"
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open_environment(spec.id, {**spec.kwargs, "render_mode": "rgb_array"}, spec.wrappers) as environment:
        fps = (environment.singles(1)[0].metadata or {}).get("render_fps") or 30
        for number in episodes:
            frames = _frames(replace(plan, first=number, episodes=1, vectorize="sync"), environment, policy)
            path = Path(folder) / f"episode-{number}.{ending}"
            try:
                imageio.mimwrite(path, frames, **({"fps": fps} if ending == "mp4" else {"duration": 1000 / fps}))
            except (OSError, ValueError) as err:
                raise BadData(f"the film cannot be written: {err}", where=str(path), fix="another folder") from err
            written.append(str(path))
    return written


def _frames(plan: Plan, environment: Environment, policy: Policy) -> list[Any]:
    frames: list[Any] = []
    with suppress(AssertionError):  # gymnasium's, for an environment that does not render
        rendering: Any = RenderCollection(environment.singles(1)[0])
        with Environment(environment.name, lambda: rendering, environment.spec) as filmed:
            for _ in played(plan, filmed, policy, Returns):
                check()
            frames += rendering.frame_list
    if not frames or not all(isinstance(frame, np.ndarray) and frame.ndim == 3 for frame in frames):
        fix = "an environment with render_mode 'rgb_array'"
        raise BadConfig("it renders no images", where=f"--env {environment.name}", fix=fix)
    return frames


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Whole episodes of one policy; of several agents, whole games, whose return is the sum over agents."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float  # half the width of the 95% confidence interval of the mean
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    env_kwargs: Mapping[str, Any]  # it was made with; secret ones blanked out
    wrappers: Sequence[str]  # around it
    explore: bool  # actions were drawn, not the likeliest
    seed: int
    checkpoint: int | None = None  # the run is not finished, and this update's policy played; None: it is
    observations_not_finite: Mapping[str, int] = field(default_factory=dict)  # "nan-in-observations", ...: numbers acted on
    pieces: Mapping[str, Sequence[str]] = field(default_factory=dict)  # that the policy played between: names by side
    return_by_agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of games: see `Played.return_by_agent`
    videos: Sequence[str] = ()  # files that were written
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of several: the result of each, the first one's above
    differences: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of each from the first: see `_paired`

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what concerns several agents or runs, or videos, where there are such."""
        told = {**asdict(self), "videos": list(self.videos)}
        rare = ("return_by_agent", "videos", "runs", "differences")
        return {name: value for name, value in told.items() if value or name not in rare}


@checked
def evaluate(
    run: str | os.PathLike[str] | Location | Sequence[str | os.PathLike[str] | Location],
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
    min_return: float | str | Sequence[str] | None = None,
    video: str | None = None,
    video_episodes: tuple[Whole, ...] = (0,),
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

    Of a run that is not finished the policy of its last checkpoint plays. `network`: the code of the run's network, where it
    was trained with `network`. `run` may be a URL, or name a policy of another kind, as in `record`: `onnx:FILE`,
    `rllib:FOLDER`, `sb3:FILE`, `python:module:attribute`, `random`. `env` None: a gymnasium id that the run was trained with.
    The same command gives the same result; none of these episodes is played during training.

    In an environment of several agents the policy plays each of them; `policy` gives some of them others. Then a return is that
    of a game, the sum over its agents, and `return_by_agent` has each agent's. `min_return`: a number for the mean return, or
    texts: "3", "hunter=3" for an agent's own. `video`: a folder for films of the episodes `video_episodes`.

    Of several runs each plays episodes with the same seeds. `runs` of the result has each, `differences` those of returns from
    the first run, episode by episode: their mean with its 95% interval (Student's t), and the share of episodes with a higher
    return. The other figures are the first run's.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, for wrong pipelines, and
    for a policy that was trained through other code where `env_to_module` is not given; UnknownEnvironment, SpaceMismatch;
    BadData where the environment or a piece raises; MissingPackage where it lacks something; MissingDevice; UsageError for
    options outside their limits; TargetNotMet for a mean below `min_return`.
    """
    given = dict(locals())
    runs = [run] if isinstance(run, str | os.PathLike | Location) else list(run)
    names = [one.url if isinstance(one, Location) else os.fspath(one) for one in runs]
    if not names or len(set(names)) < len(names):
        raise UsageError("name each run once", where="RUN", fix="at least one run, all different")
    if video is not None and len(runs) > 1:
        raise UsageError("--video films one run", where="--video", fix="evaluate that run alone")
    found = {name: _evaluated({**given, "run": one}, name) for one, name in zip(runs, names, strict=True)}
    (first, baseline), *others = found.items()
    for name, one in others:
        if one.result.environment != baseline.result.environment:
            what = f"{name} plays in {one.result.environment}, and {first} in {baseline.result.environment}"
            raise BadConfig(what, where="RUN", fix="--env with one environment for all")
    result = baseline.result
    if others:
        differences = {name: _paired(one.played, baseline.played) for name, one in others}
        result = replace(result, runs={name: one.result.as_dict() for name, one in found.items()}, differences=differences)
    problems = {name: text for name, one in found.items() if (text := _missed(one.gates, one.result))}
    if problems:
        what = "; ".join(f"{name}: {text}" for name, text in problems.items()) if others else problems[first]
        fix = "train longer or on better data"
        where = f"{', '.join(names)} in {result.environment}"
        raise TargetNotMet(what, where=where, fix=fix, details=result.as_dict())
    return result


class _Evaluated(NamedTuple):
    """One run."""

    result: EvaluateResult
    played: Played
    gates: Mapping[str, float]


def _paired(one: Played, other: Played) -> dict[str, Any]:
    """How the returns of the same episodes differ: mean with its 95% interval, and the share of episodes that are higher."""
    differences = one.returns - other.returns
    mean, half = map(float, mean_interval(differences))
    return {"value": mean, "low": mean - half, "high": mean + half, "share_higher": float((differences > 0).mean())}


def _evaluated(given: Mapping[str, Any], name: str) -> _Evaluated:
    """Play one run with the options of `evaluate`. Raises as that does, but for missed gates."""
    storage_options, episodes, video, network = (given[key] for key in ("storage_options", "episodes", "video", "network"))
    others, is_run = tuple(given["policy"] or ()), not is_named(name)
    if video is not None:
        check_video(given["video_episodes"], episodes)
    if network is not None and not is_run:
        what, fix = f"--network is the code of a run's network, and {name} is no run folder", "leave it out"
        raise UsageError(what, where="--network", fix=fix)
    loaded = None
    if is_run:
        place = open_location(given["run"], storage_options)
        loaded = load_policy(place, storage_options, plugins=given["plugins"], network=network)
    opening = PolicyOptions.of(given, loaded)
    spec = _environment(given, {"environment": None} if loaded is None else loaded.description, name)

    def report(done: int) -> None:
        given["on_progress"](Progress("evaluating", done, episodes, "episodes"))

    runners, num_envs = given["num_env_runners"], given["num_envs"]
    engines = EngineSpec(PROCESSES, runners) if runners else EngineSpec()
    with engines.engine() as engine, open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
        gates, is_game = _gates(given["min_return"], environment), environment.agents is not None
        if others and not is_game:
            what = f"--policy AGENT=P is for several agents, and {environment.name} is of one"
            raise BadConfig(what, where="--policy", fix="leave it out")
        plan = Plan(
            environment=spec,
            policies=(f"*={name}", *others) if is_game else (name,),
            opening=opening,
            seed=given["seed"],
            purpose=Purpose.EVALUATE,
            episodes=episodes,
            infos="none" if loaded is None and opening.pieces.is_default else "plain",
            num_envs=num_envs,
            threads=1 if loaded is None else choose_threads(loaded.module, num_envs),
        )
        opened = opened_policy(plan, environment)
        with played_on(engine, engines.workers, plan, environment, opened, Returns) as outcomes:
            found = played_of(outcomes, environment, report)
        videos = [] if video is None else film(plan, opened, video, given["video_episodes"])
    if found.observations_not_finite:
        counts = ", ".join(f"{kind} {times:,}" for kind, times in found.observations_not_finite.items())
        _log.warning("note: the policy acted on observations that are not finite: %s", counts)
    result = EvaluateResult(
        episodes=episodes,
        return_mean=found.mean,
        return_std=found.std,
        return_ci95=found.ci95,
        return_min=float(found.returns.min()),
        return_max=float(found.returns.max()),
        length_mean=float(found.lengths.mean()),
        environment=spec.id,
        env_kwargs=blanked_values(spec.kwargs),
        wrappers=[*map(blanked_call, spec.wrappers)],
        explore=given["explore"],
        seed=given["seed"],
        checkpoint=None if loaded is None else loaded.checkpoint,
        observations_not_finite=found.observations_not_finite,
        pieces=opened.piece_names() if isinstance(opened, PolicyForPieces) else {},
        return_by_agent=found.return_by_agent,
        videos=videos,
    )
    return _Evaluated(result, found, gates)


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


# ---- gates ----


def _gates(given: float | str | Sequence[str] | None, environment: Environment) -> dict[str, float]:
    """The least mean returns, by agent; "": of all. Raises BadConfig for unknown agents, UsageError for what is no number."""
    gates: dict[str, float] = {}
    for text in [given] if isinstance(given, str | int | float) else given or ():
        agent, _, number = str(text).rpartition("=")
        if agent and agent not in (environment.agents or {}):
            what = f"no agent of {environment.name} is called {agent!r}; there are {', '.join(environment.agents or ['none'])}"
            raise BadConfig(what, where="--min-return", fix="--min-return R, or --min-return AGENT=R")
        try:
            gates[agent] = float(number)
        except ValueError as err:
            raise UsageError(f"{number!r} is no number", where="--min-return", fix="--min-return 450, or AGENT=450") from err
    return gates


def _missed(gates: Mapping[str, float], result: EvaluateResult) -> str:
    """Which mean returns are below their gates, in words; NaN fails one."""
    problems = []
    for agent, wanted in gates.items():
        found = result.return_by_agent.get(agent, {}).get("return_mean", float("nan")) if agent else result.return_mean
        if not found >= wanted:
            spread = f" of {agent}" if agent else f" ± {result.return_ci95:.2f}"
            problems.append(f"a mean return of {found:.2f}{spread}, {wanted:g} wanted")
    return "; ".join(problems)
