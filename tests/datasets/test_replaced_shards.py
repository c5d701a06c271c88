"""What a reader of a dataset finds that is overwritten meanwhile: its own episodes, or an error, and never others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_cli import repair, validate
from offline_cli.datasets import ownership
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import TRAIN_BATCHES
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists
from offline_cli.files.locations import Location, expand, open_location

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

    @pytest.mark.parametrize("read", range(EPISODES))
    def test_a_reader_goes_on_with_its_own_episodes(self, place: Location, rewrite: Callable[..., Manifest], read: int) -> None:
        rewrite(0)
        with Dataset.open(place).batches(target_steps=1) as batches:
            before = [name for _ in range(read) for name in next(batches).ids]
            rewrite(100)
            assert before + ids(batches) == named(0)
        assert ids(Dataset.open(place).batches()) == named(100)

    def test_a_reader_from_two_writes_ago_is_told_which_shard_is_gone(
        self, place: Location, rewrite: Callable[..., Manifest]
    ) -> None:
        first = rewrite(0)
        batches = Dataset.open(place).batches(target_steps=1)
        before = list(next(batches).ids)
        rewrite(100)
        rewrite(0)
        with pytest.raises(BadData, match="overwritten") as caught:
            before += ids(batches)
        assert caught.value.exit_code == 3
        assert caught.value.where in {place.join(shard.path).url for shard in first.shards}
        assert before == named(0)[: len(before)]

    def test_a_reader_in_between_has_the_episodes_of_its_own_manifest(
        self, place: Location, rewrite: Callable[..., Manifest]
    ) -> None:
        rewrite(0)
        rewrite(100)
        between = Dataset.open(place)
        rewrite(200)
        assert ids(between.batches()) == named(100)
        assert ids(Dataset.open(place).batches()) == named(200)

    def test_an_older_shard_that_was_changed_after_it_was_replaced_is_refused(
        self, place: Location, rewrite: Callable[..., Manifest]
    ) -> None:
        first = rewrite(0)
        older = Dataset.open(place)
        rewrite(100)
        kept = [place.join("_replaced", shard.path.rpartition("/")[2]) for shard in first.shards]
        data = bytearray(kept[0].read_bytes())
        data[0] ^= 1  # which Parquet's reader does not look at
        kept[0].fs.pipe_file(kept[0].path, bytes(data))
        with pytest.raises(BadData, match="sha256"):
            ids(older.batches())

    def test_where_files_cannot_be_renamed_a_reader_is_told(
        self, place: Location, rewrite: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch, paths_of: Paths
    ) -> None:
        monkeypatch.setattr(ownership, "_keeps", lambda _: False)
        rewrite(0)
        batches = Dataset.open(place).batches(target_steps=1)
        before = list(next(batches).ids)
        rewrite(0)
        assert not [path for path in paths_of(place) if path.startswith("_replaced")]
        with pytest.raises(BadData, match="overwritten"):
            before += ids(batches)
        assert before == named(0)[: len(before)]


class TestFolder:
    """What lies where."""

    def test_other_tools_find_the_new_shards_alone(self, tmp_path: Path, make_batch: Make, write_dataset: Write) -> None:
        for first in (0, 10, 20):
            write_dataset(open_location(tmp_path / "D"), make_batch((3,), first_id=first), overwrite=True)
        assert pl.read_parquet(tmp_path / "D" / "data")["eps_id"].unique().to_list() == ["episode-20"]

    def test_a_pattern_finds_them_where_it_names_their_folder_alone(
        self, tmp_path: Path, make_batch: Make, write_dataset: Write
    ) -> None:
        for first in (0, 10):
            write_dataset(open_location(tmp_path / "P" / "D"), make_batch((3,), first_id=first), overwrite=True)
        patterns = [str(tmp_path / "P" / "**" / "*.parquet"), str(tmp_path / "P" / "D" / "_replaced" / "*.parquet")]
        assert [[place.path.split("/")[-2] for place in expand(pattern)] for pattern in patterns] == [["data"], ["_replaced"]]

    def test_replaced_shards_stay_until_the_next_write(
        self, place: Location, rewrite: Callable[..., Manifest], writer_for: WriterFor, paths_of: Paths
    ) -> None:
        def kept() -> list[str]:
            return [path for path in paths_of(place) if path.startswith("_replaced/")]

        first = rewrite(0)
        assert kept() == []
        second = rewrite(100)
        assert kept() == sorted(shard.path.replace("data/", "_replaced/") for shard in first.shards)
        with writer_for(place, overwrite=True):
            assert kept() == []
        rewrite(200)
        assert kept() == sorted(shard.path.replace("data/", "_replaced/") for shard in second.shards)

    def test_validate_and_repair_do_not_count_them(self, place: Location, rewrite: Callable[..., Manifest]) -> None:
        rewrite(0)
        rewrite(100)
        found = validate(place, deep=True)
        about_values = {"observation-outside-space", "constant-dimension", "saturated-dimension"}
        assert {problem.code for problem in found.problems} <= about_values
        assert found.episodes == EPISODES
        before = {file.path: file.read_bytes() for file in place.files()}
        assert repair(place).episodes == EPISODES
        assert {file.path: file.read_bytes() for file in place.files()} == before

    def test_shards_that_no_manifest_listed_are_not_kept(
        self, place: Location, make_batch: Make, writer_for: WriterFor, rewrite: Callable[..., Manifest], paths_of: Paths
    ) -> None:
        first = rewrite(0)
        with pytest.raises(Crash), writer_for(place, max_rows_per_file=1, overwrite=True) as writer:
            writer.write(make_batch((1, 1, 1)))
            raise Crash
        rewrite(100)
        kept = [path for path in paths_of(place) if path.startswith("_replaced/")]
        assert kept == sorted(shard.path.replace("data/", "_replaced/") for shard in first.shards)

    def test_files_of_others_in_that_folder_stay(self, tmp_path: Path, make_batch: Make, write_dataset: Write) -> None:
        folder = tmp_path / "D"
        write_dataset(open_location(folder), make_batch())
        (folder / "_replaced" / "old").mkdir(parents=True)
        own = ["why.md", "shard-0123abcd-000000.parquet", "old/shard-0123abcd-000000.parquet"]
        for name in own:
            (folder / "_replaced" / name).write_text("mine")
        for seed in (1, 2):
            write_dataset(open_location(folder), make_batch(seed=seed), overwrite=True)
        assert [name for name in own if (folder / "_replaced" / name).read_text() != "mine"] == []

    def test_a_link_in_its_place_is_refused(self, tmp_path: Path, make_batch: Make, write_dataset: Write) -> None:
        write_dataset(open_location(tmp_path / "D"), make_batch())
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "D" / "_replaced").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OutputExists, match="symbolic link"):
            write_dataset(open_location(tmp_path / "D"), make_batch(seed=1), overwrite=True)


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
            reader = Dataset.open(folder)
            with monkeypatch.context() as patch:
                power = Power(patch, at)
                with contextlib.suppress(Crash):
                    overwrite(folder, 200)
            if power.left >= 0:
                break
            assert ids(reader.batches()) == three(100)
            folder.join("_writing.json").remove()
            left.append(ids(Dataset.open(folder).batches()))
            overwrite(folder, 300)
            assert ids(Dataset.open(folder).batches()) == three(300)
        assert left == sorted(left)
        assert three(100) in left
        assert left[-1] == three(200)
        assert len(left) > 10
