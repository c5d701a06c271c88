"""Record whole episodes of a policy in an environment as a dataset, without losing a finished episode.

The dataset holds episodes 0 to N-1 in the order of their start. After a signal, or if environment or policy raises, finished
episodes are committed with `complete: false`, and `resume` continues after them. A killed recording loses at most the open
shard. With several agents, agents of different spaces get separate datasets below `out`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    MAX_BYTES_PER_FILE,
    WORKERS,
    Compression,
    Count,
    Device,
    EngineName,
    Infos,
    Positive,
    RowFormat,
    Vectorize,
    Whole,
)
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.datasets import manifest as manifests
from offline_cli.datasets.file_names import MANIFEST, WRITING
from offline_cli.datasets.manifest import IDENTITY, RECORDING, Manifest, reference_of
from offline_cli.datasets.ownership import keep_names
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import PROCESSES, Engine, EngineSpec
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, ClusterLost, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.import_path import allowed_changes, code_of, content_hash_of
from offline_cli.playing.loop import Plan, opened_policy, played_on
from offline_cli.policies.agents_policy import AgentsPolicy
from offline_cli.policies.policy import Policy, PolicyOptions
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.recording.episode_rows import AgentEpisodes, EpisodeCollector, RecordedEpisode, batch_of, count_dropped
from offline_cli.recording.results import RecordResult, ended_early, nothing_recorded, recorded
from offline_cli.stop_signals import StopRequested, requested, signals_noted
from offline_cli.storage.blanking import blanked
from offline_cli.storage.locations import Location, open_location
from offline_cli.tally import Tally

OF_PLAN: Final = ("seed", "episodes", "steps", "infos", "vectorize", "num_envs", "step_timeout")
OF_WRITER: Final = ("format", "compression", "max_rows_per_file", "max_bytes_per_file", "overwrite", "resume", "allow_changes")
_log = logging.getLogger(__name__)


@checked
def record(
    env: str,
    out: str | os.PathLike[str] | Location,
    *,
    policy: str | Sequence[str],
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
    episodes: Count | None = None,
    steps: Count | None = None,
    device: Device = "auto",
    num_envs: Count = 16,
    num_env_runners: Whole = 0,
    engine: EngineName = "local",
    engine_address: str | None = None,
    vectorize: Vectorize = "sync",
    step_timeout: Positive | None = None,
    storage_options: Mapping[str, Any] | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    compression: Compression = "zstd",
    resume: bool = False,
    force_unlock: bool = False,
    allow_changes: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat = "episodes",
    infos: Infos = "plain",
    reference: Sequence[str] | None = None,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RecordResult:
    """Play `policy` in `env` and write every episode to the dataset `out`: `episodes` of them, or the fewest with at least
    `steps` steps.

    `env`, `env_kwargs`, `wrappers`: see `open_environment`. `policy`: see `open_policy`. `env_to_module`, `module_to_env`:
    pipelines around a module, as a file, pieces or a builder; they are frozen. `reference`: mean returns of random play and of
    an expert, for the manifest: "random=22", "expert=500". `command`: for provenance.

    Raises UsageError, OutputExists; UnknownEnvironment, BadConfig, SpaceMismatch, UnsupportedSpace; MissingPackage,
    MissingDevice; StorageError; BadData if environment, policy or a piece raises, and Interrupted, both after committing all
    finished episodes.
    """
    options = dict(locals())
    started = time.monotonic()
    if callable(options["policy"]):  # against the annotation
        fix = "put the function into a file my_policy.py, and pass policy='python:my_policy:its_name'"
        raise UsageError("the policy is a function; its name is required", where="--policy", fix=fix)
    options["policies"] = (policy,) if isinstance(policy, str) else tuple(policy)
    target = open_location(out, storage_options)
    plan = _plan(options)
    if not resume:
        check_target(target, overwrite=overwrite, force_unlock=force_unlock)  # before long work
    spec, name = plan.environment, PROCESSES if engine == "local" and num_env_runners else engine
    engines = EngineSpec.of({**options, "engine": name, "workers": num_env_runners or WORKERS})
    with (
        signals_noted(),
        engines.engine() as workers_of,
        open_environment(spec.id, spec.kwargs, spec.wrappers) as environment,
    ):
        opened = opened_policy(plan, environment)
        recording = _Recording(plan, opened, environment, target, options)
        result = nothing_recorded(plan, opened, out=target.url, format=format)
        if len(recording.parts) > 1:
            result = replace(result, datasets=[part.place.url for part in recording.parts])
        if dry_run:
            return result
        recording.run(workers_of, engines.workers)
    kept = recording.kept()
    if kept:
        result = recorded(result, kept, new_steps=recording.new_steps, seconds=time.monotonic() - started)
        result = replace(result, games=recording.episodes or None) if environment.agents else result
        if result.assumptions:
            counts = ", ".join(f"{kind} {times:,}" for kind, times in result.assumptions.items())
            _log.warning('note: assumptions counted in the recording (see "Assumptions" in the documentation): %s', counts)
    if len(kept) < len(recording.parts) or not result.complete:
        whole = result if len(kept) == len(recording.parts) else None
        raise ended_early(target.url, whole, recording.failure, recording.stopped_by)
    return result


def _plan(options: Mapping[str, Any]) -> Plan:
    """Raises UsageError listing all mistakes, MissingDevice, BadConfig for kwargs that are no JSON values, and like
    `PlaySpec.of`.
    """
    wrong = []
    if (options["episodes"] is None) == (options["steps"] is None):
        wrong.append("give exactly one of --episodes and --steps")
    if options["step_timeout"] is not None and options["vectorize"] != "async":
        wrong.append("--step-timeout needs --vectorize async: a copy in this process cannot be stopped")
    if wrong:
        raise UsageError("; ".join(wrong), where="offline-cli record", fix="see offline-cli record --help")
    asked = AskedEnvironment.of(options, known=False)
    assert asked is not None
    return Plan(
        environment=EnvironmentSpec(options["env"], asked.kwargs or {}, tuple(asked.wrappers or ())),
        policies=options["policies"],
        opening=PolicyOptions.of(options),
        **{name: options[name] for name in OF_PLAN},
    )


# ---- identity and provenance of the episodes ----


def _followed(plan: Plan, fingerprint: str) -> dict[str, Any]:
    """The options that determine episodes, as strings and numbers; `fingerprint`: the policy's."""
    given, spec = plan.opening.pieces.described(), plan.environment
    pieces = {f"--{name.replace('_', '-')}": given.get(name) for name in ("env_to_module", "module_to_env", "lookback")}
    known = {"ENV": spec.id, "--env-kwargs": dict(spec.kwargs), "--wrapper": spec.wrappers, **pieces}
    texts = {name: json.dumps(value, sort_keys=True) for name, value in known.items()}
    return {**texts, "--policy": fingerprint, "--explore": plan.opening.explore, "--seed": plan.seed, "--infos": plan.infos}


def _ids(followed: Mapping[str, Any], numbers: Sequence[int]) -> list[str]:
    """An id for each episode: 32 hex digits, hashed from policy, environment, seed and number."""
    base = json.dumps(followed).encode()
    return [hashlib.blake2b(base + number.to_bytes(8, "little"), digest_size=16).hexdigest() for number in numbers]


def _provenance(plan: Plan, policy: Policy, environment: Environment, command: Sequence[str]) -> dict[str, Any]:
    """Policy, seeds, and everything else that determines the episodes: options, code of environment, policy and pieces."""
    opening = plan.opening
    recording: dict[str, Any] = {
        "asked": {"episodes": plan.episodes, "steps": plan.steps},
        "policy_fingerprint": policy.fingerprint,
        "explore": opening.explore,
        **{name: getattr(plan, name) for name in ("seed", "vectorize", "num_envs", "infos")},
        "device": opening.device,
        "first_environment_seed": plan.reset_seed(0),  # later episodes count up
        **opening.pieces.described(),
    }
    followed = _followed(plan, policy.fingerprint).items()
    options = {name: value if isinstance(value, int) else content_hash_of(value) for name, value in followed}
    policies = [text.rpartition("=")[2] for text in plan.policies]  # AGENT=POLICY
    named = [plan.environment.id, *plan.environment.wrappers, *policies, *opening.plugins, *opening.pieces.code()]
    identity = {**options, **code_of(*environment.singles(1), *named)}
    known = {"policy": blanked(", ".join(plan.policies)), "seeds": [plan.seed], RECORDING: recording, IDENTITY: identity}
    return {**known, "commands": [shlex.join(command)]} if command else known


def _finished(place: Location, provenance: Mapping[str, Any], options: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a resumed dataset that is already complete; None if there is something to record.

    Raises OutputExists for another dataset, BadConfig if other options or code determined its episodes.
    """
    if options["resume"] and place.join(MANIFEST).exists() and not place.join(WRITING).exists():
        found, wanted = Manifest.read(place), provenance[RECORDING]
        told, known = (found.provenance.get(name) or {} for name in (RECORDING, IDENTITY))
        if found.complete and found.format == options["format"] and told.get("asked") == wanted["asked"]:
            fix = "nothing is left to record; use --overwrite to record again, or another --out"
            allowed_changes(known, provenance[IDENTITY], None, where=place.url, fix=fix)
            keep_names(place)  # the recorder may have been killed before it did so
            return found
    check_target(place, overwrite=options["overwrite"], resume=options["resume"], force_unlock=options["force_unlock"])
    return None


# ---- play, write, commit ----


@dataclass(slots=True, eq=False)
class _Output:
    """A dataset to write: of all episodes, or of agents with equal spaces."""

    place: Location
    writer: DatasetWriter
    tally: Tally  # the writer's
    agents: AgentEpisodes | None
    finished: Manifest | None  # set by the commit


class _Recording:
    """Plays, writes and commits."""

    def __init__(
        self, plan: Plan, policy: Policy, environment: Environment, target: Location, options: Mapping[str, Any]
    ) -> None:
        """Raises UsageError for `steps` of a multi-agent environment, and like `DatasetWriter` and `_finished`."""
        self._plan, self._policy, self._environment, self._on_progress = plan, policy, environment, options["on_progress"]
        self._followed = _followed(plan, policy.fingerprint)
        self.episodes = self.steps = self.new_steps = 0  # in the dataset (episodes or games, steps); recorded by this call
        self.failure: BadData | ClusterLost | None = None  # error of environment, policy or workers
        self.stopped_by: int | None = None  # signal number
        kinds: Sequence[AgentEpisodes | None] = [None]
        if environment.agents is not None and isinstance(policy, AgentsPolicy):
            kinds = AgentEpisodes.kinds(environment.agents, policy.module_of)
            if plan.steps is not None:
                raise UsageError("--steps is not supported for several agents", where="--steps", fix="use --episodes N")
            if left := policy.outputs_left_out:
                what = "note: outputs not recorded, because their dtype or shape differs between policies: %s"
                _log.warning(what, ", ".join(left))
        provenance = _provenance(plan, policy, environment, options["command"])
        places = [target if one is None or len(kinds) == 1 else target.join(next(iter(one.module_of))) for one in kinds]
        self.parts = [self._part(place, one, provenance, options) for place, one in zip(places, kinds, strict=True)]

    def _part(
        self, place: Location, agents: AgentEpisodes | None, provenance: Mapping[str, Any], options: Mapping[str, Any]
    ) -> _Output:
        finished, spec, tally = _finished(place, provenance, options), self._plan.environment, Tally()
        spaces = self._policy.spaces if agents is None else agents.spaces
        writer = DatasetWriter(
            place,
            observation_space=spaces[0],
            action_space=spaces[1],
            action_scale=self._policy.action_scale,
            environment=manifests.EnvironmentRecord(spec.id, dict(spec.kwargs), spec.wrappers),
            provenance=provenance,
            reference=reference_of(options["reference"]) if options["reference"] else None,
            identity=provenance[IDENTITY],
            tally=tally,
            **{name: options[name] for name in OF_WRITER},
        )
        return _Output(place, writer, tally, agents, finished)

    def kept(self) -> list[Manifest]:
        """Manifests of the committed parts."""
        return [part.finished for part in self.parts if part.finished is not None]

    def run(self, engine: Engine, workers: int) -> None:
        """Record and commit the finished episodes of each part; commit nothing if there are none."""
        plan, parts = self._plan, [part for part in self.parts if part.finished is None]
        if not parts:
            return
        with ExitStack() as held:
            for part in parts:
                held.enter_context(part.writer)
            self.episodes, self.steps = min(map(self._there, parts))
            if not self._is_enough():
                rest = replace(
                    plan,
                    first=self.episodes,
                    episodes=None if plan.episodes is None else plan.episodes - self.episodes,
                    steps=None if plan.steps is None else plan.steps - self.steps,
                    num_envs=_even_envs(plan),
                )
                try:
                    played = played_on(engine, workers, rest, self._environment, self._policy, EpisodeCollector)
                    with played, suppress(StopRequested):
                        self._write(played, parts)
                except (BadData, ClusterLost) as err:
                    self.failure = err
            self.stopped_by = requested()
            for part in parts if self.episodes else ():
                part.finished = part.writer.commit(complete=self._is_enough(), episodes_lost=0)

    def _there(self, part: _Output) -> tuple[int, int]:
        """Number of existing episodes and their steps; for several agents, number of games and 0.

        The last existing game is played again, and its missing episodes are written.
        """
        if part.agents is None:
            return part.writer.episodes_written, part.writer.steps_written
        games = {name.partition("-")[0] for name in part.writer.ids_written}
        last = _ids(self._followed, [max(0, len(games) - 1)])[0]
        return len(games) - (last in games), 0  # after allowed changes ids differ, and the last game is not replayed

    def _is_enough(self) -> bool:
        if self._plan.episodes is not None:
            return self.episodes >= self._plan.episodes
        return self.steps >= (self._plan.steps or 0)

    def _write(self, played: Iterator[list[RecordedEpisode]], parts: Sequence[_Output]) -> None:
        plan = self._plan
        for episodes in played:
            first = self.episodes
            batch = batch_of(episodes, _ids(self._followed, range(first, first + len(episodes))), self._policy.spaces)
            if plan.steps is not None:  # stop at the episode that reaches the number of steps
                last = int(np.searchsorted(np.cumsum(batch.lengths), plan.steps - self.steps))
                batch = batch.select(slice(0, last + 1))
            for part in parts:
                own = batch if part.agents is None else part.agents.divided(batch, part.writer.ids_written)
                if own is not None:
                    part.writer.write(own)
            count_dropped(episodes[: len(batch)], parts[0].tally)
            self.episodes += len(batch)
            self.steps += batch.num_steps
            self.new_steps += batch.num_steps
            self._report(batch)
            if self._is_enough():
                return

    def _report(self, batch: EpisodeBatch) -> None:
        counts, unit = {"episodes": self.episodes, "steps": self.steps}, "steps" if self._plan.episodes is None else "episodes"
        wanted = self._plan.episodes or self._plan.steps or 0
        figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
        figures |= {name: float(count) for name, count in counts.items() if name != unit}
        self._on_progress(Progress("recording", min(counts[unit], wanted), wanted, unit, figures))


def _even_envs(plan: Plan) -> int:
    """The fewest copies that play all episodes in the same number of rounds, because idle copies cost time."""
    return plan.num_envs if plan.episodes is None else -(-plan.episodes // -(-plan.episodes // plan.num_envs))
