"""A dataset of many shards: its manifest lists parts, which are read as needed, and is otherwise a dataset like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offline_cli.checking.inspect import inspect
from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import diff
from offline_cli.converting.operations.merging import merge
from offline_cli.converting.operations.selecting import filter, sample
from offline_cli.datasets import shard_list
from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.shard_list import content_hash
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OfflineCliError
from offline_cli.json_documents import load_schema
from offline_cli.storage.locations import open_location

Make = Callable[..., EpisodeBatch]
OUTSIDE = "observation-outside-space"
LENGTHS = (3, 1, 5, 2, 4, 6, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two shards, where there are more than three."""
    monkeypatch.setattr(shard_list, "LISTED", 3)
    monkeypatch.setattr(shard_list, "PER_PART", 2)


def write(place: Path, batch: EpisodeBatch, **options: Any) -> Manifest:
    """A shard for each episode."""
    spaces = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    given: dict[str, Any] = {"format": "episodes", "action_scale": "env", "max_rows_per_file": 1, **spaces, **options}
    with DatasetWriter(open_location(place), **given) as writer:
        known = writer.ids_written
        writer.write(batch.select([number for number, name in enumerate(batch.ids) if name not in known]))
        return writer.commit(episodes_lost=0)


@pytest.fixture
def batch(make_batch: Make) -> EpisodeBatch:
    return make_batch(LENGTHS)


@pytest.fixture
def place(tmp_path: Path, batch: EpisodeBatch) -> Path:
    write(tmp_path / "D", batch)
    return tmp_path / "D"


def document(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "manifest.json").read_bytes())
    return found


def parts(place: Path) -> list[str]:
    return sorted(file.name for file in (place / "manifest").iterdir()) if (place / "manifest").exists() else []


def listed(place: Path) -> list[str]:
    return sorted(part["path"].removeprefix("manifest/") for part in document(place).get("parts", []))


def ids(place: Path | str) -> list[str]:
    with open_dataset(place).batches() as batches:
        return [name for batch in batches for name in batch.ids]


def is_sound(place: Path) -> bool:
    """Whether nothing is wrong with it but the values, which are random."""
    return {problem.code for problem in validate(place, deep=True).problems} <= {OUTSIDE}


# ---- what is written ----


def test_the_manifest_lists_parts_with_sums_and_figures_of_their_shards(place: Path, batch: EpisodeBatch) -> None:
    found = document(place)
    assert found["version"] == 1
    assert "shards" not in found
    assert [part["shards"] for part in found["parts"]] == [2, 2, 2, 1]
    assert [part["steps"] for part in found["parts"]] == [4, 7, 10, 1]
    assert [part["length"] for part in found["parts"]][1] == {"min": 2, "max": 5, "mean": 3.5}
    assert found["parts"][1]["return"]["max"] == pytest.approx(max(batch.returns[2:4]))
    jsonschema.Draft202012Validator(load_schema("manifest-part.v1.json")).validate(
        json.loads((place / found["parts"][0]["path"]).read_bytes())
    )


def test_data_and_all_other_words_are_those_of_a_manifest_without_parts(
    place: Path, tmp_path: Path, batch: EpisodeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_list, "LISTED", 10)
    write(tmp_path / "E", batch)
    one, other = document(place), document(tmp_path / "E")
    apart = {"version", "parts", "shards", "provenance"}
    assert {key: value for key, value in one.items() if key not in apart} == {
        key: value for key, value in other.items() if key not in apart
    }
    assert [file.read_bytes() for file in sorted((place / "data").iterdir())] == [
        file.read_bytes() for file in sorted((tmp_path / "E" / "data").iterdir())
    ]
    shards = open_dataset(place).manifest.shards, open_dataset(tmp_path / "E").manifest.shards
    assert [*shards[0]] == [*shards[1]]
    assert content_hash(shards[0]) == content_hash(shards[1])


# ---- what is read ----


def test_every_command_reads_it_as_any_dataset(place: Path, tmp_path: Path, batch: EpisodeBatch) -> None:
    assert ids(place) == [*batch.ids]
    assert inspect(place, expect={"episodes": 7, "steps": 22}).from_manifest
    assert is_sound(place)
    assert convert(place, tmp_path / "C", to="columns", max_rows_per_file=1).episodes == 7
    assert diff(place, tmp_path / "C").equal
    assert merge([place], tmp_path / "M", max_rows_per_file=1).shards == 7
    assert listed(tmp_path / "M") == parts(tmp_path / "M") != []
    assert filter(place, tmp_path / "F", where="length >= 3").episodes == 4
    assert sample(place, tmp_path / "S", episodes=3, seed=1).episodes == 3


# ---- what is written over it, and added to it ----


def test_an_append_that_crosses_the_bound_makes_parts_of_all(tmp_path: Path, make_batch: Make) -> None:
    write(tmp_path / "D", make_batch((3, 1, 5)))
    write(tmp_path / "N", make_batch((2, 2), first_id=50))
    convert(tmp_path / "N", tmp_path / "D", append=True, max_rows_per_file=1)
    assert [part["shards"] for part in document(tmp_path / "D")["parts"]] == [2, 2, 1]
    assert len(ids(tmp_path / "D")) == 5


@pytest.mark.parametrize("moment", ["parts", "manifest"])
def test_a_kill_before_or_after_the_manifest_is_resumed_and_leaves_no_part(
    tmp_path: Path, batch: EpisodeBatch, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    from offline_cli.datasets import finished_shards, writer

    real, calls = finished_shards.write_whole, []

    def dies(*args: Any, **options: Any) -> None:
        calls.append(args)
        if moment == "manifest" or len(calls) == 3:
            raise KeyboardInterrupt
        real(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer if moment == "manifest" else finished_shards, "write_whole", dies)
        write(tmp_path / "D", batch)
    assert parts(tmp_path / "D") != []
    (tmp_path / "D" / "manifest" / "part-0123456789abcdef.json").write_text('{"of": "an earlier try"}')
    write(tmp_path / "D", batch, resume=True)
    assert parts(tmp_path / "D") == listed(tmp_path / "D") != []
    write(tmp_path / "E", batch)
    assert listed(tmp_path / "D") == listed(tmp_path / "E")


def test_leftover_parts_are_reported_by_validate_and_removed_by_repair(place: Path) -> None:
    left = place / "manifest" / "part-0123456789abcdef.json"
    left.write_text('{"version": 3, "shards": []}')
    (place / "manifest" / "notes.json").write_text("{}")
    assert [problem.code for problem in validate(place).problems if problem.code != OUTSIDE] == ["leftover-file"]
    assert repair(place).removed == (str(left),)
    assert not left.exists()
    assert (place / "manifest" / "notes.json").exists()
    assert is_sound(place)


# ---- what is broken ----


@pytest.mark.parametrize("damage", [lambda part: part.unlink(), lambda part: part.write_bytes(part.read_bytes()[:-9])])
def test_a_part_that_is_missing_or_cut_is_named_and_repair_builds_the_manifest_anew(
    place: Path, damage: Callable[[Path], Any], batch: EpisodeBatch
) -> None:
    part = place / document(place)["parts"][2]["path"]
    damage(part)
    with pytest.raises(OfflineCliError, match=part.name) as caught:
        ids(place)
    assert caught.value.exit_code == 3
    assert repair(place).episodes == 7
    assert parts(place) == listed(place)
    assert ids(place) == [*batch.ids]
    assert part.name in parts(place)  # the same shards make the same part
