"""Run folders in memory://, which has no rename and no appending, as object stores have none: nothing else is different."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli import evaluate
from offline_cli.errors import BadData, OutputExists, StorageError
from offline_cli.files.locations import Location, open_location
from offline_cli.training import metrics_file, pace, run_folder
from offline_cli.training.checkpoints import TrainState
from offline_cli.training.config import BCConfig
from offline_cli.training.pace import Pace
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
OPTIONS: dict[str, Any] = {"updates": 60, "batch_size": 32, "checkpoint_every": 10, "val_fraction": 0.25, "eval_every": 15}


@pytest.fixture
def place() -> Location:
    """A folder in memory:// that nobody else has."""
    return open_location(f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture
def folder(place: Location) -> RunFolder:
    made = RunFolder(place)
    made.begin(BCConfig(), {"spaces": 1})
    return made


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that is quick enough for every checkpoint that is asked for."""
    monkeypatch.setattr(run_folder, "EVERY", 0.0)
    monkeypatch.setattr(pace, "SHARE", 1e9)


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((4,), value)}


def names(place: Location) -> list[str]:
    return [file.path.removeprefix(place.path).strip("/") for file in place.files()] if place.exists() else []


def content(place: Location) -> dict[str, Any]:
    """Every file, but for what the clock says, and checkpoints, whose number depends on it."""
    found: dict[str, Any] = {name: place.join(name).read_bytes() for name in names(place) if "checkpoints" not in name}
    rows = [json.loads(line) for line in found["metrics.jsonl"].splitlines()]
    found["metrics.jsonl"] = [{k: v for k, v in row.items() if not k.endswith(("seconds", "second"))} for row in rows]
    del found["result.json"]
    return found


class Stop(Exception):
    """Stands for whatever ends a program."""


def test_it_holds_what_a_local_one_holds(write_dataset: Write, place: Location, tmp_path: Path) -> None:
    data = write_dataset()
    here, there = train_bc(data, tmp_path / "run", **OPTIONS), train_bc(data, place.url, **OPTIONS)
    assert content(place) == content(open_location(tmp_path / "run"))
    assert names(place) == names(open_location(tmp_path / "run"))
    assert (there.run, there.loss, there.val_loss) == (place.url, here.loss, here.val_loss)
    assert evaluate(place.url, env="Sign-v0", episodes=5) == evaluate(tmp_path / "run", env="Sign-v0", episodes=5)


@pytest.mark.parametrize("at", [5, 24, 45])
def test_a_run_that_broke_off_ends_as_an_undisturbed_one(
    write_dataset: Write, place: Location, tmp_path: Path, unhurried: None, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", **OPTIONS)
    with monkeypatch.context() as patched:
        real, made = run_folder.Checkpoints.commit, []

        def commit(*args: Any) -> None:
            made.append(1)
            if len(made) * 10 > at:
                raise Stop
            real(*args)

        patched.setattr(run_folder.Checkpoints, "commit", commit)
        with pytest.raises(Stop):
            train_bc(data, place, **OPTIONS)
    assert train_bc(data, place, resume=True).updates == 60
    assert content(place) == content(open_location(tmp_path / "whole"))


def test_a_finished_run_goes_on_to_a_larger_bound(write_dataset: Write, place: Location, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", **OPTIONS)
    train_bc(data, place, **{**OPTIONS, "updates": 40})
    train_bc(data, place, resume=True, updates=60)
    assert content(place) == content(open_location(tmp_path / "whole"))


def test_it_is_replaced_by_overwrite_and_never_without_it(write_dataset: Write, place: Location) -> None:
    data = write_dataset()
    train_bc(data, place, updates=20)
    before = names(place)
    with pytest.raises(OutputExists, match="a run is there already"):
        train_bc(data, place, updates=20)
    assert train_bc(data, place, updates=3, overwrite=True).updates == 3
    assert names(place) == [name.replace("000000020", "000000003") for name in before]


def test_what_is_no_run_is_never_taken(write_dataset: Write, place: Location) -> None:
    place.fs.pipe_file(place.join("thesis.tex").path, b"do not lose")
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputExists, match="something else"):
            train_bc(write_dataset(name=f"data-{how}"), place, updates=3, **how)
    assert names(place) == ["thesis.tex"]


def test_a_dry_run_writes_nothing(write_dataset: Write, place: Location) -> None:
    train_bc(write_dataset(), place, updates=3, dry_run=True)
    assert not place.exists()


# ---- a kill at any moment ----


class Killed(BaseException):
    """Not an Exception, so that nothing in between catches it, as nothing catches a kill."""


def _requests(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """Let that many changes of the storage succeed, then die as a killed process would."""
    left = [allowed]

    def counted(name: str) -> None:
        real = getattr(MemoryFileSystem, name)

        def request(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(MemoryFileSystem, name, request)

    for name in ("pipe_file", "rm_file"):
        counted(name)


def test_dying_inside_a_save_leaves_the_checkpoint_before_or_after_it(
    folder: RunFolder, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    outcomes = set()
    for allowed in range(7):
        update = 10 + allowed
        with monkeypatch.context() as patched:
            _requests(patched, allowed)
            with contextlib.suppress(Killed):
                RunFolder(place).save_checkpoint(TrainState(update=update), tensors(float(update)))
        loaded = RunFolder(place).load_checkpoint()
        assert loaded is not None
        assert loaded[0].update in (5, update)
        assert float(loaded[1]["weights"][0]) == (1.0 if loaded[0].update == 5 else update)
        outcomes.add(loaded[0].update == update)
        folder.save_checkpoint(TrainState(update=100 + 2 * allowed), tensors(0.0))
        folder.save_checkpoint(TrainState(update=5), tensors(1.0))
        assert len(place.join("checkpoints").children()) == 1
    assert outcomes == {True, False}


@pytest.mark.parametrize("allowed", range(8))
def test_dying_while_a_run_begins_leaves_a_place_that_can_begin_again(
    place: Location, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    with monkeypatch.context() as patched:
        _requests(patched, allowed)
        with contextlib.suppress(Killed), RunFolder(place).at_work("train"):
            RunFolder(place).begin(BCConfig(), {"spaces": 1}, b"\x80")
    run = RunFolder(place)
    run.claim(resume=True, overwrite=False)
    assert run.load_checkpoint() is None
    with run.at_work("train"):
        run.begin(BCConfig(), {"spaces": 1})
    assert names(place) == ["config.toml", "policy.json"]


@pytest.mark.parametrize("allowed", range(14))
def test_dying_while_a_run_is_replaced_never_leaves_an_old_checkpoint_under_a_new_config(
    folder: RunFolder, place: Location, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    folder.append_metrics({"update": 5, "loss": 1.0})
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    folder.finish(tensors(1.0), {"loss": 1.0})
    with monkeypatch.context() as patched:
        _requests(patched, allowed)
        with contextlib.suppress(Killed):
            RunFolder(place).begin(BCConfig(lr=1.0), {"spaces": 2})
    run = RunFolder(place)
    run.claim(resume=False, overwrite=True)
    if run.resolved_config().lr == 1.0:
        assert run.load_checkpoint() is None
        assert run.metrics() == []
        assert not place.join("policy.safetensors").exists()
    run.begin(BCConfig(lr=1.0), {"spaces": 2})
    assert names(place) == ["config.toml", "policy.json"]


def test_a_checkpoint_without_its_tensors_is_named(folder: RunFolder, place: Location) -> None:
    folder.save_checkpoint(TrainState(update=5), tensors(1.0))
    place.join("checkpoints/000000005/tensors.safetensors").remove()
    with pytest.raises(BadData, match="checkpoints/000000005 cannot be read"):
        folder.load_checkpoint()


# ---- how often ----


def test_rows_wait_for_their_time_or_for_a_checkpoint(folder: RunFolder, place: Location) -> None:
    stored = place.join("metrics.jsonl")
    first = folder.append_metrics({"update": 1})
    assert stored.size() == first, "the first row is written at once"
    second = folder.append_metrics({"update": 2})
    assert stored.size() == first, "the next ones wait"
    assert [row["update"] for row in folder.metrics()] == [1, 2]
    folder.save_checkpoint(TrainState(update=2, metrics_bytes=second), tensors(1.0))
    assert stored.size() == second


def test_rows_are_written_once_their_time_has_come(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_file, "EVERY", 0.0)
    monkeypatch.setattr(pace, "SHARE", 1e9)
    run = RunFolder(place)
    for update in range(3):
        assert run.append_metrics({"update": update}) == place.join("metrics.jsonl").size()


def test_rows_of_a_run_that_goes_on_are_cut_back_to_its_checkpoint(folder: RunFolder, place: Location) -> None:
    length = folder.append_metrics({"update": 1})
    folder.append_metrics({"update": 2})
    folder.save_checkpoint(TrainState(update=2), tensors(1.0))
    RunFolder(place).go_on(BCConfig(), length)
    assert place.join("metrics.jsonl").read_bytes() == b'{"update": 1}\n'


def test_checkpoints_that_are_due_too_soon_are_left_out(
    write_dataset: Write, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, real = list[int](), RunFolder.save_checkpoint

    def save(self: RunFolder, state: TrainState, found: Any) -> None:
        saved.append(state.update)
        real(self, state, found)

    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    monkeypatch.setattr(run_folder, "EVERY", 3600.0)
    train_bc(write_dataset(), place, **OPTIONS)
    assert saved == [0, 60], "the first and the last one are always made"


def test_a_local_disk_gets_every_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin(BCConfig(), {})
    run.save_checkpoint(TrainState(update=5), tensors(1.0))
    assert run.checkpoint_is_due


def test_what_is_slow_is_due_the_later_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("offline_cli.training.pace.time.monotonic", lambda: now[0])
    one = Pace(10.0)
    assert one.is_due
    for took, pause in ((0.1, 10.0), (2.0, 40.0)):
        with one.timed():
            now[0] += took
        now[0] += pause - 0.01
        assert not one.is_due
        now[0] += 0.02
        assert one.is_due


# ---- a storage that fails ----


def test_a_failure_says_from_where_to_go_on_and_resume_does(
    write_dataset: Write, place: Location, tmp_path: Path, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", **OPTIONS)
    real = MemoryFileSystem.pipe_file

    def broken(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if "000000030" in path:
            raise OSError("the storage is on fire")
        return real(self, path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "pipe_file", broken)
        with pytest.raises(StorageError, match="on fire") as caught:
            train_bc(data, place, **OPTIONS)
    assert caught.value.exit_code == 5
    assert caught.value.where == f"{place.url}/checkpoints/000000030/tensors.safetensors"
    assert "--resume continues: from its checkpoint at update 20" in caught.value.fix
    train_bc(data, place, resume=True)
    assert content(place) == content(open_location(tmp_path / "whole"))
