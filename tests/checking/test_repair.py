"""What repair makes of folders that a writer left, or that were damaged; nothing that could hold an episode is ever deleted."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_cli.checking.repair import RepairResult, repair
from offline_cli.checking.validate import validate
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.lock import WritingLock
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, Locked, UsageError
from offline_cli.storage import staging
from offline_cli.storage.locations import Location, open_location

Make = Any  # the fixture's class, which lives in conftest.py
NONE = {"incomplete-dataset", "spaces-inferred"}
"""What validate may say of a repaired dataset."""


class Crash(Exception):
    """Stands for a kill."""


class Folder:
    """A folder with one dataset, written in shards of one episode (`columns`: of one or more)."""

    def __init__(self, place: Location, format: str, batch: EpisodeBatch) -> None:
        self.place, self.format, self.batch = place, format, batch

    def writer(self, **options: Any) -> DatasetWriter:
        known: dict[str, Any] = {
            "format": self.format,
            "observation_space": self.batch.observation_space,
            "action_space": self.batch.action_space,
            "action_scale": "env",
            "max_rows_per_file": 1,
            "provenance": {"commands": ["offline-cli record"], "policy": "random"},
        }
        return DatasetWriter(self.place, **{**known, **options})

    def write(self, *, episodes: int = 6, complete: bool = True, crash: bool = False, **options: Any) -> None:
        try:
            with self.writer(**options) as writer:
                writer.write(self.batch.select(slice(writer.episodes_written, episodes)))
                if crash:
                    raise Crash
                writer.commit(complete=complete)
        except Crash:
            pass

    def shards(self) -> list[Location]:
        return [file for file in self.place.join("data").files() if file.name.startswith("shard-")]

    def put(self, path: str, data: bytes) -> Location:
        target = self.place.join(path)
        target.fs.makedirs(target.path.rpartition("/")[0], exist_ok=True)
        target.fs.pipe_file(target.path, data)
        return target

    def bytes(self) -> dict[str, bytes]:
        return {file.path.removeprefix(self.place.path).lstrip("/"): file.read_bytes() for file in self.place.files()}

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.place.join("manifest.json").read_bytes())
        return found

    def repair(self, **options: Any) -> RepairResult:
        return repair(self.place, **options)  # type: ignore[arg-type]

    def assert_holds(self, ids: list[str]) -> None:
        """These episodes, unchanged, in a dataset that validates."""
        found = validate(self.place, deep=True)
        assert {problem.code for problem in found.problems} <= {*NONE, "assumption"}, found.problems
        read = EpisodeBatch.concat(list(Dataset.open(self.place).batches()))
        assert list(read.ids) == ids
        want = self.batch.select(np.array([self.batch.ids.index(name) for name in ids]))
        np.testing.assert_array_equal(read.obs, want.obs)
        np.testing.assert_array_equal(read.actions, want.actions)
        np.testing.assert_array_equal(read.rewards, want.rewards)
        np.testing.assert_array_equal(read.terminated, want.terminated)


@pytest.fixture
def folder(tmp_path: Path, make: Make) -> Folder:
    """Of six episodes, in columns, on disk."""
    return Folder(open_location(tmp_path / "D"), "columns", make.batch((4, 3, 5, 2, 6, 1)))


def set_aside(name: str) -> str:
    """The path of a shard of this name after `repair` has set it aside."""
    return f"quarantine/{name.removesuffix('.parquet')}.aside"


class TestOfAWriterThatWasKilled:
    """Complete shards are adopted."""

    @pytest.mark.parametrize("format", ["episodes", "columns"])
    def test_what_is_whole_becomes_a_dataset(self, format: str, place: Location, make: Make) -> None:
        folder = Folder(place, format, make.batch((4, 3, 5, 2, 6, 1)))
        folder.write(episodes=5, crash=True)
        found = folder.repair()
        assert (found.episodes, found.shards, found.adopted, found.dropped) == (4, 4, 4, 0)
        assert (found.complete, found.resumable, found.based_on, found.changed) == (False, True, "note", True)
        folder.assert_holds(["e0", "e1", "e2", "e3"])
        assert not folder.place.join("_writing.json").exists()

    def test_its_command_goes_on_with_resume_to_the_same_bytes(self, folder: Folder, make: Make, tmp_path: Path) -> None:
        whole = Folder(open_location(tmp_path / "whole"), folder.format, folder.batch)
        whole.write()
        folder.write(episodes=5, crash=True)
        folder.repair()
        folder.write(resume=True)
        have, want = folder.bytes(), whole.bytes()
        manifests = [json.loads(files.pop("manifest.json")) for files in (have, want)]
        for manifest in manifests:
            del manifest["provenance"]
        assert manifests[0] == manifests[1]
        assert have == want

    def test_half_written_files_go_and_are_named(self, folder: Folder) -> None:
        folder.write(episodes=5, crash=True)
        part = folder.put("_part-01234567-shard-01234567-000009.parquet", b"PAR1half")
        found = folder.repair()
        assert (found.removed, found.dropped, found.set_aside) == ((part.url,), 1, ())
        folder.assert_holds(["e0", "e1", "e2", "e3"])

    def test_killed_between_manifest_and_clean_up_the_dataset_is_complete(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(_: Any) -> None:
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr("offline_cli.datasets.target_folder.TargetFolder.finish", crash)
            folder.write()
        manifest = folder.place.join("manifest.json").read_bytes()
        found = folder.repair()
        assert (found.complete, found.adopted, found.dropped, found.changed) == (True, 0, 0, True)
        assert folder.place.join("manifest.json").read_bytes() == manifest
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_a_shard_missing_between_others_is_said_and_left_out_only_when_asked(self, folder: Folder) -> None:
        folder.write(episodes=6, crash=True)
        folder.shards()[1].remove()
        with pytest.raises(BadData) as caught:
            folder.repair()
        assert len(caught.value.result["broken"]) == 1
        found = folder.repair(drop_broken=True)
        assert (found.adopted, found.dropped, found.resumable) == (4, 1, False)
        folder.assert_holds(["e0", "e2", "e3", "e4"])


class TestOfADatasetThatWasBeingOverwritten:
    """It is the one that was there before; the new one is set aside."""

    @pytest.fixture
    def both(self, folder: Folder) -> Folder:
        folder.write(episodes=2)
        folder.write(episodes=6, crash=True, overwrite=True)
        return folder

    def test_the_old_one_stays_as_it_was(self, both: Folder) -> None:
        manifest = both.place.join("manifest.json").read_bytes()
        new = sorted({file.name for file in both.shards()} - {Path(s["path"]).name for s in both.manifest()["shards"]})
        found = both.repair()
        assert (found.episodes, found.complete, found.adopted, found.dropped) == (2, True, 0, 5)
        assert both.place.join("manifest.json").read_bytes() == manifest
        assert [path for path in both.bytes() if path.startswith("quarantine/")] == [*map(set_aside, new)]
        both.assert_holds(["e0", "e1"])

    def test_shards_of_two_writings_that_nobody_explains_are_not_chosen_from(self, both: Folder) -> None:
        both.put("manifest.json", b"{")
        both.put("_writing.json", b"{")
        with pytest.raises(UsageError):
            both.repair()


class TestOfADamagedDataset:
    """Committed once, and something happened since."""

    def test_a_whole_one_is_left_alone_to_the_last_byte(self, folder: Folder) -> None:
        folder.write()
        before = folder.bytes()
        found = folder.repair()
        assert (found.changed, found.adopted, found.dropped, found.complete, found.episodes) == (False, 0, 0, True, 6)
        assert folder.bytes() == before

    def test_a_lost_manifest_is_built_anew(self, folder: Folder) -> None:
        folder.write()
        statistics = folder.manifest()["statistics"]
        folder.place.join("manifest.json").remove()
        found = folder.repair()
        assert (found.based_on, found.adopted, found.complete) == ("shards", 6, False)
        assert folder.manifest()["statistics"] == statistics
        folder.assert_holds([f"e{i}" for i in range(6)])

    @pytest.mark.parametrize("codec", ["snappy", "none"])
    def test_the_compression_of_a_lost_manifest_is_that_of_the_shards(self, codec: str, folder: Folder) -> None:
        folder.write(compression=codec)
        folder.place.join("manifest.json").remove()
        folder.repair()
        assert folder.manifest()["compression"] == codec

    @pytest.mark.parametrize("data", [b"{", b"\xff\xfe"])
    def test_a_manifest_that_is_no_json_is_set_aside_and_built_anew(self, folder: Folder, data: bytes) -> None:
        folder.write()
        folder.put("manifest.json", data)
        assert folder.repair().based_on == "shards"
        assert folder.bytes()["quarantine/manifest.json"] == data
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_a_changed_shard_is_named_and_refused(self, folder: Folder) -> None:
        folder.write()
        shard = damaged(folder, 2)
        before = folder.bytes()
        with pytest.raises(BadData) as caught:
            folder.repair()
        assert caught.value.exit_code == 3
        assert "--drop-broken" in caught.value.fix
        assert [one["path"] for one in caught.value.result["broken"]] == [shard.url]
        assert folder.bytes() == before

    def test_a_changed_shard_is_left_out_when_asked_and_set_aside(self, folder: Folder) -> None:
        folder.write()
        shard = damaged(folder, 2)
        data = shard.read_bytes()
        found = folder.repair(drop_broken=True)
        assert (found.episodes, found.adopted, found.dropped, found.complete) == (5, 0, 1, False)
        assert found.set_aside == (shard.url,)
        assert folder.bytes()[set_aside(shard.name)] == data
        assert folder.manifest()["assumptions"]["broken-shard-left-out"] == 1
        folder.assert_holds(["e0", "e1", "e3", "e4", "e5"])

    def test_an_episode_that_is_there_twice_is_found_without_a_manifest_too(self, folder: Folder) -> None:
        folder.write()
        first, second = folder.shards()[:2]
        folder.put(f"data/{second.name}", first.read_bytes())
        folder.place.join("manifest.json").remove()
        with pytest.raises(BadData):
            folder.repair()
        folder.repair(drop_broken=True)
        folder.assert_holds(["e0", "e2", "e3", "e4", "e5"])

    def test_an_episode_that_is_twice_in_one_shard_is_found_without_a_manifest_too(self, folder: Folder) -> None:
        folder.write()
        first = folder.shards()[0]
        with first.open() as stream:
            table = pq.read_table(stream)
        again = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables([table, table]), again)
        folder.put(f"data/{first.name}", again.getvalue().to_pybytes())
        folder.place.join("manifest.json").remove()
        folder.repair(drop_broken=True)
        folder.assert_holds(["e1", "e2", "e3", "e4", "e5"])

    def test_files_that_the_manifest_does_not_list_are_set_aside(self, folder: Folder) -> None:
        folder.write()
        copy = folder.put("data/copy.parquet", folder.shards()[0].read_bytes())
        folder.put("data/_SUCCESS", b"")
        folder.put("notes.txt", b"theirs")
        found = folder.repair()
        assert (found.set_aside, found.dropped, found.complete) == ((copy.url,), 1, True)
        assert {"data/_SUCCESS", "notes.txt", "quarantine/copy.aside"} <= folder.bytes().keys()


def damaged(folder: Folder, number: int) -> Location:
    """Change the last bytes of the data of a shard, right before its footer's length."""
    shard = folder.shards()[number]
    data = bytearray(shard.read_bytes())
    data[40] ^= 0xFF
    data[60] ^= 0xFF
    return folder.put(f"data/{shard.name}", bytes(data))


class TestWhileSomebodyIsAtWork:
    """The writer's lock holds for repair too."""

    def test_a_live_writer_is_not_disturbed(self, folder: Folder) -> None:
        with folder.writer() as writer:
            writer.write(folder.batch.select(slice(0, 3)))
            before = folder.bytes()
            for dry_run in (False, True):
                with pytest.raises(Locked) as caught:
                    folder.repair(dry_run=dry_run)
            assert caught.value.exit_code == 5
            assert "wait for it" in caught.value.fix
            assert not {"--resume", "--out"} & set(caught.value.fix.split())
            assert folder.bytes() == before
            writer.commit()


class TestKilled:
    """Whenever a repair is ended, the next one ends like an undisturbed one."""

    @pytest.mark.integration
    @pytest.mark.parametrize("case", ["left", "old", "broken"])
    def test_a_repair_that_broke_off_anywhere_is_done_by_the_next(
        self, case: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stages = 0
        while True:
            folder = Folder(open_location(tmp_path / f"D{stages}"), "columns", make.batch((4, 3, 5, 2, 6, 1)))
            options, ids = prepared(folder, case)
            with monkeypatch.context() as patch:
                ended = crash_at(patch, stages)
                with contextlib.suppress(Crash):
                    folder.repair(**options)
            if ended:
                folder.repair(**options)
            folder.assert_holds(ids)
            if not ended:
                break
            stages += 1
        assert stages >= 2


def prepared(folder: Folder, case: str) -> tuple[dict[str, Any], list[str]]:
    """A folder to repair, with which options, and the episodes that it then holds."""
    if case == "left":
        folder.write(episodes=4, crash=True)
        folder.put("_part-01234567-manifest.json", b"{half")
        return {}, ["e0", "e1", "e2"]
    if case == "old":
        folder.write(episodes=2)
        folder.write(episodes=6, crash=True, overwrite=True)
        return {}, ["e0", "e1"]
    folder.write()
    if case == "broken":
        damaged(folder, 3)
        return {"drop_broken": True}, ["e0", "e1", "e2", "e4", "e5"]
    folder.place.join("manifest.json").remove()
    return {}, [f"e{i}" for i in range(6)]


def crash_at(patch: pytest.MonkeyPatch, stage: int) -> list[int]:
    """Raise Crash before the change of that number that a repair makes; the list is not empty once it was raised."""

    from offline_cli.checking import repair as repairing

    raised: list[int] = []
    count = [0]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == stage + 1 and not raised:
                raised.append(1)
                for end in ("release", "leave"):  # the dead tidy nothing up
                    patch.setattr(WritingLock, end, WritingLock._give_up)
                raise Crash
            return real(*args, **kwargs)

        return call

    for holder, name in (
        (repairing, "set_aside"),
        (repairing, "write_whole"),
        (Location, "remove"),
        (staging.StagedFile, "commit"),
    ):
        patch.setattr(holder, name, counting(getattr(holder, name)))
    return raised
