"""A run folder, wherever it is: config, policy, checkpoints, metrics. A folder that is not a run is left alone (`run_lock.py`).

    RUN/config.toml            resolved configuration
    RUN/policy.json            spaces, network and action scale: what it takes to build the policy again
    RUN/policy.safetensors     the finished run's policy; of one that was interrupted its last checkpoint's
    RUN/connectors.msgpack     what the pieces of its learner pipeline learned, where it has one
    RUN/checkpoints/000000500/ weights, optimizer and generators (tensors.safetensors), counters (state.json)
    RUN/metrics.jsonl          one row per `log_every` updates
    RUN/curve.png, RUN/result.json
    RUN/_training.json         a trainer is, or was, at work

Every file but metrics.jsonl on a local disk is put under its name whole: renamed there, one upload to an object store. What
counts is written in this order, which needs no rename of folders:

1. _training.json, the lock that datasets have too (`datasets/lock.py`). Its name is another one, because `_writing.json`
   marks a folder as an unfinished dataset, which other commands would take for theirs.
2. config.toml marks the folder as a run; then policy.json and connectors.msgpack. Over an older run first its checkpoints are
   removed, then its result, weights and metrics.
3. Each checkpoint: rows of metrics.jsonl, tensors.safetensors, state.json. The last one commits it; then the previous
   checkpoint is removed.
4. At the end: rows, policy.safetensors, curve.png, and result.json, which marks the run as finished. Then the lock is released.

So a kill at any moment leaves a run that `resume` takes, with its newest whole checkpoint, whose policy is played until then.
Rows of metrics.jsonl that are newer are cut off then. Where the folder is not on a local disk, the checkpoints that are due by
`checkpoint_every` are made at most every `EVERY` seconds, and so seldom that training waits for them a twentieth of the time
at most; rows are written there with them (`metrics_file.py`). What is learned does not depend on it. No pickle.
"""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.datasets.ownership import is_own_part, keep_names
from offline_cli.datasets.target_folder import exclusive
from offline_cli.errors import BadData, OutputExists, StorageNotFound
from offline_cli.policies.run_files import (
    CONFIG,
    CURVE,
    LEARNED,
    METRICS,
    POLICY,
    RESULT,
    STATE,
    TENSORS,
    WEIGHTS,
    check_learned,
    json_bytes,
    json_object,
    tensor_bytes,
)
from offline_cli.report.curves import draw_curve
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.training.checkpoints import Checkpoints, TrainState
from offline_cli.training.config import BCConfig, stored_config
from offline_cli.training.metrics_file import MetricsFile, TrainResult
from offline_cli.training.pace import Pace
from offline_cli.training.run_lock import TRAINING, RunLock, has_run, holds_nothing_else, refuse_foreign

__all__ = ["RunFolder"]

EVERY: Final = 10.0  # seconds between two checkpoints, where storage is not a local disk


class RunFolder:
    """The files of one run at `out`, which need not exist yet. Every method raises StorageError."""

    def __init__(self, out: str | os.PathLike[str] | Location) -> None:
        self._place = replace(open_location(out), cache=None)  # what is rewritten all the time is not worth keeping
        self._checkpoints = Checkpoints(self._place)
        self._metrics = MetricsFile(self._place)
        self._pace = Pace(EVERY)
        self._seen: tuple[bytes | None, str | None] | None = None  # by `claim`
        self._lock: RunLock | None = None  # while this process is `at_work`
        self._saved: int | None = None  # the update of the newest checkpoint, as far as this process knows

    @property
    def url(self) -> str:
        """The folder's URL, for people."""
        return self._place.url

    # ---- what is there ----

    @property
    def is_run(self) -> bool:
        """Whether a run was started here, even if its files are damaged."""
        return has_run(self._place)

    @property
    def is_free(self) -> bool:
        """Whether nothing is here, or no more than what a kill left of the first files."""
        return not self._place.is_file() and holds_nothing_else(self._place, TRAINING)

    def claim(self, *, resume: bool, overwrite: bool) -> None:
        """Raise OutputExists unless this call may write here, Locked where a trainer is at work, UsageError for both at once.

        What has a run's names, and is not what a run has under them, is OutputExists too; StorageError where nothing could be
        written there, of a local folder. Touches nothing.
        """
        if resume and overwrite:
            raise exclusive(self.url, "run")
        if self._place.is_file():
            raise OutputExists("something else is there already", where=self.url, fix="choose another --out")
        RunLock.refuse_second(self._place)
        self._seen = self._state()
        is_run = self.is_run
        if is_run and (resume or overwrite):
            refuse_foreign(self._place, TRAINING)
            if not resume:  # a finished run is shown again wherever it is
                self._place.check_writable()
            return
        if self.is_free:
            self._place.check_writable()
            return
        if is_run:
            fix = "--resume to continue that run, --overwrite to replace it, or another --out"
            raise OutputExists("a run is there already", where=self.url, fix=fix)
        raise OutputExists("something else is there already", where=self.url, fix="choose another --out")

    def _state(self) -> tuple[bytes | None, str | None]:
        """Identifies the run, to see whether another process has started or resumed one meanwhile."""
        newest = self._checkpoints.newest()
        return whole_file(self._place.join(CONFIG)), None if newest is None else newest.name

    def config(self) -> dict[str, Any]:
        """The stored configuration. Raises BadData where it cannot be read."""
        try:
            return tomllib.loads(self._place.join(CONFIG).read_bytes().decode())
        except (StorageNotFound, ValueError, RecursionError) as err:
            raise self._broken(CONFIG, err) from err

    def resolved_config(self) -> BCConfig:
        """The stored configuration, checked."""
        return stored_config(self.config())

    def result(self) -> TrainResult | None:
        """The result of a finished run; None: it is not finished. Raises BadData."""
        content = whole_file(self._place.join(RESULT))
        if content is None:
            return None
        try:
            return TrainResult(**self._json(RESULT, content))
        except TypeError as err:
            raise self._broken(RESULT, err) from err

    def policy(self) -> dict[str, Any]:
        """The description of the policy. Raises BadData."""
        content = whole_file(self._place.join(POLICY))
        if content is None:
            raise self._broken(POLICY, StorageNotFound("no such file", where=self.url, fix="train again"))
        return self._json(POLICY, content)

    def learned(self) -> dict[str, Any] | None:
        """What connector pieces had learned when the run began; None: it keeps no such state. Raises BadData."""
        place = self._place.join(LEARNED)
        content, told = whole_file(place), self.policy().get("pipeline")
        if content is None and told is None:
            return None
        try:
            check_learned(content, told)
            return state_from_bytes(content or b"", where=place.url)
        except (BadData, ValueError) as err:
            raise self._broken(LEARNED, err) from err

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl. Raises BadData."""
        return self._metrics.rows()

    # ---- who writes ----

    @contextmanager
    def at_work(self, command: str) -> Iterator[None]:
        """Within it, this process alone may write here; `command` says who it is, without secrets.

        Raises Locked where another trainer is at work, or was since `claim`. A StorageError that comes out of it says how to go
        on; what was written stays.
        """
        lock = RunLock(self._place, command)
        with lock.held(saved=lambda: self._saved):
            if self._seen is not None and self._state() != self._seen:
                raise lock.somebody_was_here()
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    def remove_note(self, command: str) -> None:
        """Remove the note of a trainer that was killed after its result, for good. Raises Locked where one is alive."""
        if self._place.join(TRAINING).exists():
            with self.at_work(command):
                pass
        else:
            keep_names(self._place)

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock is None else self._lock.guard()

    # ---- writing ----

    def begin(self, config: BCConfig, policy: Mapping[str, Any], learned: bytes | None = None) -> None:
        """Make the folder, or empty it of the run that was here: its checkpoints first, so that none outlives its config.

        `learned`: the state of connector pieces; None: the policy plays without any.
        """
        self._place.make_folder()
        with self._guard():
            refuse_foreign(self._place, TRAINING)
            self._remove_parts()
            self._checkpoints.remove_all()
            there = {child.name for child in self._place.children()}
            for name in (RESULT, WEIGHTS, LEARNED, METRICS, CURVE):
                if name in there:
                    self._place.join(name).remove()
            keep_names(self._place)
            self._metrics.begin()
            self._write_config(config)
            self._write(POLICY, json_bytes(policy))
            if learned is not None:
                self._write(LEARNED, learned)

    def go_on(self, config: BCConfig, metrics_bytes: int) -> None:
        """Prepare for the updates after a checkpoint; `config` may have another bound. A policy stays until it is replaced.

        Rows after the checkpoint, which had `metrics_bytes` of them, are cut off: they will be written again.
        """
        with self._guard():
            refuse_foreign(self._place, TRAINING)
            self._remove_parts()
            self._place.join(RESULT).remove()
            self._metrics.cut(metrics_bytes)
            if config.as_dict() != self.config():
                self._write_config(config)

    def _remove_parts(self) -> None:
        """Remove half-written files of a killed trainer."""
        for child in self._place.children():
            if is_own_part(child):
                child.remove()

    def _write_config(self, config: BCConfig) -> None:
        self._write(CONFIG, tomli_w.dumps(config.as_dict()).encode())

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether storage is quick enough for another one now; a local disk always is."""
        return self._place.is_local or self._pace.is_due

    def save_checkpoint(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint at `state.update`, then remove older ones."""
        with self._pace.timed():
            with self._guard():
                self._metrics.flush()
                folder, older = self._checkpoints.begin(state.update, tensor_bytes(tensors))
            with self._guard():
                self._checkpoints.commit(folder, older, json_bytes(state.as_dict()))
        self._saved = state.update

    def load_checkpoint(self) -> tuple[TrainState, dict[str, Tensor]] | None:
        """The newest whole checkpoint; None: there is none. Raises BadData where it cannot be read."""
        folder = self._checkpoints.newest()
        if folder is None:
            return None
        name = f"checkpoints/{folder.name}"
        try:
            state = TrainState.from_dict(self._json(f"{name}/{STATE}", folder.join(STATE).read_bytes()))
            tensors = load(folder.join(TENSORS).read_bytes())
        except (StorageNotFound, ValueError, TypeError, SafetensorError) as err:
            raise self._broken(name, err) from err
        self._saved = state.update
        return state, tensors

    def append_metrics(self, row: Mapping[str, Any]) -> int:
        """Append one row; gives the length of all rows in bytes. Raises TakenOver where another trainer is known to be here."""
        if self._lock is not None:
            self._lock.check()
        length = self._metrics.append(row)
        if self._metrics.flush_is_due:
            with self._guard():
                self._metrics.flush()
        return length

    def keep_policy(self, weights: Mapping[str, Tensor]) -> None:
        """Write the policy of a run that is interrupted; without a result it is not finished."""
        with self._guard():
            self._write(WEIGHTS, tensor_bytes(weights))

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """Write the policy, draw the curve, then write the result that marks the run as finished."""
        with self._guard():
            self._metrics.flush()
            self._write(WEIGHTS, tensor_bytes(weights))
        curve = io.BytesIO()
        draw_curve(self.metrics(), curve, until_return=self.config().get("until_return"))
        with self._guard():
            self._write(CURVE, curve.getvalue())
            self._write(RESULT, json_bytes(result))

    def _write(self, name: str, content: bytes) -> None:
        write_whole(self._place.join(name), content, folder=self._place)

    def _json(self, name: str, content: bytes) -> dict[str, Any]:
        try:
            return json_object(content)
        except ValueError as err:
            raise self._broken(name, err) from err

    def _broken(self, name: str, err: Exception) -> BadData:
        return BadData(f"{name} cannot be read: {err}", where=self.url, fix="train again with --overwrite")
