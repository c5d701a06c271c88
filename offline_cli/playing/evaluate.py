"""Play a policy, from a run folder or by name, and measure its return.

`--video FOLDER` plays an episode once more in a rendering environment; imageio writes MP4 if it finds ffmpeg, else GIF.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
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
from offline_cli.storage.staging import write_whole


def check_video(episodes: Sequence[int], count: int) -> ModuleType:
    """Import imageio for videos. Raises MissingPackage without it, UsageError for episodes that are not played."""
    if max(episodes, default=0) >= count:
        what = f"episode {max(episodes)} is not played; the {count} episodes count from 0"
        raise UsageError(what, where="--video-episodes", fix="name episodes below --episodes")
    try:
        return importlib.import_module("imageio.v2")
    except ImportError as err:
        fix = "pip install 'offline-cli[video]'"
        raise MissingPackage(f"videos need the package {err.name}", where="--video", fix=fix) from err


def film(plan: Plan, policy: Policy, folder: Location, episodes: Sequence[int]) -> list[str]:
    """Play these episodes of the plan once more, write a video of each into `folder`, and return their URLs.

    Raises BadConfig for an environment that renders no images, BadData if it raises, StorageError.
    """
    imageio = check_video(episodes, plan.episodes or 0)
    spec, written = plan.environment, list[str]()
    ending = "mp4" if importlib.util.find_spec("imageio_ffmpeg") else "gif"
    folder.make_folder()
    rendered = open_environment(spec.id, {**spec.kwargs, "render_mode": "rgb_array"}, spec.wrappers)
    with rendered as environment, tempfile.TemporaryDirectory() as temporary:
        fps = (environment.singles(1)[0].metadata or {}).get("render_fps") or 30
        for number in episodes:
            frames = _frames(replace(plan, first=number, episodes=1, vectorize="sync"), environment, policy)
            path = Path(temporary) / f"episode-{number}.{ending}"
            try:
                imageio.mimwrite(path, frames, **({"fps": fps} if ending == "mp4" else {"duration": 1000 / fps}))
            except (OSError, ValueError) as err:
                raise BadData(
                    f"the video cannot be made: {err}", where=str(path), fix="free the temporary folder, or update imageio"
                ) from err
            target = folder.join(path.name)
            write_whole(target, path.read_bytes(), folder=folder)
            written.append(target.url)
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
        fix = "use an environment with render_mode 'rgb_array'"
        raise BadConfig("the environment renders no images", where=f"--env {environment.name}", fix=fix)
    return frames


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Result over whole episodes of one policy; for several agents, over games, whose return is the sum over agents."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float | None  # half the width of the 95% confidence interval of the mean; None of one episode
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    env_kwargs: Mapping[str, Any]  # of the environment; secrets blanked out
    wrappers: Sequence[str]  # of the environment
    explore: bool  # sampled, not greedy actions
    seed: int
    checkpoint: int | None = None  # update of the checkpoint, for an unfinished run
    pieces: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of connector pieces by pipeline
    return_by_agent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of games: see `Played.return_by_agent`
    notes: Sequence[str] = ()
    videos: Sequence[str] = ()  # written files
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # with several runs: the result of each
    differences: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of each run from the first: see `_paired`

    def as_dict(self) -> dict[str, Any]:
        """JSON values; `return_by_agent`, `notes`, `videos`, `runs` and `differences` only if not empty."""
        values = {**asdict(self), "notes": list(self.notes), "videos": list(self.videos)}
        rare = ("return_by_agent", "notes", "videos", "runs", "differences")
        return {name: value for name, value in values.items() if value or name not in rare}


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
    """Play the first `episodes` whole episodes, greedily or with `explore` sampled, all to their end.

    A policy trained with a pipeline plays through its env-to-module pieces in their state after training. `env_to_module`
    replaces them: an env-to-module or learner pipeline file, pieces, or a builder; pieces with matching names get the trained
    state. `module_to_env`: likewise, after the policy.

    An unfinished run plays the policy of its last checkpoint. `network`: the code of the run's network, if it was trained with
    `network`. `run` may be a URL, or another policy, as in `record`: `onnx:FILE`, `rllib:FOLDER`, `sb3:FILE`,
    `python:module:attribute`, `random`. `env` None: the gymnasium id of the run's training. The same command gives the same
    result; training never plays these episodes.

    In a multi-agent environment the policy plays every agent; `policy` overrides it for some. If a run learned from one agent
    alone, `notes` says so. A return is then the sum over agents of a game, and `return_by_agent` has each agent's.
    `min_return`: a number for the mean return, or strings: "3", or "hunter=3" for one agent. `video`: a folder, or its
    URL, for videos of the episodes `video_episodes`.

    Of several runs each plays episodes with the same seeds. `runs` of the result has each, `differences` those of returns from
    the first run, episode by episode: their mean with its 95% interval (Student's t), and the share of episodes with a higher
    return. The other figures are the first run's.

    Raises StorageNotFound, NoData, Uncommitted, BadData for the run; BadConfig without an environment, for wrong pipelines, and
    for a policy trained with Python pieces without `env_to_module`; UnknownEnvironment, SpaceMismatch; BadData if the
    environment or a piece raises; MissingPackage; MissingDevice; UsageError for options outside their limits; TargetNotMet for
    a mean below `min_return`.
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
        ours, other = (
            EnvironmentSpec(each.environment, each.env_kwargs, tuple(each.wrappers)) for each in (baseline.result, one.result)
        )
        if other != ours:
            what = f"{name} plays in {other.id} {other.flags()}, and {first} in {ours.id} {ours.flags()}"
            raise BadConfig(what, where="RUN", fix=f"one environment for all: --env {shlex.quote(ours.id)} {ours.flags()}")
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
    """How the returns of the same episodes differ: mean with its 95% interval, and the share of episodes that are higher.
    One episode has no interval.
    """
    differences = one.returns - other.returns
    mean, half = map(float, mean_interval(differences))
    low, high = (None, None) if np.isnan(half) else (mean - half, mean + half)
    return {"value": mean, "low": low, "high": high, "share_higher": float((differences > 0).mean())}


def _evaluated(given: Mapping[str, Any], name: str) -> _Evaluated:
    """Play one run with the options of `evaluate`. Raises as that does, but for missed gates."""
    storage_options, episodes, video, network = (given[key] for key in ("storage_options", "episodes", "video", "network"))
    others, is_run = tuple(given["policy"] or ()), not is_named(name)
    if video is not None:
        check_video(given["video_episodes"], episodes)
    filmed = None if video is None else open_location(video, storage_options)
    if network is not None and not is_run:
        what, fix = f"--network is for run folders, and {name} is not one", "leave it out"
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
            what = f"--policy AGENT=P is for several agents, but {environment.name} has one"
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
        )
        opened = opened_policy(plan, environment)
        notes = [] if loaded is None or others else _notes_on_agents(loaded.description, environment, name)
        for note in notes:
            _log.warning("note: %s", note)
        with played_on(engine, engines.workers, plan, environment, opened, Returns) as outcomes:
            found = played_of(outcomes, environment, report)
        videos = [] if filmed is None else film(plan, opened, filmed, given["video_episodes"])
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
        pieces=opened.piece_names() if isinstance(opened, PolicyForPieces) else {},
        return_by_agent=found.return_by_agent,
        notes=notes,
        videos=videos,
    )
    return _Evaluated(result, found, gates)


def _notes_on_agents(description: Mapping[str, Any], environment: Environment, run: str) -> list[str]:
    """A note if the run learned from one agent, but plays all agents of a game."""
    agents, learned = environment.agents or {}, description.get("agent") or description.get("module")
    if learned not in agents or len(agents) < 2:
        return []
    return [
        f"{run} learned from agent {learned} alone, and plays all of {', '.join(agents)}; --policy AGENT=P gives one another"
    ]


def _environment(options: Mapping[str, Any], description: Mapping[str, Any], run: str) -> EnvironmentSpec:
    """The environment to play in, with the run's kwargs and wrappers as defaults.

    `module:` and `python:` environments are code, so they must come from the caller, not from the run folder.
    """
    known, name = known_environments(description), options["env"]
    if name is None:
        name = description["environment"]
        if name is None or ":" in name:
            likely = name or next((one.id for one in known if ":" in one.id or one.id in gym.registry), None)  # else free text
            fix = f"--env {shlex.quote(likely)}" if likely else "name the environment: --env ENV"
            raise BadConfig("no environment is given", where=run, fix=fix)
    asked = AskedEnvironment.of({**options, "env": name})
    assert asked is not None
    return asked.among((run, one) for one in [one for one in known if one.id == name] or known)


# ---- gates ----


def _gates(given: float | str | Sequence[str] | None, environment: Environment) -> dict[str, float]:
    """Minimum mean returns by agent ("": all). Raises BadConfig for unknown agents, UsageError unless they are numbers."""
    gates: dict[str, float] = {}
    for text in [given] if isinstance(given, str | int | float) else given or ():
        agent, _, number = str(text).rpartition("=")
        if agent and agent not in (environment.agents or {}):
            what = f"{environment.name} has no agent {agent!r}; its agents: {', '.join(environment.agents or ['none'])}"
            raise BadConfig(what, where="--min-return", fix="use --min-return R, or --min-return AGENT=R")
        try:
            gates[agent] = float(number)
        except ValueError as err:
            fix = "use --min-return 450, or AGENT=450"
            raise UsageError(f"{number!r} is not a number", where="--min-return", fix=fix) from err
    return gates


def _missed(gates: Mapping[str, float], result: EvaluateResult) -> str:
    """Every mean return below its minimum, in words; NaN counts as below."""
    problems = []
    for agent, wanted in gates.items():
        found = result.return_by_agent.get(agent, {}).get("return_mean", float("nan")) if agent else result.return_mean
        if not found >= wanted:
            spread = f" of {agent}" if agent else "" if result.return_ci95 is None else f" ± {result.return_ci95:.2f}"
            problems.append(f"the mean return {found:.2f}{spread} is below {wanted:g}")
    return "; ".join(problems)
