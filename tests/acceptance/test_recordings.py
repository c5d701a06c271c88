"""Every recording of RLlib and Minari, read by every command that reads, against counts and values of independent readers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from independent_readers import episodes_of

from offline_cli import open_dataset


class Counts(NamedTuple):
    """Counted with plain Python over the files (SOURCES.md of the recordings)."""

    episodes: int
    steps: int
    terminated: int
    truncated: int  # unfinished ones too
    rewards: float | None  # their sum
    problems: dict[str, int]  # of `validate`: severities above note


NO_PROBLEMS: dict[str, int] = {}
RECORDINGS = {
    "rllib_episodes_cartpole_expert": Counts(100, 46184, 15, 85, 46184, NO_PROBLEMS),
    "rllib_episodes_cartpole_lstm": Counts(20, 485, 20, 0, 485, NO_PROBLEMS),
    "rllib_episodes_dict_flattened": Counts(12, 132, 12, 0, 113.1429, NO_PROBLEMS),
    "rllib_episodes_frozenlake": Counts(40, 306, 40, 0, 1, NO_PROBLEMS),
    "rllib_episodes_pendulum": Counts(8, 1600, 0, 8, -13284.1756, {"action-outside-space": 172}),
    "rllib_columns_cartpole_expert": Counts(50, 23844, 5, 45, None, {"duplicate-episode": 25}),
    "rllib_columns_cartpole_plain": Counts(30, 591, 30, 0, 591, NO_PROBLEMS),
    "rllib_columns_dict_flattened": Counts(12, 132, 12, 0, None, NO_PROBLEMS),
    "rllib_columns_pendulum_plain": Counts(4, 800, 0, 4, None, NO_PROBLEMS),
    "sample_batch_cartpole_lz4": Counts(163, 4000, 162, 1, 4000, {"unfinished-episode": 1}),
    "sample_batch_cartpole_plain": Counts(176, 4383, 176, 0, 4383, NO_PROBLEMS),
    "sample_batch_pendulum_lz4": Counts(10, 2000, 0, 10, -13916.787, NO_PROBLEMS),
    "sample_batch_pendulum_trunc": Counts(10, 2000, 0, 10, -11001.647, NO_PROBLEMS),
    "minari/cartpole/heuristic-v0": Counts(30, 15000, 0, 30, 15000, NO_PROBLEMS),
    "minari/cartpole/heuristic-arrow-v0": Counts(30, 15000, 0, 30, 15000, NO_PROBLEMS),
    "minari/pendulum/random-v0": Counts(10, 2000, 0, 10, None, NO_PROBLEMS),
}
each = pytest.mark.parametrize("name", RECORDINGS)
Done = Callable[..., dict[str, Any]]
Datasets = Callable[..., Path]


def read(dataset: Path) -> dict[str, dict[str, Any]]:
    """The episodes of one of our datasets, by id."""
    found = {}
    for batch in open_dataset(str(dataset)).batches():
        for number in range(len(batch)):
            episode = batch.select([number])
            found[episode.ids[0]] = {
                "obs": episode.obs,
                "actions": episode.actions,
                "rewards": episode.rewards,
                "terminated": bool(episode.terminated[0]),
                "truncated": bool(episode.truncated[0]),
            }
    return found


@each
def test_inspect_counts_what_independent_readers_count(name: str, real_data: Path, done: Done) -> None:
    told = done("inspect", real_data / name)
    assert (told["episodes"], told["steps"]) == (RECORDINGS[name].episodes, RECORDINGS[name].steps)


@each
def test_validate_reports_exactly_what_is_wrong(name: str, real_data: Path, done: Done) -> None:
    problems = [one for one in done("validate", real_data / name)["problems"] if one["severity"] != "note"]
    assert {one["code"]: one["count"] for one in problems} == RECORDINGS[name].problems


@pytest.mark.parametrize(("name", "to"), zip(RECORDINGS, itertools.cycle(["episodes", "columns"]), strict=False))
def test_convert_keeps_every_value_of_every_episode(name: str, to: str, real_data: Path, datasets: Datasets) -> None:
    ours, theirs = read(datasets(name, to)), episodes_of(real_data / name)
    assert len(ours) == len(theirs) == RECORDINGS[name].episodes
    for episode in theirs:
        own = ours[episode["id"]]
        for column in ("obs", "actions", "rewards"):
            np.testing.assert_array_equal(own[column], np.asarray(episode[column]), err_msg=f"{episode['id']} {column}")
        assert (own["terminated"], own["truncated"]) == (episode["terminated"], episode["truncated"])


@each
def test_a_converted_dataset_has_the_counts_of_its_source(name: str, datasets: Datasets, done: Done) -> None:
    counts = RECORDINGS[name]
    told = done("inspect", datasets(name), "--deep")
    assert (told["episodes"], told["steps"]) == (counts.episodes, counts.steps)
    assert (told["terminated"], told["truncated"]) == (counts.terminated, counts.truncated)
    if counts.rewards is not None:
        assert told["return"]["mean"] * counts.episodes == pytest.approx(counts.rewards, rel=1e-6)


@each
def test_two_row_formats_of_one_recording_hold_equal_episodes(name: str, datasets: Datasets, done: Done) -> None:
    assert done("diff", datasets(name), datasets(name, "columns"))["equal"] is True


@pytest.mark.parametrize("name", ["rllib_episodes_pendulum", "rllib_columns_pendulum_plain", "minari/pendulum/random-v0"])
def test_converting_again_gives_the_same_bytes(
    name: str, real_data: Path, datasets: Datasets, done: Done, tmp_path: Path
) -> None:
    done("convert", real_data / name, "--out", tmp_path / "again")
    first, again = (sorted((folder / "data").iterdir()) for folder in (datasets(name), tmp_path / "again"))
    assert [file.name for file in first] == [file.name for file in again]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, again, strict=True))
