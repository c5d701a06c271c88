"""A dataset that is overwritten: old rows are gone, and a reader that still wants them is told so, and gets no others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_cli import repair, validate
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import TRAIN_BATCHES
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, StorageError
from offline_cli.files.locations import Location, open_location
from offline_cli.tally import Reject

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]
WriterFor = Callable[..., DatasetWriter]
Paths = Callable[[Location], list[str]]
EPISODES = 4  # each in a shard of its own


class Crash(Exception):
    """Stands for a process that is killed."""


@pytest.fixture
def rewrite(place: Location, make_batch: Make, write_dataset: Write, format: str) -> Callable[..., Manifest]:
    """A function that overwrites the dataset; the ids of its episodes begin with `first_id`."""

    def write(first_id: int, **options: Any) -> Manifest:
        batches = [make_batch((2,), first_id=first_id + number) for number in range(EPISODES)]
        rows = 1 if format == "episodes" else 2
        return write_dataset(place, *batches, format=format, max_rows_per_file=rows, overwrite=True, **options)

    return write


def ids(batches: Iterator[EpisodeBatch]) -> list[str]:
    return [name for batch in batches for name in batch.ids]


def named(first_id: int) -> list[str]:
    return [f"episode-{first_id + number}" for number in range(EPISODES)]


class TestNames:
    """A shard's name is given once in one folder."""

    def test_no_name_comes_back_under_the_same_command(self, rewrite: Callable[..., Manifest]) -> None:
        paths = [shard.path for _ in range(5) for shard in rewrite(0).shards]
        assert len(set(paths)) == 5 * EPISODES

    def test_no_name_comes_back_after_datasets_without_an_episode(
        self, place: Location, rewrite: Callable[..., Manifest], write_dataset: Write, format: str
    ) -> None:
        first = rewrite(0)
        for _ in range(2):
            write_dataset(place, format=format, max_rows_per_file=1 if format == "episodes" else 2, overwrite=True)
        assert {shard.path for shard in first.shards}.isdisjoint(shard.path for shard in rewrite(0).shards)

    def test_no_name_comes_back_after_a_writer_that_was_killed(
        self, place: Location, make_batch: Make, writer_for: WriterFor, paths_of: Paths
    ) -> None:
        seen: set[str] = set()
        for _ in range(3):
            with pytest.raises(Crash), writer_for(place, max_rows_per_file=1, overwrite=True) as writer:
                writer.write(make_batch((1, 1, 1)))
                raise Crash
            paths = {path for path in paths_of(place) if path.startswith("data/")}
            assert len(paths - seen) == 2
            seen |= paths

    def test_a_fresh_folder_gets_the_names_that_the_same_command_gave_elsewhere(
        self, place: Location, rewrite: Callable[..., Manifest], make_batch: Make, write_dataset: Write, format: str
    ) -> None:
        first = rewrite(0)
        batches = [make_batch((2,), first_id=number) for number in range(EPISODES)]
        rows = 1 if format == "episodes" else 2
        again = write_dataset(place.join("..", "E"), *batches, format=format, max_rows_per_file=rows)
        assert again.shards == first.shards

    def test_names_of_train_batches_go_on_counting(self, tmp_path: Path) -> None:
        folder = open_location(tmp_path / "B")
        generations = []
        for _ in range(4):
            target = TargetFolder(folder, "offline-cli apply", TRAIN_BATCHES)
            target.begin({}, overwrite=True, resume=False)
            (tmp_path / "B" / "data" / f"batch-000000{target.generation}.parquet").write_bytes(b"PAR1")
            text = f'{{"format": "train-batches", "batches": [], "pipeline": "", "n": {len(generations)}}}'
            (tmp_path / "B" / "batches.json").write_text(text)
            target.finish()
            generations.append(target.generation)
        assert generations == ["", "-1", "-2", "-3"]


class TestReaders:
    """Of a manifest that was read before."""

    @pytest.mark.parametrize("read", range(1, EPISODES))
    def test_a_reader_whose_shards_are_gone_is_told_to_open_the_dataset_again(
        self, place: Location, rewrite: Callable[..., Manifest], read: int
    ) -> None:
        first = rewrite(0)
        with Dataset.open(place).batches(target_steps=1) as batches:
            before = [name for _ in range(read) for name in next(batches).ids]
            rewrite(0)
            with pytest.raises(StorageError, match="replaced") as caught:
                before += ids(batches)
        assert caught.value.exit_code == 5
        assert caught.value.where in {place.join(shard.path).url for shard in first.shards}
        assert before == named(0)[: len(before)]
        assert ids(Dataset.open(place).batches()) == named(0)

    @pytest.mark.parametrize("ask", [lambda found: found[3], lambda found: list(found.plain())], ids=["one", "plain"])
    def test_so_is_one_that_asks_for_an_episode_or_for_plain_columns(
        self, place: Location, rewrite: Callable[..., Manifest], ask: Callable[[Dataset], Any]
    ) -> None:
        rewrite(0)
        older = Dataset.open(place)
        rewrite(0)
        with pytest.raises(StorageError, match="replaced"):
            ask(older)

    def test_a_shard_that_is_missing_from_its_own_dataset_is_bad_data(
        self, place: Location, rewrite: Callable[..., Manifest]
    ) -> None:
        place.join(rewrite(0).shards[1].path).remove()
        with pytest.raises(BadData, match="missing"):
            ids(Dataset.open(place).batches())


class TestFolder:
    """What lies where."""

    def test_what_was_replaced_is_gone_before_the_writer_ends(
        self, place: Location, rewrite: Callable[..., Manifest], paths_of: Paths
    ) -> None:
        for first_id in (0, 100, 200):
            manifest = rewrite(first_id)
            assert paths_of(place) == sorted(["manifest.json", *(shard.path for shard in manifest.shards)])

    def test_rows_and_shards_that_are_set_aside_are_not_found_as_data(
        self, tmp_path: Path, make_batch: Make, writer_for: WriterFor
    ) -> None:
        place = open_location(tmp_path / "D")
        with writer_for(place) as writer:
            writer.write(make_batch((2,)))
            writer.quarantine([Reject("a", "bad-data", "x", b"")])
            writer.commit()
        with pytest.raises(Crash), writer_for(place, max_rows_per_file=1, overwrite=True) as writer:
            writer.write(make_batch((1, 1, 1), first_id=50))
            raise Crash
        assert len(repair(place, keep="old").set_aside) == 2
        assert len(place.join("quarantine").files()) == 3
        assert pl.read_parquet(tmp_path / "D" / "**" / "*.parquet")["eps_id"].to_list() == ["episode-0"] * 2

    def test_validate_and_repair_have_nothing_to_say(self, place: Location, rewrite: Callable[..., Manifest]) -> None:
        rewrite(0)
        rewrite(100)
        found = validate(place, deep=True)
        about_values = {"observation-outside-space", "constant-dimension", "saturated-dimension"}
        assert {problem.code for problem in found.problems} <= about_values
        assert found.episodes == EPISODES
        assert not repair(place).changed


NAMES = ("rename", "replace", "remove", "unlink", "mkdir", "rmdir", "link")  # of what changes names in folders


class Power:
    """Goes off at the nth change of a name: from then on nothing changes any more, whoever cleans up."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for name in NAMES:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Crash
            return call(*arguments, **named)

        return counted


class TestStops:
    """The old dataset whole, or the new one, wherever an overwrite stops."""

    def test_a_writer_that_stops_at_any_change_of_names_leaves_one_of_them(
        self, tmp_path: Path, make_batch: Make, write_dataset: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def overwrite(folder: Location, first_id: int) -> None:
            batches = [make_batch((2,), first_id=first_id + number) for number in range(3)]
            write_dataset(folder, *batches, max_rows_per_file=2, overwrite=True)

        def three(first_id: int) -> list[str]:
            return named(first_id)[:3]

        left: list[list[str]] = []
        for at in range(100):
            folder = open_location(tmp_path / f"D{at}")
            overwrite(folder, 0)
            overwrite(folder, 100)
            with monkeypatch.context() as patch:
                power = Power(patch, at)
                with contextlib.suppress(Crash):
                    overwrite(folder, 200)
            if power.left >= 0:
                break
            folder.join("_writing.json").remove()
            left.append(ids(Dataset.open(folder).batches()))
            overwrite(folder, 300)
            assert ids(Dataset.open(folder).batches()) == three(300)
        assert left == sorted(left)
        assert three(100) in left
        assert left[-1] == three(200)
        assert len(left) > 10
