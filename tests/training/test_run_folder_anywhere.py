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
from offline_cli.errors import OutputExists, StorageError
from offline_cli.storage.locations import Location, open_location
from offline_cli.training import pace, run_folder
from offline_cli.training.checkpoints import TrainState
from offline_cli.training.config import BCConfig
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


def test_a_run_that_broke_off_ends_as_an_undisturbed_one(
    write_dataset: Write, place: Location, tmp_path: Path, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", **OPTIONS)
    with monkeypatch.context() as patched:
        real, made = run_folder.Checkpoints.commit, []

        def commit(*args: Any) -> None:
            made.append(1)
            if len(made) == 3:
                raise Stop
            real(*args)

        patched.setattr(run_folder.Checkpoints, "commit", commit)
        with pytest.raises(Stop):
            train_bc(data, place, **OPTIONS)
    assert train_bc(data, place, resume=True).updates == 60
    assert content(place) == content(open_location(tmp_path / "whole"))


def test_it_is_replaced_by_overwrite_and_never_without_it(write_dataset: Write, place: Location) -> None:
    data = write_dataset()
    train_bc(data, place, updates=20)
    before = names(place)
    with pytest.raises(OutputExists, match="a run is there already"):
        train_bc(data, place, updates=20)
    assert train_bc(data, place, updates=3, overwrite=True).updates == 3
    assert names(place) == [name.replace("000000020", "000000003") for name in before]


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
