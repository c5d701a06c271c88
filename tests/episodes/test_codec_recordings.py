"""Recordings that RLlib itself made, read to the same values as by msgpack-numpy (these files are trusted)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces as gym_spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import decode, decode_batch, encode_batch
from offline_cli.spaces import space_to_rllib
from offline_cli.tally import Rejects, Tally
from offline_cli.testing import assert_same_batch, assert_same_tree
from offline_cli.trees import Tree, map_leaves

RECORDINGS = (
    *("rllib_episodes_cartpole_expert", "rllib_episodes_cartpole_lstm", "rllib_episodes_dict_flattened"),
    *("rllib_episodes_frozenlake", "rllib_episodes_pendulum"),
)
every_recording = pytest.mark.parametrize("name", RECORDINGS)


def items_of(real_data: Path, name: str) -> list[bytes]:
    files = sorted((real_data / name).rglob("*.parquet"))
    return [item for file in files for item in pq.read_table(file).column("item").to_pylist()]


def read(items: list[bytes]) -> EpisodeBatch:
    [batch] = decode_batch(items, where=lambda i: f"item {i}", rejects=Rejects(), tally=Tally())
    return batch


def trusted(item: bytes) -> Any:
    return msgpack.unpackb(item, object_hook=msgpack_numpy.decode, strict_map_key=False)


def stacked(steps: list[Any]) -> Tree:
    if isinstance(steps[0], dict):
        return {key: stacked([step[key] for step in steps]) for key in steps[0]}
    return np.array(steps)


@every_recording
def test_every_value_of_a_recording_is_what_msgpack_numpy_reads(real_data: Path, name: str) -> None:
    items = items_of(real_data, name)[:20]
    batch = read(items)
    for episode, state in zip(batch, map(trusted, items), strict=True):
        for part, ours in (
            ("observations", episode.get_observations()),
            ("actions", episode.get_actions()),
            ("rewards", episode.get_rewards()),
        ):
            np.testing.assert_array_equal(ours, stacked(state[part]["data"]), strict=True)
        for output, buffer in state["extra_model_outputs"].items():
            ours = episode.get_extra_model_outputs(output)
            map_leaves(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), ours, stacked(buffer["data"]))
        assert list(episode.get_infos()) == state["infos"]["data"]
        assert (episode.id_, episode.t, episode._start_time) == (state["id_"], state["t"], state["_start_time"])


@every_recording
def test_a_recording_written_again_as_ours_is_equal_and_smaller(real_data: Path, name: str) -> None:
    items = items_of(real_data, name)
    batch = read(items)
    again = encode_batch(batch, where=name, tally=Tally())
    assert_same_batch(read(again), batch)
    assert sum(map(len, again)) < sum(map(len, items))


@pytest.mark.integration
def test_rllib_reads_a_recording_written_again_as_ours_to_equal_values(real_data: Path) -> None:
    name = "rllib_episodes_cartpole_lstm"
    rllib = pytest.importorskip("ray.rllib.env.single_agent_episode")
    items = items_of(real_data, name)[:12]
    for theirs, ours in zip(items, encode_batch(read(items), where=name, tally=Tally()), strict=True):
        before = rllib.SingleAgentEpisode.from_state(trusted(theirs)).to_numpy()
        after = rllib.SingleAgentEpisode.from_state(msgpack.unpackb(ours, object_hook=msgpack_numpy.decode))
        assert after.is_numpy
        for get in ("get_observations", "get_actions", "get_rewards", "get_infos"):
            np.testing.assert_array_equal(getattr(after, get)(), getattr(before, get)())
        assert (after.id_, after.is_terminated, after.is_truncated) == (before.id_, before.is_terminated, before.is_truncated)


# ---- layouts that the recordings do not show ----


def state_of(**changes: Any) -> dict[str, Any]:
    """An episode of two steps as RLlib 2.60 records it."""

    def buffer(*data: Any) -> dict[str, Any]:
        return {"data": list(data), "lookback": 0, "finalized": False, "space": None}

    row = np.arange(2, dtype=np.float32)
    state = {
        "id_": "e",
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(row, row + 1, row + 2),
        "actions": buffer(np.int64(0), np.int64(1)),
        "rewards": buffer(0.5, 1.5),
        "infos": buffer({}, {}, {}),
        "extra_model_outputs": None,
        "is_terminated": np.True_,
        "is_truncated": np.False_,
        "t_started": 0,
        "t": 2,
        "_observation_space": None,
        "_action_space": None,
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
    }
    for name, value in changes.items():
        if name in ("observations", "actions", "rewards", "infos"):
            value = buffer(*value)
        state[name] = value
    return state


def packed(state: Mapping[str, Any]) -> bytes:
    return msgpack.packb(state, default=msgpack_numpy.encode)


def test_int_keys_in_infos_are_read_as_they_are() -> None:
    batch = read([packed(state_of(infos=[{1: 2.0}, {}, {}]))])
    assert batch.infos == [{1: 2.0}, {}, {}]


def test_steps_of_two_float_types_are_widened_and_counted() -> None:
    tally = Tally()
    item = packed(state_of(observations=[np.zeros(2), np.ones(2, np.float32), np.ones(2, np.float32)]))
    [batch] = decode_batch([item], where=str, rejects=Rejects(), tally=tally)
    assert batch.obs.dtype == np.float64
    assert tally.assumptions == {"mixed-dtypes-widened": 1}


def test_an_odd_episode_among_many_of_one_layout_is_read_in_its_place() -> None:
    plain = packed(state_of())
    odd = packed(state_of(observations=[np.arange(2, dtype=np.int32)] * 3))  # same bytes per step, another type
    half = packed(state_of(observations=[np.zeros(2, np.float32), *[np.zeros(2, np.int32)] * 2]))  # the first step alone fits
    batches = list(decode_batch([plain, plain, odd, half, plain], where=str, rejects=Rejects(), tally=Tally()))
    assert [batch.obs.dtype.name for batch in batches] == ["float32", "int32", "float64", "float32"]
    assert [len(batch) for batch in batches] == [2, 1, 1, 1]


def test_a_space_is_taken_from_the_buffer_where_the_episode_has_none() -> None:
    state = state_of()
    state["actions"]["space"] = {"space": "discrete", "n": 2, "start": 0}
    assert read([packed(state)]).action_space == gym_spaces.Discrete(2)
    assert decode(packed(state), where="test").action_space == gym_spaces.Discrete(2)


def test_nested_lists_of_rllib_2_40_are_read_as_arrays() -> None:
    space = gym_spaces.Dict({"a": gym_spaces.Box(-1, 1, (2,)), "b": gym_spaces.Tuple([gym_spaces.MultiDiscrete([3, 4])])})
    data = {"a": np.ones((3, 2), np.float32), "b": (np.array([[0, 1], [1, 2], [2, 3]]),)}
    state = state_of(_observation_space=space_to_rllib(space))
    state["observations"] = {"data": space.to_jsonable([data]), "lookback": 0, "finalized": True, "space": None}
    batch = read([packed(state)])
    assert_same_tree(batch.obs, data)
    assert_same_tree(decode(packed(state), where="test").get_observations(), data)


def test_rewards_of_any_number_are_float64() -> None:
    for rewards in ([np.float32(0.5), np.float32(1.5)], [1, 2]):
        assert read([packed(state_of(rewards=rewards))]).rewards.dtype == np.float64
    state = state_of()
    state["rewards"] = {"data": np.ones(2, np.float32), "lookback": 0, "finalized": True, "space": None}
    assert read([packed(state)]).rewards.dtype == np.float64


def test_infos_before_the_first_step_are_left_out() -> None:
    state = state_of(infos=[{"n": 0}, {"n": 1}, {"n": 2}], observations=[np.zeros(2), *[np.ones(2, np.float32)] * 2], t=1)
    for name in ("observations", "actions", "rewards", "infos"):
        state[name]["lookback"] = 1
    assert decode(packed(state), where="test").get_infos() == read([packed(state)]).infos == [{"n": 1}, {"n": 2}]
