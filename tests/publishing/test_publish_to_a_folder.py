"""`publish --to` a folder or URL of ours: a copy that ends with the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import offline_cli
from offline_cli.errors import OfflineCliError
from offline_cli.storage.locations import Location, open_location

Write = Callable[..., Any]


@pytest.fixture
def dataset(tmp_path: Path, make_batch: Any, write_dataset: Write) -> Path:
    """A dataset of three shards."""
    write_dataset(open_location(tmp_path / "original"), make_batch((4, 2, 6)), format="episodes", max_rows_per_file=1)
    return tmp_path / "original"


def content(folder: Location) -> dict[str, bytes]:
    """Its files, by path."""
    return {one.path.removeprefix(folder.path).lstrip("/"): one.read_bytes() for one in folder.files()}


def test_a_copy_has_the_same_shards_and_manifest(dataset: Path, place: Location) -> None:
    told = offline_cli.publish(dataset, place.url, license="mit")

    copied, original = content(place), content(open_location(dataset))
    card = copied.pop("README.md").decode()
    assert "license: mit\n" in card
    assert "| licence | mit |" in card
    original.pop("README.md")
    assert copied == original
    assert (told.shards, told.new_shards, told.to) == (3, 3, place.url)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_broken_copy_is_unfinished_and_continues_with_resume(
    dataset: Path, place: Location, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_cli.storage.staging import StagedFile

    commits, commit = [], StagedFile.commit

    def breaks(file: StagedFile) -> None:
        commits.append(file)
        if len(commits) == 2:
            raise OSError(28, "No space left on device")
        commit(file)

    monkeypatch.setattr(StagedFile, "commit", breaks)
    with pytest.raises(OSError, match="No space"):
        offline_cli.publish(dataset, place.url)
    monkeypatch.undo()

    assert call("inspect", place.url)[1]["error"]["code"] == "uncommitted"
    error = call("publish", dataset, "--to", place.url)[1]["error"]
    assert error["code"] == "output-exists"
    assert "--to" in error["fix"]
    code, told = call("publish", dataset, "--to", place.url, "--resume")
    assert (code, told["shards"], told["new_shards"]) == (0, 3, 2)
    assert call("validate", place.url)[1]["passed"]


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_broken_copy_is_not_continued_with_another_dataset(
    dataset: Path, place: Location, call: Any, make_batch: Any, write_dataset: Write, tmp_path: Path
) -> None:
    (dataset / "data").rename(dataset / "away")
    (dataset / "data").mkdir()
    first = min((dataset / "away").iterdir())
    (dataset / "data" / first.name).write_bytes(first.read_bytes())  # the other two are missing
    assert call("publish", dataset, "--to", place.url)[0] == 5
    other = open_location(tmp_path / "other")
    write_dataset(other, make_batch((3, 3), seed=5), format="episodes")

    code, told = call("publish", other.url, "--to", place.url, "--resume")

    assert (code, told["error"]["code"]) == (4, "bad-config")


def test_another_dataset_is_replaced_only_with_overwrite(
    dataset: Path, place: Location, make_batch: Any, write_dataset: Write
) -> None:
    write_dataset(place, make_batch((3, 3), seed=5), format="episodes")
    before = content(place)

    with pytest.raises(OfflineCliError) as failed:
        offline_cli.publish(dataset, place.url)
    assert failed.value.code == "output-exists"
    assert content(place) == before
    offline_cli.publish(dataset, place.url, overwrite=True)

    assert content(place).keys() == content(open_location(dataset)).keys()
    assert len(offline_cli.open_dataset(place)) == 3


def test_a_dry_run_writes_nothing(dataset: Path, place: Location) -> None:
    assert offline_cli.publish(dataset, place.url, dry_run=True).new_shards == 3
    assert not place.exists()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_damaged_shard_is_not_copied_and_nothing_is_left(
    dataset: Path, place: Location, call: Any, dry: tuple[str, ...]
) -> None:
    shard = min((dataset / "data").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    code, told = call("publish", dataset, "--to", place.url, *dry)

    assert (code, told["error"]["code"], told["error"]["where"]) == (3, "bad-data", str(shard))
    assert not place.exists()


@pytest.mark.parametrize("to", ["{D}", "{D}/copy", "{D}/", "./{name}", "link", "link/copy"])
def test_a_dataset_is_not_published_into_itself(dataset: Path, call: Any, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(open_location(dataset))
    monkeypatch.chdir(dataset.parent)
    Path("link").symlink_to(dataset.name)

    code, told = call("publish", dataset, "--to", to.format(D=dataset, name=dataset.name), "--overwrite")
    assert (code, "--out" in told["error"]["fix"]) == (2, False)
    assert content(open_location(dataset)) == before


def test_recordings_of_others_are_converted_first(tmp_path: Path, call: Any) -> None:
    (tmp_path / "steps.csv").write_text("t,x,a,r\n0,1,0,1\n")

    code, told = call("publish", tmp_path, "--to", tmp_path / "copy")

    assert (code, told["error"]["code"]) == (3, "no-data")
    assert "convert" in told["error"]["fix"]


def test_private_is_for_the_hub(dataset: Path, call: Any, tmp_path: Path) -> None:
    assert call("publish", dataset, "--to", tmp_path / "copy", "--private")[0] == 2


@pytest.mark.parametrize("license", ["CC BY", "mit\ntags: x", ""])
def test_a_licence_is_one_short_name(dataset: Path, call: Any, tmp_path: Path, license: str) -> None:
    code, told = call("publish", dataset, "--to", tmp_path / "copy", "--license", license)

    assert (code, told["error"]["where"]) == (2, "--license")


@pytest.mark.parametrize(
    ("given", "notes"), [((), 1), (("--license", "ccby"), 1), (("--license", "odbl"), 0), (("--license", "MIT"), 0)]
)
def test_a_missing_or_unknown_licence_is_noted(
    dataset: Path, call: Any, tmp_path: Path, given: tuple[str, ...], notes: int
) -> None:
    code, told = call("publish", dataset, "--to", tmp_path / "copy", *given)

    assert (code, len(told["notes"])) == (0, notes)


def test_the_manifest_is_the_last_file(dataset: Path, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_cli.publishing import copying

    written: list[str] = []
    write = copying.write_whole
    monkeypatch.setattr(
        copying, "write_whole", lambda target, *args, **given: (written.append(target.name), write(target, *args, **given))
    )
    offline_cli.publish(dataset, place.url)

    assert written[-1] == "manifest.json"
    assert json.loads(content(place)["manifest.json"])["complete"]


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_damaged_dataset_replaces_nothing_of_a_good_copy(dataset: Path, place: Location) -> None:
    offline_cli.publish(dataset, place.url)
    before = content(place)
    shard = min((dataset / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-20] + bytes(20))
    with suppress(OfflineCliError):  # what is there already is not sent again
        offline_cli.publish(dataset, place.url, overwrite=True)
    assert content(place) == before
