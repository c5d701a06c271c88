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
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

from offline_cli.datasets import manifest as manifests
from offline_cli.datasets.ownership import keep_names
from offline_cli.datasets.row_groups import raw_bytes
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import EngineSpec
from offline_cli.engines.overseer import Overseer
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError, OutputExists
from offline_cli.files.clients import options_for
from offline_cli.files.locations import Location, open_location
from offline_cli.options.keywords import takes
from offline_cli.options.playing import RecordOptions
from offline_cli.playing.plan import Plan
from offline_cli.playing.runner_factory import open_planned, policy_of
from offline_cli.policies.by_name import ONNX, is_named
from offline_cli.policies.piped_policy import tell_unlike_training
from offline_cli.progress import OnProgress, no_progress
from offline_cli.recording.agent_episodes import AgentEpisodes
from offline_cli.recording.learned_state import going_on
from offline_cli.recording.provenance import Player, finished_manifest, identity_of, provenance
from offline_cli.recording.results import (
    Amount,
    RecordResult,
    broken_off,
    check_divisible,
    checked_plan,
    filled,
    is_enough,
    nothing_kept,
    nothing_recorded,
    partly_kept,
    progress_at,
    resolved_plan,
    rest_of,
    state_lost,
)
from offline_cli.training.stop_signals import StopSignals

__all__ = ["record"]

SAVING: Final = "all whole episodes are committed, within 10 s; another signal waits no longer"
LARGE_BYTES: Final = 32 << 20  # of a batch, from which on its episodes are written one by one
WRITING: Final = 4.0  # seconds after a stop in which another such episode is begun to be written, and
LAST_WRITING: Final = 6.5  # where they came late, from an environment that hung
NOT_FINITE: Final = ("nan-in-", "infinite-in-")
_log = logging.getLogger(__name__)


@takes(RecordOptions, checks=False)
def record(
    env: str,
    out: str | os.PathLike[str] | Location,
    *,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
    **options: Unpack[RecordOptions],
) -> RecordResult:
    """Play `policy` in `env` and write every episode to dataset `out`: `episodes` of them, or the fewest that have `steps`
    steps.

    `env`, `env_kwargs`, `wrappers`: see `open_environment`. `policy`: see `open_policy`. `env_to_module`, `module_to_env`:
    pieces around a module, as a pipeline file, pieces or a builder. What pieces learn is kept: `connector_state`. A call that
    cannot be broken out of after `step_timeout` is waited for. `command`: for provenance.

    Raises UsageError, OutputExists; UnknownEnvironment, BadConfig, SpaceMismatch, UnsupportedSpace; MissingPackage,
    MissingDevice; StorageError; BadData where environment, policy or a piece raise, a step takes longer than `step_timeout`, or
    what pieces learned is lost, and Interrupted, all with all whole episodes committed.
    """
    started = time.monotonic()
    format = options["format"]
    resume, overwrite, dry_run = options["resume"], options["overwrite"], options["dry_run"]
    num_env_runners, step_timeout = options["num_env_runners"], options["step_timeout"]
    plan = checked_plan(env, options)
    plan = replace(plan, storage_options=_of_policy(plan, out, options["storage_options"]))
    target = open_location(out, options["storage_options"], beside=_places_of(plan))
    if not resume:
        check_target(target, overwrite=overwrite)  # before anything that takes long
    spec = EngineSpec.of(options)
    overseer = Overseer(env, saving=SAVING, step_timeout=None if plan.in_processes else step_timeout)
    with spec.engine() as engine, overseer, overseer.guarding(), open_planned(plan) as environment:
        plan = resolved_plan(plan, environment)
        opened = policy_of(plan, environment)
        check_divisible(opened, spec.name)
        tell_unlike_training(opened)
        agents = AgentEpisodes.of(environment, opened, plan)
        spaces = (environment.observation_space, environment.action_space) if agents is None else agents.spaces
        result = nothing_recorded(plan, opened, out=target.url, format=format)
        fill = partial(filled, result, started=started)
        identity = identity_of(plan, opened.fingerprint, environment)
        try:
            note = check_target(target, overwrite=overwrite, resume=True) if resume else None
        except OutputExists:
            finished = finished_manifest(target, plan, identity, format)
            if finished is None:
                raise
            if dry_run:
                return result
            keep_names(target)  # the recorder may have been killed before that
            return fill(finished, new_steps=0)
        plan = going_on(plan, opened, target, note)
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
        with StopSignals(overseer, patient=True) as stop, environment:  # which is closed before signals mean an end at once
            kind: dict[str, Any] = {"in_processes": num_env_runners > 0, "engine": engine, "workers": spec.workers}
            player = Player(environment, opened, stopped=lambda: stop.requested is not None, **kind)
            recording = _Recording(writer, target.url, plan, player, stop, fill, on_progress, agents, opened.fingerprint)
            return recording.recorded(overseer)


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
        stop: StopSignals,
        fill: Callable[..., RecordResult],
        on_progress: OnProgress,
        agents: AgentEpisodes | None,
        fingerprint: str,
    ) -> None:
        """`agents`: of games of several agents, with the `fingerprint` of their policy."""
        self._agents, self._fingerprint = agents, fingerprint
        self._writer, self._out, self._plan, self._player, self._stop = writer, out, plan, player, stop
        self._fill, self._on_progress = fill, on_progress
        self._before = self._have = Amount()
        self._left_out = 0  # whole episodes that there was no time to write

    def recorded(self, overseer: Overseer) -> RecordResult:
        """Play, write and commit. Raises BadData and Interrupted, with what is whole committed."""
        writer, overseer.on_stuck = self._writer, self._left_behind
        try:
            with writer:
                self._before = self._have = self._written_before()
                self._play()
                result, error = self._committed(self._player.failure)
        except KeyboardInterrupt as err:  # one signal too many
            kept = writer.episodes_kept
            raise broken_off(self._out, kept, self._have.episodes - kept, self._stop.requested) from err
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
                self._write(batch)
                self._on_progress(progress_at(self._plan, self._have, batch))
                if self._left_out:  # nothing after these can be kept
                    break

    def _write(self, batch: EpisodeBatch) -> None:
        """Write episodes, one by one where they are large; after a stop only as many of those as there is time for."""
        one_by_one = raw_bytes(batch).sum() > LARGE_BYTES
        began = time.monotonic()
        for number in range(len(batch) if one_by_one else 1):
            part = batch.select(slice(number, number + 1)) if one_by_one else batch
            if one_by_one and self._is_late(began):
                self._left_out += 1
                continue
            whole = part if self._agents is None else self._agents.divided(part)
            if whole is not None:
                self._writer.write(whole)
            self._have = self._have.plus(part)

    def _is_late(self, began: float) -> bool:
        """Whether a stop leaves no time to write one more large episode; `began`: when their batch came."""
        stopped_at = self._stop.at
        if stopped_at is None:
            return False
        until = max(stopped_at + WRITING, min(began + WRITING / 2, stopped_at + LAST_WRITING))
        return self._left_out > 0 or time.monotonic() > until

    def _committed(self, failure: BadData | None) -> tuple[RecordResult, OfflineCliError | None]:
        """Commit what is written, and how the recording ends. Raises BadData and Interrupted where that is nothing."""
        have, stopped_by = self._have, self._stop.requested
        complete = is_enough(self._plan, have)
        if not complete and not have.episodes:
            raise nothing_kept(self._out, failure, stopped_by)
        learned = self._player.learned()
        known = learned.provenance()
        manifest = self._writer.commit(complete=complete, provenance=known, episodes_lost=0, count_not_finite=True)
        games = None if self._agents is None else have.episodes
        result = replace(self._fill(manifest, new_steps=have.steps - self._before.steps), games=games)
        counts = ", ".join(f"{kind} {times:,}" for kind, times in result.assumptions.items() if kind.startswith(NOT_FINITE))
        if counts:
            _log.warning(
                "note: values that are not finite are recorded as the environment and the policy gave them: %s", counts
            )
        if not complete:
            return result, partly_kept(result, failure, stopped_by, learned.lost, self._left_out)
        return result, None if learned.lost is None else state_lost(result, learned.lost)

    def _left_behind(self, error: OfflineCliError) -> OfflineCliError:
        """In another thread, where the one that plays does not come back: commit what is whole; how the recording ends."""
        if self._stop.requested is None:  # the handler of the signal has to wait for that thread
            self._stop.requested, self._stop.at = error.details.get("signal"), time.monotonic()
        try:
            with ExitStack() as held:
                held.push(self._writer)
                for batch in self._player.left():
                    self._write(batch)
                _, ended = self._committed(error if isinstance(error, BadData) else None)
        except OfflineCliError as failed:
            return failed
        return ended or error
