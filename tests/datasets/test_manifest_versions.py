"""Manifests of every version are read; a key that is missing says that something is not known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import BadData
from offline_cli.files.locations import open_location
from offline_cli.json_documents import schemas_folder

V1 = Path(__file__).resolve().parent.parent / "testdata" / "manifest_v1"


def document_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return document


def read(document: Any) -> Manifest:
    return Manifest.from_bytes(json.dumps(document).encode(), where="D/manifest.json")


@pytest.mark.parametrize("name", ["episodes", "columns"])
def test_a_dataset_of_version_1_is_read(name: str) -> None:
    assert document_of(V1 / name)["version"] == 1
    dataset = Dataset.open(open_location(V1 / name))
    assert dataset.manifest.episodes_lost is None
    assert sum(len(batch) for batch in dataset.batches()) == dataset.manifest.counts.episodes == 3


def test_the_schema_of_version_1_stays_as_it_was_released() -> None:
    text = (schemas_folder() / "manifest.v1.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "067f96e7b5ea45910c09661bcce60ef40c3ac0bda694234bf85453b2789e4a16"


def test_version_1_knows_no_key_of_version_2() -> None:
    with pytest.raises(BadData, match="episodes_lost"):
        read({**document_of(V1 / "columns"), "episodes_lost": 0})


@pytest.mark.parametrize("lost", [0, 3])
def test_what_is_known_of_lost_episodes_is_written_and_read(lost: int) -> None:
    known = replace(read(document_of(V1 / "columns")), episodes_lost=lost)
    assert known.as_json()["version"] == 2
    assert Manifest.from_bytes(known.to_bytes(), where="D").episodes_lost == lost


def test_what_is_not_known_of_lost_episodes_has_no_key() -> None:
    again = Manifest.from_bytes(read(document_of(V1 / "columns")).to_bytes(), where="D")
    assert "episodes_lost" not in again.as_json()
    assert again.episodes_lost is None


@pytest.mark.parametrize("lost", [-1, 1.5, "0", None, True])
def test_a_count_of_lost_episodes_that_is_none_is_refused(lost: Any) -> None:
    with pytest.raises(BadData, match="episodes_lost"):
        read({**document_of(V1 / "columns"), "version": 2, "episodes_lost": lost})


@pytest.mark.parametrize("version", [0, -1, True, "2", 1.5, None])
def test_a_version_that_never_was_is_refused(version: Any) -> None:
    with pytest.raises(BadData, match="version"):
        read({**document_of(V1 / "columns"), "version": version})


def test_a_writer_that_is_not_told_what_was_lost_leaves_the_key_out(
    write_dataset: Callable[..., Manifest], make_batch: Callable[..., Any], tmp_path: Path
) -> None:
    assert write_dataset(open_location(tmp_path / "D"), make_batch()).episodes_lost is None
    assert "episodes_lost" not in document_of(tmp_path / "D")
