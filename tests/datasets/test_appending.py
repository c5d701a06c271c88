"""`convert --append`: a generation of shards beside those of a dataset, and one manifest of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from offline_cli.checking.validate import validate
from offline_cli.cli.app import app
from offline_cli.converting.convert import convert
from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.lock import WritingNote
from offline_cli.datasets.manifest import EnvironmentRecord
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import (
    BadConfig,
    BadEpisode,
    Interrupted,
    SpaceMismatch,
    Uncommitted,
)
from offline_cli.storage.locations import open_location

Make = Callable[..., EpisodeBatch]


def write(place: Path, batch: EpisodeBatch, row_format: str = "episodes", **options: Any) -> Path:
    known: dict[str, Any] = {
        "observation_space": batch.observation_space,
        "action_space": batch.action_space,
        "action_scale": "env",
        "environment": EnvironmentRecord("CartPole-v1"),
        "provenance": {"commands": [f"wrote {place.name}"]},
    }
    with DatasetWriter(open_location(place), format=row_format, **{**known, **options}) as writer:  # type: ignore[arg-type]
        writer.write(batch)
        writer.commit(episodes_lost=0)
    return place


@pytest.fixture(params=["episodes", "columns"])
def row_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def parts(tmp_path: Path, make_batch: Make, row_format: str) -> tuple[Path, Path]:
    """Two datasets with other episodes."""
    old = write(tmp_path / "old", make_batch((3, 1, 5, 7)), row_format, max_rows_per_file=4)
    return old, write(tmp_path / "new", make_batch((2, 9, 4), first_id=100), row_format)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((folder / "data").iterdir())}


def whole(folder: Path) -> list[tuple[str, bytes]]:
    with open_dataset(folder).batches() as batches:
        return [(batch.ids[e], fingerprints(batch)[e]) for batch in batches for e in range(len(batch))]


def test_old_shards_keep_names_and_bytes_and_the_new_manifest_lists_both(parts: tuple[Path, Path]) -> None:
    old, new = parts
    before, first = files(old), whole(old)
    result = convert(new, old, append=True)
    after = files(old)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    assert whole(old) == first + whole(new)
    assert (result.episodes, result.episodes_appended, result.steps) == (7, 3, 31)
    assert not (old / "_writing.json").exists()


def test_what_was_assumed_of_the_dataset_before_is_still_counted(parts: tuple[Path, Path]) -> None:
    manifest = parts[0] / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "assumptions": {"dtype-inferred": 2}}))
    convert(str(parts[1]), str(parts[0]), append=True)
    assert json.loads(manifest.read_text())["assumptions"]["dtype-inferred"] == 2


@pytest.mark.parametrize(
    ("fields", "options", "error"),
    [
        ({"observation_space": spaces.Box(-1, 1, (5,), np.float32)}, {}, SpaceMismatch),
        ({"action_space": spaces.Discrete(4)}, {}, SpaceMismatch),
        ({}, {"to": "columns"}, BadConfig),
        ({}, {"compression": "snappy"}, BadConfig),
        ({"extra": {"p": np.zeros(2)}}, {}, BadEpisode),
    ],
)
def test_what_is_not_of_the_dataset_s_kind_is_refused(
    tmp_path: Path, make_batch: Make, fields: dict[str, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    old = write(tmp_path / "old", make_batch((3, 4)))
    new = write(tmp_path / "new", make_batch((2,), first_id=10, **fields))
    before = sorted(p.name for p in old.rglob("*")), whole(old)
    with pytest.raises(error):
        convert(new, old, append=True, **options)
    assert before == (sorted(p.name for p in old.rglob("*")), whole(old))


# ---- interrupted ----


@pytest.fixture
def broken_off(parts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that appends, and is interrupted when one shard of two is complete, or at its `commit`."""
    old, new = parts

    def append(*, after: int = 1, **options: Any) -> None:
        taken = iter([*[False] * after, True])

        def write_or_stop(writer: DatasetWriter, batch: EpisodeBatch, *rest: Any) -> None:
            for e in range(len(batch)):
                if next(taken, True):
                    raise KeyboardInterrupt
                plain(writer, batch.select([e]), *[None for _ in rest])

        plain = DatasetWriter.write
        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(DatasetWriter, "write", write_or_stop)
            convert(new, old, append=True, max_rows_per_file=1, **options)

    return append


def test_an_interrupted_append_is_uncommitted_and_resumed(parts: tuple[Path, Path], broken_off: Callable[..., None]) -> None:
    old, new = parts
    expected = whole(old) + whole(new)
    broken_off(after=2)
    for call in (lambda: whole(old), lambda: convert(new, old, append=True)):
        with pytest.raises(Uncommitted):
            call()
    with pytest.raises(BadConfig, match="appends_to"):
        convert(new, old, resume=True, max_rows_per_file=1, to=json.loads((old / "manifest.json").read_text())["format"])
    result = convert(new, old, append=True, resume=True, max_rows_per_file=1)
    assert whole(old) == expected
    assert (result.episodes, result.episodes_appended) == (7, 3)
    assert validate(old, deep=True).passed
    undisturbed = convert(new, old, append=True, resume=True)  # as resume of what was not begun starts
    assert (undisturbed.episodes_appended, undisturbed.duplicates_dropped) == (0, 3)


@pytest.mark.parametrize(("there", "code"), [("nothing", 5), ("folder", 3), ("note", 3)])
def test_what_cannot_be_added_to_has_its_exit_code(tmp_path: Path, make_batch: Make, there: str, code: int) -> None:
    new, out = write(tmp_path / "new", make_batch((2,))), tmp_path / "out"
    if there != "nothing":
        out.mkdir()
    if there == "note":
        write(out, make_batch((3,), first_id=10), overwrite=True)
        note = WritingNote.of_this_process("0badcafe", {}, 0, "another writer")
        (out / "_writing.json").write_bytes(replace(note, left=True).to_bytes())
    done = CliRunner().invoke(app, ["convert", str(new), "--out", str(out), "--append", "--json", "--quiet"])
    assert done.exit_code == code
    assert "try" in done.stderr or json.loads(done.stdout)["error"]["fix"]
