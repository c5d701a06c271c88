"""One trainer in a run folder at a time: a second one is told of the first, and one that was replaced stops."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import Interrupted, Locked
from offline_cli.storage.locations import Location, open_location
from offline_cli.training.config import BCConfig
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
NOTE = "_training.json"


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A run folder that does not exist yet."""
    return open_location(tmp_path / "run" if request.param == "local" else f"memory://{uuid.uuid4().hex}/run")


def set_note(place: Location, **changes: Any) -> None:
    target = place.join(NOTE)
    note = json.loads(target.read_bytes())
    target.fs.pipe_file(target.path, json.dumps({**note, **changes}).encode())


def leave_a_note(place: Location, **changes: Any) -> None:
    """What a killed trainer leaves that had written nothing else."""
    kept = b""
    with RunFolder(place).at_work("offline-cli train-bc data --out run"):
        kept = place.join(NOTE).read_bytes()
    place.make_folder()
    place.fs.pipe_file(place.join(NOTE).path, kept)
    set_note(place, **changes)


@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}])
def test_a_second_trainer_is_told_of_the_first_before_any_data_is_read(place: Location, how: dict[str, bool]) -> None:
    first = RunFolder(place)
    with first.at_work("offline-cli train-bc data --out run"):
        first.begin(BCConfig(), {})
        with pytest.raises(Locked, match=f"process {os.getpid()} on {socket.gethostname()}") as caught:
            train_bc("nowhere", place, **how)
    assert caught.value.exit_code == 5
    assert caught.value.details["holder"]["command"] == "offline-cli train-bc data --out run"
    assert not place.join(NOTE).exists()


def test_a_trainer_that_was_killed_keeps_nobody_out(write_dataset: Write, place: Location) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_a_note(place, pid=ended.pid, process_started="1")
    assert train_bc(write_dataset(), place, updates=3).updates == 3
    assert not place.join(NOTE).exists()


def test_a_trainer_that_was_interrupted_leaves_no_note(
    write_dataset: Write, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    def send(progress: Any) -> None:
        if progress.stage == "training":
            os.kill(os.getpid(), signal.SIGINT)
            monkeypatch.setattr(os, "kill", lambda *_: None)

    with pytest.raises(Interrupted):
        train_bc(write_dataset(), place, updates=30, on_progress=send)
    assert RunFolder(place).is_run
    assert not place.join(NOTE).exists()


def test_a_trainer_that_fails_before_it_begins_leaves_nothing(place: Location) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(place).at_work("train"):
        raise ZeroDivisionError
    assert not place.exists()


def test_resuming_a_finished_run_removes_the_note_of_a_trainer_that_died_after_its_result(
    place: Location, write_dataset: Write
) -> None:
    data = write_dataset()
    train_bc(data, place, updates=2)
    files = {file.path: file.read_bytes() for file in place.files()}
    left = RunFolder(place)
    with pytest.raises(Killed), left.at_work("train"):
        note = place.join(NOTE).read_bytes()
        raise Killed
    place.join(NOTE).fs.pipe_file(place.join(NOTE).path, note)
    set_note(place, pid=2**22, process_started="1")
    train_bc(data, place, updates=2, resume=True)
    assert {file.path: file.read_bytes() for file in place.files()} == files


class Killed(BaseException):
    """As a signal that cannot be caught."""
