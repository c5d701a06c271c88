"""Run folders, on disk and in memory://: what may be written where; a kill at any moment leaves a checkpoint to resume from."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.errors import BadData, Locked, OutputExists, StorageError
from offline_cli.storage.locations import Location, open_location
from offline_cli.training.config import BCConfig
from offline_cli.training.run_folder import Best, RunFolder, TrainState
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
POLICY = {"format": "offline-cli-policy"}


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A run folder that does not exist yet."""
    return open_location(tmp_path / "run" if request.param == "local" else f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture
def folder(place: Location) -> RunFolder:
    made = RunFolder(place)
    made.begin(BCConfig(), POLICY)
    return made


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((4,), value), "step": torch.tensor(value, dtype=torch.float64)}


def test_a_checkpoint_comes_back_as_it_was(folder: RunFolder) -> None:
    state = TrainState(update=7, loss=0.1, best=Best(3.0, 5, {"x": 1.0}), figures={"x": float("nan")}, stopped_by="bound")
    folder.save(state, tensors(2.5))
    loaded = folder.load()
    assert loaded is not None
    assert str(loaded[0]) == str(state)
    assert all(torch.equal(loaded[1][name], tensor) for name, tensor in tensors(2.5).items())


# ---- kills ----


class Killed(BaseException):
    """Not an Exception, so that nothing in between catches it, as nothing catches a kill."""


def _operations(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """Let that many changes of the storage succeed, then die as a killed process would."""
    left = [allowed]

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, operation)

    for name in ("replace", "fsync", "remove", "mkdir"):
        counted(os, name)
    for name in ("pipe_file", "rm_file"):
        counted(MemoryFileSystem, name)


@pytest.mark.parametrize("allowed", range(7))
def test_dying_inside_a_save_leaves_the_checkpoint_before_or_after_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    folder.save(TrainState(update=5), tensors(1.0))
    with monkeypatch.context() as patched:
        _operations(patched, allowed)
        with contextlib.suppress(Killed):
            folder.save(TrainState(update=10), tensors(2.0))
    loaded = folder.load()
    assert loaded is not None
    assert (loaded[0].update, float(loaded[1]["weights"][0])) in {(5, 1.0), (10, 2.0)}


@pytest.mark.parametrize("allowed", range(14))
def test_dying_while_a_run_is_replaced_never_leaves_an_old_checkpoint_under_a_new_config(
    folder: RunFolder, place: Location, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    folder.save(TrainState(update=5), tensors(1.0))
    folder.finish(tensors(1.0), {"loss": 1.0})
    with monkeypatch.context() as patched:
        _operations(patched, allowed)
        with contextlib.suppress(Killed):
            folder.begin(BCConfig(lr=1.0), POLICY)
    folder.claim(resume=True, overwrite=False)
    folder.claim(resume=False, overwrite=True)
    stored = folder.config()
    if stored is None or stored["lr"] == 1.0:
        assert folder.load() is None
        assert not place.join("policy.safetensors").exists()
    folder.begin(BCConfig(lr=1.0), POLICY)
    assert sorted(child.name for child in place.children()) == ["config.toml", "policy.json"]


def test_metrics_are_cut_back_to_the_checkpoint_even_if_half_a_row_is_left(folder: RunFolder, place: Location) -> None:
    folder.append({"update": 1})
    length = folder.append({"update": 2})
    folder.append({"update": 3})
    folder.save(TrainState(update=2), tensors(1.0))
    folder.resume(BCConfig(), length - 4)
    folder.append({"update": 4})
    folder.save(TrainState(update=4), tensors(1.0))
    assert folder.metrics() == [{"update": 1}, {"update": 4}]


# ---- damage ----


@pytest.mark.parametrize("damage", [lambda whole: whole[:20], lambda whole: b"\xff" * 40, lambda whole: b""])
def test_a_broken_checkpoint_is_named_and_can_be_replaced(
    write_dataset: Write, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    data, run = write_dataset(), tmp_path / "run"
    train_bc(data, run, updates=2)
    file = run / "state.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadData, match=r"state\.safetensors"):
        train_bc(data, run, updates=2, resume=True)
    assert train_bc(data, run, updates=2, overwrite=True).updates == 2


# ---- whose folder it is ----


def test_a_run_is_replaced_by_overwrite_alone_and_the_users_own_files_stay(write_dataset: Write, tmp_path: Path) -> None:
    data, run = write_dataset(), tmp_path / "run"
    train_bc(data, run, updates=4)
    (run / "notes.txt").write_text("mine")
    (run / "_part-0123abcd-state.json").write_bytes(b'{"sha2')  # of a killed trainer
    with pytest.raises(OutputExists):
        train_bc(data, run, updates=3)
    assert train_bc(data, run, updates=3, overwrite=True).updates == 3
    assert (run / "notes.txt").read_text() == "mine"
    assert not list(run.glob("_part*"))


# ---- one trainer at a time ----


@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}])
def test_a_second_trainer_is_refused_before_any_data_is_read(tmp_path: Path, how: dict[str, bool]) -> None:
    first = RunFolder(tmp_path / "run")
    with first.locked():
        first.begin(BCConfig(), POLICY)
        with pytest.raises(Locked) as caught:
            train_bc("nowhere", tmp_path / "run", **how)
    assert caught.value.exit_code == 5
    assert sorted(os.listdir(tmp_path / "run")) == ["config.toml", "policy.json"]


@pytest.mark.integration
def test_a_trainer_that_was_killed_keeps_nobody_out(write_dataset: Write, tmp_path: Path) -> None:
    script = "import os, sys\nfrom offline_cli.training.run_folder import RunFolder\n"
    script += "held = RunFolder(sys.argv[1]).locked()\nheld.__enter__()\nos._exit(9)"
    subprocess.run([sys.executable, "-c", script, tmp_path / "run"], check=False)
    assert os.listdir(tmp_path / "run") == [".training.lock"]
    assert train_bc(write_dataset(), tmp_path / "run", updates=3).updates == 3


def test_a_disk_that_fills_says_from_where_to_resume(
    write_dataset: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, real, saves = write_dataset(), os.replace, []

    def full(source: str, target: str) -> None:
        saves.append(Path(target).name)
        if saves.count("state.safetensors") == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    (tmp_path / "c.toml").write_text("checkpoint_every = 10\n")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError) as caught:
        train_bc(data, tmp_path / "run", updates=60, config=tmp_path / "c.toml")
    assert str(tmp_path / "run") in caught.value.where
    assert "--resume" in caught.value.fix
