"""What a writer removes and replaces in a dataset's folder: what writers wrote, by name and content; links are not followed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from folder_content import content
from gymnasium import spaces

from offline_cli import write_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OutputExists
from offline_cli.storage.locations import open_location


def write(folder: Path, *, overwrite: bool = False, value: float = 0.0) -> None:
    """A dataset of one episode."""
    obs, act = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    batch = EpisodeBatch(
        ids=("e",),
        starts=np.array([0, 3]),
        obs=np.full((4, 2), value, np.float32),
        actions=np.zeros(3, np.int64),
        rewards=np.zeros(3),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
        observation_space=obs,
        action_space=act,
    )
    place = open_location(str(folder))
    write_dataset(
        batch, place, format="columns", observation_space=obs, action_space=act, action_scale="env", overwrite=overwrite
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write(tmp_path / "D")
    return tmp_path / "D"


def refused(folder: Path) -> None:
    before = content(folder)
    with pytest.raises(OutputExists) as caught:
        write(folder, overwrite=True, value=0.5)
    assert caught.value.exit_code == 2
    assert content(folder) == before


def test_anybodys_manifest_makes_no_dataset(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "manifest.json").write_text(json.dumps({"name": "my app", "version": "1.0", "format": "web"}))
    refused(app)


@pytest.mark.parametrize("name", ["data", "quarantine", "manifest.json"])
def test_links_under_a_datasets_names_are_refused(dataset: Path, tmp_path: Path, name: str) -> None:
    (dataset / "quarantine").mkdir()
    shutil.move(dataset / name, tmp_path / "moved")
    (dataset / name).symlink_to(tmp_path / "moved")
    elsewhere = content(tmp_path / "moved")
    refused(dataset)
    assert content(tmp_path / "moved") == elsewhere


def test_copies_of_shards_in_a_folder_of_their_own_are_refused_and_stay(dataset: Path) -> None:
    shutil.copytree(dataset / "data", dataset / "data" / "keep")
    refused(dataset)
