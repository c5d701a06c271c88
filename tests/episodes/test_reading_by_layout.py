"""Episodes that are laid out alike are read many at a time, with the values that reading each alone gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import msgpack
import msgpack_numpy
import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode, decode_batch, encode_batch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.testing import assert_same_batch

LENGTHS = (1, 2, 15, 16, 17, 300)
FLOATS, PICTURES = spaces.Box(-5, 5, (3,), np.float32), spaces.Box(0, 255, (4, 2, 3), np.uint8)
SPACES: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "vectors and choices": (FLOATS, spaces.Discrete(2)),
    "one number": (spaces.Box(-5, 5, (), np.float64), spaces.Discrete(300)),
    "pictures": (PICTURES, spaces.Discrete(3, start=-1)),
    "parts": (
        spaces.Dict({"a": FLOATS, "b": spaces.Dict({"n": spaces.Discrete(200)})}),
        spaces.Tuple((spaces.Discrete(2), FLOATS)),
    ),
    "bits": (spaces.MultiBinary(4), spaces.MultiDiscrete([3, 4])),
}


def episodes(observations: gym.Space[Any], actions: gym.Space[Any], lookback: int = 0) -> list[SingleAgentEpisode]:
    """One of each length, with names of all sizes and the extra outputs of a policy."""
    observations.seed(0), actions.seed(0)
    made = []
    for number, length in enumerate(LENGTHS):
        made.append(
            SingleAgentEpisode(
                id_=f"{number}" + "x" * (0, 10, 40, 300, 60_000, 5)[number],
                agent_id="agent",
                observations=[observations.sample() for _ in range(length + 1)],
                actions=[actions.sample() for _ in range(length)],
                rewards=[float(step) for step in range(length)],
                infos=[{"n": step} for step in range(length + 1)],
                extra_model_outputs={"action_logp": [np.float32(step) for step in range(length)]},
                terminated=True,
                observation_space=observations,
                action_space=actions,
                len_lookback_buffer=min(lookback, length - 1),
            )
        )
    return made


def read(items: list[bytes]) -> EpisodeBatch:
    """All of them, read together."""
    return EpisodeBatch.concat(list(decode_batch(items, where=str, rejects=Rejects(OnError.FAIL), tally=Tally())))


def read_alone(items: list[bytes]) -> EpisodeBatch:
    """The same, each decoded by itself."""
    return EpisodeBatch.concat([EpisodeBatch.from_episodes([decode(item, where="one")]) for item in items])


def as_rllib_lists(episode: SingleAgentEpisode) -> bytes:
    """The bytes of an episode that was not made numpy's: a list of a value per step."""
    found: bytes = msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
    return found


def as_rllib_arrays(episode: SingleAgentEpisode) -> bytes:
    """The bytes of an episode in numpy's arrays."""
    return as_rllib_lists(SingleAgentEpisode.from_state(episode.get_state()).to_numpy())


def as_ours(episode: SingleAgentEpisode) -> bytes:
    return encode_batch(EpisodeBatch.from_episodes([episode]), where="test", tally=Tally())[0]


@pytest.mark.parametrize("lookback", [0, 1])
@pytest.mark.parametrize("written", [as_ours, as_rllib_arrays, as_rllib_lists])
@pytest.mark.parametrize("kind", SPACES)
def test_episodes_of_one_layout_are_read_as_each_alone(
    kind: str, written: Callable[[SingleAgentEpisode], bytes], lookback: int
) -> None:
    items = [written(episode) for episode in episodes(*SPACES[kind], lookback)] * 2
    assert_same_batch(read(items), read_alone(items))


def test_custom_data_of_some_episodes_stay_theirs() -> None:
    made = episodes(*SPACES["vectors and choices"])
    for number, episode in enumerate(made):
        episode.custom_data = {"score": number, "tags": ["a"] * number} if number != 3 else {}
    batch = read([as_ours(episode) for episode in made])
    assert [data.get("score") for data in batch.custom_data or ()] == [0, 1, 2, None, 4, 5]


def test_missing_infos_count_as_empty_ones() -> None:
    made = episodes(*SPACES["vectors and choices"])
    for number, episode in enumerate(made):
        episode.infos.data[:] = [None if step % 2 else {"n": number} for step in range(len(episode) + 1)]
    infos = read([as_rllib_lists(episode) for episode in made]).infos
    assert infos == [{} if step % 2 else {"n": number} for number, length in enumerate(LENGTHS) for step in range(length + 1)]


STEPS = 5
VALUES: dict[str, list[Any]] = {  # of five steps each, as a list of values: numbers of each size that msgpack has
    "one byte": [0, 1, 127, -1, -32],
    "two bytes": [128, 129, 200, 254, 255],
    "sizes mixed": [5, 300, 70_000, -129, -(2**40)],
    "below zero": [-33, -34, -100, -127, -128],
    "nine bytes": [-(2**31) - 1, -(2**40), -(2**50), -(2**62), -(2**63)],
    "floats": [0.0, -1.5, 1e300, float("inf"), 0.1],
    "numbers and floats": [0.5, 5, 1, 2.5, 3],
    "bools": [np.array([step % 2, 1], np.bool_) for step in range(STEPS)],
    "long vectors": [np.full(70_000, step, np.uint8) for step in range(STEPS)],
    "no elements": [np.zeros((0, 2), np.int64) for _ in range(STEPS)],
    "parts": [{"a": np.full(2, step, np.int8), "b": {"n": step, "x": float(step)}} for step in range(STEPS)],
    "parts in order": [(np.full(2, step, np.int8), step) for step in range(STEPS)],
}


@pytest.mark.parametrize("kind", VALUES)
def test_lists_of_values_are_read_as_each_value_alone(kind: str) -> None:
    made = [
        SingleAgentEpisode(
            id_=f"{number}",
            observations=[0.0] * (STEPS + 1),
            actions=VALUES[kind],
            rewards=[0.0] * STEPS,
            len_lookback_buffer=0,
        )
        for number in range(4)
    ]
    items = [*map(as_rllib_lists, made)]
    assert_same_batch(read(items), read_alone(items))
