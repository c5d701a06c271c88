"""The quick check of a manifest's shards never takes what the schema refuses, and names no other shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from offline_cli.datasets.manifest import Manifest, is_shard
from offline_cli.errors import BadData
from offline_cli.files.locations import open_location
from offline_cli.json_documents import deeper_than, load_schema

SHARD: dict[str, Any] = {
    "path": "data/shard-0123abcd-000000.parquet",
    "episodes": 1,
    "rows": 2,
    "steps": 3,
    "bytes": 4,
    "sha256": "0" * 64,
}
VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63 - 1, 2**63, 3.0, 0.5, "", "x", [], {}, "0" * 63, "0" * 65, "0" * 64 + "\n", "A" * 64),
    *("data/shard-0123abcd-00000.parquet", "data/shard-0123abcd-000001.parquet\n", "data/shard-0123ABCD-000001.parquet"),
    *(
        "data/../shard-0123abcd-000001.parquet",
        "data/shard-0123abcd-" + "1" * 40 + ".parquet",
        "data/shard-0123abcd-١٢٣٤٥٦.parquet",
    ),
]


def schema_takes(value: Any) -> bool:
    schema = load_schema("manifest.v2.json")
    whole = {"$defs": schema["$defs"], **schema["properties"]["shards"]["items"]}
    return bool(jsonschema.Draft202012Validator(whole).is_valid(value))


@pytest.mark.parametrize("key", SHARD)
def test_a_value_that_the_schema_refuses_has_not_the_form(key: str) -> None:
    assert is_shard(SHARD)
    for value in VALUES:
        changed = {**SHARD, key: value}
        assert schema_takes(changed) or not is_shard(changed), value
    assert not is_shard({name: value for name, value in SHARD.items() if name != key})


@pytest.mark.parametrize("changed", [{**SHARD, "more": 1}, [], None, "inf", 1, [SHARD]])
def test_what_is_no_shard_has_not_the_form(changed: Any) -> None:
    assert not is_shard(changed)


@pytest.fixture
def document(tmp_path: Path, make_batch: Callable[..., Any], writer_for: Callable[..., Any]) -> Callable[[int], dict[str, Any]]:
    """A function that makes the manifest of a dataset of so many shards of one episode each."""
    with writer_for(open_location(tmp_path / "D")) as writer:
        writer.write(make_batch((1,)))
        writer.commit()
    found = json.loads((tmp_path / "D" / "manifest.json").read_bytes())

    def made(shards: int) -> dict[str, Any]:
        listed = [{**SHARD, "path": f"data/shard-0123abcd-{number:06d}.parquet"} for number in range(shards)]
        counts = {**found["counts"], "episodes": shards, "steps": 3 * shards}
        return {**found, "shards": listed, "counts": counts}

    return made


def test_a_mistake_names_the_shard_that_has_it(document: Callable[[int], dict[str, Any]]) -> None:
    broken = document(1000)
    broken["shards"][700]["bytes"] = -1
    broken["shards"][900]["sha256"] = None
    with pytest.raises(BadData) as caught:
        Manifest.from_bytes(json.dumps(broken).encode(), where="here")
    assert [text.partition(": ")[0] for text in caught.value.details["problems"]] == ["shards.700.bytes", "shards.900.sha256"]


def test_whole_numbers_written_as_floats_are_taken_as_the_schema_takes_them(document: Callable[[int], dict[str, Any]]) -> None:
    made = document(2)
    made["shards"][1]["bytes"] = 4.0
    shard = Manifest.from_bytes(json.dumps(made).encode(), where="here").shards[1]
    assert (shard.bytes, type(shard.bytes)) == (4, int)


def test_a_manifest_of_a_hundred_thousand_shards_is_read(document: Callable[[int], dict[str, Any]]) -> None:
    data = json.dumps(document(100_000)).encode()
    assert len(Manifest.from_bytes(data, where="here").shards) == 100_000


@pytest.mark.parametrize(
    ("value", "depth"), [(1, 0), ([], 1), ({"a": []}, 2), ([[], {"a": [1]}], 3), ({"a": 1, "b": [{"c": {}}]}, 4)]
)
def test_nesting_is_counted_in_lists_and_objects(value: Any, depth: int) -> None:
    assert not deeper_than(value, depth)
    assert depth == 0 or deeper_than(value, depth - 1)
