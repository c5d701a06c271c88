"""Pieces that raise, or do what they may not, while a recording is made: named, and no whole episode is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.policies.policy import reset_seed as environment_seed
from offline_cli.recording.record import record

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
File = Callable[..., str]
ENV = "recording_envs:Count-v0"
OPTIONS: dict[str, Any] = {"policy": "python:recording_pieces:net", "vectorize": "sync", "device": "cpu", "explore": True}
FAILING = {"use": "recording_pieces:Failing"}


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.integration)])
@pytest.mark.parametrize("side", ["env_to_module", "module_to_env"])
def test_a_piece_that_raises_is_named_with_its_episodes_and_seed_and_whole_episodes_are_kept(
    side: str, runners: int, tmp_path: Path, recorded: Record, read: Read, pipeline_file: File
) -> None:
    out, file = tmp_path / "D", pipeline_file(FAILING, kind=side)
    options = {**OPTIONS, side: file, "num_envs": 8, "num_env_runners": runners}
    with pytest.raises(BadData, match=r"Failing.*cannot see") as caught:
        record(ENV, out, **options, episodes=150)
    assert caught.value.exit_code == 3
    name, episodes = caught.value.where.split(", ")
    first = int(episodes.split()[1])
    assert (name, f"reset seed is {environment_seed(0, first)}" in caught.value.fix) == (ENV, True)
    assert 0 < open_dataset(str(out)).manifest.counts.episodes <= first
    with pytest.raises(BadData, match="cannot see") as caught:
        record(ENV, tmp_path / "E", **{**options, "num_envs": 1}, episodes=150)
    name, episode, step = caught.value.where.split(", ")
    assert (name, step) == (ENV, "step 2")
    assert f"reset seed is {environment_seed(0, int(episode.removeprefix('episode ')))}" in caught.value.fix
    kept, again = read(out), read(recorded(**{**OPTIONS, side: file}, episodes=open_dataset(str(out)).manifest.counts.episodes))
    np.testing.assert_array_equal(kept.actions, again.actions)


@pytest.mark.parametrize(
    ("side", "piece", "named"),
    [
        ("env_to_module", "Forgetful", "Forgetful"),
        ("module_to_env", "Forgetful", "Forgetful"),
        ("module_to_env", "Doubling", r"actions.*\(2,\).*\(\)"),
        ("module_to_env", "Wordy", "word"),
        ("module_to_env", "Fickle", None),
        ("module_to_env", "Uneven", r"'number'.*\(2,\).*\(1,\)"),
        ("env_to_module", "Lying", r"\(2,\).*\(3,\)"),
        ("env_to_module", "Exiting", r"SystemExit\(3\)"),
    ],
)
def test_a_piece_that_does_what_it_may_not_is_told_so(
    side: str, piece: str, named: str | None, tmp_path: Path, pipeline_file: File
) -> None:
    file = pipeline_file({"use": f"recording_pieces:{piece}"}, kind=side)
    with pytest.raises(BadData, match=named) as caught:
        record(ENV, tmp_path / "D", **OPTIONS, **{side: file}, episodes=20)
    assert caught.value.where.startswith((f"{ENV}, episode", "--policy "))
    assert caught.value.fix
