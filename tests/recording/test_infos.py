"""`--infos`: what is kept of infos, and what becomes of entries that no dataset can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from offline_cli import Recorder, open_dataset, record
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData

Read = Callable[[Path], EpisodeBatch]
ENV = "recording_envs:Telling-v0"
OPTIONS: dict[str, Any] = {"policy": "random", "episodes": 5, "num_envs": 2, "device": "cpu"}


def test_entries_that_cannot_be_stored_are_dropped_and_counted_by_key(tmp_path: Path, read: Read) -> None:
    result = record(ENV, tmp_path / "D", **OPTIONS)
    batch = read(tmp_path / "D")
    assert batch.infos is not None
    for start, stop in zip(batch.obs_starts[:-1].tolist(), batch.obs_starts[1:].tolist(), strict=True):
        assert list(batch.infos[start]) == ["seed"]
        later = batch.infos[start + 1 : stop]
        assert [dict(info) for info in later] == [{"t": t, "motor": {"heat": 0.5}} for t in range(1, stop - start)]
    counts = {"info-dropped: engine": batch.num_steps, "info-dropped: motor.handle": batch.num_steps}
    assert result.assumptions == open_dataset(str(tmp_path / "D")).manifest.assumptions == counts


def test_all_refuses_what_cannot_be_stored_by_key_and_step_and_does_not_blame_the_environment(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"motor\.handle") as caught:
        record(ENV, tmp_path / "D", **OPTIONS, infos="all")
    assert caught.value.where.endswith("episode 0, step 0")
    assert "environment" not in caught.value.what
    assert "--infos plain" in caught.value.fix


def test_none_keeps_no_infos(tmp_path: Path, read: Read) -> None:
    result = record(ENV, tmp_path / "D", **OPTIONS, infos="none")
    assert read(tmp_path / "D").infos is None
    assert result.assumptions == {}


def test_a_recorder_drops_and_counts_them_too(tmp_path: Path, read: Read) -> None:
    with Recorder(gym.make("recording_envs:Telling-v0"), tmp_path / "D") as env:
        env.reset(seed=1)
        env.step(0)
    batch = read(tmp_path / "D")
    assert batch.infos is not None
    assert dict(batch.infos[1]) == {"t": 1, "motor": {"heat": 0.5}}
    assert open_dataset(str(tmp_path / "D")).manifest.assumptions["info-dropped: engine"] == 1
