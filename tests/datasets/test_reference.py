"""Returns that scores are normalised by: in the manifest, and from there in comparisons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import compare, convert, filter, merge, record, train_bc
from offline_cli.datasets.manifest import Manifest
from offline_cli.errors import BadConfig, UsageError
from offline_cli.storage.locations import open_location

PLAYED: dict[str, Any] = {"policy": "random", "episodes": 4}
KNOWN = {"random": 22.0, "expert": 500.0}


def reference(folder: Path) -> Any:
    """What the manifest says."""
    return Manifest.read(open_location(folder)).reference


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recording with a reference."""
    record("CartPole-v1", tmp_path / "d", **PLAYED, reference=["random=22", "expert=500"])
    return tmp_path / "d"


def test_what_is_made_of_a_dataset_keeps_its_reference(recorded: Path, tmp_path: Path) -> None:
    filter(recorded, tmp_path / "filtered", where="return > 0")
    convert(recorded, tmp_path / "converted")
    assert reference(recorded) == reference(tmp_path / "filtered") == reference(tmp_path / "converted") == KNOWN


def test_convert_says_another_reference(recorded: Path, tmp_path: Path) -> None:
    convert(recorded, tmp_path / "converted", reference=["random=0,expert=1"])
    assert reference(tmp_path / "converted") == {"random": 0.0, "expert": 1.0}


def test_datasets_of_different_references_have_none_together(recorded: Path, tmp_path: Path) -> None:
    record("CartPole-v1", tmp_path / "other", **PLAYED, seed=9)
    merge([recorded, tmp_path / "other"], tmp_path / "both")
    assert reference(tmp_path / "both") is None
    assert "reference" not in json.loads((tmp_path / "both/manifest.json").read_text())


@pytest.mark.parametrize("wrong", ["random=1", "random=1,expert=1", "random=1,expert=x", "random=1,expert=2,other=3"])
def test_a_reference_is_two_different_returns(recorded: Path, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(BadConfig) as caught:
        convert(recorded, tmp_path / "converted", reference=[wrong])
    assert caught.value.where == "--reference"
    assert not (tmp_path / "converted").exists()


def test_formats_without_a_manifest_take_no_reference(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        convert(recorded, tmp_path / "c.npz", to="npz", reference=["random=1,expert=2"])
    assert caught.value.where == "--reference"


def test_scores_of_runs_are_normalised_by_the_reference_of_their_data(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    monkeypatch.setattr("offline_cli.training.run_folder.draw_curves", lambda runs, target, **options: None)
    run = str(tmp_path / "run")
    found = train_bc(recorded, run, env="CartPole-v1", updates=2, eval_episodes=2, hidden=[8])
    assert found.reference == KNOWN
    assert found.eval_return_mean is not None
    score = (found.eval_return_mean - 22) / 478
    assert compare(run).runs[run]["scores"] == {"CartPole-v1": [pytest.approx(score)]}
    assert compare(run, reference=[str(recorded)]).reference == {"CartPole-v1": KNOWN}
    code, told = call("compare", run, "--reference", "random=0,expert=1")
    assert code == 0
    assert told["runs"][run]["scores"] == {"CartPole-v1": [found.eval_return_mean]}
