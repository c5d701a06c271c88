"""Whole episodes of a policy in an environment, as a dataset; refuses to lose an episode that was whole.

The dataset holds the episodes 0 to N-1 in the order in which they began, whatever the number of slots and runners. When a
signal comes, or environment or policy raise, the episodes that are whole are committed with `complete: false`; `resume` goes
on after them. A killed recording loses the open shard at most.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, Literal, cast

from offline_cli.errors import OutputExists
from offline_cli.progress import OnProgress, no_progress
from offline_cli.recording.amounts import Amount, is_enough, progress_at, rest_of
from offline_cli.recording.endings import interrupted_twice, nothing_kept, partly_kept, state_lost
from offline_cli.recording.learned import going_on
from offline_cli.recording.options import checked_plan, resolved_plan
from offline_cli.recording.plan import Plan
from offline_cli.recording.player import Player
from offline_cli.recording.playing import open_planned, policy_of
from offline_cli.recording.policies import PYTHON, RANDOM, SB3
from offline_cli.recording.provenance import finished_manifest, provenance
from offline_cli.recording.results import RecordResult, filled, nothing_recorded
from offline_cli.storage import manifest as manifests
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.options import options_for
from offline_cli.storage.syncing import keep_names
from offline_cli.storage.target_folder import check_target
from offline_cli.storage.writer import MAX_SHARD_BYTES, DatasetWriter
from offline_cli.training.given_pipelines import Given
from offline_cli.training.signals import StopSignals

__all__ = ["record"]

NOT_FINITE: Final = ("nan-in-", "infinite-in-")
_log = logging.getLogger(__name__)


def record(
    env: str,
    out: str | os.PathLike[str] | Location,
    *,
    policy: str,
    episodes: int | None = None,
    steps: int | None = None,
    format: str = "episodes",
    num_envs: int = 16,
    num_env_runners: int = 0,
    vectorize: str = "auto",
    max_rows_per_file: int | None = None,
    max_bytes_per_file: int | None = None,
    compression: str = "zstd",
    explore: bool = False,
    seed: int = 0,
    first_episode: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
    env_to_module: Given = None,
    module_to_env: Given = None,
    lookback: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RecordResult:
    """Play `policy` in `env` and write every episode to dataset `out`: `episodes` of them, or the fewest that have `steps`
    steps.

    `env`, `env_kwargs`, `wrappers`: see `open_environment`. `policy`: see `open_policy`. `num_envs`: slots per runner;
    `num_env_runners`: processes besides this one, 0: none. `vectorize`: `sync`, `async`, `vector_entry_point`, or `auto` for
    the environment's own vector class where it has one. `first_episode`: the index of the first, so that any can be recorded
    again alone. `env_to_module`, `module_to_env`: pieces around a module, as a pipeline file, pieces or a builder; the first
    may be a learner's file. `lookback`: steps of an episode that pieces can look back on at least; None: all of it. What pieces
    learn is kept: `connector_state`. `command`: for provenance.

    Raises UsageError, OutputExists; UnknownEnvironment, BadConfig, SpaceMismatch, UnsupportedSpace; MissingPackage,
    MissingDevice; StorageError; BadData where environment, policy or a piece raise, or what pieces learned is lost, and
    Interrupted, all with all whole episodes committed.
    """
    started = time.monotonic()
    plan = checked_plan(
        env=env,
        policy=policy,
        episodes=episodes,
        steps=steps,
        format=format,
        num_envs=num_envs,
        num_env_runners=num_env_runners,
        vectorize=vectorize,
        explore=explore,
        seed=seed,
        first_episode=first_episode,
        env_kwargs=env_kwargs,
        wrappers=wrappers,
        device=device,
        storage_options=_of_policy(policy, out, storage_options),
        env_to_module=env_to_module,
        module_to_env=module_to_env,
        lookback=lookback,
    )
    target = open_location(out, storage_options, beside=_places_of(policy))
    if not resume:
        check_target(target, overwrite=overwrite)  # before anything that takes long
    with open_planned(plan) as environment:
        plan = resolved_plan(plan, environment)
        opened = policy_of(plan, environment)
        result = nothing_recorded(plan, opened, out=target.url, format=format)
        fill = partial(filled, result, started=started)
        try:
            note = check_target(target, overwrite=overwrite, resume=True) if resume else None
        except OutputExists:
            finished = finished_manifest(target, plan, opened.fingerprint, format)
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
            format=cast(Literal["episodes", "columns"], format),
            observation_space=environment.observation_space,
            action_space=environment.action_space,
            action_scale=opened.action_scale,
            environment=manifests.Environment(plan.env, dict(plan.env_kwargs)),
            provenance=provenance(plan, opened.fingerprint, command),
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            max_bytes_per_file=max_bytes_per_file or MAX_SHARD_BYTES,
            overwrite=overwrite,
            resume=resume,
            identity=plan.identity(opened.fingerprint) + (f" from {first_episode}" if first_episode else ""),
        )
        with StopSignals() as stop:
            player = Player(environment, opened, in_processes=num_env_runners > 0, stopped=lambda: stop.requested is not None)
            return _recorded(writer, target.url, plan, player, stop, fill, on_progress)


def _of_policy(
    policy: str, out: str | os.PathLike[str] | Location, options: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Those of the storage options that are not for `out` alone. Raises UsageError for one that neither place takes."""
    if not options:
        return options
    target = out.url if isinstance(out, Location) else os.fspath(out)
    places = _places_of(policy)
    of_out = options_for(target, options, beside=places)
    of_policy = options_for(policy, options, beside=[target]) if places else {}
    return {name: value for name, value in options.items() if name in of_policy or name not in of_out}


def _places_of(policy: str) -> list[str]:
    """The run folder that a policy comes from; none for the other kinds."""
    return [] if policy == RANDOM or policy.startswith((SB3, PYTHON)) else [policy]


def _recorded(
    writer: DatasetWriter,
    out: str,
    plan: Plan,
    player: Player,
    stop: StopSignals,
    fill: Callable[..., RecordResult],
    on_progress: OnProgress,
) -> RecordResult:
    """Play, write and commit. Raises BadData and Interrupted, with what is whole committed."""
    try:
        with writer:
            before = Amount(writer.episodes_written, writer.steps_written)
            have = _written(writer, plan, player, before, on_progress)
            complete = is_enough(plan, have)
            if not complete and not have.episodes:
                raise nothing_kept(out, player.failure, stop.requested)
            learned = player.learned()
            manifest = writer.commit(complete=complete, provenance=learned.provenance(), episodes_lost=0, count_not_finite=True)
            result = fill(manifest, new_steps=have.steps - before.steps)
            _say_not_finite(result)
    except KeyboardInterrupt as err:  # a second signal
        raise interrupted_twice(out) from err
    if not complete:
        raise partly_kept(result, player.failure, stop.requested, learned.lost)
    if learned.lost is not None:
        raise state_lost(result, learned.lost)
    return result


def _say_not_finite(result: RecordResult) -> None:
    counts = ", ".join(f"{kind} {times:,}" for kind, times in result.assumptions.items() if kind.startswith(NOT_FINITE))
    if counts:
        _log.warning(
            "note: values that are no finite numbers are recorded as the environment and the policy gave them: %s", counts
        )


def _written(writer: DatasetWriter, plan: Plan, player: Player, before: Amount, on_progress: OnProgress) -> Amount:
    """Write what is played after `before`; what there is then."""
    have = before
    with closing(player.episodes(rest_of(plan, before))) as batches:
        for batch in batches:
            writer.write(batch)
            have = have.plus(batch)
            on_progress(progress_at(plan, have, batch))
    return have
