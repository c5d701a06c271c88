"""A dataset of many shards: its manifest lists parts, which are read as needed, and is otherwise a dataset like any other."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from offline_cli.checking.inspect import inspect
from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import diff
from offline_cli.converting.operations.merging import merge
from offline_cli.converting.operations.selecting import filter, sample
from offline_cli.datasets import shard_list
from offline_cli.datasets.dataset import Dataset, open_dataset
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.shard_list import PART_SCHEMA, ShardParts, content_hash, is_part, part_bytes
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError, StorageError
from offline_cli.files.locations import open_location
from offline_cli.json_documents import load_schema

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
    assert found["version"] == 3
    assert "shards" not in found
    assert [part["shards"] for part in found["parts"]] == [2, 2, 2, 1]
    assert [part["steps"] for part in found["parts"]] == [4, 7, 10, 1]
    assert [part["length"] for part in found["parts"]][1] == {"min": 2, "max": 5, "mean": 3.5}
    assert found["parts"][1]["return"]["max"] == pytest.approx(max(batch.returns[2:4]))
    jsonschema.Draft202012Validator(load_schema("manifest-part.v3.json")).validate(
        json.loads((place / found["parts"][0]["path"]).read_bytes())
    )


def test_up_to_the_bound_the_manifest_lists_shards_itself(tmp_path: Path, make_batch: Make) -> None:
    write(tmp_path / "D", make_batch((3, 1, 5)))
    assert (document(tmp_path / "D")["version"], parts(tmp_path / "D")) == (2, [])


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


def test_a_writer_holds_no_more_entries_than_parts_need(
    tmp_path: Path, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, most = make_batch((1,) * 20), 0
    with DatasetWriter(
        tmp_path / "D",
        observation_space=batch.observation_space,
        action_space=batch.action_space,
        max_rows_per_file=1,
        format="episodes",
    ) as writer:
        for number in range(20):
            writer.write(batch.select(slice(number, number + 1)))
            assert writer._shards is not None
            most = max(most, len(writer._shards.finished._pending))
        writer.commit()
    assert most <= 3
    assert len(open_dataset(tmp_path / "D").manifest.shards) == 20


def test_infos_that_come_late_are_written_into_the_shards_of_parts(tmp_path: Path, make_batch: Make) -> None:
    batch = make_batch(LENGTHS)
    infos = [[{} for _ in range(length + 1)] for length in LENGTHS]
    infos[-1][0] = {"late": 1}
    late = make_batch(LENGTHS, infos=tuple(info for infos_of in infos for info in infos_of))
    write(tmp_path / "D", late, format="columns", max_rows_per_file=3)
    assert parts(tmp_path / "D") == listed(tmp_path / "D") != []
    assert ids(tmp_path / "D") == [*batch.ids]
    assert all("infos" in pq.read_schema(file).names for file in (tmp_path / "D" / "data").iterdir())


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


def test_inspect_reads_no_part(place: Path) -> None:
    for name in parts(place):
        (place / "manifest" / name).unlink()
    assert inspect(place).episodes == 7


def test_episodes_are_found_by_reading_the_parts_that_hold_them(place: Path, batch: EpisodeBatch) -> None:
    dataset = open_dataset(place)
    for part in document(place)["parts"][:-1]:
        (place / part["path"]).unlink()
    assert len(dataset) == 7
    assert dataset[6].id_ == batch.ids[6]
    with pytest.raises(BadData, match="is missing"):
        dataset[0]


def test_shards_are_cut_into_ranges_and_pickled_without_being_read(place: Path) -> None:
    found = open_dataset(place).manifest.shards
    whole = [*found]
    assert isinstance(found, ShardParts)
    for first, stop in [(0, 7), (1, 4), (3, 3), (5, 99), (-2, 7)]:
        some = pickle.loads(pickle.dumps(found[first:stop]))
        assert [*some] == whole[first:stop]
        assert some.total("bytes") == sum(shard.bytes for shard in whole[first:stop])
        assert [some[number] for number in range(len(some))] == whole[first:stop]
    assert found[1:6][1:3][0] == whole[2]
    assert found[-1] == whole[-1]
    with pytest.raises(IndexError):
        found[7]


def test_of_many_parts_a_few_are_in_memory(place: Path) -> None:
    found = open_dataset(place).manifest.shards
    assert isinstance(found, ShardParts)
    assert len([*found]) == 7
    assert len(found._held) == shard_list.HELD < len(found.parts)


# ---- what is written over it, and added to it ----


def test_small_appends_fill_the_last_part_and_keep_the_others(place: Path, make_batch: Make, tmp_path: Path) -> None:
    before = listed(place)
    for number in range(3):
        write(tmp_path / f"N{number}", make_batch((2,), first_id=100 + number))
        convert(tmp_path / f"N{number}", place, append=True)
    assert [part["shards"] for part in document(place)["parts"]] == [2, 2, 2, 2, 2]
    assert len({*before} & {*listed(place)}) == 3
    assert parts(place) == listed(place)
    assert ids(place)[7:] == ["episode-100", "episode-101", "episode-102"]
    assert is_sound(place)
    assert [part["length"]["max"] for part in document(place)["parts"]] == [3, 5, 6, 2, 2]


def test_an_append_that_crosses_the_bound_makes_parts_of_all(tmp_path: Path, make_batch: Make) -> None:
    write(tmp_path / "D", make_batch((3, 1, 5)))
    write(tmp_path / "N", make_batch((2, 2), first_id=50))
    convert(tmp_path / "N", tmp_path / "D", append=True, max_rows_per_file=1)
    assert [part["shards"] for part in document(tmp_path / "D")["parts"]] == [2, 2, 1]
    assert len(ids(tmp_path / "D")) == 5


def test_a_reader_of_the_dataset_before_is_told_that_its_parts_are_gone(place: Path, make_batch: Make) -> None:
    older = open_dataset(place)
    write(place, make_batch(LENGTHS, seed=1, first_id=20), overwrite=True)
    with pytest.raises(StorageError, match="replaced"):
        [*older.batches()]
    assert parts(place) == listed(place)
    write(place, make_batch((1,), first_id=30), overwrite=True)
    assert (parts(place), document(place)["version"]) == ([], 2)


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


def resealed(place: Path, change: Callable[[list[dict[str, Any]]], Any], number: int = 1, **sums: int) -> None:
    """Change the entries of a part, with a manifest that names the new bytes."""
    whole = document(place)
    part = whole["parts"][number]
    content = json.loads((place / part["path"]).read_bytes())
    change(content["shards"])
    data = json.dumps(content).encode()
    digest = hashlib.sha256(data).hexdigest()
    whole["parts"][number] = {**part, **sums, "path": f"manifest/part-{digest[:16]}.json", "sha256": digest}
    (place / whole["parts"][number]["path"]).write_bytes(data)
    (place / "manifest.json").write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda shards: shards[0].update(episodes=2), "hold 3 episodes, the manifest says 2"),
        (lambda shards: shards[0].update(bytes=1), "bytes, the manifest says"),
        (lambda shards: shards.pop(), "1 shards, the manifest says 2"),
        (lambda shards: shards.reverse(), "not in the order of its numbers"),
        (lambda shards: shards[0].update(path="data/../../shard-0123abcd-000001.parquet"), "does not match"),
        (lambda shards: shards[0].update(path="data/shard-0123abcd-000001.parquet\n"), "no shard's name"),
        (lambda shards: shards[0].update(more=1), "'more' was unexpected"),
        (lambda shards: shards[0].update(rows=-1), "less than the minimum"),
    ],
)
def test_a_part_that_contradicts_the_manifest_is_refused_by_name(place: Path, change: Any, what: str) -> None:
    resealed(place, change)
    with pytest.raises(BadData, match=what) as caught:
        ids(place)
    assert caught.value.exit_code == 3
    assert document(place)["parts"][1]["path"] in caught.value.what
    assert [problem.code for problem in validate(place).problems][:1] == ["broken-manifest"]


def test_a_shard_that_two_parts_list_is_refused(place: Path) -> None:
    first = json.loads((place / document(place)["parts"][0]["path"]).read_bytes())["shards"]
    own = json.loads((place / document(place)["parts"][1]["path"]).read_bytes())["shards"]
    change = {key: sum(shard[key] for shard in first) for key in ("rows", "steps", "bytes")}
    whole = document(place)
    whole["counts"]["steps"] += change["steps"] - sum(shard["steps"] for shard in own)
    (place / "manifest.json").write_text(json.dumps(whole))
    resealed(place, lambda shards: shards.__setitem__(slice(None), [*map(dict, first)][::1]), **change)
    with pytest.raises(BadData, match="listed"):
        ids(place)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda parts: parts.append(parts[0]), "is listed 2 times"),
        (lambda parts: parts[0].update(path="manifest/../../part-0123456789abcdef.json"), "does not match"),
        (lambda parts: parts[0].update(path="/etc/passwd"), "does not match"),
        (lambda parts: parts[0].update(sha256="0" * 64), "not named by its sha256"),
        (lambda parts: parts[0].update(steps=5), "the parts hold"),
        (lambda parts: parts[0].update(shards=0), "less than the minimum"),
        (lambda parts: parts[0].pop("length"), "'length' is a required property"),
        (lambda parts: parts.clear(), "parts"),
    ],
)
def test_a_manifest_whose_parts_cannot_be_is_refused_when_it_is_opened(place: Path, change: Any, what: str) -> None:
    whole = document(place)
    change(whole["parts"])
    (place / "manifest.json").write_text(json.dumps(whole))
    with pytest.raises(BadData, match=what) as caught:
        Dataset.open(place)
    assert caught.value.exit_code == 3


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


def test_a_part_has_the_form_only_if_the_schema_takes_it(place: Path) -> None:
    schema = load_schema("manifest.v3.json")
    checked = jsonschema.Draft202012Validator({"$defs": schema["$defs"], **schema["properties"]["parts"]["items"]})
    part = document(place)["parts"][0]
    assert is_part(part)
    for key in part:
        for value in (None, True, -1, 0, 1.5, 2**63, "", "x", [], {}, {"min": "a", "max": 1, "mean": 1}, part["path"] + "\n"):
            changed = {**part, key: value}
            assert checked.is_valid(changed) or not is_part(changed), (key, value)


def test_the_same_shards_make_the_same_part() -> None:
    shard = Shard("data/shard-0123abcd-000000.parquet", 1, 1, 1, 1, "0" * 64)
    assert part_bytes([shard]) == part_bytes([shard])
    assert PART_SCHEMA == "manifest-part.v3.json"
