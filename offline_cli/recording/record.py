"""Records whole episodes of a policy in an environment as a dataset; none that was whole is lost.

The dataset holds the episodes 0 to N-1 in the order in which they began, whatever the number of slots and runners. When a
signal comes, or environment or policy raise, the episodes that are whole are committed with `complete: false`; `resume`
continues after them. A killed recording loses the open shard at most.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from offline_cli.checked_keywords import checked
from offline_cli.choices import MAX_BYTES_PER_FILE, Compression, Count, Device, EngineName, RowFormat, Vectorize, Whole
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.datasets import manifest as manifests
from offline_cli.datasets.ownership import keep_names
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import PROCESSES, EngineSpec
from offline_cli.errors import BadData, OfflineCliError, OutputExists
from offline_cli.files.clients import options_for
from offline_cli.files.locations import Location, open_location
from offline_cli.playing.plan import Plan
from offline_cli.playing.runner_factory import open_planned, policy_of
from offline_cli.policies.by_name import ONNX, is_named
from offline_cli.policies.piped_policy import tell_unlike_training
from offline_cli.progress import OnProgress, no_progress
from offline_cli.recording.agent_episodes import AgentEpisodes
from offline_cli.recording.provenance import Player, finished_manifest, identity_of, provenance
from offline_cli.recording.results import (
    Amount,
    RecordResult,
    checked_plan,
    filled,
    is_enough,
    nothing_kept,
    nothing_recorded,
    partly_kept,
    progress_at,
    resolved_plan,
    rest_of,
)
from offline_cli.stop_signals import requested, signals_noted

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
    vectorize: Vectorize = "auto",
    storage_options: Mapping[str, Any] | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    compression: Compression = "zstd",
    resume: bool = False,
    allow_changes: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat = "episodes",
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
    format = options["format"]
    resume, overwrite, dry_run = options["resume"], options["overwrite"], options["dry_run"]
    plan = checked_plan(env, options)
    plan = replace(plan, storage_options=_of_policy(plan, out, options["storage_options"]))
    target = open_location(out, options["storage_options"], beside=_places_of(plan))
    if not resume:
        check_target(target, overwrite=overwrite)  # before anything that takes long
    spec = EngineSpec.of(options)
    if options["num_env_runners"]:
        spec = EngineSpec(PROCESSES, options["num_env_runners"])
    with signals_noted(), spec.engine() as workers_of, open_planned(plan) as environment:
        plan = resolved_plan(plan, environment)
        opened = policy_of(plan, environment)
        tell_unlike_training(opened)
        agents = AgentEpisodes.of(environment, opened, plan)
        spaces = (environment.observation_space, environment.action_space) if agents is None else agents.spaces
        result = nothing_recorded(plan, opened, out=target.url, format=format)
        fill = partial(filled, result, started=started)
        identity = identity_of(plan, opened.fingerprint, environment)
        try:
            if resume:
                check_target(target, overwrite=overwrite, resume=True)
        except OutputExists:
            finished = finished_manifest(target, plan, identity, format)
            if finished is None:
                raise
            if dry_run:
                return result
            keep_names(target)  # the recorder may have been killed before that
            return fill(finished, new_steps=0)
        if dry_run:
            return result
        writer = DatasetWriter(
            target,
            format=format,
            observation_space=spaces[0],
            action_space=spaces[1],
            action_scale=opened.action_scale,
            environment=manifests.Environment(plan.env, dict(plan.env_kwargs), plan.wrappers),
            provenance=provenance(plan, opened.fingerprint, identity, command, environment.spaces_of),
            compression=options["compression"],
            max_rows_per_file=options["max_rows_per_file"],
            max_bytes_per_file=options["max_bytes_per_file"],
            overwrite=overwrite,
            resume=resume,
            identity=identity,
            allow_changes=options["allow_changes"],
            check_ids=False,  # each is a hash of what its episode follows from, its index among it
        )
        player = Player(environment, opened, workers_of, spec.workers)
        return _Recording(writer, target.url, plan, player, fill, on_progress, agents, opened.fingerprint).recorded()


def _of_policy(
    plan: Plan, out: str | os.PathLike[str] | Location, options: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The storage options that are not for `out` alone. Raises UsageError for one that neither place takes."""
    if not options:
        return options
    target = out.url if isinstance(out, Location) else os.fspath(out)
    places = _places_of(plan)
    of_out = options_for(target, options, beside=places)
    of_policy = {name for place in places for name in options_for(place, options, beside=[target, *places])}
    return {name: value for name, value in options.items() if name in of_policy or name not in of_out}


def _places_of(plan: Plan) -> list[str]:
    """The run folders, and ONNX files, that policies come from; none for the other kinds."""
    texts = [text.partition("=")[2] or text for text in plan.policies] if len(plan.policies) > 1 else [plan.policy]
    return [text.removeprefix(ONNX) for text in texts if text.startswith(ONNX) or not is_named(text)]


class _Recording:
    """Playing, writing and committing of one recording."""

    def __init__(
        self,
        writer: DatasetWriter,
        out: str,
        plan: Plan,
        player: Player,
        fill: Callable[..., RecordResult],
        on_progress: OnProgress,
        agents: AgentEpisodes | None,
        fingerprint: str,
    ) -> None:
        """`agents`: of games of several agents, with the `fingerprint` of their policy."""
        self._agents, self._fingerprint = agents, fingerprint
        self._writer, self._out, self._plan, self._player = writer, out, plan, player
        self._fill, self._on_progress = fill, on_progress
        self._before = self._have = Amount()

    def recorded(self) -> RecordResult:
        """Play, write and commit. Raises BadData and Interrupted, with what is whole committed."""
        with self._writer:
            self._before = self._have = self._written_before()
            self._play()
            result, error = self._committed(self._player.failure)
        if error is not None:
            raise error
        return result

    def _written_before(self) -> Amount:
        """What is there already of an interrupted recording: whole episodes, or games."""
        if self._agents is None:
            return Amount(self._writer.episodes_written, self._writer.steps_written)
        return Amount(self._agents.begun(self._plan, self._fingerprint, self._writer.ids_written))

    def _play(self) -> None:
        """Write what is played after what there was before."""
        with closing(self._player.episodes(rest_of(self._plan, self._before))) as batches:
            for batch in batches:
                whole = batch if self._agents is None else self._agents.divided(batch)
                if whole is not None:
                    self._writer.write(whole)
                self._have = self._have.plus(batch)
                self._on_progress(progress_at(self._plan, self._have, batch))

    def _committed(self, failure: BadData | None) -> tuple[RecordResult, OfflineCliError | None]:
        """Commit what is written, and how the recording ends. Raises BadData and Interrupted where that is nothing."""
        have, stopped_by = self._have, requested()
        complete = is_enough(self._plan, have)
        if not complete and not have.episodes:
            raise nothing_kept(self._out, failure, stopped_by)
        manifest = self._writer.commit(complete=complete, episodes_lost=0, count_not_finite=True)
        games = None if self._agents is None else have.episodes
        result = replace(self._fill(manifest, new_steps=have.steps - self._before.steps), games=games)
        counts = ", ".join(f"{kind} {times:,}" for kind, times in result.assumptions.items() if kind.startswith(NOT_FINITE))
        if counts:
            _log.warning(
                "note: values that are not finite are recorded as the environment and the policy gave them: %s", counts
            )
        if not complete:
            return result, partly_kept(result, failure, stopped_by)
        return result, None
