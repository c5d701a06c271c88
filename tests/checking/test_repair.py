"""What repair makes of folders that a writer left, or that were damaged; nothing that could hold an episode is ever deleted."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from offline_cli.checking.repair import RepairResult, repair
from offline_cli.checking.validate import validate
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.lease import WritingLock
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Locked, NoData, OutputExists, StorageNotFound, TakenOver, UsageError
from offline_cli.files import staging
from offline_cli.files.locations import Location, open_location

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


@pytest.fixture(params=["episodes", "columns"])
def folder(request: pytest.FixtureRequest, place: Location, make: Make) -> Folder:
    """Of six episodes, in either format."""
    return Folder(place, request.param, make.batch((4, 3, 5, 2, 6, 1)))


@pytest.fixture
def local(tmp_path: Path, make: Make) -> Folder:
    """Of six episodes, in columns, on disk."""
    return Folder(open_location(tmp_path / "D"), "columns", make.batch((4, 3, 5, 2, 6, 1)))


def set_aside(name: str) -> str:
    """The path of a shard of this name after `repair` has set it aside."""
    return f"quarantine/{name.removesuffix('.parquet')}.aside"


class TestOfAWriterThatWasKilled:
    """Complete shards are adopted."""

    def test_what_is_whole_becomes_a_dataset(self, folder: Folder) -> None:
        folder.write(episodes=5, crash=True)
        found = folder.repair()
        assert (found.episodes, found.shards, found.adopted, found.dropped) == (4, 4, 4, 0)
        assert (found.complete, found.resumable, found.based_on, found.changed) == (False, True, "note", True)
        folder.assert_holds(["e0", "e1", "e2", "e3"])
        assert not folder.place.join("_writing.json").exists()

    def test_the_manifest_says_that_it_was_repaired_and_what_the_writer_knew(self, folder: Folder) -> None:
        folder.write(episodes=5, crash=True)
        folder.repair(command=["offline-cli", "repair", "D"])
        manifest = folder.manifest()
        assert manifest["provenance"]["commands"] == ["offline-cli record"]
        (told,) = manifest["provenance"]["repaired"]
        assert (told["command"], told["adopted"], told["based_on"]) == ("offline-cli repair D", 4, "note")
        assert (manifest["complete"], manifest["action_scale"], manifest["format"]) == (False, "env", folder.format)

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
        empty = folder.put("data/shard-01234567-000009.parquet", b"")
        found = folder.repair()
        assert (found.removed, found.dropped, found.set_aside) == ((part.url, empty.url), 2, ())
        folder.assert_holds(["e0", "e1", "e2", "e3"])

    def test_a_dry_run_says_the_same_and_changes_nothing(self, folder: Folder) -> None:
        folder.write(episodes=5, crash=True)
        folder.put("_part-01234567-shard-01234567-000009.parquet", b"PAR1half")
        before = folder.bytes()
        told = folder.repair(dry_run=True).as_dict()
        assert folder.bytes() == before
        done = folder.repair().as_dict()
        assert {**told, "seconds": 0, "dry_run": False} == {**done, "seconds": 0}

    def test_without_a_complete_shard_there_is_nothing_to_repair(self, folder: Folder) -> None:
        folder.write(episodes=1, crash=True, max_rows_per_file=100)
        folder.put("_writing.json", b"{}")
        with pytest.raises(NoData, match="nothing to repair") as caught:
            folder.repair()
        assert "--resume" in caught.value.fix

    def test_a_note_that_cannot_be_read_is_done_without(self, folder: Folder) -> None:
        folder.write(episodes=5, crash=True)
        folder.put("_writing.json", b"{")
        found = folder.repair()
        assert (found.based_on, found.resumable, found.adopted) == ("shards", False, 4)
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

    def test_shards_written_after_an_earlier_commit_are_adopted_too(self, folder: Folder) -> None:
        folder.write(episodes=3, complete=False)
        folder.write(episodes=6, crash=True, resume=True)
        found = folder.repair()
        assert (found.shards, found.adopted, found.complete, found.resumable) == (5, 2, False, True)
        assert folder.manifest()["provenance"]["policy"] == "random"
        folder.assert_holds([f"e{i}" for i in range(5)])

    def test_shards_from_before_there_were_infos_get_their_columns(self, local: Folder) -> None:
        steps = local.batch.num_steps + len(local.batch)
        infos = [{"i": i} if i > steps - 8 else {} for i in range(steps)]
        local.batch = type(local.batch)(**{**_fields(local.batch), "infos": infos})
        local.write(episodes=6, crash=True)
        local.repair()
        local.assert_holds([f"e{i}" for i in range(5)])

    def test_a_shard_missing_between_others_is_said_and_left_out_only_when_asked(self, folder: Folder) -> None:
        folder.write(episodes=6, crash=True)
        folder.shards()[1].remove()
        with pytest.raises(BadData, match=r"1 of 5 shards are broken: .*it is missing"):
            folder.repair()
        found = folder.repair(drop_broken=True)
        assert (found.adopted, found.dropped, found.resumable) == (4, 1, False)
        folder.assert_holds(["e0", "e2", "e3", "e4"])


def _fields(batch: EpisodeBatch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(batch)}


class TestOfADatasetThatWasBeingOverwritten:
    """Both are there: the user says which one stays, and the other is set aside."""

    @pytest.fixture
    def both(self, folder: Folder) -> Folder:
        folder.write(episodes=2)
        folder.write(episodes=6, crash=True, overwrite=True)
        return folder

    def test_it_is_not_chosen_unasked(self, both: Folder) -> None:
        before = both.bytes()
        with pytest.raises(UsageError, match=r"2 episodes in 2 shards.*5 complete shards of the new one") as caught:
            both.repair()
        assert "--keep old" in caught.value.fix
        assert both.bytes() == before

    def test_the_old_one_stays_as_it_was(self, both: Folder) -> None:
        manifest = both.place.join("manifest.json").read_bytes()
        new = sorted({file.name for file in both.shards()} - {Path(s["path"]).name for s in both.manifest()["shards"]})
        found = both.repair(keep="old")
        assert (found.episodes, found.complete, found.adopted, found.dropped) == (2, True, 0, 5)
        assert both.place.join("manifest.json").read_bytes() == manifest
        assert [path for path in both.bytes() if path.startswith("quarantine/")] == [*map(set_aside, new)]
        both.assert_holds(["e0", "e1"])

    def test_the_new_one_stays_and_the_old_one_with_its_manifest_is_set_aside(self, both: Folder) -> None:
        manifest = both.place.join("manifest.json").read_bytes()
        old = [Path(shard["path"]).name for shard in both.manifest()["shards"]]
        found = both.repair(keep="new")
        assert (found.episodes, found.complete, found.adopted, found.dropped) == (5, False, 5, 2)
        files = both.bytes()
        assert {*map(set_aside, old)} <= files.keys()
        assert files["quarantine/manifest.json"] == manifest
        both.assert_holds([f"e{i}" for i in range(5)])

    def test_where_the_new_one_has_no_shard_yet_there_is_nothing_to_choose(self, folder: Folder) -> None:
        folder.write(episodes=2)
        folder.put("_writing.json", json.dumps({**_note(folder), "pid": 2**22 + 1}).encode())
        found = folder.repair()
        assert (found.episodes, found.complete, found.dropped) == (2, True, 0)
        folder.assert_holds(["e0", "e1"])

    def test_shards_of_two_writings_that_nobody_explains_are_not_chosen_from(self, both: Folder) -> None:
        generations = {file.name[6:14] for file in both.shards()}
        both.put("manifest.json", b"{")
        both.put("_writing.json", b"{")
        with pytest.raises(UsageError, match="shards of 2 writes"):
            both.repair()
        with pytest.raises(UsageError, match="no shards of 'ffffffff'"):
            both.repair(keep="ffffffff")
        kept = max(generations, key=lambda name: sum(file.name[6:14] == name for file in both.shards()))
        assert both.repair(keep=kept).episodes == 5


def _note(folder: Folder) -> dict[str, Any]:
    other = Folder(open_location(f"memory://{uuid.uuid4().hex}/D"), folder.format, folder.batch)
    other.write(episodes=3, crash=True)
    found: dict[str, Any] = json.loads(other.place.join("_writing.json").read_bytes())
    return {**found, "generation": "0" * 8}


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

    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
    def test_a_manifest_that_is_no_json_is_set_aside_and_built_anew(self, folder: Folder, data: bytes) -> None:
        folder.write()
        folder.put("manifest.json", data)
        assert folder.repair().based_on == "shards"
        assert folder.bytes()["quarantine/manifest.json"] == data
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_what_a_broken_manifest_still_says_is_kept(self, folder: Folder) -> None:
        folder.write()
        document = folder.manifest()
        folder.put("manifest.json", json.dumps({**document, "counts": "many", "shards": [{}], "compression": 7}).encode())
        assert folder.repair().based_on == "manifest"
        manifest = folder.manifest()
        for name in ("observation_space", "action_space", "action_scale", "spaces_inferred", "counts", "statistics", "shards"):
            assert manifest[name] == document[name]
        assert manifest["provenance"]["policy"] == "random"
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_a_broken_manifest_that_lists_shards_well_still_says_what_they_must_be(self, folder: Folder) -> None:
        folder.write()
        document = folder.manifest()
        document["shards"][0]["sha256"] = "0" * 64
        document["counts"]["episodes"] = 61
        folder.put("manifest.json", json.dumps(document).encode())
        before = folder.bytes()
        with pytest.raises(BadData, match=r"1 of 6 shards are broken: .*its sha256 is .* the manifest says 000000000000"):
            folder.repair()
        assert folder.bytes() == before
        assert folder.repair(drop_broken=True).complete is False
        folder.assert_holds(["e1", "e2", "e3", "e4", "e5"])

    @pytest.mark.parametrize("gone", [2, 5])
    def test_a_shard_that_a_broken_manifest_lists_is_missed(self, folder: Folder, gone: int) -> None:
        folder.write()
        folder.put("manifest.json", json.dumps({**folder.manifest(), "counts": "many"}).encode())
        shard = folder.shards()[gone]
        shard.remove()
        with pytest.raises(BadData, match=f"1 of 6 shards are broken: {shard.name}: it is missing"):
            folder.repair()

    def test_a_number_that_a_whole_list_leaves_out_is_not_missed(self, folder: Folder) -> None:
        folder.write()
        damaged(folder, 2)
        folder.repair(drop_broken=True)
        folder.put("manifest.json", json.dumps({**folder.manifest(), "statistics": 0}).encode())
        assert folder.repair().episodes == 5
        folder.assert_holds(["e0", "e1", "e3", "e4", "e5"])

    def test_entries_of_a_broken_list_that_cannot_be_read_say_nothing(self, folder: Folder) -> None:
        folder.write()
        document = folder.manifest()
        document["shards"][0].update(sha256=7, bytes="many")
        document["shards"][1] = {"path": "../../etc/passwd", "sha256": "0" * 64}
        document["shards"][2] = None
        folder.put("manifest.json", json.dumps(document).encode())
        assert folder.repair().complete is False
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_rebuilt_with_all_that_a_complete_manifest_listed_it_is_complete(self, folder: Folder) -> None:
        folder.write()
        folder.put("manifest.json", json.dumps({**folder.manifest(), "statistics": 0}).encode())
        assert folder.repair().complete is True
        assert "incomplete-dataset" not in {problem.code for problem in validate(folder.place, deep=True).problems}

    def test_a_broken_manifest_of_an_unfinished_writing_still_says_how_to_go_on(self, folder: Folder) -> None:
        folder.write(episodes=3, complete=False)
        folder.put("manifest.json", json.dumps({**folder.manifest(), "statistics": 0}).encode())
        found = folder.repair()
        assert (found.complete, found.resumable) == (False, True)
        folder.write(resume=True)
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_a_lost_manifest_leaves_a_note_with_something_to_do_and_no_warning(self, folder: Folder) -> None:
        folder.write()
        folder.place.join("manifest.json").remove()
        folder.repair()
        (problem,) = (one for one in validate(folder.place).problems if one.code == "incomplete-dataset")
        assert problem.severity == "note"
        assert "compare 6 episodes with what was asked for" in problem.fix
        assert "--resume" not in problem.fix

    def test_what_is_told_of_a_shard_left_out_is_what_can_be_done(self, folder: Folder) -> None:
        folder.write()
        damaged(folder, 2)
        folder.repair(drop_broken=True)
        (problem,) = (one for one in validate(folder.place).problems if one.code == "incomplete-dataset")
        assert (problem.severity, "repair left out 1 shard" in problem.what) == ("warning", True)
        with pytest.raises(OutputExists, match="is not complete, and nothing in it says how to continue") as caught:
            folder.write(resume=True)
        assert caught.value.fix == problem.fix == "write what is missing to another --out, or everything again with --overwrite"

    def test_a_generation_that_is_named_must_be_what_the_manifest_says_of_it(self, folder: Folder) -> None:
        folder.write()
        damaged(folder, 2)
        with pytest.raises(BadData, match="1 of 6 shards are broken"):
            folder.repair(keep=folder.shards()[0].name[6:14])

    def test_a_shard_with_an_absurd_number_is_one_gap_and_no_million_questions(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.write(episodes=5, crash=True)
        last = folder.shards()[-1]
        folder.put(f"data/{last.name[:15]}999999999999.parquet", last.read_bytes())
        last.remove()
        joined: list[str] = []
        real = Location.join
        monkeypatch.setattr(Location, "join", lambda place, *parts: (joined.append(parts[0]), real(place, *parts))[1])
        with pytest.raises(
            BadData, match=r"999,999,999,996 of 1,000,000,000,000 shards .* so are the 999,999,999,995 after it"
        ):
            folder.repair()
        assert len(joined) < 200
        assert folder.repair(drop_broken=True).episodes == 4

    @pytest.mark.parametrize("said", [{}, [], "", 0, False])
    def test_what_a_broken_manifest_says_instead_of_a_space_is_none(self, folder: Folder, said: object) -> None:
        folder.write()
        folder.put("manifest.json", json.dumps({**folder.manifest(), "observation_space": said}).encode())
        assert folder.repair().based_on == "shards"
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_a_changed_shard_is_named_and_refused(self, folder: Folder) -> None:
        folder.write()
        shard = damaged(folder, 2)
        before = folder.bytes()
        with pytest.raises(BadData, match=f"1 of 6 shards are broken: {shard.name}") as caught:
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

    def test_a_shard_that_reads_well_and_is_not_the_one_of_the_manifest_is_broken(self, folder: Folder) -> None:
        folder.write()
        first, second = folder.shards()[:2]
        folder.put(f"data/{second.name}", first.read_bytes())
        with pytest.raises(BadData, match="its sha256 is"):
            folder.repair()

    def test_an_episode_that_is_there_twice_is_found_without_a_manifest_too(self, folder: Folder) -> None:
        folder.write()
        first, second = folder.shards()[:2]
        folder.put(f"data/{second.name}", first.read_bytes())
        folder.place.join("manifest.json").remove()
        with pytest.raises(BadData, match="episode 'e0' is in it, and was before"):
            folder.repair()
        folder.repair(drop_broken=True)
        folder.assert_holds(["e0", "e2", "e3", "e4", "e5"])

    def test_where_no_shard_is_whole_nothing_is_done(self, folder: Folder) -> None:
        folder.write()
        for number in range(6):
            damaged(folder, number)
        before = folder.bytes()
        with pytest.raises(BadData, match="nothing would be left"):
            folder.repair(drop_broken=True)
        assert folder.bytes() == before

    def test_files_that_the_manifest_does_not_list_are_set_aside(self, folder: Folder) -> None:
        folder.write()
        copy = folder.put("data/copy.parquet", folder.shards()[0].read_bytes())
        folder.put("data/_SUCCESS", b"")
        folder.put("notes.txt", b"theirs")
        found = folder.repair()
        assert (found.set_aside, found.dropped, found.complete) == ((copy.url,), 1, True)
        assert {"data/_SUCCESS", "notes.txt", "quarantine/copy.aside"} <= folder.bytes().keys()

    def test_nothing_in_quarantine_is_written_over(self, folder: Folder) -> None:
        folder.write()
        for number in range(3):
            folder.put("data/copy.parquet", b"%d" % number)
            folder.repair()
        files = folder.bytes()
        assert [files[f"quarantine/copy.aside{end}"] for end in ("", ".1", ".2")] == [b"0", b"1", b"2"]

    def test_spaces_that_do_not_follow_from_the_columns_are_asked_for(self, tmp_path: Path, make: Make) -> None:
        from gymnasium import spaces

        batch = make.batch((4, 3))
        small = spaces.Discrete(3, dtype=np.int8)
        batch = type(batch)(**{**_fields(batch), "actions": np.array(batch.actions, np.int8), "action_space": small})
        folder = Folder(open_location(tmp_path / "D"), "columns", batch)
        folder.write(episodes=2)
        folder.place.join("manifest.json").remove()
        with pytest.raises(BadConfig, match="do not follow from its columns") as caught:
            folder.repair()
        assert "--env" in caught.value.fix


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
                with pytest.raises(Locked, match="another writer is at work") as caught:
                    folder.repair(dry_run=dry_run)
            assert caught.value.exit_code == 5
            assert "wait for it" in caught.value.fix
            assert not {"--resume", "--out"} & set(caught.value.fix.split())
            assert folder.bytes() == before
            writer.commit()

    def test_a_writer_that_begins_while_the_shards_are_read_has_the_folder(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from offline_cli.checking.repair import repairing

        folder.write(episodes=4, crash=True)
        real, begun = repairing.examine, threading.Event()
        writer = folder.writer(resume=True)

        def slowly(*args: Any) -> Any:
            found = real(*args)
            if not begun.is_set():
                begun.set()
                writer.__enter__()
            return found

        monkeypatch.setattr(repairing, "examine", slowly)
        with pytest.raises(Locked):
            folder.repair()
        writer.write(folder.batch.select(slice(writer.episodes_written, 6)))
        writer.commit()
        writer.__exit__(None, None, None)
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_one_that_wrote_meanwhile_is_noticed(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        from offline_cli.checking.repair import repairing

        folder.write(episodes=4, crash=True)
        real, seen = repairing.examine, []

        def slowly(*args: Any) -> Any:
            found = real(*args)
            if not seen:
                seen.append(1)
                folder.write(resume=True)
            return found

        monkeypatch.setattr(repairing, "examine", slowly)
        assert not folder.repair().changed
        folder.assert_holds([f"e{i}" for i in range(6)])

    def test_where_a_lock_is_no_more_than_a_file_it_asks_again_before_the_manifest(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from offline_cli.checking.repair import plan

        wrapped = DirFileSystem(f"/{uuid.uuid4().hex}", MemoryFileSystem())
        folder = Folder(open_location("D", filesystem=wrapped), "columns", make.batch((4, 3)))
        folder.write(episodes=2, crash=True)
        real = plan.ShardSequence

        def taken_over_meanwhile(*args: Any, **kwargs: Any) -> Any:
            folder.put("_writing.json", WritingNote.of_this_process("0badcafe", {}, 0, "another writer").to_bytes())
            return real(*args, **kwargs)

        monkeypatch.setattr(plan, "ShardSequence", taken_over_meanwhile)
        with pytest.raises(TakenOver):
            folder.repair()
        assert not folder.place.join("manifest.json").exists()


class TestKilled:
    """Whenever a repair is ended, the next one ends like an undisturbed one."""

    @pytest.mark.parametrize("case", ["left", "old", "new", "broken", "lost"])
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
    if case in ("old", "new"):
        folder.write(episodes=2)
        folder.write(episodes=6, crash=True, overwrite=True)
        return {"keep": case}, ["e0", "e1"] if case == "old" else [f"e{i}" for i in range(5)]
    folder.write()
    if case == "broken":
        damaged(folder, 3)
        return {"drop_broken": True}, ["e0", "e1", "e2", "e4", "e5"]
    folder.place.join("manifest.json").remove()
    return {}, [f"e{i}" for i in range(6)]


def crash_at(patch: pytest.MonkeyPatch, stage: int) -> list[int]:
    """Raise Crash before the change of that number that a repair makes; the list is not empty once it was raised."""

    from offline_cli.checking.repair import plan

    raised: list[int] = []
    count = [0]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == stage + 1 and not raised:
                raised.append(1)
                patch.setattr(WritingLock, "_end", lambda lock, _: lock._give_up())  # the dead tidy nothing up
                raise Crash
            return real(*args, **kwargs)

        return call

    for holder, name in ((plan, "set_aside"), (plan, "write_whole"), (Location, "remove"), (staging.StagedFile, "commit")):
        patch.setattr(holder, name, counting(getattr(holder, name)))
    return raised


class TestPlaces:
    """What is no dataset is told as such."""

    def test_a_missing_folder(self, place: Location) -> None:
        with pytest.raises(StorageNotFound):
            repair(place)  # type: ignore[arg-type]

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(NoData, match="nor anything left of one"):
            repair(str(tmp_path))


def test_progress_counts_shards(local: Folder) -> None:
    local.write(episodes=4, crash=True)
    seen: list[Any] = []
    local.repair(on_progress=seen.append)
    assert [(step.done, step.total, step.unit) for step in seen] == [(1, 3, "shards"), (2, 3, "shards"), (3, 3, "shards")]
