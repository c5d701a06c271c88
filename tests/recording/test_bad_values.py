"""What an environment gives is recorded as it is or not at all: what is no reward or flag is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.recording.record import record

Read = Callable[[Path], EpisodeBatch]
OPTIONS: dict[str, Any] = {"policy": "random", "device": "cpu", "num_envs": 3, "episodes": 12}
MANNERS = [{"vectorize": "sync"}, pytest.param({"vectorize": "async"}, marks=pytest.mark.integration)]
ENV = "recording_envs:Odd-v0"
by_manner = pytest.mark.parametrize("manner", MANNERS, ids=str)


def play_odd(out: Path, manner: dict[str, Any], **odd: Any) -> Any:
    return record(ENV, out, **OPTIONS, **manner, env_kwargs=odd)


@by_manner
@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"reward": "1.0"}, "a reward of '1.0'"),
        ({"terminated": "yes"}, "an end flag of 'yes'"),
        ({"terminated": 2}, "an end flag of 2"),
    ],
)
def test_what_is_no_reward_and_no_flag_ends_the_recording_and_is_named(
    odd: dict[str, Any], told: str, manner: dict[str, Any], tmp_path: Path, read: Read
) -> None:
    with pytest.raises(BadData) as caught:
        play_odd(tmp_path / "D", manner, **odd)
    assert told in caught.value.what
    assert caught.value.where.split(", ")[1].startswith("episode "), caught.value.where
    assert caught.value.where.endswith("step 2")
    assert caught.value.exit_code == 3


@by_manner
def test_numbers_and_flags_of_other_types_are_taken_for_what_they_say(
    manner: dict[str, Any], tmp_path: Path, read: Read
) -> None:
    play_odd(tmp_path / "D", manner, reward=7, terminated=0, truncated=0)
    batch = read(tmp_path / "D")
    third = (batch.timesteps() == 2) & (np.repeat(batch.lengths, batch.lengths) > 3)
    assert set(batch.rewards[third].tolist()) == {7.0}


@by_manner
def test_nan_and_infinity_are_recorded_as_they_are(manner: dict[str, Any], tmp_path: Path, read: Read) -> None:
    play_odd(tmp_path / "D", manner, reward="nan", seen="-inf", last="nan")
    batch = read(tmp_path / "D")
    last = np.zeros(len(batch.obs), np.bool_)
    last[batch.obs_starts[1:] - 1] = True
    assert np.isnan(batch.obs[last, 1]).all()
    assert np.isinf(batch.obs).any()
    assert np.isnan(batch.rewards).any()
