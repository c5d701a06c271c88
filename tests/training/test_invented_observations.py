"""Last observations that nobody recorded: every dataset knows them by episode, and nothing bootstraps from them unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdf5_trees import write

from offline_cli import open_dataset

Told = Callable[..., dict[str, Any]]
EPISODES, LENGTH = 6, 10  # the first of them terminated, the others truncated
STEPS = EPISODES * LENGTH
SMALL = "hidden = [8]\nbatch_size = 16\n"
BOOTSTRAPPING = pytest.mark.parametrize("algorithm", ["iql", "td3-bc", "marwil"])
FORMATS = pytest.mark.parametrize("form", ["episodes", "columns"])


def d4rl(*, following: bool = False, steps: int = STEPS) -> dict[str, Any]:
    random, last = np.random.default_rng(0), np.arange(steps) % LENGTH == LENGTH - 1
    arrays = {
        "observations": random.normal(size=(steps, 3)).astype(np.float32),
        "actions": random.uniform(-1, 1, (steps, 2)).astype(np.float32),
        "rewards": np.ones(steps, np.float32),
        "terminals": last & (np.arange(steps) < LENGTH),
        "timeouts": last & (np.arange(steps) >= LENGTH),
    }
    return arrays | ({"next_observations": arrays["observations"] + 1} if following else {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "a.hdf5", d4rl())


@pytest.fixture
def train(told: Told, tmp_path: Path) -> Told:
    (tmp_path / "c.toml").write_text(SMALL)

    def run(sources: Path, algorithm: str, *more: str) -> dict[str, Any]:
        asked = ["train", sources, "--algorithm", algorithm, "--out", tmp_path / "run", "--overwrite", "--updates", 2]
        return told(*asked, "--config", tmp_path / "c.toml", "--env", "python:invented_bounds:make", *more)

    return run


@pytest.fixture(autouse=True)
def bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says what the actions' bounds are, as TD3+BC asks."""
    code = "import gymnasium as g, numpy as np\nclass E(g.Env):\n"
    code += "    observation_space = g.spaces.Box(-np.inf, np.inf, (3,))\n    action_space = g.spaces.Box(-1, 1, (2,))\n"
    code += "    def reset(self, **_):\n        return np.zeros(3, np.float32), {}\n"
    code += "    def step(self, action):\n        return np.zeros(3, np.float32), 0.0, True, False, {}\n"
    (tmp_path / "invented_bounds.py").write_text(f"{code}def make():\n    return E()\n")
    monkeypatch.syspath_prepend(tmp_path)


def assumed(folder: Path) -> list[bool]:
    return [mark for batch in open_dataset(folder).batches() for mark in batch.final_obs_assumed.tolist()]


@BOOTSTRAPPING
def test_steps_before_an_invented_observation_are_left_out_counted_and_noted(algorithm: str, source: Path, train: Told) -> None:
    left_out = train(source, algorithm)
    assert (left_out["steps"], left_out["steps_left_out"], left_out["episodes"]) == (STEPS - 5, 5, EPISODES)
    assert any("--keep-invented" in note for note in left_out["notes"])


@BOOTSTRAPPING
def test_keep_invented_takes_them_with_a_note(algorithm: str, source: Path, train: Told) -> None:
    kept = train(source, algorithm, "--keep-invented")
    assert (kept["steps"], kept["steps_left_out"]) == (STEPS, 0)
    assert any("5 truncated episodes" in note for note in kept["notes"])


@pytest.mark.parametrize("how", [(), ("--streaming",)], ids=str)
def test_learning_without_them_is_learning_from_the_steps_before(
    how: tuple[str, ...], source: Path, tmp_path: Path, train: Told
) -> None:
    """The same weights as from a recording whose last steps were cut off, and whose episodes end where theirs do."""
    train(source, "iql", *how)
    weights = (tmp_path / "run" / "policy.safetensors").read_bytes()
    arrays = d4rl()
    final = np.where(arrays["timeouts"])[0]
    arrays["next_observations"] = np.roll(arrays["observations"], -1, axis=0)
    arrays["timeouts"][final - 1] = True
    cut = write(tmp_path / "b.hdf5", {name: np.delete(leaf, final, axis=0) for name, leaf in arrays.items()})
    train(cut, "iql", *how)
    assert (tmp_path / "run" / "policy.safetensors").read_bytes() == weights


@FORMATS
def test_the_mark_survives_every_operation(form: str, source: Path, tmp_path: Path, told: Told) -> None:
    marks = [True] * EPISODES
    folder = tmp_path / "D"
    told("convert", source, "--out", folder, "--to", form, "--action-scale", "env")
    assert assumed(folder) == marks
    told("split", folder, "--out", tmp_path / "S", "--fractions", "train=0.5,val=0.5")
    assert assumed(tmp_path / "S" / "train") + assumed(tmp_path / "S" / "val") == marks
    told("filter", folder, "--out", tmp_path / "F", "--where", "length > 1")
    told("sample", folder, "--out", tmp_path / "A", "--episodes", 3)
    told("repack", folder, "--out", tmp_path / "R", "--format", "columns" if form == "episodes" else "episodes")
    told("merge", tmp_path / "S" / "train", tmp_path / "S" / "val", "--out", tmp_path / "M")
    told("convert", folder / "data", "--out", tmp_path / "C", "--to", form, "--action-scale", "env")
    assert [*map(assumed, (tmp_path / name for name in "FARMC"))] == [marks, marks[:3], marks, marks, marks]
