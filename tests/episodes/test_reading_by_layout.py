"""Episodes that are laid out alike are read many at a time: none of them goes through the reader of single episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import msgpack
import msgpack_numpy
import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode, decode_batch, encode_batch, unpack
from offline_cli.episodes.codec.layouts import ItemLayout
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


def read(items: list[bytes]) -> tuple[list[EpisodeBatch], int]:
    """The batches, and how many items the reader of single episodes was asked for."""
    rejects = Rejects(OnError.FAIL)
    with patch.object(unpack, "decode", wraps=unpack.decode) as alone:
        return list(decode_batch(items, where=str, rejects=rejects, tally=Tally())), alone.call_count


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
def test_no_episode_in_a_known_layout_is_read_alone(
    kind: str, written: Callable[[SingleAgentEpisode], bytes], lookback: int
) -> None:
    items = [written(episode) for episode in episodes(*SPACES[kind], lookback)] * 2
    batches, alone = read(items)
    assert alone == 0
    want = EpisodeBatch.concat([EpisodeBatch.from_episodes([decode(item, where="one")]) for item in items])
    assert_same_batch(EpisodeBatch.concat(batches), want)


def test_episodes_of_one_size_are_cut_in_one_call_from_the_third_on() -> None:
    observations, actions = SPACES["vectors and choices"]
    observations.seed(0), actions.seed(0)
    items = []
    for number in range(6):
        episode = SingleAgentEpisode(id_=f"episode {number}", module_id=f"module {number}")
        episode.add_env_reset(observations.sample())
        for step in range(5):
            episode.add_env_step(observations.sample(), actions.sample(), step + number, terminated=step == 4)
        items.append(as_ours(episode))
    assert len(set(map(len, items))) == 1
    with patch.object(ItemLayout, "_read", autospec=True, side_effect=ItemLayout._read) as by_field:
        batches, alone = read(items)
    assert (by_field.call_count, alone) == (2, 0)
    want = EpisodeBatch.concat([EpisodeBatch.from_episodes([decode(item, where="one")]) for item in items])
    assert_same_batch(EpisodeBatch.concat(batches), want)


def test_layouts_of_two_kinds_are_learned_once_each() -> None:
    kinds = [episodes(*SPACES[kind]) for kind in ("pictures", "bits")]
    items = [as_ours(episode) for _ in range(3) for pair in zip(*kinds, strict=True) for episode in pair]
    with patch.object(unpack, "learn_layout", wraps=unpack.learn_layout) as learned:
        _, alone = read(items)
    assert (learned.call_count, alone) == (2, 0)


def test_episodes_with_custom_data_are_not_read_alone() -> None:
    made = episodes(*SPACES["vectors and choices"])
    for number, episode in enumerate(made):
        episode.custom_data = {"score": number, "tags": ["a"] * number} if number != 3 else {}
    batches, alone = read([as_ours(episode) for episode in made])
    assert alone == 0
    assert [data.get("score") for data in EpisodeBatch.concat(batches).custom_data or ()] == [0, 1, 2, None, 4, 5]


def test_missing_infos_count_as_empty_ones() -> None:
    made = episodes(*SPACES["vectors and choices"])
    for number, episode in enumerate(made):
        episode.infos.data[:] = [None if step % 2 else {"n": number} for step in range(len(episode) + 1)]
    batches, alone = read([as_rllib_lists(episode) for episode in made])
    assert alone == 0
    infos = EpisodeBatch.concat(batches).infos
    assert infos == [{} if step % 2 else {"n": number} for number, length in enumerate(LENGTHS) for step in range(length + 1)]
