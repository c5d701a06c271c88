"""`write_dataset` and `DatasetWriter` as programs use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import DatasetWriter, EpisodeBatch, SingleAgentEpisode, open_dataset, train, write_dataset
from offline_cli.datasets.write_dataset import joined_batches
from offline_cli.errors import BadConfig, BadEpisode, NoData, OutputExists, UsageError

Make = Callable[..., EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


@pytest.mark.parametrize("as_what", ["batch", "batches", "episodes", "both"])
def test_batches_and_episodes_are_written_with_the_spaces_that_they_say(
    make_batch: Make, assert_same_batch: Same, tmp_path: Path, format: Any, as_what: str
) -> None:
    one, two = make_batch((3, 1, 5)), make_batch((2, 9), first_id=3)
    given: dict[str, Any] = {"batch": one, "batches": iter([one, two]), "episodes": [*one, *two], "both": [*one, two]}
    written = write_dataset(given[as_what], str(tmp_path / "D"), format=format, env="CartPole-v1", action_scale="env")
    whole = one if as_what == "batch" else EpisodeBatch.concat([one, two])
    assert (written.episodes, written.steps, written.shards) == (len(whole), whole.num_steps, 1)
    dataset = open_dataset(written.out)
    assert_same_batch(dataset[:], whole)
    told = dataset.manifest
    assert (told.observation_space, told.action_scale, told.environment.id) == (one.observation_space, "env", "CartPole-v1")  # type: ignore[union-attr]


def test_what_is_read_is_filtered_and_written_back_over_itself(make_batch: Make, tmp_path: Path, format: Any) -> None:
    batch = make_batch((5, 3, 8, 2))
    write_dataset(batch, tmp_path / "D", format=format, max_rows_per_file=6)
    dataset = open_dataset(tmp_path / "D")
    kept = (part.select(part.lengths > 2) for part in dataset.batches())
    written = write_dataset(kept, tmp_path / "D", overwrite=True, format=format)
    assert written.episodes == 3
    assert open_dataset(tmp_path / "D")[:].ids == tuple(batch.ids[number] for number in (0, 1, 2))


def test_nothing_is_there_unless_all_is_written(make_batch: Make, tmp_path: Path) -> None:
    def failing() -> Iterator[EpisodeBatch]:
        yield make_batch()
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="the power went"):
        write_dataset(failing(), tmp_path / "D")
    assert not (tmp_path / "D").exists()
    write_dataset(make_batch(), tmp_path / "D")
    with pytest.raises(OutputExists):
        write_dataset(make_batch(), tmp_path / "D")
    with pytest.raises(RuntimeError):
        write_dataset(failing(), tmp_path / "D", overwrite=True)
    with pytest.raises(BadEpisode, match="'episode-0'"):
        write_dataset([make_batch(), make_batch()], tmp_path / "E")
    assert not (tmp_path / "E").exists()


def test_spaces_that_are_unknown_or_differ_are_refused(make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch()
    unknown = replace(batch, observation_space=None)
    with pytest.raises(BadConfig):
        write_dataset(unknown, tmp_path / "D")
    with pytest.raises(NoData):
        write_dataset([], tmp_path / "D")
    other = replace(make_batch(first_id=9), action_space=spaces.Discrete(7))
    with pytest.raises(BadEpisode, match=r"Discrete\(7\).*Discrete\(3\)"):
        write_dataset([batch, other], tmp_path / "D")
    assert not (tmp_path / "D").exists()
    assert write_dataset(
        [unknown, other], tmp_path / "D", observation_space=batch.observation_space, action_space=spaces.Discrete(7)
    )
    with pytest.raises(UsageError, match="--format"):
        write_dataset(batch, tmp_path / "E", format="rows")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="overwite"):
        write_dataset(batch, tmp_path / "E", overwite=True)  # type: ignore[call-arg]
    with pytest.raises(UsageError):
        DatasetWriter(tmp_path / "E", format="columns", observation_space=None, action_space=None)


def test_of_a_dataset_environment_and_action_scale_are_kept_unless_others_are_given(make_batch: Make, tmp_path: Path) -> None:
    write_dataset(make_batch(), tmp_path / "D", env="CartPole-v1", action_scale="env")
    write_dataset(open_dataset(tmp_path / "D"), tmp_path / "same")
    write_dataset(open_dataset(tmp_path / "D"), tmp_path / "other", env="CartPole-v0", action_scale="normalized")
    told = [open_dataset(tmp_path / name).manifest for name in ("D", "same", "other")]
    scales = [(manifest.environment and manifest.environment.id, manifest.action_scale) for manifest in told]
    assert scales == [("CartPole-v1", "env"), ("CartPole-v1", "env"), ("CartPole-v0", "normalized")]


def test_long_episodes_are_not_gathered_before_they_are_written(make_batch: Make) -> None:
    asked = []

    def generated() -> Iterator[SingleAgentEpisode]:
        for number in range(20):
            asked.append(number)
            steps = 10_000
            yield SingleAgentEpisode(
                id_=str(number),
                observations=np.zeros((steps + 1, 1), np.float32),
                actions=np.zeros(steps, np.int64),
                rewards=np.zeros(steps),
                len_lookback_buffer=0,
            )

    assert len(next(iter(joined_batches(generated())))) == len(asked) == 7


def test_an_unknown_scale_of_box_actions_is_told_when_it_is_written(
    make_batch: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = make_batch((3,))
    box = spaces.Box(-2, 2, (1,), np.float32)
    torques = replace(batch, actions=np.zeros((3, 1), np.float32), action_space=box)
    write_dataset(batch, tmp_path / "discrete")
    write_dataset(torques, tmp_path / "known", action_scale="env")
    write_dataset([torques], tmp_path / "alike", like=open_dataset(tmp_path / "known"))
    assert not caplog.records
    write_dataset([torques], tmp_path / "unknown", env="Pendulum-v1")
    assert len(caplog.records) == 1


def test_an_unknown_keyword_names_the_closest_one(make_batch: Make, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'overwrite'"):
        write_dataset(make_batch(), tmp_path / "D", overwite=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"set=\{'beta': 1\}"):
        train(tmp_path / "D", tmp_path / "run", beta=1)  # type: ignore[call-arg]


def test_an_episode_with_an_attribute_in_place_of_its_steps_is_refused(make_batch: Make, tmp_path: Path) -> None:
    episode = make_batch((3,))[0]
    episode.rewards = np.zeros(3)
    with pytest.raises(BadEpisode, match="set_rewards"):
        write_dataset(episode, tmp_path / "D")
    assert not (tmp_path / "D").exists()
