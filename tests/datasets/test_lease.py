"""One writer at a time: a second one is told, a dead one is taken over from, and one that sleeps through it stops."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.lease_record import Process, WritingNote
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, OutputExists, TakenOver
from offline_cli.storage import staging
from offline_cli.storage.locations import Location

Make = Callable[..., EpisodeBatch]
WriterFor = Callable[..., DatasetWriter]
HERE = Path(__file__).resolve().parent


class Crash(Exception):
    """Stands for anything that ends a writing."""


def note_of(place: Location) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.join("_writing.json").read_bytes())
    return found


def set_note(place: Location, **changes: Any) -> None:
    """Change the note, and give it the age of its beat where the storage allows."""
    target = place.join("_writing.json")
    target.fs.pipe_file(target.path, json.dumps({**note_of(place), "left": False, **changes}).encode())


@pytest.fixture
def unfinished(place: Location, make_batch: Make, writer_for: WriterFor) -> Location:
    """What a writer left that broke off after two shards."""
    with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1, 1)))
        raise Crash
    return place


def resumed(place: Location, writer_for: WriterFor) -> None:
    with writer_for(place, max_rows_per_file=1, resume=True) as writer:
        writer.commit()


class TestASecondWriter:
    """Whatever it was told to do, it may not while the first is at work."""

    @pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
    def test_it_gets_exit_5_and_the_name_of_the_first(
        self, place: Location, how: dict[str, bool], make_batch: Make, writer_for: WriterFor
    ) -> None:
        with writer_for(place) as first:
            with pytest.raises(Locked) as caught, writer_for(place, **how):
                pass
            first.write(make_batch())
            assert first.commit().counts.episodes == 3
        error, note = caught.value, Process.this()
        assert (error.exit_code, error.code) == (5, "locked")
        for named in (str(note.pid), note.host, "offline-cli convert SRC --out D", "last heard from 0 s ago"):
            assert named in error.what
        assert "--resume" in error.fix
        assert {"host", "pid", "command", "age", "started"} == error.as_dict()["holder"].keys()

    def test_a_writer_elsewhere_counts_while_its_beat_is_young(self, unfinished: Location, writer_for: WriterFor) -> None:
        set_note(unfinished, host=f"not-{socket.gethostname()}", pid=2**22 + 1)
        with pytest.raises(Locked, match=f"not-{socket.gethostname()}"):
            resumed(unfinished, writer_for)
        with pytest.raises(Locked), writer_for(unfinished):
            pass

    def test_what_it_is_refused_for_stays_as_it_was(self, unfinished: Location, writer_for: WriterFor) -> None:
        set_note(unfinished, host=f"not-{socket.gethostname()}")
        before = {file.path: file.read_bytes() for file in unfinished.files()}
        with pytest.raises(Locked), writer_for(unfinished, overwrite=True):
            pass
        assert {file.path: file.read_bytes() for file in unfinished.files()} == before


class TestTakingOver:
    """From whom is gone, and at once where that is certain."""

    def test_a_process_that_has_ended_on_this_machine(self, unfinished: Location, writer_for: WriterFor) -> None:
        set_note(unfinished, pid=2**22 + 1)
        resumed(unfinished, writer_for)

    def test_a_later_process_with_the_same_number(self, unfinished: Location, writer_for: WriterFor) -> None:
        if not Path("/proc/self/stat").exists():
            pytest.skip("this system does not say when a process began")
        set_note(unfinished, pid=os.getppid(), process_started="1")
        resumed(unfinished, writer_for)

    def test_a_writer_that_broke_off_says_so(self, unfinished: Location) -> None:
        target = unfinished.join("_writing.json")
        assert WritingNote.of_bytes(target.read_bytes(), where="").left


class TestOfAWriterThatHasLost:
    """It asks before anything counts, and then touches nothing."""

    def taken_over(self, place: Location) -> None:
        set_note(place, token="another's")

    def test_no_shard_gets_its_name(self, place: Location, make_batch: Make, writer_for: WriterFor, paths_of: Any) -> None:
        with pytest.raises(TakenOver), writer_for(place, max_rows_per_file=1) as writer:
            self.taken_over(place)
            writer.write(make_batch((1, 1, 1)))
        assert paths_of(place) == ["_writing.json"]

    def test_no_manifest_is_written(self, place: Location, make_batch: Make, writer_for: WriterFor, paths_of: Any) -> None:
        with pytest.raises(TakenOver), writer_for(place, max_rows_per_file=1) as writer:
            writer.write(make_batch((1, 1)))
            self.taken_over(place)
            writer.commit()
        assert [path for path in paths_of(place) if not path.startswith("data/")] == ["_writing.json"]


def start(folder: Path, how: str, episodes: int = 20, pause: float = 0.0, rivals: int = 1) -> subprocess.Popen[str]:
    words = [sys.executable, str(HERE / "lock_writer.py"), str(folder), how, str(episodes), str(pause), str(rivals)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class TestProcesses:
    """The same between processes."""

    @pytest.mark.integration
    @pytest.mark.parametrize("how", ["resume"])
    def test_of_many_that_start_in_one_instant_exactly_one_writes(self, how: str, tmp_path: Path) -> None:
        folder = tmp_path / "D"
        if how != "begin":  # what is there is a dead writer's
            process = start(folder, "begin", pause=0.02)
            while not (folder / "data").exists() or not any((folder / "data").iterdir()):
                time.sleep(0.005)
            process.kill()
            process.communicate()
        out, told = start(folder, how, 20, 0.1, 16).communicate()
        assert sorted(json.loads(out)) == [0] + [5] * 15, told
        assert Dataset.open(str(folder)).manifest.counts.episodes == 20
        assert sorted(path.name for path in folder.iterdir()) == ["data", "manifest.json"]


class TestCreateOnly:
    """One succeeds, whatever the storage."""

    def test_a_name_that_is_taken_is_left_alone(self, place: Location) -> None:
        place.make_folder()
        assert staging.create_only(place.join("a"), b"mine", folder=place)
        assert not staging.create_only(place.join("a"), b"theirs", folder=place)
        assert [file.read_bytes() for file in place.files()] == [b"mine"]


def test_a_writer_that_comes_when_another_has_just_committed_is_told_of_the_dataset(
    place: Location, make_batch: Make, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_cli.datasets import target_folder

    real, seen = target_folder._checked, []

    def then_somebody_writes(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        if not seen:
            seen.append(1)
            with writer_for(place) as other:
                other.write(make_batch())
                other.commit()
        return found

    monkeypatch.setattr(target_folder, "_checked", then_somebody_writes)
    with pytest.raises(OutputExists, match="a dataset is here already"), writer_for(place):
        pass
    assert Dataset.open(place).manifest.counts.episodes == 3
    assert not place.join("_writing.json").exists()
