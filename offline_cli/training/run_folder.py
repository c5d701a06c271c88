"""A run folder, wherever it is, and the state and result of a run that are kept there.

    RUN/policy.json          spaces, network and action scale: what it takes to build the policy again
    RUN/config.toml          resolved configuration
    RUN/connectors.msgpack   what the pieces of its learner pipeline learned, where it has one
    RUN/state.safetensors    the checkpoint: weights, optimizer, generators; its counters as the file's metadata
    RUN/state.json           the counters again, for people and other programs
    RUN/metrics.jsonl        one row per `log_every` updates
    RUN/policy.safetensors   the finished run's policy; of one that was interrupted its last checkpoint's
    RUN/curve.png, RUN/result.json
    RUN/trackers.json        ids of the run in the trackers that follow it; their files: RUN/tensorboard, RUN/wandb, ...
    RUN/.training.lock       only while a trainer is at work, on local disks

Every file but metrics.jsonl on a local disk is put under its name whole: renamed there, one upload to an object store. So a
kill at any moment leaves the old checkpoint or the new one, whose policy is played until the run is finished; result.json, the
last file, marks it as finished. Rows of metrics.jsonl that are newer than the checkpoint are cut off by a resumed run.

Where the folder is not on a local disk, checkpoints are made at most every `EVERY` seconds, and so seldom that training waits
for them a twentieth of the time at most; rows are written there with them. What is learned does not depend on it. Buckets have
no lock: two trainers in one folder there overwrite each other's files. No pickle.
"""

from __future__ import annotations

import io
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import filelock
import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.datasets.manifest import WRAPPERS, EnvironmentRecord
from offline_cli.datasets.ownership import is_own_part, keep_bytes, keep_names
from offline_cli.datasets.target_folder import exclusive
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, Locked, OfflineCliError, OutputExists
from offline_cli.import_path import allowed_changes
from offline_cli.meanings import NO_MEANINGS
from offline_cli.modules.encoders import NATURE, encoder_package
from offline_cli.modules.network import network_package
from offline_cli.modules.rl_module import DEFAULT_MODULE_ID
from offline_cli.policies import run_policy as files
from offline_cli.policies.run_policy import (
    ENCODER_PACKAGE,
    ENVIRONMENTS,
    FORMAT,
    GIVEN_SPACE,
    MEANINGS,
    NETWORK,
    VERSION,
    described_form,
)
from offline_cli.report.curves import draw_curve
from offline_cli.spaces import space_to_json
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.training.config import BCConfig
from offline_cli.training.training_data import TrainingData

__all__ = ["Best", "RunFolder", "TrainResult", "TrainState", "check_same_run", "describe_policy"]

LOCK: Final = ".training.lock"
OURS: Final = b"offline-cli-policy"
REPLACED: Final = (
    *(files.RESULT, files.TENSORS, files.STATE, files.WEIGHTS, files.LEARNED),
    *(files.METRICS, files.CURVE, files.TRACKERS, files.CONFIG),
)
"""In the order in which a new run removes them: a result and checkpoint are never beside another run's configuration."""
EVERY: Final = 10.0  # seconds between two checkpoints, where storage is not a local disk
SHARE: Final = 0.05  # of the time, that they may take there
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Best:
    """The check at which the policy was best so far."""

    score: float  # higher is better: a mean return, or minus a held-out loss
    update: int
    figures: dict[str, Any]  # that check's


@dataclass(slots=True)
class TrainState:
    """Counters of one run; `update` is also the position in the data."""

    update: int = 0  # updates made
    summed: int = 0  # updates in the loss sum since the last row
    samples: int = 0  # steps learned from, padding not counted
    train_seconds: float = 0.0  # in updates alone
    seconds: float = 0.0  # checks and checkpoints included
    loss: float | None = None  # the sum of all losses, as means over the updates of the last row; of cloning nats per action
    losses: dict[str, float] = field(default_factory=dict)  # each by its name
    figures: dict[str, Any] = field(default_factory=dict)  # of the last check
    best: Best | None = None
    best_val_loss: float | None = None
    stale_checks: int = 0  # checks since the held-out loss was last better
    stopped_by: str | None = None  # "target", "patience", "bound"; None: still training
    metrics_bytes: int = 0  # length of metrics.jsonl that belongs to this state
    # What a resumed run must share with this one, besides its configuration.
    data: str = ""  # DataFacts.digest
    seen: dict[str, Any] = field(default_factory=dict)  # DataFacts.figures
    threads: int = 1
    device: str = "cpu"
    pipeline: str = ""  # what was given for it, by name; empty: the default pipeline
    code: dict[str, str] = field(default_factory=dict)  # of environment, network, algorithm and pieces, see `code_of`
    opponents: dict[str, str] = field(default_factory=dict)  # fingerprints of who plays the other agents of a game
    changes: list[str] = field(default_factory=list)  # of it while the run was resumed, in words
    init_from: dict[str, Any] = field(default_factory=dict)  # the run that it began with (`Start.told`); empty: none


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run. Figures are of the policy that the run holds; None: not measured."""

    run: str
    updates: int  # made in all
    epochs: float  # passes over the data
    seconds: float  # checks included, reading not
    samples_per_second: float  # steps per second spent in updates
    loss: float | None  # mean over the last updates; of several losses their sum; of cloning nats per action
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; the confirmation's where --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions guessed right
    val_accuracy_majority: float | None  # the same of always playing the most frequent action of the training steps
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # the update that the policy is from
    stopped_by: str  # "target", "patience", or the bound, "updates" or "epochs"; "dry-run": nothing was written
    episodes: int  # in the data, held-out ones included
    steps: int
    device: str
    threads: int
    steps_left_out: int = 0  # last ones, whose next observation was not recorded
    notes: list[str] = field(default_factory=list)  # what the policy does without: the layout of images, for one
    losses: dict[str, float] = field(default_factory=dict)  # each loss of the algorithm by its name, as `loss`
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": how many
    chosen: dict[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: dict[str, Any] = field(default_factory=dict)  # by source: its weight, steps, and steps of it in an epoch
    val_recall: dict[str, Any] = field(default_factory=dict)  # by action: share of its held-out steps guessed right, or None
    reference: dict[str, Any] = field(default_factory=dict)  # of normalised scores, where the data's manifests say the same
    init_from: dict[str, Any] = field(default_factory=dict)  # run, sha256 of its weights, and which modules are from there

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what was not asked for is left out."""
        asked = ("chosen", "weights", "val_recall", "reference", "init_from")
        return {name: value for name, value in asdict(self).items() if value or name not in asked}


def check_same_run(stored: TrainState, wanted: TrainState, allow_changes: bool, where: str) -> None:
    """Raise BadConfig unless a run with the state `stored` can continue as `wanted`: same data, pipeline, device, opponents in
    a game, and code.

    Changes of the code that are allowed are added to `stored`.
    """
    told: dict[str, tuple[Any, Any]] = {"the learner pipeline": (stored.pipeline, wanted.pipeline)}
    told["the device"] = stored.device, wanted.device
    for agent in sorted({*stored.opponents, *wanted.opponents}):
        told[f"the policy of agent {agent}"] = stored.opponents.get(agent), wanted.opponents.get(agent)
    if stored.data != wanted.data and stored.pipeline == wanted.pipeline:  # which decides what the digest is of
        told |= {f"the data ({name})": (stored.seen.get(name), one) for name, one in wanted.seen.items()}
        if stored.seen == wanted.seen:
            told["the data (episodes, values or order)"] = stored.data, wanted.data
    problems = [
        f"{name} differs: the run has {one or 'the default'}, this call {other or 'the default'}"
        for name, (one, other) in told.items()
        if one != other
    ]
    fix = "resume with what the run was started with, train again with --overwrite"
    stored.changes += allowed_changes(stored.code, wanted.code, allow_changes, where=where, fix=fix, others=problems)
    stored.code = wanted.code


def describe_policy(data: TrainingData, config: BCConfig, played_in: EnvironmentSpec | None = None) -> dict[str, Any]:
    """policy.json: what `load_policy` needs besides the weights and what connector pieces learned. `played_in`: for checks.

    Raises BadConfig for a pipeline file with options that JSON does not have.
    """
    name = config.network["name"]
    options = {key: value for key, value in config.network_options.items() if key != "dropout"}  # none of a policy that plays
    packages = {"package": network_package(name), ENCODER_PACKAGE: encoder_package(str(options.get("encoder", NATURE)))}
    told: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "observation_space": space_to_json(data.observation_space),
        "action_space": space_to_json(data.action_space),
        "action_scale": data.action_scale,
        NETWORK: {"name": name, **options},
        **{key: package for key, package in packages.items() if package is not None},
        **described_form(data.learner.policy.action_head),
        "environment": config.env,
    }
    if data.meanings != NO_MEANINGS:
        told[MEANINGS] = data.meanings.as_json()
    known = {one.id: one for one in (data.recorded_in, played_in) if one is not None}  # the latter in place of the former
    if known:
        kept = filter(None, map(EnvironmentRecord.of, known.values()))
        told[ENVIRONMENTS] = [{**one.as_json(), WRAPPERS: list(one.wrappers)} for one in kept]
    if data.facts.module not in (None, DEFAULT_MODULE_ID):
        told["module"] = data.facts.module  # whose episodes it learned from, for people: a run holds one policy
    if data.trained is None:
        return told
    return told | {GIVEN_SPACE: space_to_json(data.spaces[0]), "pipeline": data.trained.to_json()}


class RunFolder:
    """The files of one run at `out`, which need not exist yet. Every method raises StorageError."""

    def __init__(self, out: str | os.PathLike[str] | Location, *, writes: bool = True) -> None:
        """`writes`: False where another process of this training writes; then nothing is changed, or locked."""
        self._place = open_location(out).without_cache  # what is rewritten all the time is not worth keeping
        self._writes = writes
        self._rows = bytearray()  # of metrics.jsonl
        self._next = 0.0  # when another checkpoint is due, where storage is not a local disk
        self.url = self._place.url
        self.local_path = Path(self._place.path).absolute() if self._place.is_local else None

    # ---- what is there ----

    def claim(self, *, resume: bool, overwrite: bool) -> None:
        """Raise OutputExists unless this call may write here, UsageError for both at once; StorageError where nothing can be
        written into a local folder. Touches nothing.
        """
        if resume and overwrite:
            raise exclusive(self.url, "run")
        is_file = self._place.is_file()
        is_run = not is_file and OURS in (whole_file(self._place.join(files.POLICY)) or b"")
        if is_run and not (resume or overwrite):
            fix = "--resume to continue that run, --overwrite to replace it, or another --out"
            raise OutputExists("a run is there already", where=self.url, fix=fix)
        if is_file or (not is_run and any(one.name != LOCK and not is_own_part(one) for one in self._place.children())):
            raise OutputExists("something else is there already", where=self.url, fix="choose another --out")
        if not (is_run and resume):  # a finished run is shown again wherever it is
            self._place.check_writable()

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """The content of a file; None: it is not there. Raises BadData, with its name, where it is broken."""
        content = whole_file(self._place.join(name))
        try:
            return None if content is None else parse(content)
        except (BadData, ValueError, TypeError, KeyError, RecursionError, SafetensorError) as err:
            raise BadData(f"{name} cannot be read: {err}", where=self.url, fix="train again with --overwrite") from err

    def config(self) -> dict[str, Any] | None:
        """The stored configuration, unchecked; None: there is none yet. Raises BadData."""
        return self._read(files.CONFIG, lambda content: tomllib.loads(content.decode()))

    def result(self) -> TrainResult | None:
        """The result of a finished run; None: it is not finished. Raises BadData."""
        return self._read(files.RESULT, lambda content: TrainResult(**files.json_object(content)))

    def learned(self) -> dict[str, Any] | None:
        """What connector pieces had learned when the run began; None: it keeps no such state. Raises BadData."""
        place = self._place.join(files.LEARNED)
        told = self._read(files.POLICY, lambda content: files.json_object(content).get("pipeline"))
        found = self._read(files.LEARNED, lambda content: state_from_bytes(files.check_learned(content, told), where=place.url))
        if found is None and told is not None:
            raise BadData(f"{files.LEARNED} is missing", where=self.url, fix="train again with --overwrite")
        return found

    def load(self) -> tuple[TrainState, dict[str, Tensor]] | None:
        """The checkpoint; None: there is none. Raises BadData where it cannot be read."""

        def parse(content: bytes) -> tuple[TrainState, dict[str, Tensor]]:
            told = files.state_in(content)
            best = told.pop("best")
            return TrainState(**told, best=best and Best(**best)), load(content)

        return self._read(files.TENSORS, parse)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, oldest first. Raises BadData."""
        return self._read(files.METRICS, lambda content: [files.json_object(line) for line in content.splitlines()]) or []

    def trackers(self) -> dict[str, Any]:
        """The id of this run in each tracker that has followed it. Raises BadData."""
        return self._read(files.TRACKERS, files.json_object) or {}

    # ---- writing ----

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within it the folder exists, and this process alone trains here. Raises Locked where another one does.

        A folder that was made for it, and stays empty, is removed again.
        """
        if not (self._writes and self._place.is_local):
            yield
            return
        made = self._place.make_folder()
        lock = filelock.FileLock(self._place.join(LOCK).path, blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout as err:
            fix = "wait until it has ended, or choose another --out"
            raise Locked("another process is training here", where=self.url, fix=fix) from err
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()
            with suppress(OfflineCliError):
                for folder in reversed(made):
                    folder.remove_empty_folder()

    def begin(self, config: BCConfig, policy: Mapping[str, Any], learned: bytes | None = None) -> None:
        """Make the folder, or empty it of the run that was here: its result and checkpoint first, its configuration last.

        `learned`: the state of connector pieces; None: the policy plays without any.
        """
        if self._writes:
            self._place.make_folder()
            self._remove(*REPLACED)
            self._write(files.POLICY, files.json_bytes(policy))
            if learned is not None:
                self._write(files.LEARNED, learned)
            self._write(files.CONFIG, tomli_w.dumps(config.as_dict()).encode())

    def resume(self, config: BCConfig, metrics_bytes: int) -> None:
        """Prepare for the updates after a checkpoint; `config` may have another bound. A policy stays until it is replaced.

        Rows after the checkpoint, which had `metrics_bytes` of them, are cut off: they will be written again.
        """
        if self._writes:
            self._remove(files.RESULT)
            stored = whole_file(self._place.join(files.METRICS)) or b""
            kept = stored[:metrics_bytes]
            self._rows = bytearray(kept[: kept.rfind(b"\n") + 1])  # after a power cut there may be fewer, and half a row
            if self._rows != stored:
                self._write(files.METRICS, bytes(self._rows))
            if config.as_dict() != self.config():
                self._write(files.CONFIG, tomli_w.dumps(config.as_dict()).encode())

    def _remove(self, *names: str) -> None:
        """Remove these files, in this order, and half-written ones of a killed trainer."""
        there = {child.name: child for child in self._place.children()}
        for child in [*(there[name] for name in names if name in there), *filter(is_own_part, there.values())]:
            child.remove()
        keep_names(self._place)

    def append(self, row: Mapping[str, Any]) -> int:
        """Append one row to metrics.jsonl; gives the length of all rows in bytes."""
        line = (json.dumps(row) + "\n").encode()
        self._rows += line
        if self._writes and self._place.is_local:
            self._place.ask("writing", lambda: _append(self._place.join(files.METRICS).path, line))
        return len(self._rows)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether storage is quick enough for another one now; a local disk always is."""
        return self._place.is_local or time.monotonic() >= self._next

    def save(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """Write the checkpoint, with the rows that belong to it before."""
        if self._writes:
            began, counters = time.monotonic(), json.dumps(asdict(state))
            self._flush_rows()
            self._write(files.TENSORS, files.tensor_bytes(tensors, counters))
            self._write(files.STATE, counters.encode())
            ended = time.monotonic()
            self._next = ended + max(EVERY, (ended - began) / SHARE)

    def keep_trackers(self, ids: Mapping[str, str]) -> None:
        """Write what `trackers` reads."""
        self._write(files.TRACKERS, files.json_bytes(ids))

    def keep_policy(self, weights: Mapping[str, Tensor]) -> None:
        """Write the policy; without a result the run is not finished."""
        self._write(files.WEIGHTS, files.tensor_bytes(weights))

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any], *, until_return: float | None = None) -> None:
        """Write the policy, draw the curve, then write the result that marks the run as finished."""
        if self._writes:
            self._flush_rows()
            self.keep_policy(weights)
            curve = io.BytesIO()
            draw_curve(self.metrics(), curve, until_return=until_return)
            self._write(files.CURVE, curve.getvalue())
            self._write(files.RESULT, files.json_bytes(result))

    def _flush_rows(self) -> None:
        """Make sure that every row is in the file, and survives a crash of the machine."""
        if not self._place.is_local:
            self._write(files.METRICS, bytes(self._rows))
        elif self._rows:
            keep_bytes(self._place.join(files.METRICS))

    def _write(self, name: str, content: bytes) -> None:
        if self._writes:
            write_whole(self._place.join(name), content, folder=self._place)


def _append(path: str, line: bytes) -> None:
    with open(path, "ab") as file:
        file.write(line)
