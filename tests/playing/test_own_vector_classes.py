"""An environment's own vector class, in each of the three ways in which gymnasium lets it reset itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, SpaceMismatch

pytestmark = pytest.mark.filterwarnings("ignore:.*missing AutoresetMode metadata")
Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]


@pytest.mark.parametrize("way", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("episodes", [1, 15])
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


def test_an_environment_without_a_class_of_its_own_is_refused_one(recorded: Record) -> None:
    with pytest.raises(BadConfig, match="no vector class of its own"):
        recorded(vectorize="vector_entry_point")
    with pytest.raises(BadConfig, match="no vector class inside wrappers"):
        recorded("CartPole-v1", vectorize="vector_entry_point", wrappers=["FlattenObservation"])
