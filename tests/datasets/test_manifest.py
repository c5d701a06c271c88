"""Manifests: read back equal, and broken or hostile ones refused with all their mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.datasets.manifest import EnvironmentRecord, Manifest
from offline_cli.errors import BadData
from offline_cli.spaces import same_space
from offline_cli.storage.locations import open_location

Write = Callable[..., Manifest]


@pytest.fixture
def manifest(write_dataset: Write, make_batch: Callable[..., Any], tmp_path: Path) -> Manifest:
    return write_dataset(
        open_location(tmp_path / "M"),
        make_batch(extra={"logp": np.zeros(9)}),
        environment=EnvironmentRecord("CartPole-v1", {"render_mode": None}),
    )


def read(document: Any) -> Manifest:
    return Manifest.from_bytes(json.dumps(document).encode(), where="D/manifest.json")


def test_a_manifest_read_again_is_equal(manifest: Manifest) -> None:
    again = Manifest.from_bytes(manifest.to_bytes(), where="D/manifest.json")
    assert again.as_json() == manifest.as_json()
    assert same_space(again.observation_space, manifest.observation_space)
    assert again.environment == EnvironmentRecord("CartPole-v1", {"render_mode": None})


def set_at(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for name in parents:
        document = document[int(name)] if isinstance(document, list) else document[name]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("shards/0/path", "../../etc/passwd", "should match pattern"),
        ("shards/0/path", "data/../data/shard-0123abcd-000000.parquet", "should match pattern"),
        ("shards/0/path", "/data/shard-0123abcd-000000.parquet", "should match pattern"),
        ("shards/0/path", "data/shard-0123abcd-000000.parquet\n", "should match pattern"),
        ("shards/0/bytes", -1, "greater than or equal to 0"),
        ("shards/0/bytes", "many", "valid integer"),
        ("shards/0/sha256", "0", "should match pattern"),
        ("shards/0/steps", 8, "counts.steps: 9, but the shards hold 8"),
        ("counts/episodes", 4, "counts.episodes: 4, but the shards hold 3"),
        ("counts/more", 4, "counts.more"),
        ("format", "rows", "format: "),
        ("complete", 1, "complete: "),
        ("action_scale", None, "action_scale"),
        ("observation_space", None, "columns need an observation_space"),
        ("observation_space", {"type": "Text"}, "observation_space: "),
        ("observation_space", {"type": "Box", "shape": [4]}, "observation_space: "),
        ("environment", {"id": "", "kwargs": {}}, "environment"),
        ("statistics/return/mean", "x", "statistics.return.mean"),
        ("assumptions", {"kind": 1.5}, "assumptions.kind"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(manifest: Manifest, path: str, value: Any, what: str) -> None:
    document = manifest.as_json()
    set_at(document, path, value)
    with pytest.raises(BadData) as caught:
        read(document)
    assert any(what in problem for problem in caught.value.details["problems"]), caught.value.details
    assert caught.value.where == "D/manifest.json"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"format": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500]
)
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(BadData) as caught:
        Manifest.from_bytes(data, where="D/manifest.json")
    assert caught.value.where == "D/manifest.json"


def test_a_manifest_that_no_writer_could_write_again_is_refused(manifest: Manifest) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    document = {**manifest.as_json(), "provenance": {**manifest.provenance, "note": deep}}
    with pytest.raises(BadData):
        Manifest.from_bytes(json.dumps(document).encode(), where="D/manifest.json")
