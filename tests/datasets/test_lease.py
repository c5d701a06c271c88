"""One writer at a time: a second one is told, a dead one is taken over from, and one that sleeps through it stops."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets import lease, lease_record
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.lease_record import Process, WritingNote
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Locked, OutputExists, StorageError, TakenOver
from offline_cli.files import staging
from offline_cli.files.locations import Location, open_location

Make = Callable[..., EpisodeBatch]
WriterFor = Callable[..., DatasetWriter]
HERE = Path(__file__).resolve().parent
HOURS = 3600.0


class Crash(Exception):
    """Stands for anything that ends a writing."""


def note_of(place: Location) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.join("_writing.json").read_bytes())
    return found


def set_note(place: Location, **changes: Any) -> None:
    """Change the note, and give it the age of its beat where the storage allows."""
    target = place.join("_writing.json")
    target.fs.pipe_file(target.path, json.dumps({**note_of(place), "left": False, **changes}).encode())


def aged(place: Location, seconds: float) -> None:
    """Make note and file as old as a writer leaves them that has not beaten for `seconds`."""
    when = time.time() - seconds
    set_note(place, beat=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(when)))
    os.utime(place.join("_writing.json").path, (when, when))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats, and the patience with them, a hundredth as long."""
    for name, seconds in (("BEAT", 0.1), ("STALE", 1.0), ("WATCH", 0.3)):
        monkeypatch.setattr(lease_record, name, seconds)


@pytest.fixture
def unfinished(place: Location, make_batch: Make, writer_for: WriterFor) -> Location:
    """What a writer left that broke off after two shards."""
    with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1, 1)))
        raise Crash
    return place


@pytest.fixture
def local(tmp_path: Path, make_batch: Make, writer_for: WriterFor) -> Location:
    """The same, on disk."""
    place = open_location(tmp_path / "D")
    with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
        writer.write(make_batch((1, 1, 1)))
        raise Crash
    return place


def resumed(place: Location, writer_for: WriterFor) -> None:
    with writer_for(place, max_rows_per_file=1, resume=True) as writer:
        writer.commit()


@contextlib.contextmanager
def another_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        yield other
        other.communicate(b"\n")


def of_process(pid: int) -> dict[str, Any]:
    stat = Path(f"/proc/{pid}/stat")
    return {"pid": pid, "process_started": stat.read_text().rpartition(")")[2].split()[19] if stat.exists() else ""}


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

    @pytest.mark.parametrize("how", ["resume", "overwrite"])
    def test_a_process_of_this_machine_counts_as_long_as_it_runs_and_beats(
        self, unfinished: Location, how: str, writer_for: WriterFor
    ) -> None:
        with another_process() as other:
            set_note(unfinished, **of_process(other.pid))
            with pytest.raises(Locked, match=str(other.pid)), writer_for(unfinished, max_rows_per_file=1, **{how: True}):
                pass
        set_note(unfinished, beat=note_of(unfinished)["beat"])
        with writer_for(unfinished, max_rows_per_file=1, **{how: True}) as writer:
            writer.commit()

    def test_a_writer_elsewhere_counts_while_its_beat_is_young(self, unfinished: Location, writer_for: WriterFor) -> None:
        set_note(unfinished, host=f"not-{socket.gethostname()}", pid=2**22 + 1)
        with pytest.raises(Locked, match=f"not-{socket.gethostname()}"):
            resumed(unfinished, writer_for)
        with pytest.raises(Locked), writer_for(unfinished):
            pass

    def test_a_machine_of_the_same_name_is_another_machine(self, unfinished: Location, writer_for: WriterFor) -> None:
        if not Process.this().machine:
            pytest.skip("this system does not tell machines apart")
        set_note(unfinished, machine="another boot pid:[1]", pid=2**22 + 1)
        with pytest.raises(Locked):
            resumed(unfinished, writer_for)

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

    def test_a_process_that_nobody_has_buried_yet(self, unfinished: Location, writer_for: WriterFor) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
        told = of_process(child.pid)
        while Path(f"/proc/{child.pid}/stat").exists() and "Z" not in Path(f"/proc/{child.pid}/stat").read_text().split():
            time.sleep(0.01)
        set_note(unfinished, **told)
        resumed(unfinished, writer_for)
        child.wait()

    def test_a_writer_that_broke_off_in_a_process_that_goes_on(self, unfinished: Location, writer_for: WriterFor) -> None:
        with another_process() as other:
            set_note(unfinished, **of_process(other.pid), left=True)
            resumed(unfinished, writer_for)

    def test_a_writer_that_broke_off_says_so(self, unfinished: Location) -> None:
        target = unfinished.join("_writing.json")
        assert WritingNote.of_bytes(target.read_bytes(), where="").left

    def test_a_writer_elsewhere_whose_beat_is_old_by_both_clocks(self, local: Location, writer_for: WriterFor) -> None:
        set_note(local, host=f"not-{socket.gethostname()}")
        aged(local, HOURS)
        resumed(local, writer_for)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seconds", [61.0, 800.0])
    def test_a_writer_elsewhere_whose_beat_is_a_little_old_is_watched_first(
        self, local: Location, seconds: float, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_record, "WATCH", 0.5)
        set_note(local, host=f"not-{socket.gethostname()}")
        aged(local, seconds)
        began = time.monotonic()
        resumed(local, writer_for)
        assert time.monotonic() - began > 0.5

    @pytest.mark.nightly
    def test_a_note_that_changes_while_it_is_watched_is_a_live_writers_whatever_the_clocks_say(
        self, local: Location, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_record, "WATCH", 2.0)
        set_note(local, host=f"not-{socket.gethostname()}")
        aged(local, 100.0)
        beat = threading.Timer(0.3, aged, (local, 90.0))
        beat.start()
        with pytest.raises(Locked):
            resumed(local, writer_for)
        beat.join()

    @pytest.mark.nightly
    @pytest.mark.parametrize("old", ["beat", "file"])
    def test_clocks_that_disagree_have_the_note_watched(
        self, local: Location, old: str, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_record, "WATCH", 0.5)
        young = note_of(local)["beat"]
        set_note(local, host=f"not-{socket.gethostname()}")
        aged(local, 10 * HOURS)
        if old == "file":
            when = os.stat(local.join("_writing.json").path).st_mtime
            set_note(local, beat=young)
            os.utime(local.join("_writing.json").path, (when, when))
        else:
            os.utime(local.join("_writing.json").path)
        began = time.monotonic()
        resumed(local, writer_for)
        assert time.monotonic() - began > 0.5

    @pytest.mark.nightly
    @pytest.mark.parametrize("future", ["beat", "file", "both", "no time at all"])
    def test_a_note_whose_times_lie_in_the_future_is_taken_over_after_the_lease(
        self, local: Location, future: str, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_record, "BEAT", 0.4)
        path, when = local.join("_writing.json").path, time.time() + 10 * HOURS
        set_note(local, host=f"not-{socket.gethostname()}")
        if future != "file":
            set_note(local, beat="2126-01-01T00:00:00+00:00")
        if future in ("file", "both"):
            os.utime(path, (when, when))
        if future == "no time at all":
            set_note(local, beat="soon", started="now")
            monkeypatch.setattr(lease_record, "_modified", lambda place: None)
        began = time.monotonic()
        resumed(local, writer_for)
        assert 1.0 <= time.monotonic() - began < 10

    @pytest.mark.nightly
    def test_a_note_of_the_future_that_changes_is_a_live_writers(
        self, local: Location, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_record, "BEAT", 2.0)
        set_note(local, host=f"not-{socket.gethostname()}", beat="2126-01-01T00:00:00+00:00")
        beat = threading.Timer(0.3, set_note, (local,), {"beat": "2126-01-01T00:00:10+00:00"})
        beat.start()
        with pytest.raises(Locked):
            resumed(local, writer_for)
        beat.join()

    def test_a_note_of_an_earlier_version_has_no_beat_and_counts_by_its_process(
        self, local: Location, writer_for: WriterFor
    ) -> None:
        note = {name: value for name, value in note_of(local).items() if name not in ("beat", "token", "machine", "left")}
        Path(local.join("_writing.json").path).write_text(json.dumps({**note, "pid": 2**22 + 1}))
        resumed(local, writer_for)


@pytest.mark.nightly
@pytest.mark.usefixtures("quick")
class TestBeats:
    """What keeps others away, and tells a writer that it has lost."""

    def test_the_note_is_written_anew_while_its_writer_is_at_work(
        self, place: Location, make_batch: Make, writer_for: WriterFor
    ) -> None:
        with writer_for(place) as writer:
            first = note_of(place)
            time.sleep(0.5)
            later = note_of(place)
            writer.write(make_batch())
            writer.commit()
        assert {**later, "beat": ""} == {**first, "beat": ""}
        assert later["beat"] > first["beat"]

    def test_no_thread_is_left_behind(self, place: Location, make_batch: Make, writer_for: WriterFor) -> None:
        before = set(threading.enumerate())
        with writer_for(place) as writer:
            (beats,) = [thread for thread in threading.enumerate() if thread not in before and "beat" in thread.name]
            writer.write(make_batch())
            writer.commit()
        beats.join(5)
        assert not beats.is_alive()

    def test_storage_that_does_not_take_a_beat_ends_nothing(
        self, place: Location, make_batch: Make, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = []

        def fail(*_: Any, **__: Any) -> None:
            failed.append(1)
            raise StorageError("unreachable", where="there", fix="none")

        with writer_for(place) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(lease, "write_whole", fail)
                time.sleep(0.4)
            time.sleep(0.3)
            writer.write(make_batch())
            assert writer.commit().counts.episodes == 3
        assert failed

    def test_on_a_full_disk_the_time_of_the_note_is_the_beat(
        self, tmp_path: Path, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise StorageError("no space left", where="there", fix="none")

        with writer_for(open_location(tmp_path / "D")), monkeypatch.context() as patch:
            patch.setattr(lease, "write_whole", full)
            os.utime(tmp_path / "D" / "_writing.json", (0, 0))
            time.sleep(0.4)
            assert time.time() - os.stat(tmp_path / "D" / "_writing.json").st_mtime < 10

    def test_a_writer_finds_at_its_next_beat_that_another_one_took_over(
        self, place: Location, make_batch: Make, writer_for: WriterFor
    ) -> None:
        with pytest.raises(TakenOver, match="process 4711 on elsewhere") as caught, writer_for(place) as writer:
            set_note(place, token="another's", pid=4711, host="elsewhere")
            time.sleep(0.4)
            writer.write(make_batch())
        assert (caught.value.exit_code, caught.value.code) == (5, "taken-over")
        assert note_of(place)["token"] == "another's"


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

    def test_what_the_other_one_has_overwritten_it_with_stays(
        self, place: Location, make_batch: Make, writer_for: WriterFor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from offline_cli.datasets import writer as module

        real = module.write_whole

        def then_lose(*args: Any, **options: Any) -> None:
            real(*args, **options)
            self.taken_over(place)
            place.join("data/shard-ffffffff-000000.parquet").fs.pipe_file(
                place.join("data/shard-ffffffff-000000.parquet").path, b"theirs"
            )

        with pytest.raises(TakenOver), writer_for(place) as writer:
            writer.write(make_batch())
            monkeypatch.setattr(module, "write_whole", then_lose)
            writer.commit()
        assert place.join("data/shard-ffffffff-000000.parquet").exists()
        assert note_of(place)["token"] == "another's"

    def test_a_note_that_was_removed_by_hand_stops_the_writer(
        self, place: Location, make_batch: Make, writer_for: WriterFor
    ) -> None:
        with pytest.raises(TakenOver, match="its note is gone"), writer_for(place, max_rows_per_file=1) as writer:
            place.join("_writing.json").remove()
            writer.write(make_batch((1, 1)))
        assert not place.join("_writing.json").exists()

    def test_one_that_does_not_know_it_yet_leaves_all_to_the_other_one(self, place: Location, writer_for: WriterFor) -> None:
        with pytest.raises(Crash) as caught, writer_for(place):
            self.taken_over(place)
            place.join("quarantine").make_folder()
            place.fs.pipe_file(place.join("quarantine/rows-000000.rejects").path, b"theirs")
            raise Crash
        assert place.join("quarantine/rows-000000.rejects").exists()
        assert note_of(place)["token"] == "another's"
        assert any("taken it over" in note for note in caught.value.__notes__)

    def test_a_folder_that_is_empty_stays_where_the_other_one_is_about_to_write(
        self, tmp_path: Path, make_batch: Make, writer_for: WriterFor
    ) -> None:
        place = open_location(tmp_path / "D")
        with pytest.raises(TakenOver), writer_for(place, max_rows_per_file=1) as writer:
            self.taken_over(place)
            writer.write(make_batch((1, 1)))
        assert (tmp_path / "D" / "data").is_dir()

    def test_rows_set_aside_by_the_other_one_stay(self, place: Location, writer_for: WriterFor) -> None:
        with pytest.raises(TakenOver), writer_for(place) as writer:
            self.taken_over(place)
            place.join("quarantine").make_folder()
            place.fs.pipe_file(place.join("quarantine/rows-000000.rejects").path, b"theirs")
            writer.commit()
        assert place.join("quarantine/rows-000000.rejects").exists()


def start(folder: Path, how: str, episodes: int = 20, pause: float = 0.0, rivals: int = 1) -> subprocess.Popen[str]:
    words = [sys.executable, str(HERE / "lock_writer.py"), str(folder), how, str(episodes), str(pause), str(rivals)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_between_shards(process: subprocess.Popen[str], folder: Path) -> None:
    """Stop it where it does not hold the folder: one that is stopped there keeps everybody out until it is killed."""
    handle = os.open(folder, os.O_RDONLY)
    while True:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        else:
            os.close(handle)
            return


def content(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    manifest = Dataset.open(str(folder)).manifest.as_json()
    del manifest["provenance"]
    return {file.name: file.read_bytes() for file in (folder / "data").iterdir()}, manifest


class TestProcesses:
    """The same between processes."""

    @pytest.mark.integration
    @pytest.mark.parametrize("how", ["begin", "resume", "overwrite"])
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

    @pytest.mark.nightly
    @pytest.mark.usefixtures("quick")
    def test_a_writer_that_was_stopped_and_replaced_ends_when_it_wakes(self, tmp_path: Path) -> None:
        whole, folder = tmp_path / "whole", tmp_path / "D"
        assert start(whole, "begin").wait() == 0
        sleeper = start(folder, "begin", 20, 0.1)
        while len(list(folder.glob("data/*"))) < 3:
            time.sleep(0.01)
        stop_between_shards(sleeper, folder)
        time.sleep(1.2)
        follower = start(folder, "resume", 20, 0.1)
        while note_of(open_location(folder))["pid"] != follower.pid:
            time.sleep(0.01)
        sleeper.send_signal(signal.SIGCONT)
        told = sleeper.communicate()[1]
        assert sleeper.returncode == 55, told
        assert f"process {follower.pid}" in told
        assert follower.wait() == 0, follower.communicate()[1]
        assert content(folder) == content(whole)


class TestCreateOnly:
    """One succeeds, whatever the storage."""

    def test_a_name_that_is_taken_is_left_alone(self, place: Location) -> None:
        place.make_folder()
        assert staging.create_only(place.join("a"), b"mine", folder=place)
        assert not staging.create_only(place.join("a"), b"theirs", folder=place)
        assert [file.read_bytes() for file in place.files()] == [b"mine"]

    def test_an_answer_that_was_lost_is_no_refusal(self, place: Location) -> None:
        place.make_folder()
        assert staging.create_only(place.join("a"), b"mine", folder=place)
        assert staging.create_only(place.join("a"), b"mine", folder=place)

    def test_a_disk_without_hard_links_does_as_well(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        folder = open_location(tmp_path)
        assert staging.create_only(folder.join("a"), b"mine", folder=folder)
        assert not staging.create_only(folder.join("a"), b"theirs", folder=folder)
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


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
