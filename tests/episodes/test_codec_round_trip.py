"""Episodes written and read again, one at a time and many at a time."""

from __future__ import annotations

from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import HealthCheck, assume, given, settings

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode, decode_batch, encode, encode_batch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadData
from offline_cli.tally import Rejects, Tally
from offline_cli.testing import assert_same_batch, assert_same_episode, episode_batches, episodes

bounded = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


def read_all(items: Any) -> list[EpisodeBatch]:
    return list(decode_batch(items, where=lambda i: f"item {i}", rejects=Rejects(), tally=Tally()))


def write_all(batch: EpisodeBatch) -> list[bytes]:
    return encode_batch(batch, where="test", tally=Tally())


@bounded
@given(episodes())
def test_an_episode_written_and_read_again_is_equal_leaf_by_leaf(episode: SingleAgentEpisode) -> None:
    assert_same_episode(decode(encode(episode), where="test"), episode)


@bounded
@given(episode_batches())
def test_a_batch_written_and_read_again_is_equal_leaf_by_leaf(batch: EpisodeBatch) -> None:
    [again] = read_all(write_all(batch))
    assert_same_batch(again, batch)


@bounded
@given(episode_batches())
def test_the_bulk_writer_gives_the_bytes_of_the_single_one(batch: EpisodeBatch) -> None:
    assert write_all(batch) == [encode(episode) for episode in batch]


@bounded
@given(episodes())
def test_the_bulk_reader_gives_what_the_single_one_does_without_its_lookback(episode: SingleAgentEpisode) -> None:
    assume(len(episode))  # without steps, dtypes are a matter of taste
    data = encode(episode)
    [batch] = read_all([data])
    assert_same_batch(batch, EpisodeBatch.from_episodes([decode(data, where="test")]))


@pytest.mark.integration
@bounded
@given(episodes())
def test_rllib_reads_what_was_written(episode: SingleAgentEpisode) -> None:
    rllib = pytest.importorskip("ray.rllib.env.single_agent_episode")
    tree = pytest.importorskip("tree")
    data = encode(episode)
    theirs = rllib.SingleAgentEpisode.from_state(msgpack.unpackb(data, object_hook=msgpack_numpy.decode))
    ours = decode(data, where="test")
    assert (theirs.id_, theirs.t_started, len(theirs)) == (ours.id_, ours.t_started, len(ours))
    for name in ("observations", "actions", "rewards") if len(ours) else ("observations",):
        leaves = tree.flatten(getattr(theirs, name).data), tree.flatten(getattr(ours, name).data)
        for left, right in zip(*leaves, strict=True):
            np.testing.assert_array_equal(left, right, strict=True)


# ---- structure and names ----


def batch_of(**changes: Any) -> EpisodeBatch:
    """Two CartPole-like episodes of 2 and 3 steps."""
    fields: dict[str, Any] = {
        "ids": ("a", "b"),
        "starts": np.array([0, 2, 5]),
        "obs": np.arange(28, dtype=np.float32).reshape(7, 4),
        "actions": np.array([0, 1, 1, 0, 1]),
        "rewards": np.arange(5.0),
        "terminated": np.array([True, False]),
        "truncated": np.array([False, True]),
        "observation_space": gym_spaces.Box(-np.inf, np.inf, (4,), np.float32),
        "action_space": gym_spaces.Discrete(2),
    }
    return EpisodeBatch(**{**fields, **changes})


def test_a_new_batch_begins_where_the_structure_changes() -> None:
    wide = batch_of(obs=np.zeros((7, 5), np.float32), observation_space=gym_spaces.Box(-1, 1, (5,)))
    items = [*write_all(batch_of()), *write_all(wide), *write_all(batch_of())]
    assert [len(batch) for batch in read_all(items)] == [2, 2, 2]


def test_lookback_buffers_are_left_out_of_batches() -> None:
    [first, _] = list(batch_of(infos=[{"n": n} for n in range(7)]))
    chunk = first.slice(slice(1, 2), len_lookback_buffer=1)
    [again] = read_all([encode(chunk)])
    assert again.num_steps == 1
    assert again.t_started is not None
    assert again.t_started.tolist() == [1]
    np.testing.assert_array_equal(again.obs, batch_of().obs[1:3])
    assert again.infos == [{"n": 1}, {"n": 2}]


def test_a_name_that_utf8_cannot_hold_is_not_written() -> None:
    for batch in (batch_of(ids=("a", "\ud800")), batch_of(agent_ids=(None, "\ud800"))):
        with pytest.raises(BadData, match="name"):
            write_all(batch)
