"""Whole episodes of a policy in an environment, as a dataset; refuses to lose an episode that was whole.

The dataset holds the episodes 0 to N-1 in the order in which they began, whatever the number of slots and runners. When a
signal comes, or environment or policy raise, the episodes that are whole are committed with `complete: false`; `resume` goes
on after them. A killed recording loses the open shard at most.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, Interrupted, OutputExists
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.recording.options import checked_plan, resolved_plan
from offline_cli.recording.plan import Plan
from offline_cli.recording.playing import open_planned, open_runner, policy_of
from offline_cli.recording.policy import Policy
from offline_cli.recording.provenance import is_finished, provenance
from offline_cli.recording.results import RecordResult
from offline_cli.recording.runner_processes import played_by_processes
from offline_cli.storage import manifest as manifests
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.target_folder import check_target
from offline_cli.storage.writer import MAX_SHARD_BYTES, DatasetWriter
from offline_cli.training.signals import StopSignals

__all__ = ["record"]


def record(
    env: str,
    out: str | os.PathLike[str],
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
    again alone. `command`: for provenance.

    Raises UsageError, OutputExists; UnknownEnvironment, BadConfig, SpaceMismatch, UnsupportedSpace; MissingPackage,
    MissingDevice; StorageError; BadData where environment or policy raise, and Interrupted, both with all whole episodes
    committed.
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
        storage_options=storage_options,
    )
    target = open_location(os.fspath(out), storage_options)
    with open_planned(plan) as environment:
        plan = resolved_plan(plan, environment)
        opened = policy_of(plan, environment)
        told = _Told(plan, opened, environment, target, format, started)
        if dry_run:
            check_target(target, overwrite=overwrite, resume=resume)
            return told.nothing()
        try:
            check_target(target, overwrite=overwrite, resume=resume)
        except OutputExists:
            finished = is_finished(target, plan, opened.fingerprint, format) if resume else None
            if finished is None:
                raise
            return told.result(finished, 0)
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
        return _recorded(writer, told, 0 if num_env_runners == 0 else plan.runners, on_progress)


class _Told:
    """What a result says besides counts."""

    def __init__(
        self, plan: Plan, policy: Policy, environment: Environment, target: Location, format: str, started: float
    ) -> None:
        self.plan, self.policy, self.environment, self.target = plan, policy, environment, target
        self._format, self._started = format, started

    def result(self, manifest: Manifest, new_steps: int) -> RecordResult:
        seconds = time.monotonic() - self._started
        returns, lengths = manifest.statistics["return"], manifest.statistics["length"]
        return replace(
            self.nothing(),
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            return_mean=returns["mean"],
            return_std=returns["std"],
            length_mean=lengths["mean"],
            seconds=seconds,
            steps_per_second=new_steps / seconds,
            complete=manifest.complete,
            dry_run=False,
        )

    def nothing(self) -> RecordResult:
        return RecordResult(
            out=self.target.url,
            episodes=0,
            steps=0,
            shards=0,
            return_mean=None,
            return_std=None,
            length_mean=None,
            seconds=time.monotonic() - self._started,
            steps_per_second=0.0,
            complete=False,
            format=self._format,
            environment=self.plan.env,
            policy=self.plan.policy,
            vectorize=self.plan.vectorize,
            action_scale=self.policy.action_scale,
            explore=self.plan.explore,
            seed=self.plan.seed,
            dry_run=True,
        )


def _recorded(writer: DatasetWriter, told: _Told, processes: int, on_progress: OnProgress) -> RecordResult:
    """Play, write and commit. Raises BadData and Interrupted, with what is whole committed."""
    try:
        with writer, StopSignals() as stop:
            total = told.plan.episodes, told.plan.steps
            plan = _rest(told.plan, writer)
            failure: BadData | None = None
            written = writer.episodes_written, writer.steps_written
            before = written[1]
            with closing(_played(plan, told, processes, stop)) as batches:
                while True:
                    try:
                        batch = next(batches, None)
                    except BadData as err:
                        failure = err
                        break
                    if batch is None:
                        break
                    writer.write(batch)
                    written = written[0] + len(batch), written[1] + batch.num_steps
                    on_progress(_progress(written, total, batch))
            complete = _is_whole(written, total)
            if not complete and not written[0]:
                raise _nothing_kept(told.target, failure, stop)
            manifest = writer.commit(complete=complete)
            result = told.result(manifest, written[1] - before)
    except KeyboardInterrupt as err:  # a second signal
        what, fix = "interrupted; the shards that were complete are kept", "the same command with --resume goes on from there"
        raise Interrupted(what, where=told.target.url, fix=fix) from err
    if not complete:
        raise _unfinished(result, failure, stop)
    return result


def _rest(plan: Plan, writer: DatasetWriter) -> Plan:
    """What is left to play after what the writer has found."""
    have = writer.episodes_written
    episodes = None if plan.episodes is None else max(0, plan.episodes - have)
    steps = None if plan.steps is None else max(0, plan.steps - writer.steps_written)
    return replace(plan, first=plan.first + have, episodes=episodes, steps=steps)


def _is_whole(written: tuple[int, int], total: tuple[int | None, int | None]) -> bool:
    return written[0] >= total[0] if total[0] is not None else written[1] >= (total[1] or 0)


def _played(plan: Plan, told: _Told, processes: int, stop: StopSignals) -> Generator[EpisodeBatch, None, None]:
    """The episodes that are wanted, in order."""
    if 0 in (plan.episodes, plan.steps):
        return
    with _batches(plan, told, processes, stop) as batches:
        yield from _limited(batches, plan)


@contextmanager
def _batches(plan: Plan, told: _Told, processes: int, stop: StopSignals) -> Iterator[Iterator[EpisodeBatch]]:
    def stopped() -> bool:
        return stop.requested is not None

    if processes:
        with closing(played_by_processes(plan, stopped=stopped)) as played:
            yield played
    else:
        with open_runner(plan, 0, environment=told.environment, policy=told.policy, stopped=stopped) as runner:
            yield runner.batches()


def _limited(batches: Iterator[EpisodeBatch], plan: Plan) -> Iterator[EpisodeBatch]:
    """The first of the episodes: as many as wanted, or the fewest that have the steps wanted."""
    episodes, steps = 0, 0
    for batch in batches:
        count = len(batch) if plan.episodes is None else min(len(batch), plan.episodes - episodes)
        if plan.steps is not None:
            count = min(count, int(np.searchsorted(np.cumsum(batch.lengths), plan.steps - steps)) + 1)
        kept = batch if count == len(batch) else batch.select(slice(0, count))
        episodes, steps = episodes + len(kept), steps + kept.num_steps
        yield kept
        if _is_whole((episodes, steps), (plan.episodes, plan.steps)):
            return


def _progress(written: tuple[int, int], total: tuple[int | None, int | None], batch: EpisodeBatch) -> Progress:
    figures = {"return": float(batch.rewards.sum()) / len(batch), "length": float(batch.lengths.mean())}
    if total[0] is not None:
        return Progress("recording", written[0], total[0], "episodes", {**figures, "steps": float(written[1])})
    return Progress("recording", min(written[1], total[1] or 0), total[1], "steps", {**figures, "episodes": float(written[0])})


def _unfinished(result: RecordResult, failure: BadData | None, stop: StopSignals) -> BadData | Interrupted:
    """The error that ends a recording of which a part was committed."""
    kept = f"{result.episodes} whole episodes ({result.steps} steps) are committed"
    details = {"out": result.out, "episodes": result.episodes, "steps": result.steps, "complete": False}
    go_on = "the same command with --resume goes on from there"
    if failure is not None:
        fix = f"{failure.fix}; {go_on}"
        return type(failure)(f"{failure.what}; {kept}", where=failure.where, fix=fix, details={**failure.details, **details})
    return Interrupted(f"{_name_of(stop)}; {kept}", where=result.out, fix=go_on, details={**details, **_exit_code(stop)})


def _nothing_kept(target: Location, failure: BadData | None, stop: StopSignals) -> BadData | Interrupted:
    if failure is not None:
        return failure
    what = f"{_name_of(stop)} before an episode was whole; nothing was kept"
    return Interrupted(what, where=target.url, fix="the same command again", details=_exit_code(stop))


def _name_of(stop: StopSignals) -> str:
    return "stopped" if stop.requested is None else f"stopped by {signal.Signals(stop.requested).name}"


def _exit_code(stop: StopSignals) -> dict[str, Any]:
    return {} if stop.requested is None else {"exit_code": 128 + stop.requested}
