"""One writer at a time: a second one is told, a dead one is taken over from, one of another host needs the user's word."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, OfflineCliError, OutputExists, TakenOver
from offline_cli.storage.locations import Location

Make = Callable[..., EpisodeBatch]
WriterFor = Callable[..., DatasetWriter]


class Crash(Exception):
    """Stands for anything that ends a writing."""


def set_note(place: Location, **changes: Any) -> None:
    target = place.join("_writing.json")
    note = json.loads(target.read_bytes())
    target.fs.pipe_file(target.path, json.dumps({**note, "left": False, **changes}).encode())


@pytest.fixture
def unfinished(place: Location, make_batch: Make, writer_for: WriterFor) -> Location:
    """What a writer left that broke off after two shards."""
    with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1, 1)))
        raise Crash
    return place


def resumed(place: Location, writer_for: WriterFor) -> None:
    with writer_for(place, max_rows_per_file=1, resume=True) as writer:
        assert writer.episodes_written == 2
        writer.commit()


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_writer_gets_exit_5_and_the_name_of_the_first(
    place: Location, how: dict[str, bool], make_batch: Make, writer_for: WriterFor
) -> None:
    with writer_for(place) as first:
        with pytest.raises(Locked) as caught, writer_for(place, **how):
            pass
        first.write(make_batch())
        first.commit()
    assert (caught.value.exit_code, caught.value.code) == (5, "locked")
    assert caught.value.details["holder"]["host"] == socket.gethostname()
    assert caught.value.details["holder"]["pid"] == os.getpid()
    assert Dataset.open(place).manifest.counts.episodes == 3


def test_so_is_a_process_of_this_machine_that_has_died(unfinished: Location, writer_for: WriterFor) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    set_note(unfinished, pid=dead.pid)
    resumed(unfinished, writer_for)


def test_so_is_one_whose_number_another_process_has_by_now(unfinished: Location, writer_for: WriterFor) -> None:
    set_note(unfinished, pid=os.getppid(), process_started="1")
    resumed(unfinished, writer_for)


def test_a_process_of_this_machine_that_runs_is_not(unfinished: Location, writer_for: WriterFor) -> None:
    set_note(unfinished, pid=os.getppid(), process_started="")
    with pytest.raises(Locked):
        resumed(unfinished, writer_for)
    with pytest.raises(Locked):
        check_target(unfinished, resume=True, force_unlock=True)


def test_one_of_another_host_needs_force_unlock(unfinished: Location, writer_for: WriterFor) -> None:
    set_note(unfinished, host="another")
    with pytest.raises(Locked) as caught:
        resumed(unfinished, writer_for)
    assert "--resume --force-unlock" in caught.value.fix
    check_target(unfinished, resume=True, force_unlock=True)
    resumed(unfinished, writer_for)


@pytest.mark.parametrize("note", [None, {"token": "another's"}, {"left": True}])
def test_a_writer_that_was_unlocked_meanwhile_stops_and_touches_nothing(
    place: Location, note: dict[str, Any] | None, make_batch: Make, writer_for: WriterFor
) -> None:
    with pytest.raises(TakenOver) as caught, writer_for(place, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1)))
        if note is None:
            place.join("_writing.json").remove()
        else:
            set_note(place, **note)
        writer.write(make_batch((1, 1), first_id=2))
    assert caught.value.exit_code == 5
    assert len(place.join("data").files()) == 1
    assert not place.join("manifest.json").exists()


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_of_many_that_begin_at_once_one_writes(
    place: Location, how: dict[str, bool], make_batch: Make, writer_for: WriterFor
) -> None:
    begun, written = threading.Barrier(8), list[str]()

    def write() -> None:
        begun.wait()
        try:
            with writer_for(place, **how) as writer:
                writer.write(make_batch())
                held.wait(10)
                writer.commit()
        except OfflineCliError as error:
            written.append(error.code)
        else:
            written.append("written")
        held.set()

    held = threading.Event()
    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written.count("written") >= 1
    assert set(written) <= {"written", "locked", OutputExists.code}
    assert Dataset.open(place).manifest.counts.episodes == 3


def test_an_empty_note_of_a_killed_writer_is_overwritten(place: Location, make_batch: Make, writer_for: WriterFor) -> None:
    place.fs.makedirs(place.path, exist_ok=True)
    place.fs.pipe_file(place.join("_writing.json").path, b"")
    with writer_for(place, overwrite=True) as writer:
        writer.write(make_batch())
        writer.commit()
    assert Dataset.open(place).manifest.counts.episodes == 3
