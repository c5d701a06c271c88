"""--resume goes on after the last complete shard, and ends with what an undisturbed run would have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, OutputExists
from offline_cli.storage.locations import Location

Make = Callable[..., EpisodeBatch]
Write = Callable[..., Manifest]
WriterFor = Callable[..., DatasetWriter]


class Crash(Exception):
    """Stands for anything that ends a writing."""


def crashed(writer: DatasetWriter, *batches: EpisodeBatch) -> None:
    with pytest.raises(Crash), writer:
        for batch in batches:
            writer.write(batch)
        raise Crash


def content(location: Location) -> tuple[dict[str, bytes], dict[str, Any]]:
    manifest = Dataset.open(location).manifest.as_json()
    del manifest["provenance"]
    return {file.name: file.read_bytes() for file in location.join("data").files()}, manifest


@pytest.fixture
def long_batch(make_batch: Make) -> EpisodeBatch:
    """Sixty episodes, of which the last ones have infos."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 9, 60).tolist()
    steps = sum(lengths)
    infos = [{"i": i} if i > steps - 20 else {} for i in range(steps + 60)]
    return make_batch(lengths, extra={"h": rng.normal(size=(steps, 2, 2))}, infos=infos)


@pytest.mark.parametrize("reached", [1, 45])
def test_a_resumed_writing_ends_like_an_undisturbed_one(
    place: Location, format: str, reached: int, long_batch: EpisodeBatch, writer_for: WriterFor, write_dataset: Write
) -> None:
    options = {"format": format, "max_rows_per_file": 40 if format == "columns" else 9}
    write_dataset(place.join("whole"), long_batch, **options)
    target = place.join("broken")
    crashed(writer_for(target, **options), long_batch.select(slice(0, reached)))
    with writer_for(target, resume=True, **options) as writer:
        done = writer.episodes_written
        assert writer.ids_written == frozenset(long_batch.ids[:done])
        assert reached == 1 or 0 < done < reached
        writer.write(long_batch.select(slice(done, 60)))
        writer.commit()
    assert content(target) == content(place.join("whole"))


def test_a_crash_between_manifest_and_clean_up_is_finished_by_resume(
    place: Location, long_batch: EpisodeBatch, make_batch: Make, writer_for: WriterFor, write_dataset: Write, monkeypatch: Any
) -> None:
    write_dataset(place, make_batch())
    with monkeypatch.context() as patch, pytest.raises(Crash), writer_for(place, overwrite=True) as writer:

        def crash(_: Any) -> None:
            raise Crash

        patch.setattr("offline_cli.datasets.target_folder.TargetFolder.finish", crash)
        writer.write(long_batch)
        writer.commit()
    with writer_for(place, resume=True) as writer:
        assert writer.episodes_written == 60
        writer.commit()
    assert Dataset.open(place).manifest.counts.episodes == 60
    assert [file.path for file in place.join("data").files()] == [
        place.join(shard.path).path for shard in Dataset.open(place).manifest.shards
    ]


def test_resume_of_a_complete_dataset_is_refused_and_changes_nothing(
    place: Location, make_batch: Make, write_dataset: Write
) -> None:
    write_dataset(place, make_batch())
    before = content(place)
    with pytest.raises(OutputExists):
        write_dataset(place, make_batch(), resume=True)
    assert content(place) == before


def test_other_options_than_before_are_all_named(place: Location, make_batch: Make, writer_for: WriterFor) -> None:
    crashed(writer_for(place, max_rows_per_file=1), make_batch((1, 1)))
    options = {"max_rows_per_file": 2, "compression": "snappy", "action_space": spaces.Discrete(7), "resume": True}
    with pytest.raises(BadConfig) as caught, writer_for(place, **options):
        pass
    named = {problem.partition(" ")[0] for problem in caught.value.details["problems"]}
    assert named == {"max_rows_per_file", "compression", "action_space"}
    assert caught.value.exit_code == 4


def test_a_shard_missing_between_others_is_refused(place: Location, make_batch: Make, writer_for: WriterFor) -> None:
    crashed(writer_for(place, max_rows_per_file=1), make_batch((1, 1, 1, 1)))
    place.join("data").files()[1].remove()
    with pytest.raises(BadData, match="shard 1"), writer_for(place, max_rows_per_file=1, resume=True):
        pass


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b'{"generation": 1}'])
def test_a_broken_note_is_told_by_place(place: Location, note: bytes, writer_for: WriterFor) -> None:
    place.make_folder()
    place.fs.pipe_file(place.join("_writing.json").path, note)
    with pytest.raises(BadData) as caught, writer_for(place, resume=True):
        pass
    assert caught.value.where == place.join("_writing.json").url


class TestOfADatasetThatWasCommittedBeforeItWasComplete:
    @pytest.fixture
    def committed(self, place: Location, make_batch: Make, writer_for: WriterFor) -> Location:
        with writer_for(place, max_rows_per_file=1) as writer:
            writer.write(make_batch((3, 2)))
            writer.commit(complete=False)
        return place

    def test_writing_goes_on_where_it_stopped(self, committed: Location, make_batch: Make, writer_for: WriterFor) -> None:
        with writer_for(committed, max_rows_per_file=1, resume=True) as writer:
            assert writer.episodes_written == 2
            assert writer.commit().complete

    def test_a_writer_that_does_not_resume_is_told_to(self, committed: Location, writer_for: WriterFor) -> None:
        with pytest.raises(OutputExists) as caught, writer_for(committed):
            pass
        assert caught.value.fix.startswith("--resume")
