"""A power cut after any system call leaves the dataset before or the one after, or an unfinished one; exit 0 is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from power_cuts import power_cuts, recorded, tree_of
from recorded_disk import Log

from offline_cli.checking.repair import repair
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, StorageNotFound, Uncommitted
from offline_cli.storage.locations import open_location
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


@pytest.fixture(params=[pytest.param((7, 4), id="sampled"), pytest.param((1, 1), id="all", marks=pytest.mark.nightly)])
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


def test_of_a_dataset_that_is_replaced(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1)
    log = recorded(disk, lambda: write(disk / "D", 2, overwrite=True))
    wholes, hidden = {"old": contents(1), "new": contents(2)}, {"old", "new"}
    judge(log, wholes, before="old", hidden=hidden, go_on=lambda there: write(there, 2, overwrite=True))


def test_of_a_writing_that_is_gone_on_with(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1, stop=True)
    log = recorded(disk, lambda: write(disk / "D", 1, resume=True))
    wholes, hidden = {"new": contents(1)}, {"none", "new"}
    judge(log, wholes, before="unfinished", hidden=hidden, go_on=lambda there: write(there, 1, resume=True))


def test_of_a_repair(disk: Path, judge: Judge, write: Write, contents: Contents) -> None:
    write(disk / "D", 1)
    write(disk / "D", 2, overwrite=True, stop=True)
    wholes = {"old": contents(1), "new": dict(list(contents(2).items())[:2])}
    log = recorded(disk, lambda: repair(str(disk / "D")))
    again = lambda there: repair(str(there))  # noqa: E731
    judge(log, wholes, before="unfinished", after="old", hidden={"old", "new"}, go_on=again)
