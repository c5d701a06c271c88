"""A power cut after any system call leaves the dataset before or the one after, or an unfinished one; exit 0 is kept."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from power_cuts import killed_before_the_last_sync, power_cuts, recorded, tree_of
from recorded_disk import Log

from offline_cli import convert, record
from offline_cli.checking.repair import repair
from offline_cli.datasets import lease_record, writer
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, StorageError, StorageNotFound, Uncommitted
from offline_cli.files import staging
from offline_cli.files.locations import open_location
from offline_cli.tally import Reject

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are not synced here")

Content = dict[str, list[float]]
Write = Callable[..., None]
Contents = Callable[[int], Content]
REJECT = Reject("a.csv, line 3", "bad-data", "x", b"?")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The folder whose power is cut; the dataset in it is `D`."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def write(make_batch: Callable[..., EpisodeBatch], writer_for: Callable[..., DatasetWriter]) -> Write:
    """Writes five episodes as a dataset of several shards, with a row set aside: others for another number."""

    def write(folder: Path, number: int, *, stop: bool = False, **options: Any) -> None:
        batch = make_batch((3, 1, 2, 4, 2), seed=number, first_id=10 * number)
        with writer_for(open_location(folder), max_rows_per_file=5, identity={"number": number}, **options) as opened:
            known = len(opened.ids_written)
            opened.write(batch.select(slice(known, 3 if stop else 5)))
            opened.quarantine([REJECT])
            if not stop:
                opened.commit()

    return write


@pytest.fixture
def contents(tmp_path: Path, write: Write) -> Contents:
    """What `write` writes under a number."""

    def written(number: int) -> Content:
        write(tmp_path / f"undisturbed-{number}", number)
        return content(tmp_path / f"undisturbed-{number}")

    return written


def content(folder: Path) -> Content:
    """Rewards by episode."""
    with Dataset.open(str(folder)).batches() as batches:
        return {
            name: batch.rewards[first:last].tolist()
            for batch in batches
            for name, first, last in zip(batch.ids, batch.starts[:-1], batch.starts[1:], strict=True)
        }


def found(folder: Path, wholes: dict[str, Content]) -> str:
    """Which of `wholes` is in `folder`, by name; `unfinished`, or `none` where no dataset is."""
    try:
        Dataset.open(str(folder))
    except Uncommitted:
        return "unfinished"
    except (NoData, StorageNotFound):
        return "none"
    there = content(folder)
    return next((name for name, whole in wholes.items() if whole == there), f"neither: {list(there)}")


Judge = Callable[..., None]


@pytest.fixture(params=[pytest.param((3, 4), id="sampled"), pytest.param((1, 1), id="all", marks=pytest.mark.nightly)])
def judge(request: pytest.FixtureRequest, disk: Path, tmp_path: Path) -> Judge:
    """Whether every image of a recorded `disk` holds, at `at`, what was there `before`, or the dataset `after`.

    What is `unfinished` may hide one of the `hidden`. Of what is not `after` yet `go_on` makes that. Where the command has
    ended, everything is as it is on the disk itself. The quick lane takes a share of the images, and goes on with a share of
    those.
    """
    every, goes_on = request.param

    def judge(
        log: Log,
        wholes: dict[str, Content],
        *,
        go_on: Callable[[Path], object] | None,
        at: str = "D",
        before: str = "none",
        after: str = "new",
        hidden: set[str],
    ) -> None:
        left, seen = tree_of(disk), set[str]()
        for number, cut in enumerate(power_cuts(log, every=every)):
            image = cut.put(tmp_path / "image")
            state = found(image / at, wholes)
            seen.add(state)
            if cut.is_after_the_end:
                assert (state, cut.tree) == (after, left), cut
                continue
            assert state in {before, "unfinished", after}, cut
            if state == "unfinished":
                note = image / at / "_writing.json"
                note.rename(tmp_path / "note")
                assert found(image / at, wholes) in hidden, cut
                (tmp_path / "note").rename(note)
            if go_on is not None and state != after and number % goes_on == 0:
                go_on(image / at)
                assert found(image / at, wholes) == after, cut
        assert {"unfinished", after} <= seen

    return judge


def test_of_a_new_dataset(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    log = recorded(disk, lambda: write(disk / "new" / "D", 1))
    wholes, hidden = {"new": contents(1)}, {"none", "new"}
    judge(log, wholes, at="new/D", hidden=hidden, go_on=lambda there: write(there, 1, resume=True))


def test_of_a_recording(disk: Path, tmp_path: Path, judge: Judge) -> None:
    def make(out: Path, **options: Any) -> None:
        record("CartPole-v1", out, policy="random", episodes=4, vectorize="sync", max_rows_per_file=2, **options)

    make(tmp_path / "undisturbed")
    log = recorded(disk, lambda: make(disk / "D"))
    wholes, hidden = {"new": content(tmp_path / "undisturbed")}, {"none", "new"}
    judge(log, wholes, hidden=hidden, go_on=lambda there: make(there, resume=True))


def test_of_a_dataset_that_is_replaced(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1)
    log = recorded(disk, lambda: write(disk / "D", 2, overwrite=True))
    wholes, hidden = {"old": contents(1), "new": contents(2)}, {"old", "new"}
    judge(log, wholes, before="old", hidden=hidden, go_on=lambda there: write(there, 2, overwrite=True))


def test_of_a_dataset_that_convert_replaces(disk: Path, tmp_path: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1)
    write(tmp_path / "source", 2)

    def replace(there: Path) -> None:
        convert(tmp_path / "source", there, to="columns", overwrite=True)

    log = recorded(disk, lambda: replace(disk / "D"))
    wholes, hidden = {"old": contents(1), "new": contents(2)}, {"old", "new"}
    judge(log, wholes, before="old", hidden=hidden, go_on=replace)


def test_of_a_writing_that_is_gone_on_with(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1, stop=True)
    log = recorded(disk, lambda: write(disk / "D", 1, resume=True))
    wholes, hidden = {"new": contents(1)}, {"none", "new"}
    judge(log, wholes, before="unfinished", hidden=hidden, go_on=lambda there: write(there, 1, resume=True))


@pytest.mark.parametrize("keep", ["old", "new"])
def test_of_a_repair(disk: Path, judge: Judge, write: Write, contents: Contents, keep: str) -> None:
    write(disk / "D", 1)
    write(disk / "D", 2, overwrite=True, stop=True)
    wholes = {"old": contents(1), "new": dict(list(contents(2).items())[:2])}
    log = recorded(disk, lambda: repair(str(disk / "D"), keep=keep))
    again = lambda there: repair(str(there), keep=keep)  # noqa: E731
    judge(log, wholes, before="unfinished", after=keep, hidden={"old", "new"}, go_on=again)


def test_of_a_note_taken_away(
    disk: Path, judge: Judge, write: Write, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_record, "BEAT", 0.02)
    write(disk / "D", 1)
    write(disk / "D", 2, overwrite=True, stop=True)
    log = recorded(disk, lambda: repair(str(disk / "D"), force_unlock=True))
    again = lambda there: repair(str(there), force_unlock=True)  # noqa: E731
    judge(log, {"old": contents(1)}, before="unfinished", after="old", hidden={"old"}, go_on=again)


def test_of_a_disk_that_fails_to_sync_once(
    disk: Path, tmp_path: Path, write: Write, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever sync it is: the command says so, and the old dataset or the new one is there, whole."""
    write(tmp_path / "before", 1)
    wholes, real, fails_at, calls = {"old": contents(1), "new": contents(2)}, os.fsync, -1, 0

    def fsync(handle: int) -> None:
        nonlocal calls
        link = f"/proc/self/fd/{handle}"
        if not os.path.exists(link) or os.readlink(link).startswith(str(disk)):  # or of a thread that another test has left
            calls += 1
            if calls == fails_at + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    monkeypatch.setattr(lease_record, "BEAT", 3600.0)  # a beat, on a slow disk, is a sync more, and may fail unnoticed
    monkeypatch.setattr(os, "fsync", fsync)
    write(shutil.copytree(tmp_path / "before", disk / "D"), 2, overwrite=True)
    for fails_at in range(calls):
        shutil.rmtree(disk / "D")
        shutil.copytree(tmp_path / "before", disk / "D")
        calls = 0
        with pytest.raises(StorageError):
            write(disk / "D", 2, overwrite=True)
        (disk / "D" / "_writing.json").unlink(missing_ok=True)
        assert found(disk / "D", wholes) in {"old", "new"}, fails_at


@pytest.mark.parametrize("again", ["record", "repair", "force_unlock"])
def test_of_a_command_that_finds_nothing_left_to_do(disk: Path, tmp_path: Path, again: str) -> None:
    """The one before may have been killed when everything had its name, and nothing was kept."""

    def make(out: Path, **options: Any) -> None:
        record("CartPole-v1", out, policy="random", episodes=2, vectorize="sync", **options)

    commands: dict[str, Callable[[], object]] = {
        "record": lambda: make(disk / "D", resume=True),
        "repair": lambda: repair(str(disk / "D")),
        "force_unlock": lambda: repair(str(disk / "D"), force_unlock=True),
    }
    make(tmp_path / "undisturbed")
    wholes = {"new": content(tmp_path / "undisturbed")}
    log = killed_before_the_last_sync(disk, lambda: make(disk / "D"), commands[again])
    assert [found(cut.put(tmp_path / "image") / "D", wholes) for cut in power_cuts(log) if cut.is_after_the_end] == ["new"]


@pytest.mark.parametrize("again", ["resume", "repair"])
def test_of_shards_that_a_killed_writer_left_before_they_were_kept(
    disk: Path, judge: Judge, write: Write, contents: Contents, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def killed_and_gone_on_with() -> None:
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(staging, "sync_names", lambda _: None)
            patch.setattr(writer, "write_whole", killed)  # of the manifest
            write(disk / "D", 1)
        if again == "resume":
            write(disk / "D", 1, resume=True)
        else:
            repair(str(disk / "D"))

    log = recorded(disk, killed_and_gone_on_with)
    judge(log, {"new": contents(1)}, hidden={"none", "new"}, go_on=None)


def test_of_a_repair_that_removes_what_nobody_finished(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1)
    for name in ("data/shard-0123abcd-000000.parquet", "_part-0123abcd-manifest.json"):
        (disk / "D" / name).touch()
    log = recorded(disk, lambda: repair(str(disk / "D")))
    judge(log, {"old": contents(1)}, before="old", after="old", hidden={"old"}, go_on=lambda there: repair(str(there)))
