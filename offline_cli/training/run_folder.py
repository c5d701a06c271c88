"""A run folder on disk: config, policy, checkpoints, metrics; refuses to touch a folder that is not one.

    RUN/config.toml            resolved configuration
    RUN/policy.json            spaces, network and action scale: what it takes to build the policy again
    RUN/policy.safetensors     the finished run's policy
    RUN/connectors.msgpack     what the pieces of its learner pipeline learned, where it has one
    RUN/checkpoints/000000500/ weights, optimizer and generators (tensors.safetensors), counters (state.json)
    RUN/metrics.jsonl          one row per `log_every` updates
    RUN/curve.png, RUN/result.json

Every file but metrics.jsonl is written under another name and renamed; a checkpoint is a folder that is renamed when it is
whole, and the one before it goes only then. config.toml comes first and marks the folder as a run. So a kill at any moment
leaves a run that `resume` takes, with its newest whole checkpoint. Rows of metrics.jsonl that are newer are cut off then.
No pickle.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from offline_cli.connectors.state_bytes import state_from_bytes
from offline_cli.errors import BadData, OutputExists, UsageError
from offline_cli.report.curves import draw_curve
from offline_cli.training.config import BCConfig, resolve_config
from offline_cli.training.state import TrainState

__all__ = ["RunFolder"]

CONFIG, POLICY, LEARNED, WEIGHTS, METRICS, RESULT, CURVE = (
    "config.toml",
    "policy.json",
    "connectors.msgpack",
    "policy.safetensors",
    "metrics.jsonl",
    "result.json",
    "curve.png",
)
CHECKPOINTS: Final = "checkpoints"
TENSORS, STATE = "tensors.safetensors", "state.json"
UNFINISHED: Final = "_part-"


class RunFolder:
    """The files of one run at `path`, which need not exist yet."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        name = os.fspath(out)
        if "://" in name and not name.startswith("file://"):
            fix = "train into a local folder, then copy it"
            raise UsageError("a run folder is written on this machine's disk", where=name, fix=fix)
        self.path = Path(name.removeprefix("file://"))

    # ---- what is there ----

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return (self.path / CONFIG).is_file()

    @property
    def is_free(self) -> bool:
        """Whether nothing is here, or no more than what a kill left of the first file."""
        if not self.path.is_dir():
            return not self.path.exists()
        return all(path.name == f"{UNFINISHED}{CONFIG}" for path in self.path.iterdir())

    def claim(self, *, resume: bool, overwrite: bool) -> None:
        """Raise OutputExists unless this call may write here, UsageError for both at once; touches nothing."""
        if resume and overwrite:
            fix = "--resume to go on with the run, or --overwrite to begin again"
            raise UsageError("a run cannot be both gone on with and replaced", where=str(self.path), fix=fix)
        if self.is_free or (self.is_run and (resume or overwrite)):
            return
        if self.is_run:
            fix = "--resume to go on with that run, --overwrite to replace it, or another --out"
            raise OutputExists("a run is there already", where=str(self.path), fix=fix)
        raise OutputExists("something else is there already", where=str(self.path), fix="choose another --out")

    def config(self) -> dict[str, Any]:
        """The stored configuration. Raises BadData where it cannot be read."""
        try:
            return tomllib.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise self._broken(CONFIG, err) from err

    def resolved_config(self) -> BCConfig:
        """The stored configuration, checked."""
        return resolve_config({}, stored=self.config())

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run; None: it is not finished."""
        path = self.path / RESULT
        return self._json(path) if path.is_file() else None

    def learned(self) -> dict[str, Any] | None:
        """What connector pieces had learned when the run began; None: it keeps no such state. Raises BadData."""
        path = self.path / LEARNED
        if not path.is_file():
            return None
        try:
            return state_from_bytes(path.read_bytes(), where=str(path))
        except (OSError, BadData) as err:
            raise self._broken(LEARNED, err) from err

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl."""
        path = self.path / METRICS
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []

    # ---- writing ----

    def begin(self, config: BCConfig, policy: Mapping[str, Any], learned: bytes | None = None) -> None:
        """Make the folder, or empty it of the run that was here: its checkpoints first, so that none outlives its config.

        `learned`: the state of connector pieces; None: the policy plays without any.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        gone = self.path / f"{UNFINISHED}{CHECKPOINTS}"
        shutil.rmtree(gone, ignore_errors=True)
        if (self.path / CHECKPOINTS).is_dir():
            os.replace(self.path / CHECKPOINTS, gone)  # all of them at once
            shutil.rmtree(gone)
        for name in (RESULT, WEIGHTS, LEARNED, METRICS, CURVE):
            (self.path / name).unlink(missing_ok=True)
        self._write_config(config)
        _write(self.path / POLICY, _json_bytes(policy))
        if learned is not None:
            _write(self.path / LEARNED, learned)
        (self.path / CHECKPOINTS).mkdir()

    def go_on(self, config: BCConfig, metrics_bytes: int) -> None:
        """Make ready for the updates after a checkpoint; `config` may have another bound. A policy stays until its successor.

        Rows after the checkpoint, which had `metrics_bytes` of them, are cut off: they will be written again.
        """
        (self.path / RESULT).unlink(missing_ok=True)
        path = self.path / METRICS
        if path.is_file() and path.stat().st_size > metrics_bytes:
            os.truncate(path, metrics_bytes)
        if config.as_dict() != self.config():
            self._write_config(config)

    def _write_config(self, config: BCConfig) -> None:
        _write(self.path / CONFIG, tomli_w.dumps(config.as_dict()).encode())

    def save_checkpoint(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint at `state.update`, then remove older ones."""
        checkpoints = self.path / CHECKPOINTS
        older = list(checkpoints.iterdir())
        name = f"{state.update:09d}"
        while checkpoints / name in older:  # saved before, at the same update: names must keep growing
            name += "a"
        part = checkpoints / f"{UNFINISHED}{name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        _write(part / TENSORS, _tensor_bytes(tensors))
        _write(part / STATE, _json_bytes(state.as_dict()))
        os.replace(part, checkpoints / name)
        for path in older:
            shutil.rmtree(path, ignore_errors=path == part)

    def load_checkpoint(self) -> tuple[TrainState, dict[str, Tensor]] | None:
        """The newest whole checkpoint; None: there is none. Raises BadData where it cannot be read."""
        checkpoints = self.path / CHECKPOINTS
        names = [path.name for path in checkpoints.iterdir()] if checkpoints.is_dir() else []
        whole = sorted(name for name in names if not name.startswith(UNFINISHED))
        if not whole:
            return None
        folder = checkpoints / whole[-1]
        try:
            return TrainState.from_dict(self._json(folder / STATE)), load_file(folder / TENSORS)
        except (OSError, ValueError, TypeError, SafetensorError) as err:
            raise self._broken(f"{CHECKPOINTS}/{folder.name}", err) from err

    def append_metrics(self, row: Mapping[str, Any]) -> int:
        """Append one row; gives the file's length in bytes."""
        with (self.path / METRICS).open("ab") as file:
            file.write(_json_bytes(row))
            return file.tell()

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """Draw the curve and write the policy, then the result that marks the run as finished."""
        curve = io.BytesIO()
        draw_curve(self.metrics(), curve, until_return=self.config().get("until_return"))
        _write(self.path / CURVE, curve.getvalue())
        _write(self.path / WEIGHTS, _tensor_bytes(weights))
        _write(self.path / RESULT, _json_bytes(result))

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise self._broken(path.name, err) from err
        return loaded

    def _broken(self, name: str, err: Exception) -> BadData:
        return BadData(f"{name} cannot be read: {err}", where=str(self.path), fix="train again with --overwrite")


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value) + "\n").encode()


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """safetensors by way of memory: its own writer reports a full disk as an error of the format."""
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def _write(path: Path, content: bytes) -> None:
    """Write under another name, wait until the bytes are on the disk, rename: no name ever stands for half a file."""
    part = path.with_name(f"{UNFINISHED}{path.name}")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
