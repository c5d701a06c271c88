"""--resume goes on after the last complete shard, and ends with what an undisturbed run would have written."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.checking.inspect import inspect
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, OutputExists, TargetNotMet
from offline_cli.files.locations import Location, open_location
from offline_cli.tally import Reject

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


@pytest.mark.parametrize("reached", [1, 20, 45, 60])
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


def test_a_crash_while_infos_get_their_columns_is_finished_by_resume(
    place: Location, long_batch: EpisodeBatch, writer_for: WriterFor, write_dataset: Write, monkeypatch: Any
) -> None:
    write_dataset(place.join("whole"), long_batch, max_rows_per_file=40)
    target = place.join("broken")
    with monkeypatch.context() as patch, pytest.raises(Crash), writer_for(target, max_rows_per_file=40) as writer:
        from offline_cli.datasets.shard_sequence import ShardSequence

        real = ShardSequence.rewrite

        def crash(self: ShardSequence, shard: Shard, *more: Any) -> Shard:
            if shard.path.endswith("-000002.parquet"):
                raise Crash
            return real(self, shard, *more)

        patch.setattr(ShardSequence, "rewrite", crash)
        writer.write(long_batch)
        writer.commit()
    with writer_for(target, resume=True, max_rows_per_file=40) as writer:
        assert writer.episodes_written == 60
        writer.commit()
    assert content(target) == content(place.join("whole"))


def test_resume_where_nothing_was_begun_begins(place: Location, make_batch: Make, write_dataset: Write) -> None:
    assert write_dataset(place, make_batch(), resume=True).counts.episodes == 3


def test_resume_of_a_complete_dataset_is_refused_and_changes_nothing(
    place: Location, make_batch: Make, write_dataset: Write
) -> None:
    write_dataset(place, make_batch())
    before = content(place)
    with pytest.raises(OutputExists, match="complete"):
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
    with pytest.raises(BadData, match="shard 1 is missing"), writer_for(place, max_rows_per_file=1, resume=True):
        pass


def test_rows_set_aside_before_the_crash_are_not_kept_twice(place: Location, make_batch: Make, writer_for: WriterFor) -> None:
    with pytest.raises(Crash), writer_for(place, max_rows_per_file=1) as writer:
        writer.quarantine([Reject("a", "bad-data", "x", b"")])
        writer.write(make_batch((1, 1, 1)))
        raise Crash
    with writer_for(place, max_rows_per_file=1, resume=True) as writer:
        writer.quarantine([Reject("a", "bad-data", "x", b"")])
        writer.commit()
    assert [file.name for file in place.join("quarantine").files()] == ["rows-000000.rejects"]


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b'{"generation": 1}'])
def test_a_broken_note_is_told_by_place(place: Location, note: bytes, writer_for: WriterFor) -> None:
    place.make_folder()
    place.fs.pipe_file(place.join("_writing.json").path, note)
    with pytest.raises(BadData) as caught, writer_for(place, resume=True):
        pass
    assert caught.value.where == place.join("_writing.json").url


WRITER = """
import sys, time
import numpy as np
from gymnasium import spaces
from offline_cli.checking.inspect import inspect
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location
from offline_cli.datasets.writer import DatasetWriter

space, steps = spaces.Box(-1, 1, (64,), np.float64), 500
with DatasetWriter(
    open_location(sys.argv[1]), format=sys.argv[2], observation_space=space, action_space=spaces.Discrete(2),
    action_scale="env", max_rows_per_file=3 * (steps if sys.argv[2] == "columns" else 1), resume=sys.argv[3] == "resume",
) as writer:
    for number in range(writer.episodes_written, 120):
        rng = np.random.default_rng(number)
        writer.write(
            EpisodeBatch(
                ids=(f"episode-{number}",), starts=np.array([0, steps]), obs=rng.random((steps + 1, 64)),
                actions=rng.integers(0, 2, steps), rewards=rng.random(steps), terminated=np.array([True]),
                truncated=np.array([False]), observation_space=space, action_space=spaces.Discrete(2),
            )
        )
    writer.commit()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("format_", ["episodes", "columns"])
def test_a_writer_killed_again_and_again_ends_like_an_undisturbed_one(format_: str, tmp_path: Path) -> None:
    def start(folder: str, how: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / folder), format_, how])

    assert start("whole", "begin").wait(120) == 0
    target, kills, rng = tmp_path / "broken", 0, np.random.default_rng(0)
    for seen in (1, 9, 20, 31):
        with start("broken", "resume") as writer:
            deadline = time.monotonic() + 60
            while len(list(target.glob("data/*"))) < seen and writer.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.02))
            kills += writer.poll() is None
            writer.kill()
        for file in target.glob("data/*"):
            assert pq.read_table(file).num_rows == 3 * (500 if format_ == "columns" else 1)
    assert kills >= 2
    if (target / "_writing.json").exists():
        assert start("broken", "resume").wait(120) == 0
    assert content(open_location(target)) == content(open_location(tmp_path / "whole"))
    assert sorted(path.name for path in target.iterdir()) == ["data", "manifest.json"]


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
        with pytest.raises(OutputExists, match="before it was complete") as caught, writer_for(committed):
            pass
        assert caught.value.fix.startswith("--resume")

    def test_inspection_says_that_it_is_not_complete(self, committed: Location) -> None:
        found = inspect(committed)
        assert not found.as_dict()["complete"]
        with pytest.raises(TargetNotMet):
            inspect(committed, expect={"complete": "true"})
