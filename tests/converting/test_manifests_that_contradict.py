"""A manifest that says something else than its shards hold is refused by whatever reads them: train-bc, convert and apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import convert, validate
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, SpaceMismatch
from offline_cli.storage.locations import open_location
from offline_cli.training.train import train_bc

Change = Callable[[dict[str, Any]], Any]
OBS, ACT = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def written(folder: Path, format: str, *, complete: bool = True) -> Path:
    """Two episodes of 5 steps, one terminated and one truncated."""
    rng = np.random.default_rng(0)
    batch = EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, 5, 10]),
        obs=rng.uniform(-1, 1, (12, 3)).astype(np.float32),
        actions=np.arange(10) % 2,
        rewards=np.ones(10),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        observation_space=OBS,
        action_space=ACT,
    )
    place = open_location(str(folder))
    with DatasetWriter(place, format=format, observation_space=OBS, action_space=ACT, action_scale="env") as writer:
        writer.write(batch)
        writer.commit(complete=complete)
    return folder


def edited(folder: Path, change: Change) -> Path:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def one_more(name: str) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["counts"][name] += 1
        manifest["shards"][0][name] += 1

    return change


COUNTS: dict[str, Change] = {
    "episodes": one_more("episodes"),
}
SHAPES: dict[str, Change] = {
    "shape": lambda manifest: manifest["observation_space"].update(shape=[4]),
    "kind": lambda manifest: manifest.update(action_space=manifest["observation_space"]),
    "fewer": lambda manifest: manifest["action_space"].update(n=1),
}
SAID: dict[str, Change] = {
    "more choices": lambda manifest: manifest["action_space"].update(n=3),
    "another dtype": lambda manifest: manifest["observation_space"].update(dtype="float64"),
}


def refused(folder: Path, out: Path) -> None:
    for read in (lambda: train_bc(folder, out, updates=1), lambda: convert([str(folder)], str(out))):
        with pytest.raises((BadData, SpaceMismatch)):
            read()
        assert not out.exists()


@pytest.mark.parametrize("format", ["episodes", "columns"])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_the_shards_do_not_bear_out_are_refused(tmp_path: Path, format: str, name: str) -> None:
    refused(edited(written(tmp_path / "D", format), COUNTS[name]), tmp_path / "out")


@pytest.mark.parametrize("format", ["episodes", "columns"])
@pytest.mark.parametrize("name", SHAPES)
def test_spaces_that_the_values_do_not_fit_are_refused(tmp_path: Path, format: str, name: str) -> None:
    refused(edited(written(tmp_path / "D", format), SHAPES[name]), tmp_path / "out")


@pytest.mark.parametrize("name", SAID)
def test_other_spaces_than_the_episodes_themselves_say_are_refused(tmp_path: Path, name: str) -> None:
    folder = edited(written(tmp_path / "D", "episodes"), SAID[name])
    refused(folder, tmp_path / "out")
    assert [problem.code for problem in validate(folder).problems if problem.severity == "error"] == ["unreadable-file"]


@pytest.mark.parametrize("env", ["python:evil_module:make", "evil_module:Evil-v0"])
def test_no_code_is_imported_because_a_manifest_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_module.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    named = {"id": env, "kwargs": {}}
    folder = edited(written(tmp_path / "D", "columns"), lambda manifest: manifest.update(environment=named))
    train_bc(folder, tmp_path / "run", updates=1)
    convert([str(folder)], str(tmp_path / "E"))
    assert not (tmp_path / "ran").exists()
