"""NaN equals NaN wherever values are compared: a value that is not known is no difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hdf5_trees import FOREIGN

from offline_cli import convert, diff, merge, write_dataset
from offline_cli.episodes.batch import EpisodeBatch

NAN = float("nan")
OTHER_NAN = np.array([0xFFF8000000000000], np.uint64).view(np.float64)[0]  # as 0.0 / 0.0 gives it on many processors


def batch_of(unknown: Any = NAN, *, zero: float = 0.0) -> EpisodeBatch:
    """Two episodes of three steps, with a reward and an observation that are not known."""
    obs = np.arange(16, dtype=np.float32).reshape(8, 2)
    rewards = np.array([1.0, unknown, 0.5, zero, 1.0, 2.0])
    obs[1, 0] = unknown
    return EpisodeBatch(
        ids=("a", "b"),
        starts=np.array([0, 3, 6]),
        obs=obs,
        actions=np.array([0, 1, 0, 1, 0, 1]),
        rewards=rewards,
        terminated=np.ones(2, np.bool_),
        truncated=np.zeros(2, np.bool_),
        observation_space=spaces.Box(-np.inf, np.inf, (2,)),
        action_space=spaces.Discrete(2),
    )


def d3rlpy(place: Path) -> None:
    place.write_bytes((FOREIGN / "d3rlpy_vectors.h5").read_bytes())
    with h5py.File(place, "r+") as file:
        file["rewards_0"][1] = NAN


def robomimic(place: Path) -> None:
    with h5py.File(place, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["obs/state"], demo["actions"] = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)
        demo["rewards"], demo["dones"] = np.array([1.0, NAN, 0.1], np.float32), np.array([0, 0, 1])


def d4rl(place: Path) -> None:
    with h5py.File(place, "w") as file:
        file["observations"], file["actions"] = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32)
        file["rewards"] = np.array([1.0, NAN, 0.1], np.float32)
        file["terminals"], file["timeouts"] = np.array([False, False, True]), np.zeros(3, np.bool_)


@pytest.mark.parametrize("made", [robomimic, d3rlpy, d4rl], ids=lambda made: made.__name__)
def test_rewards_of_an_exact_file_are_not_rounded(made: Callable[[Path], None], tmp_path: Path) -> None:
    made(tmp_path / "in.h5")
    convert(tmp_path / "in.h5", tmp_path / "D", from_=made.__name__)
    convert(tmp_path / "D", tmp_path / "out.h5", to=made.__name__)


@pytest.mark.parametrize("copy", [batch_of(), batch_of(OTHER_NAN), batch_of(zero=-0.0)], ids=["copy", "bits", "zero"])
def test_episodes_with_unknown_values_are_duplicates(copy: EpisodeBatch, tmp_path: Path) -> None:
    write_dataset([batch_of()], tmp_path / "A")
    write_dataset([copy], tmp_path / "B")
    assert (diff(tmp_path / "A", tmp_path / "B").equal, merge([tmp_path / "A", tmp_path / "B"], tmp_path / "C").dropped) == (
        True,
        2,
    )
    assert convert(tmp_path / "B", tmp_path / "A", append=True).duplicates_dropped == 2
