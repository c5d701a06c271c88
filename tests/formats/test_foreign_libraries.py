"""Formats of others against the libraries themselves: theirs to ours and back is equal by their own reader."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_formats
import numpy as np
import pytest

from benchmarks import rival_environments
from offline_cli.converting.convert import convert

pytestmark = pytest.mark.nightly
REQUIREMENTS = Path(foreign_formats.__file__).parent / "requirements"
Ask = Callable[..., None]


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Runs a question of `foreign_formats` in the environment of its library, which is made if need be."""

    def asked(library: str, *words: object) -> None:
        own = REQUIREMENTS / f"{library}.txt"
        requirements = own if own.is_file() else rival_environments.REQUIREMENTS / f"{library}.txt"
        if not rival_environments.install(library, requirements):
            pytest.skip(f"{library} cannot be installed here")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "MUJOCO_GL": "disable"}
        command = [rival_environments.interpreter(library), foreign_formats.__file__, *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    return asked


def arrays(file: Path) -> dict[str, Any]:
    with np.load(file) as held:
        return dict(held)


def there_and_back(source: Path, folder: Path, to: str, name: str) -> Path:
    convert([str(source)], str(folder / "ours"))
    convert([str(folder / "ours")], str(folder / name), to=to)
    return folder / name


def test_lerobots_own_reader_gives_the_same_frames_of_what_it_wrote_and_of_ours(ask: Ask, tmp_path: Path) -> None:
    ask("lerobot", "lerobot-write", tmp_path / "theirs")
    back = there_and_back(tmp_path / "theirs", tmp_path, "lerobot", "back")
    ask("lerobot", "lerobot-read", tmp_path / "theirs", tmp_path / "theirs.npz")
    ask("lerobot", "lerobot-read", back, tmp_path / "back.npz")
    theirs, ours = arrays(tmp_path / "theirs.npz"), arrays(tmp_path / "back.npz")
    for name in theirs.keys() & ours.keys():
        if name.startswith("stats/"):
            assert ours[name].shape == theirs[name].shape, name
            if not name.rpartition("/")[2].startswith("q"):  # theirs are of histograms
                np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            assert ours[name].dtype == theirs[name].dtype, name
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert {name for name in theirs if name not in ours} == set()


def test_ogbenchs_own_reader_gives_the_same_steps(ask: Ask, tmp_path: Path) -> None:
    ask("ogbench", "ogbench-write", tmp_path)
    source = tmp_path / "cube-single-play-v0.npz"
    ask("ogbench", "ogbench-read", source, tmp_path / "answers.npz")
    convert([str(source)], str(tmp_path / "D"))
    convert([str(tmp_path / "D")], str(tmp_path / "flat.npz"), to="npz")
    theirs, ours = arrays(tmp_path / "answers.npz"), arrays(tmp_path / "flat.npz")
    for name in ("observations", "actions", "next_observations", "qpos", "qvel"):
        np.testing.assert_array_equal(ours[name], theirs[f"regular/{name}"], err_msg=name)


@pytest.mark.parametrize("name", ["continuous", "discrete"])
def test_imitations_trajectories_are_read_as_imitation_reads_them(name: str, ask: Ask, tmp_path: Path) -> None:
    ask("imitation", "imitation-write", tmp_path)
    ask("imitation", "imitation-read", tmp_path / name, tmp_path / "answers.npz")
    result = convert([str(tmp_path / name)], str(tmp_path / "flat.npz"), to="npz")
    theirs, ours = arrays(tmp_path / "answers.npz"), arrays(tmp_path / "flat.npz")
    assert result.episodes == len(theirs["terminal"])
    np.testing.assert_array_equal(ours["actions"], theirs["acts"])
    np.testing.assert_array_equal(ours["rewards"], theirs["rews"])
    assert int(ours["terminals"].sum()) == int(theirs["terminal"].sum())
