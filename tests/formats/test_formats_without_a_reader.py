"""Formats that are recognised and have no reader yet: the error names a recipe of docs/formats.md, and the recipes run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


def recipe(heading: str) -> str:
    """The Python code of a section."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8").split(f"### {heading}\n")[1], re.DOTALL)[0]


@pytest.fixture
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Three episodes of four steps, as D4RL has them."""
    ends = np.arange(12) % 4 == 3
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(12, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (12, 2)).astype(np.float32),
        "rewards": np.arange(12.0),
        "terminals": ends & (np.arange(12) < 8),
        "timeouts": ends & (np.arange(12) >= 8),
    }


def npy(folder: Path) -> None:
    np.save(folder / "log.npy", np.zeros(3))


def rlds(folder: Path) -> None:
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "FeaturesDict"}), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": "tfrecord"}), encoding="utf-8")
    (folder / "rlds-train.tfrecord-00000-of-00001").write_bytes(bytes(40))


@pytest.mark.parametrize(
    ("make", "words", "heading"),
    [
        (npy, "found NumPy arrays", "NumPy arrays"),
        (rlds, "found an RLDS dataset", "RLDS datasets"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_the_error_names_the_format_and_its_recipe(
    make: Callable[[Path], None], words: str, heading: str, command: str, tmp_path: Path, call: Callable[..., Any]
) -> None:
    (tmp_path / "source").mkdir()
    make(tmp_path / "source")
    code, told = call(command, tmp_path / "source")
    assert code == 3
    text = json.dumps(told)
    assert words in text
    assert f"docs/formats.md#{heading.lower().replace(' ', '-')}" in text
    assert f"\n### {heading}\n" in PAGE.read_text(encoding="utf-8")


def test_the_recipe_for_numpy_arrays_runs(
    arrays: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    exec(recipe("NumPy arrays"), {})
    command = "offline-cli convert log.npz --action-scale env --out D"
    assert f"{command}\n" in PAGE.read_text(encoding="utf-8")
    check_episodes(arrays, told(*command.split()[1:]))


def check_episodes(arrays: dict[str, Any], found: dict[str, Any]) -> None:
    """D has the three episodes."""
    assert (found["episodes"], found["steps"]) == (3, 12)
    with open_dataset("D").batches() as batches:
        whole = EpisodeBatch.concat(list(batches))
    assert whole.terminated.tolist() == [True, True, False]
    np.testing.assert_array_equal(whole.actions, arrays["actions"])
    np.testing.assert_array_equal(whole.acted_obs(), arrays["observations"])
