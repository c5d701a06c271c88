"""Atari plays between gymnasium's wrappers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import environments
from offline_cli.datasets.dataset import Dataset, open_dataset
from offline_cli.errors import MissingPackage
from offline_cli.recording.record import record

pytest.importorskip("ale_py", reason="Atari comes with the extra [atari]")

PONG = "ALE/Pong-v5"
SHORT: dict[str, Any] = {"max_num_frames_per_episode": 120}


def recorded(out: Path, **options: Any) -> Dataset:
    asked: dict[str, Any] = {"policy": "random", "episodes": 3, "num_envs": 2, "env_kwargs": SHORT, "seed": 4}
    record(PONG, out, **(asked | options))
    return open_dataset(out)


@pytest.mark.integration
def test_single_copies_play_between_gymnasiums_wrappers(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="OpenCV comes with the extra [atari]")
    told = {"env_kwargs": SHORT | {"frameskip": 1}, "wrappers": ["AtariPreprocessing:noop_max=0"]}
    with recorded(tmp_path / "data", **told) as dataset:
        assert dataset.manifest.observation_space == spaces.Box(0, 255, (84, 84), np.uint8)
        assert len(dataset) == 3
        assert dataset[0].get_observations(0).shape == (84, 84)


def test_a_game_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingPackage) as caught:
        environments.open_environment(PONG)
    assert "pip install 'offline-cli[atari]'" in caught.value.fix
