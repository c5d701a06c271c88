"""Records whole episodes of a policy in an environment as a dataset; none that was whole is lost.

The dataset holds the episodes 0 to N-1 in the order in which they began. When a signal comes, or environment or policy raise,
the episodes that are whole are committed with `complete: false`; `resume` continues after them. A killed recording loses the
open shard at most.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    MAX_BYTES_PER_FILE,
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
from offline_cli.datasets.manifest import IDENTITY, RECORDING, Manifest
from offline_cli.datasets.ownership import keep_names
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import PROCESSES, Engine, EngineSpec
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.modules.devices import choose_device
from offline_cli.playing.infos import DROPPED
from offline_cli.playing.plan import Plan
from offline_cli.playing.workers import opened_policy, played, played_by_workers
from offline_cli.plugins import with_network
from offline_cli.policies.by_name import files_of
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Policy
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.recording.agent_episodes import AgentEpisodes
from offline_cli.recording.episode_store import EpisodeStore, RecordedEpisodes
from offline_cli.recording.results import RecordResult, ended_early, filled, nothing_recorded
from offline_cli.source_code import allowed_changes, code_of, content_hash_of
from offline_cli.spaces import Space
from offline_cli.stop_signals import StopRequested, requested, signals_noted
from offline_cli.storage.blanking import blanked
from offline_cli.storage.clients import options_for
from offline_cli.storage.locations import Location, open_location
from offline_cli.tally import Tally

__all__ = ["record"]

NOT_FINITE: Final = ("nan-in-", "infinite-in-")
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
    first_episode: Whole = 0,
    device: Device = "auto",
    num_envs: Count = 16,
    num_env_runners: Whole = 0,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
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
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RecordResult:
    """Play `policy` in `env` and write every episode to dataset `out`: `episodes` of them, or the fewest that have `steps`
    steps.

    `env`, `env_kwargs`, `wrappers`: see `open_environment`. `policy`: see `open_policy`. `env_to_module`, `module_to_env`:
    pieces around a module, as a pipeline file, pieces or a builder; they learn nothing here. `command`: for provenance.

    Raises UsageError, OutputExists; UnknownEnvironment, BadConfig, SpaceMismatch, UnsupportedSpace; MissingPackage,
    MissingDevice; StorageError; BadData where environment, policy or a piece raise, and Interrupted, all with all
    whole episodes committed.
    """
    options = dict(locals())
    started = time.monotonic()
    plan = _plan(env, options)
    places = files_of(plan.policies)
    plan = replace(plan, storage_options=_of_policy(places, out, options["storage_options"]))
    target = open_location(out, options["storage_options"], beside=places)
    if not options["resume"]:
        check_target(target, overwrite=options["overwrite"], force_unlock=options["force_unlock"])  # before long work
    engine_spec = EngineSpec.of(options)
    if options["num_env_runners"]:
        engine_spec = EngineSpec(PROCESSES, options["num_env_runners"])
    spec = plan.environment
    with (
        signals_noted(),
        engine_spec.engine() as workers_of,
        open_environment(spec.id, spec.kwargs, spec.wrappers) as environment,
    ):
        opened = opened_policy(plan, environment)
        result = nothing_recorded(plan, opened, out=target.url, format=options["format"])
        provenance = _provenance(plan, opened, _identity(plan, opened.fingerprint, environment), command)
        kinds = AgentEpisodes.of(environment, opened, plan)
        places_of_kinds = [target if one is None or not one.name else target.join(one.name) for one in kinds]
        if len(kinds) > 1:
            result = replace(result, datasets=[place.url for place in places_of_kinds])
        finished, parts = list[Manifest](), list[_Part]()
        for place, agents in zip(places_of_kinds, kinds, strict=True):
            found = _finished_manifest(place, plan, provenance[IDENTITY], options)
            if found is not None:
                finished.append(found)
                continue
            spaces = (environment.observation_space, environment.action_space) if agents is None else agents.spaces
            tally = Tally()
            writer = _writer(place, plan, opened.action_scale, spaces, provenance, options, tally)
            parts.append(_Part(writer, agents, tally))
        if options["dry_run"]:
            return result
        if not parts:
            for place in places_of_kinds:
                keep_names(place)  # the recorder may have been killed before that
            return filled(result, finished, new_steps=0, started=started)
        recording = _Recording(plan, parts, finished, target.url, result, on_progress, started)
        return recording.recorded(environment, opened, workers_of, engine_spec.workers)


def _plan(env: str, options: Mapping[str, Any]) -> Plan:
    """Raises UsageError with all that is wrong, MissingDevice, BadConfig for kwargs that are no JSON values, and what
    `PlaySpec.of` raises."""
    wrong, fix = list[str](), "offline-cli record --help"
    if (options["episodes"] is None) == (options["steps"] is None):
        wrong.append("give exactly one of --episodes and --steps")
        fix = "--episodes 100, or --steps 100000"
    if callable(options["policy"]):
        fix = "write the function to a file, my_policy.py, and give policy='python:my_policy:its_name'"
    if options["engine"] != "local" and options["num_env_runners"]:
        wrong.append("--num-env-runners are processes of --engine local; give --workers")
    if options["step_timeout"] is not None and options["vectorize"] != "async":
        wrong.append("--step-timeout is for --vectorize async: a copy in this process cannot be ended")
    if wrong:
        raise UsageError("; ".join(wrong), where="offline-cli record", fix=fix)
    pieces = PlaySpec.of(options["env_to_module"], options["module_to_env"], options["lookback"])
    if options["num_env_runners"] or options["engine"] != "local":
        pieces.check_travels()
    asked = AskedEnvironment.of({**options, "env": env}, known=False)
    assert asked is not None
    given = options["policy"]
    return Plan(
        environment=EnvironmentSpec(env, asked.kwargs or {}, tuple(asked.wrappers or ())),
        policies=(given,) if isinstance(given, str) else tuple(given),
        explore=options["explore"],
        seed=options["seed"],
        first=options["first_episode"],
        episodes=options["episodes"],
        steps=options["steps"],
        infos=options["infos"],
        pieces=pieces,
        device=choose_device(options["device"]).type,
        vectorize=options["vectorize"],
        num_envs=options["num_envs"],
        step_timeout=options["step_timeout"],
        plugins=tuple(with_network(options["plugins"], options["network"])),
        trust_pickle=options["trust_pickle"],
    )


def _of_policy(
    places: Sequence[str], out: str | os.PathLike[str] | Location, options: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The storage options that are not for `out` alone; `places`: of policies. Raises UsageError for one that neither takes."""
    if not options:
        return options
    target = out.url if isinstance(out, Location) else os.fspath(out)
    of_out = options_for(target, options, beside=places)
    of_policy = {name for place in places for name in options_for(place, options, beside=[target, *places])}
    return {name: value for name, value in options.items() if name in of_policy or name not in of_out}


# ---- what the manifest says ----


def _writer(
    target: Location,
    plan: Plan,
    action_scale: str,
    spaces: tuple[Space, Space],
    provenance: Mapping[str, Any],
    options: Mapping[str, Any],
    tally: Tally,
) -> DatasetWriter:
    spec = plan.environment
    return DatasetWriter(
        target,
        format=options["format"],
        observation_space=spaces[0],
        action_space=spaces[1],
        action_scale=action_scale,
        environment=manifests.Environment(spec.id, dict(spec.kwargs), spec.wrappers),
        provenance=provenance,
        compression=options["compression"],
        max_rows_per_file=options["max_rows_per_file"],
        max_bytes_per_file=options["max_bytes_per_file"],
        overwrite=options["overwrite"],
        resume=options["resume"],
        identity=provenance[IDENTITY],
        tally=tally,
        allow_changes=options["allow_changes"],
        check_ids=False,  # each is a hash of what its episode follows from, its index among it
    )


def _identity(plan: Plan, fingerprint: str, environment: Environment) -> dict[str, Any]:
    """What the episodes follow from, by name: options, texts hashed, and the code of environment, policy and pieces."""
    known = plan.identity(fingerprint).items()
    parts = {name: value if isinstance(value, int) else content_hash_of(value) for name, value in known}
    policies = [text.rpartition("=")[2] for text in plan.policies]  # AGENT=POLICY
    named = [plan.environment.id, *plan.environment.wrappers, *policies, *plan.plugins, *plan.pieces.code()]
    return {**parts, "--first-episode": plan.first, **code_of(*environment.singles(1), *named)}


def _provenance(plan: Plan, policy: Policy, identity: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Policy, seeds, and everything that determines the episodes."""
    recording: dict[str, Any] = {
        **_asked(plan),
        "policy_fingerprint": policy.fingerprint,
        "explore": plan.explore,
        "seed": plan.seed,
        "vectorize": plan.vectorize,
        "num_envs": plan.num_envs,
        "infos": plan.infos,
        "device": plan.device,
        "first_environment_seed": plan.reset_seed(plan.first),  # the next episode has the next one
        **plan.pieces.described(),
    }
    known: dict[str, Any] = {"policy": blanked(", ".join(plan.policies)), "seeds": [plan.seed]}
    known |= {IDENTITY: identity, RECORDING: recording}
    return {**known, "commands": [shlex.join(command)]} if command else known


def _asked(plan: Plan) -> dict[str, Any]:
    """How many episodes, as the manifest has it."""
    return {"first_episode": plan.first, "asked": {"episodes": plan.episodes, "steps": plan.steps}}


def _finished_manifest(
    target: Location, plan: Plan, identity: Mapping[str, Any], options: Mapping[str, Any]
) -> Manifest | None:
    """The manifest of a dataset that holds all that the plan asks for, where it is resumed; None: there is something to write.

    Raises OutputExists for another dataset, BadConfig where what its episodes follow from is not `identity`.
    """
    try:
        check_target(target, overwrite=options["overwrite"], resume=options["resume"], force_unlock=options["force_unlock"])
    except OutputExists:
        if not options["resume"] or target.join(WRITING).exists() or not target.join(MANIFEST).exists():
            raise
        found = Manifest.read(target)
        told, known = found.provenance.get(RECORDING), found.provenance.get(IDENTITY)
        if not (found.complete and found.format == options["format"] and isinstance(told, dict) and isinstance(known, dict)):
            raise
        if not _asked(plan).items() <= told.items():
            raise
        fix = "there is nothing left to record here: --overwrite to record it again, or another --out"
        allowed_changes(known, identity, None, where=target.url, fix=fix)
        return found
    return None


# ---- play, write, commit ----


def _store(plan: Plan, slots: int, environment: Environment, policy: Policy) -> EpisodeStore:
    """See MakeSink."""
    spaces = environment.observation_space, environment.action_space
    return EpisodeStore(slots, spaces, partial(_ids, plan, policy.fingerprint))


def _ids(plan: Plan, fingerprint: str, episodes: Any) -> tuple[str, ...]:
    return plan.ids(fingerprint, plan.first + episodes)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A dataset that is written: of all episodes, or of those of one kind of agents."""

    writer: DatasetWriter
    agents: AgentEpisodes | None
    tally: Tally  # the writer's

    def begun(self, plan: Plan, fingerprint: str) -> tuple[int, int]:
        """How many episodes, or games, are there already, and their steps, which are not counted for games."""
        if self.agents is None:
            return self.writer.episodes_written, self.writer.steps_written
        return self.agents.begun(plan, fingerprint, self.writer.ids_written), 0

    def write(self, batch: EpisodeBatch) -> None:
        whole = batch if self.agents is None else self.agents.divided(batch)
        if whole is not None:
            self.writer.write(whole)


@dataclass(slots=True, eq=False)
class _Recording:
    """One recording; `recorded` plays it."""

    plan: Plan
    parts: Sequence[_Part]
    finished: Sequence[Manifest]  # of datasets that are whole already
    out: str
    result: RecordResult  # as long as nothing is recorded
    on_progress: OnProgress
    started: float
    episodes: int = 0  # that there are, or games
    steps: int = 0
    failure: BadData | None = field(default=None, repr=False)

    def recorded(self, environment: Environment, policy: Policy, engine: Engine, workers: int) -> RecordResult:
        """Play, write and commit. Raises BadData and Interrupted, with what is whole committed."""
        with ExitStack() as held:
            for part in self.parts:
                held.enter_context(part.writer)
            self.episodes, self.steps = min(part.begun(self.plan, policy.fingerprint) for part in self.parts)
            before = self.steps
            if not self._is_enough():
                try:
                    self._write(environment, policy, engine, workers)
                except BadData as err:
                    self.failure = err
            if not (self._is_enough() or self.episodes):
                raise ended_early(self.out, None, self.failure, requested())
            result = self._committed(self.steps - before)
        if not result.complete:
            raise ended_early(self.out, result, self.failure, requested())
        return result

    def _is_enough(self) -> bool:
        if self.plan.episodes is not None:
            return self.episodes >= self.plan.episodes
        return self.steps >= (self.plan.steps or 0)

    def _write(self, environment: Environment, policy: Policy, engine: Engine, workers: int) -> None:
        """Write what is played after what there was before."""
        asked = self.plan
        rest = replace(
            asked,
            first=asked.first + self.episodes,
            episodes=None if asked.episodes is None else asked.episodes - self.episodes,
            steps=None if asked.steps is None else asked.steps - self.steps,
        )
        if engine.is_local:
            self._take(played(rest, environment, policy, _store, stopped=lambda: requested() is not None))
            return
        with played_by_workers(rest, _store, engine, workers) as batches, suppress(StopRequested):
            self._take(batches)

    def _take(self, batches: Iterator[RecordedEpisodes]) -> None:
        for batch, dropped in batches:
            if self.plan.steps is not None:  # no more than the one that reaches them
                last = int(np.searchsorted(np.cumsum(batch.lengths), self.plan.steps - self.steps))
                batch = batch.select(slice(0, last + 1))
            for part in self.parts:
                part.write(batch)
            for key, times in dropped.items():
                self.parts[0].tally.assume(f"{DROPPED}: {key}", times)
            self.episodes += len(batch)
            self.steps += batch.num_steps
            self._tell(batch)
            if self._is_enough():
                return

    def _tell(self, batch: EpisodeBatch) -> None:
        figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
        if self.plan.episodes is not None:
            figures["steps"] = float(self.steps)
            self.on_progress(Progress("recording", self.episodes, self.plan.episodes, "episodes", figures))
        else:
            figures["episodes"] = float(self.episodes)
            wanted = self.plan.steps or 0
            self.on_progress(Progress("recording", min(self.steps, wanted), wanted, "steps", figures))

    def _committed(self, new_steps: int) -> RecordResult:
        complete = self._is_enough()
        written = [part.writer.commit(complete=complete, episodes_lost=0, count_not_finite=True) for part in self.parts]
        result = filled(self.result, [*self.finished, *written], new_steps=new_steps, started=self.started)
        if self.parts[0].agents is not None:
            result = replace(result, games=self.episodes)
        counts = ", ".join(f"{kind} {times:,}" for kind, times in result.assumptions.items() if kind.startswith(NOT_FINITE))
        if counts:
            what = "note: values that are not finite are recorded as the environment and the policy gave them: %s"
            _log.warning(what, counts)
        dropped = [kind for kind in result.assumptions if kind.startswith(DROPPED)]
        if dropped:
            keys = ", ".join(kind.removeprefix(f"{DROPPED}: ") for kind in dropped)
            _log.warning("note: entries of infos that cannot be stored are left out (--infos): %s", keys)
        return result
