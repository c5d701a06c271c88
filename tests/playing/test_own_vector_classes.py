"""An environment's own vector class, in each of the three ways in which gymnasium lets it reset itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from recording_envs import OwnVector

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, SpaceMismatch
from offline_cli.playing.own_vector_slots import RoundSlots

pytestmark = pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")
Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("episodes", [1, 4, 15])
def test_no_step_after_an_end_is_recorded_and_the_last_observation_is_the_real_one(
    way: str, episodes: int, recorded: Record, read: Read
) -> None:
    batch = read(recorded(f"recording_envs:Own{way}-v0", vectorize="vector_entry_point", num_envs=4, episodes=episodes))
    assert len(batch) == episodes
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        length = int(batch.lengths[e])
        seen = batch.obs[start : start + length + 1]
        number, slot = int(seen[0, 1]), int(seen[0, 2])
        assert length == 1 + slot + number
        assert seen[:, 0].tolist() == list(range(length + 1))
        assert set(map(tuple, seen[:, 1:].tolist())) == {(float(number), float(slot))}
        assert batch.rewards[batch.starts[e] : batch.starts[e + 1]].tolist() == list(range(1, length + 1))
    assert batch.terminated.all()


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_the_last_observation_of_every_episode_of_a_round_is_the_one_it_ended_with(way: str) -> None:
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    slots = RoundSlots(OwnVector(3, way), space, "OwnVector")
    slots.begin(np.arange(3), [0])
    live, last = np.ones(3, np.bool_), {}
    while live.any():
        slots.step(np.zeros(3, np.int64), live)
        over = np.flatnonzero(slots.ended & live)
        last |= dict(zip(over.tolist(), slots.finals(over)[0].tolist(), strict=True))
        live[over] = False
    assert last == {slot: [1.0 + slot, 0.0, float(slot)] for slot in range(3)}


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
def test_infos_of_a_vector_are_dealt_out_to_their_episodes(way: str, recorded: Record, read: Read) -> None:
    batch = read(recorded(f"recording_envs:Own{way}-v0", vectorize="vector_entry_point", num_envs=3))
    assert batch.infos is not None
    for e, start in enumerate(batch.obs_starts[:-1].tolist()):
        told = [dict(info) for info in batch.infos[start : start + int(batch.lengths[e]) + 1]]
        assert told == [{}, *({"t": t} for t in range(1, len(told)))]


def test_episodes_are_numbered_as_they_begin(recorded: Record, read: Read) -> None:
    batch = read(recorded("recording_envs:OwnSameStep-v0", vectorize="vector_entry_point", num_envs=2, episodes=6))
    begun = [(int(batch.obs[start, 1]), int(batch.obs[start, 2])) for start in batch.obs_starts[:-1].tolist()]
    assert begun == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_auto_takes_the_own_class_where_it_says_how_it_resets_itself(recorded: Record) -> None:
    def taken(env: str) -> str:
        told = open_dataset(str(recorded(env, vectorize="auto", policy="random", num_envs=2))).manifest.provenance["recording"]
        return str(told["vectorize"])

    assert taken("CartPole-v1") == "vector_entry_point"
    assert taken("recording_envs:OwnSilent-v0") == "sync"
    assert taken("recording_envs:Count-v0") == "sync"


def test_a_class_that_does_not_say_how_it_resets_itself_is_refused(recorded: Record) -> None:
    with pytest.raises(BadConfig, match="does not say how it resets") as caught:
        recorded("recording_envs:OwnSilent-v0", vectorize="vector_entry_point")
    assert "--vectorize sync" in caught.value.fix


OTHERS = {
    "Shape": "observations: Box(3, float32), and Box(4, float32) in the vector class",
    "Dtype": "observations: Box(3, float32), and Box(3, float64) in the vector class",
    "Bounds": "observations[0]: -inf to inf, and -1 to inf in the vector class",
    "Dict": "observations: Box(3, float32), and Dict(seen: Box(3, float32)) in the vector class",
    "Actions": "actions: Discrete(3), and Discrete(3, start=1) in the vector class",
    "Nested": "observations.pair.1[1]: -9 to 9, and -8 to 9 in the vector class",
    "None": "observations: Box(3, float32), and the vector class does not say its space",
}


@pytest.mark.parametrize("name", OTHERS)
def test_auto_takes_no_class_of_other_spaces_than_the_environment(name: str, recorded: Record, read: Read) -> None:
    env = f"recording_envs:OwnOther{name}-v0"
    out = recorded(env, vectorize="auto", policy="random", num_envs=2)
    assert open_dataset(str(out)).manifest.provenance["recording"]["vectorize"] == "sync"
    assert len(read(out)) == 12


@pytest.mark.parametrize("name", OTHERS)
def test_a_class_of_other_spaces_is_refused_with_the_difference(name: str, recorded: Record) -> None:
    with pytest.raises(SpaceMismatch) as caught:
        recorded(f"recording_envs:OwnOther{name}-v0", vectorize="vector_entry_point", policy="random")
    assert (caught.value.exit_code, caught.value.what) == (4, OTHERS[name])
    assert "--vectorize sync" in caught.value.fix


def test_auto_passes_by_a_class_that_cannot_be_made_with_the_keywords(
    recorded: Record, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    env, kwargs = "recording_envs:OwnUnbending-v0", {"shift": 5}
    batch = read(recorded(env, vectorize="auto", policy="random", env_kwargs=kwargs))
    assert batch.obs[batch.obs_starts[0], 0] == 5
    assert f"note: playing single copies of {env}" in caplog.text
    with pytest.raises(BadData, match="unexpected keyword argument 'shift'"):
        recorded(env, vectorize="vector_entry_point", policy="random", env_kwargs=kwargs)


def test_an_environment_without_a_class_of_its_own_is_refused_one(recorded: Record) -> None:
    with pytest.raises(BadConfig, match="no vector class of its own"):
        recorded(vectorize="vector_entry_point")
    with pytest.raises(BadConfig, match="no vector class inside wrappers"):
        recorded("CartPole-v1", vectorize="vector_entry_point", wrappers=["FlattenObservation"])


def test_cartpole_s_class_is_recorded_as_it_plays(recorded: Record, read: Read) -> None:
    batch = read(recorded("CartPole-v1", vectorize="vector_entry_point", num_envs=8, episodes=40, policy="random"))
    first, last = batch.obs[batch.obs_starts[:-1]], batch.obs[batch.obs_starts[1:] - 1]
    assert (np.abs(first) <= 0.05).all()
    assert ((np.abs(last[:, 0]) > 2.4) | (np.abs(last[:, 2]) > 12 * 2 * np.pi / 360)).all()
    assert (batch.rewards == 1).all()
    assert batch.terminated.all()
