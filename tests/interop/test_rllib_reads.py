"""RLlib reads both of our formats, every space type, and finds the values that we wrote."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("local_ray")]

VECTOR = spaces.Box(-1, 1, (4,), np.float32)

OBSERVATION_SPACES: dict[str, Space] = {
    "box": VECTOR,
    "float image": spaces.Box(0, 1, (8, 8, 3), np.float32),
    "uint8 image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "int box": spaces.Box(0, 9, (4,), np.int64),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(6),
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([VECTOR, spaces.Discrete(3)]),
}
ACTION_SPACES: dict[str, Space] = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
}


Write = Callable[..., str]


def rllib_episodes(data: str) -> list[Any]:
    """The episodes of `data` as RLlib's own reader makes them."""
    import msgpack
    import msgpack_numpy
    import ray
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    rows = ray.data.read_parquet(data).take_all()
    states = [msgpack.unpackb(row["item"], object_hook=msgpack_numpy.decode) for row in rows]
    return [SingleAgentEpisode.from_state(state) for state in states]


def rllib_steps(data: str) -> list[Any]:
    """The one-step episodes that RLlib's own reader makes of `data`, in file order."""
    import ray
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner

    reader = OfflinePreLearner.__new__(OfflinePreLearner)
    reader.config = BCConfig()
    rows = ray.data.read_parquet(data).take_batch(10_000, batch_format="numpy")
    return list(reader._map_to_episodes(rows)["episodes"])


def assert_same_values(theirs: Any, ours: Any) -> None:
    """Equal leaf by leaf; a Tuple may be a list (msgpack) or a struct keyed '0', '1' (Arrow) on RLlib's side."""
    if isinstance(ours, dict):
        assert set(theirs) == set(ours)
        for key in ours:
            assert_same_values(theirs[key], ours[key])
    elif isinstance(ours, tuple):
        parts = [theirs[str(i)] for i in range(len(ours))] if isinstance(theirs, dict) else theirs
        assert len(parts) == len(ours)
        for part, own in zip(parts, ours, strict=True):
            assert_same_values(part, own)
    else:
        np.testing.assert_array_equal(np.stack(theirs) if np.asarray(theirs).dtype == object else theirs, ours)


def assert_rllib_reads_episodes(batch: EpisodeBatch, folder: Path, write: Write) -> None:
    theirs = rllib_episodes(write(folder, batch, format="episodes"))
    assert [episode.id_ for episode in theirs] == list(batch.ids)
    for episode, own in zip(theirs, batch, strict=True):
        assert_same_values(episode.observations.data, own.observations.data)
        assert_same_values(episode.actions.data, own.actions.data)
        np.testing.assert_array_equal(episode.get_rewards(), own.get_rewards())
        assert (episode.is_terminated, episode.is_truncated) == (own.is_terminated, own.is_truncated)


def assert_rllib_reads_steps(batch: EpisodeBatch, folder: Path, write: Write) -> None:
    from offline_cli.trees import map_leaves

    theirs = rllib_steps(write(folder, batch, format="columns"))
    acted, led_to = batch.acted_obs(), batch.next_obs()
    terminated, _ = batch.step_flags()
    assert len(theirs) == batch.num_steps
    for step, episode in enumerate(theirs):
        for tree, place in ((acted, 0), (led_to, 1)):
            assert_same_values(episode.observations.data[place], map_leaves(lambda leaf, i=step: leaf[i], tree))
        assert_same_values(episode.actions.data[0], map_leaves(lambda leaf, i=step: leaf[i], batch.actions))
        assert episode.get_rewards()[0] == batch.rewards[step]
        assert episode.is_terminated == terminated[step]


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_rllib_reads_every_space_from_our_formats(
    format: str, random_batch: Callable[..., EpisodeBatch], write_dataset: Write, tmp_path: Path
) -> None:
    check = assert_rllib_reads_episodes if format == "episodes" else assert_rllib_reads_steps
    for number, (seen, acted) in enumerate(zip(OBSERVATION_SPACES, cycle(ACTION_SPACES), strict=False)):
        batch = random_batch(OBSERVATION_SPACES[seen], ACTION_SPACES[acted])
        check(batch, tmp_path / str(number), write_dataset)
