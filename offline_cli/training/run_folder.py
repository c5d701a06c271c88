"""RunFolder, the files of a run on local or remote storage, and the state and result of a run.

    RUN/policy.json          spaces, network and action scale, to rebuild the policy
    RUN/config.toml          resolved configuration
    RUN/connectors.msgpack   learned state of the learner pipeline's pieces, if any
    RUN/state.safetensors    the checkpoint: weights, optimizer, generators; counters as metadata
    RUN/state.json           the counters again, for people and other programs
    RUN/metrics.jsonl        one row per `log_every` updates
    RUN/policy.safetensors   the finished run's policy; for an interrupted run that of its last checkpoint
    RUN/curve.png, RUN/result.json
    RUN/trackers.json        ids of the run in its trackers; their files are RUN/tensorboard, RUN/wandb, ...
    RUN/.training.lock       on local disks, while a trainer is running

All files are written atomically, by rename or a single upload, except metrics.jsonl on a local disk. A killed process leaves
the old checkpoint or the new one, whose policy can be played; result.json, written last, marks the run as finished. Resuming
cuts off rows of metrics.jsonl that are newer than the checkpoint.

On remote storage, rows of metrics.jsonl are written with checkpoints. Buckets have no lock: two trainers in one folder
overwrite each other's files. No pickle.
"""

from __future__ import annotations

import io
import json
import os
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
from offline_cli.reporting.curves import draw_curves
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
"""In order of removal by a new run: result and checkpoint never coexist with another run's configuration."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Best:
    """The best check so far."""

    score: float  # higher is better: a mean return, or the negative held-out loss
    update: int
    figures: dict[str, Any]  # of that check


@dataclass(slots=True)
class TrainState:
    """Counters of one run; `update` is also the position in the data."""

    update: int = 0  # updates made
    summed: int = 0  # updates in the loss sum since the last row
    samples: int = 0  # steps learned from, without padding
    train_seconds: float = 0.0  # of updates only
    seconds: float = 0.0  # including checks and checkpoints
    loss: float | None = None  # sum of all losses, averaged over the updates of the last row; for cloning nats per action
    losses: dict[str, float] = field(default_factory=dict)  # each loss by name
    figures: dict[str, Any] = field(default_factory=dict)  # of the last check
    best: Best | None = None
    best_val_loss: float | None = None
    stale_checks: int = 0  # checks since the held-out loss last improved
    stopped_by: str | None = None  # "target", "patience", "bound"; None: still training
    metrics_bytes: int = 0  # length of metrics.jsonl at this state
    # Besides the configuration, a resumed run must match these, but for `remembered` and `ancestors`:
    data: str = ""  # DataFacts.digest
    seen: dict[str, Any] = field(default_factory=dict)  # DataFacts.figures
    remembered: list[list[int]] = field(default_factory=list)  # DataFacts.remembered
    ancestors: list[list[list[int]]] = field(default_factory=list)  # `remembered` of the runs of --init-from, and of theirs
    threads: int = 1
    device: str = "cpu"
    pipeline: str = ""  # name of the user's pipeline; empty: the default
    code: dict[str, str] = field(default_factory=dict)  # of environment, network, algorithm and pieces, see `code_of`
    opponents: dict[str, str] = field(default_factory=dict)  # fingerprints of the other agents' policies
    changes: list[str] = field(default_factory=list)  # allowed code changes on resume, as messages
    init_from: dict[str, Any] = field(default_factory=dict)  # `Start.told`; empty without --init-from


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a run. Figures are those of the kept policy; None: not measured."""

    run: str
    updates: int  # in total
    epochs: float  # passes over the data
    seconds: float  # with checks, without reading data
    samples_per_second: float  # steps per second of updates
    loss: float | None  # mean over the last updates, summed over all losses; for cloning nats per action
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; from the confirmation if --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions predicted right
    val_accuracy_majority: float | None  # accuracy of always choosing the most frequent training action
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # update of the kept policy
    stopped_by: str  # "target", "patience", the bound ("updates" or "epochs"), or "dry-run"
    episodes: int  # in the data, including held-out ones
    steps: int
    device: str
    threads: int
    steps_left_out: int = 0  # last steps without a recorded next observation
    notes: list[str] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)  # each loss by name, averaged like `loss`
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": counts
    chosen: dict[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, total, and lowest selected return
    weights: dict[str, Any] = field(default_factory=dict)  # by source: weight, steps, and expected steps per epoch
    val_recall: dict[str, Any] = field(default_factory=dict)  # by action: share of its held-out steps predicted right, or None
    reference: dict[str, Any] = field(default_factory=dict)  # for normalised scores, if all sources have the same
    init_from: dict[str, Any] = field(default_factory=dict)  # run, sha256 of its weights, and the modules from it

    def as_dict(self) -> dict[str, Any]:
        """JSON values; optional parts only if not empty."""
        asked = ("chosen", "weights", "val_recall", "reference", "init_from")
        return {name: value for name, value in asdict(self).items() if value or name not in asked}


def check_same_run(stored: TrainState, wanted: TrainState, allow_changes: bool, where: str) -> None:
    """Raise BadConfig unless a run with the state `stored` can continue as `wanted`: same data, pipeline, device, opponents and
    code.

    Allowed code changes are added to `stored`.
    """
    pairs: dict[str, tuple[Any, Any]] = {"the learner pipeline": (stored.pipeline, wanted.pipeline)}
    pairs["the device"] = stored.device, wanted.device
    for agent in sorted({*stored.opponents, *wanted.opponents}):
        pairs[f"the policy of agent {agent}"] = stored.opponents.get(agent), wanted.opponents.get(agent)
    if stored.data != wanted.data and stored.pipeline == wanted.pipeline:  # the digest depends on the pipeline
        pairs |= {f"the data ({name})": (stored.seen.get(name), one) for name, one in wanted.seen.items()}
        if stored.seen == wanted.seen:
            pairs["the data (episodes, values or order)"] = stored.data, wanted.data
    problems = [
        f"{name} differs: the run has {one or 'the default'}, this call {other or 'the default'}"
        for name, (one, other) in pairs.items()
        if one != other
    ]
    fix = "resume with the options, data and code of the run, train again with --overwrite"
    stored.changes += allowed_changes(stored.code, wanted.code, allow_changes, where=where, fix=fix, others=problems)
    stored.code = wanted.code


def describe_policy(data: TrainingData, config: BCConfig, played_in: EnvironmentSpec | None = None) -> dict[str, Any]:
    """The content of policy.json for `load_policy`, without weights and learned state. `played_in`: environment of the checks.

    Raises BadConfig for a pipeline file with options that JSON cannot represent.
    """
    name = config.network["name"]
    options = {key: value for key, value in config.network_options.items() if key != "dropout"}  # unused while playing
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
    known = {one.id: one for one in (data.recorded_in, played_in) if one is not None}  # the latter takes precedence
    if known:
        kept = filter(None, map(EnvironmentRecord.of, known.values()))
        told[ENVIRONMENTS] = [{**one.as_json(), WRAPPERS: list(one.wrappers)} for one in kept]
    if data.facts.module not in (None, DEFAULT_MODULE_ID):
        told["module"] = data.facts.module  # for information, like the agent
    if config.agent is not None:
        told["agent"] = config.agent
    if data.trained is None:
        return told
    return told | {GIVEN_SPACE: space_to_json(data.spaces[0]), "pipeline": data.trained.to_json()}


class RunFolder:
    """The files of one run at `out`, which may not exist yet. Every method raises StorageError."""

    def __init__(self, out: str | os.PathLike[str] | Location, *, writes: bool = True) -> None:
        """`writes`: False if another process of this training writes; then nothing is changed or locked."""
        self._place = open_location(out)
        self._writes = writes
        self._rows = bytearray()  # of metrics.jsonl
        self.url = self._place.url
        self.local_path = Path(self._place.path).absolute() if self._place.is_local else None

    # ---- reading ----

    def claim(self, *, resume: bool, overwrite: bool) -> None:
        """Raise OutputExists unless this call may write here, UsageError for both options, StorageError for a read-only local
        folder. Changes nothing. A run that has learned nothing, as after an error in a network's first batch, may be replaced.
        """
        if resume and overwrite:
            raise exclusive(self.url, "run")
        is_file = self._place.is_file()
        is_run = not is_file and OURS in (whole_file(self._place.join(files.POLICY)) or b"")
        if is_run and not (resume or overwrite) and self.has_learned():
            fix = "use --resume to continue that run, --overwrite to replace it, or another --out"
            raise OutputExists("a run already exists there", where=self.url, fix=fix)
        if is_file or (not is_run and any(one.name != LOCK and not is_own_part(one) for one in self._place.children())):
            raise OutputExists("other files already exist there", where=self.url, fix="choose another --out")
        if not (is_run and resume):  # resuming a finished run only reads
            self._place.check_writable()

    def has_learned(self) -> bool:
        """Whether there is a result, or a checkpoint after the one at update 0. One that cannot be read counts."""
        try:
            return (
                self._place.join(files.RESULT).exists()
                or bool(self._read(files.STATE, lambda content: files.json_object(content)["update"] > 0))
                or bool(self._read(files.TENSORS, lambda content: files.state_in(content)["update"] > 0))
            )
        except BadData:
            return True

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """The parsed content of a file; None without the file. Raises BadData, naming it, if it is corrupt."""
        content = whole_file(self._place.join(name))
        try:
            return None if content is None else parse(content)
        except (BadData, ValueError, TypeError, KeyError, RecursionError, SafetensorError) as err:
            raise BadData(f"{name} cannot be read: {err}", where=self.url, fix="train again with --overwrite") from err

    def config(self) -> dict[str, Any] | None:
        """The stored configuration, without validation, or None. Raises BadData."""
        return self._read(files.CONFIG, lambda content: tomllib.loads(content.decode()))

    def result(self) -> TrainResult | None:
        """The result of a finished run, or None. Raises BadData."""
        return self._read(files.RESULT, lambda content: TrainResult(**files.json_object(content)))

    def learned(self) -> dict[str, Any] | None:
        """The learned state of the run's connector pieces, or None. Raises BadData."""
        place = self._place.join(files.LEARNED)
        return self._read(files.LEARNED, lambda content: state_from_bytes(content, where=place.url))

    def load(self) -> tuple[TrainState, dict[str, Tensor]] | None:
        """State and tensors of the checkpoint, or None. Raises BadData if it cannot be read."""

        def parse(content: bytes) -> tuple[TrainState, dict[str, Tensor]]:
            counters = files.state_in(content)
            best = counters.pop("best")
            return TrainState(**counters, best=best and Best(**best)), load(content)

        return self._read(files.TENSORS, parse)

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, oldest first. Raises BadData."""
        return self._read(files.METRICS, lambda content: [files.json_object(line) for line in content.splitlines()]) or []

    def trackers(self) -> dict[str, Any]:
        """The id of this run in each of its trackers. Raises BadData."""
        return self._read(files.TRACKERS, files.json_object) or {}

    # ---- writing ----

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager: create the folder and lock it for this process. Raises Locked if another process trains here.

        A folder that was created here and stays empty is removed again.
        """
        if not (self._writes and self._place.is_local):
            yield
            return
        made = self._place.make_folder()
        lock = filelock.FileLock(self._place.join(LOCK).path, blocking=False)
        try:
            lock.acquire()
        except filelock.Timeout as err:
            fix = "wait until it ends, or choose another --out"
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
        """Create the folder, or remove an old run's files: result and checkpoint first, configuration last.

        `learned`: serialized state of connector pieces; None: the policy plays without pieces.
        """
        if self._writes:
            self._place.make_folder()
            self._remove(*REPLACED)
            self._write(files.POLICY, files.json_bytes(policy))
            if learned is not None:
                self._write(files.LEARNED, learned)
            self._write(files.CONFIG, tomli_w.dumps(config.as_dict()).encode())

    def resume(self, config: BCConfig, metrics_bytes: int) -> None:
        """Prepare for updates after a checkpoint; `config` may have another bound. The policy file stays until it is replaced.

        Rows of metrics.jsonl beyond `metrics_bytes` are cut off, because they will be written again.
        """
        if self._writes:
            self._remove(files.RESULT)
            stored = whole_file(self._place.join(files.METRICS)) or b""
            kept = stored[:metrics_bytes]
            self._rows = bytearray(kept[: kept.rfind(b"\n") + 1])  # after a power cut rows may be missing or incomplete
            if self._rows != stored:
                self._write(files.METRICS, bytes(self._rows))
            if config.as_dict() != self.config():
                self._write(files.CONFIG, tomli_w.dumps(config.as_dict()).encode())

    def _remove(self, *names: str) -> None:
        """Remove these files, in this order, and partial files of a killed trainer."""
        there = {child.name: child for child in self._place.children()}
        for child in [*(there[name] for name in names if name in there), *filter(is_own_part, there.values())]:
            child.remove()
        keep_names(self._place)

    def append(self, row: Mapping[str, Any]) -> int:
        """Append one row to metrics.jsonl; return the length of all rows in bytes."""
        line = (json.dumps(row) + "\n").encode()
        self._rows += line
        if self._writes and self._place.is_local:
            self._place.ask("writing", lambda: _append(self._place.join(files.METRICS).path, line))
        return len(self._rows)

    def save(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """Write the metrics rows, then the checkpoint."""
        if self._writes:
            counters = json.dumps(asdict(state))
            self._flush_rows()
            self._write(files.TENSORS, files.tensor_bytes(tensors, counters))
            self._write(files.STATE, counters.encode())

    def keep_trackers(self, ids: Mapping[str, str]) -> None:
        """Write the ids that `trackers` reads."""
        self._write(files.TRACKERS, files.json_bytes(ids))

    def keep_policy(self, weights: Mapping[str, Tensor]) -> None:
        """Write the policy; the run stays unfinished until `finish`."""
        self._write(files.WEIGHTS, files.tensor_bytes(weights))

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any], *, until_return: float | None = None) -> None:
        """Write the policy, draw the curve, then write the result that marks the run as finished."""
        if self._writes:
            self._flush_rows()
            self.keep_policy(weights)
            curve = io.BytesIO()
            draw_curves([("", [self.metrics()])], curve, until_return=until_return)
            self._write(files.CURVE, curve.getvalue())
            self._write(files.RESULT, files.json_bytes(result))

    def _flush_rows(self) -> None:
        """Write all rows and fsync them."""
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
