"""Fingerprints of episodes: the same however many rows are mixed at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from offline_cli.episodes import known_episodes
from offline_cli.episodes.batch import EpisodeBatch


def batch_of(starts: list[int]) -> EpisodeBatch:
    rng, episodes, steps = np.random.default_rng(0), len(starts) - 1, starts[-1]
    return EpisodeBatch(
        ids=tuple(map(str, range(episodes))),
        starts=np.array(starts),
        obs=rng.random((steps + episodes, 3)).astype(np.float32),
        actions=rng.integers(0, 4, steps),
        rewards=rng.random(steps),
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
    )


@pytest.mark.parametrize(
    "starts", [[0, 45], [0, 0, 45], [0, 45, 45], [0, 7, 14, 45], [0, 1, 1, 5, 20, 45], list(range(46)), [0, 0]]
)
def test_the_rows_that_are_mixed_at_a_time_make_no_difference(starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(starts)
    at_once = known_episodes.fingerprints(batch)
    monkeypatch.setattr(known_episodes, "BLOCK", 7)
    np.testing.assert_array_equal(known_episodes.fingerprints(batch), at_once)
    alone = [known_episodes.fingerprints(batch.select([episode]))[0] for episode in range(len(batch))]
    np.testing.assert_array_equal(at_once, alone)


def test_a_row_that_differs_in_a_later_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_episodes, "BLOCK", 7)
    batch = batch_of([0, 45])
    rewards = batch.rewards.copy()
    rewards[44] += 1
    assert known_episodes.fingerprints(batch) != known_episodes.fingerprints(replace(batch, rewards=rewards))
