"""One trainer in a run folder at a time: a second one is told of the first, and one that was replaced stops."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets import lease_record
from offline_cli.errors import Interrupted, Locked, TakenOver
from offline_cli.files.locations import Location, open_location
from offline_cli.training import run_lock
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


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_trainer_is_told_of_the_first_before_any_data_is_read(place: Location, how: dict[str, bool]) -> None:
    first = RunFolder(place)
    with first.at_work("offline-cli train-bc data --out run"):
        first.begin(BCConfig(), {})
        with pytest.raises(Locked, match=f"process {os.getpid()} on {socket.gethostname()}") as caught:
            train_bc("nowhere", place, **how)
    assert caught.value.exit_code == 5
    assert caught.value.details["holder"]["command"] == "offline-cli train-bc data --out run"
    assert not place.join(NOTE).exists()


def test_a_second_process_is_told_of_the_first(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").at_work("the first"):
        words = [sys.executable, "-m", "offline_cli", "train-bc", "data", "--out", str(tmp_path / "run"), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "locked"


def test_of_two_that_looked_at_once_the_later_one_is_refused(write_dataset: Write, place: Location) -> None:
    late = RunFolder(place)
    late.claim(resume=False, overwrite=False)
    train_bc(write_dataset(), place, updates=3)
    with pytest.raises(Locked, match="started or resumed a run here meanwhile"), late.at_work("late"):
        pytest.fail("it must not get this far")
    assert not place.join(NOTE).exists()
    assert RunFolder(place).result() is not None


def test_a_trainer_that_was_killed_keeps_nobody_out(write_dataset: Write, place: Location) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_a_note(place, pid=ended.pid, process_started="1")
    assert train_bc(write_dataset(), place, updates=3).updates == 3
    assert not place.join(NOTE).exists()


@pytest.mark.nightly
def test_a_trainer_elsewhere_keeps_others_out_until_its_beat_is_old(
    write_dataset: Write, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_a_note(place, host="elsewhere")
    data = write_dataset()
    with pytest.raises(Locked, match="elsewhere"):
        train_bc(data, place, updates=3, resume=True)
    monkeypatch.setattr(lease_record, "STALE", 0.1)
    monkeypatch.setattr(lease_record, "WATCH", 0.2)
    time.sleep(0.3)
    assert train_bc(data, place, updates=3, resume=True).updates == 3


def test_a_note_that_nobody_can_read_keeps_nobody_out(write_dataset: Write, place: Location) -> None:
    place.make_folder()
    place.fs.pipe_file(place.join(NOTE).path, b"{")
    assert train_bc(write_dataset(), place, updates=3).updates == 3


def test_a_trainer_that_was_replaced_stops_and_saves_nothing(
    write_dataset: Write, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, saved = RunFolder.append_metrics, list[bytes]()

    def append(self: RunFolder, row: Any) -> int:
        length = real(self, row)
        if row["update"] >= 10 and not saved:
            set_note(place, token="another's")
            saved.append(json.dumps([file.path for file in place.files()]).encode())
        return length

    monkeypatch.setattr(RunFolder, "append_metrics", append)
    with pytest.raises(TakenOver):
        train_bc(write_dataset(), place, updates=30, eval_every=10, val_fraction=0.25)
    assert json.dumps([file.path for file in place.files()]).encode() == saved[0]
    assert json.loads(place.join(NOTE).read_bytes())["token"] == "another's"


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


def test_others_that_come_and_go_all_the_time_end_in_an_error(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise run_lock.Changed

    monkeypatch.setattr(run_lock.WritingLock, "acquire", gone)
    with pytest.raises(Locked, match="another process started or resumed"), RunFolder(place).at_work("train"):
        pytest.fail("it must not get this far")
    assert not place.exists()
