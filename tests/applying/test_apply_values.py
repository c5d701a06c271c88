"""The batches that `apply` writes: the numbers of the pipeline, in either format, however they were read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest
from stored_steps import columns_in

from offline_cli import apply
from offline_cli.applying.apply import ApplyResult
from offline_cli.applying.learner_batches import in_learner_units
from offline_cli.connectors import FrameStacking, MeanStdFilter, learner_pipeline
from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.pipeline_spec import load_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.parquet.arrow_trees import space_field
from offline_cli.progress import no_progress
from offline_cli.training.config import BCConfig
from offline_cli.training.training_data import load_data
from offline_cli.trees import flatten

FILTER_AND_STACK = """
    [[pieces]]
    name = "mean_std_filter"

    [[pieces]]
    name = "frame_stacking"
    num_frames = 4
"""
CAMERA = gym.spaces.Dict(
    [
        ("pose", gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(5)])),
        ("camera", gym.spaces.Box(0, 255, (2, 3, 1), np.uint8)),
    ]
)
ARM = gym.spaces.Box(-3.0, 5.0, (2,), np.float32)
Dataset = Callable[..., str]
Pipeline = Callable[..., str]
Stored = Callable[[str], list[dict[str, Any]]]


def same_columns(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The columns that a file has against those that a pipeline gives, leaf by leaf, dtypes too."""
    assert list(found) == list(wanted)
    for name, tree in wanted.items():
        for (path, leaf), (other_path, other) in zip(flatten(found[name], name), flatten(tree, name), strict=True):
            assert (path, leaf.dtype) == (other_path, other.numpy().dtype)
            np.testing.assert_array_equal(leaf, other.numpy(), strict=True)


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_the_batches_are_those_of_the_pipeline_on_the_same_episodes(
    format: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    told = apply(dataset(episodes, format=format), out, pipeline=pipeline_file(FILTER_AND_STACK), steps_per_batch=14)
    assert isinstance(told, ApplyResult)
    assert (told.batches, told.rows, told.episodes, told.steps) == (3, 40, 6, 40)
    pipeline = learner_pipeline(
        episodes.observation_space,
        episodes.action_space,
        custom=[MeanStdFilter(as_learner_connector=True), FrameStacking(num_frames=4, as_learner_connector=True)],
    )
    pipeline(episodes=episodes)
    pipeline.freeze()
    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]  # 14, 20 and 6 steps
    for found, part in zip(stored(out), parts, strict=True):
        same_columns(found, pipeline(episodes=episodes.select(part)))


def test_one_batch_is_what_train_bc_learns_from(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    batch = random_batch(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), ARM, lengths=(4, 3, 2))
    source, out, file = dataset(batch), str(tmp_path / "out"), pipeline_file(FILTER_AND_STACK)
    apply(source, out, pipeline=file)
    pieces = [MeanStdFilter(as_learner_connector=True), FrameStacking(num_frames=4, as_learner_connector=True)]
    learned = load_data(source, BCConfig(), pipeline=pieces, on_progress=no_progress)
    (found,) = stored(out)
    np.testing.assert_array_equal(found["obs"], columns_in(learned.train)["obs"].numpy())
    np.testing.assert_array_equal(found["actions"], columns_in(learned.train)["actions"].numpy())
    assert np.abs(found["actions"]).max() <= 1.0 < np.abs(batch.actions).max()


def test_both_formats_hold_the_same_numbers(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    source = dataset(random_batch(CAMERA, gym.spaces.MultiDiscrete([2, 3]), lengths=(4, 3)))
    file = pipeline_file()
    apply(source, str(tmp_path / "tables"), pipeline=file)
    apply(source, str(tmp_path / "tensors"), pipeline=file, format="safetensors")
    (table,), (tensors,) = stored(str(tmp_path / "tables")), stored(str(tmp_path / "tensors"))
    flat = dict(pair for name, tree in table.items() for pair in flatten(tree, name))
    assert {"obs.camera", "obs.pose.0", "obs.pose.1"} <= set(flat)
    assert flat.keys() == tensors.keys()
    for name, array in flat.items():
        np.testing.assert_array_equal(array, tensors[name], strict=True)


def test_nested_columns_have_the_layout_of_our_columns_datasets(
    random_batch: Callable[..., EpisodeBatch], dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    source, out = dataset(random_batch(CAMERA, gym.spaces.Discrete(2), lengths=(4, 3))), tmp_path / "out"
    apply(source, str(out), pipeline=pipeline_file())
    schema = pq.read_schema(out / "data" / "batch-000000.parquet")
    assert schema.field("obs") == space_field("obs", CAMERA)
    assert schema.field("obs").type.field("pose").metadata == space_field("obs", CAMERA).type.field("pose").metadata


def test_how_episodes_were_stored_does_not_change_a_byte(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    file = pipeline_file(FILTER_AND_STACK)
    whole = dataset(episodes, name="one")
    halves = [dataset(episodes.select(part), name=str(part.start)) for part in (slice(0, 3), slice(3, 6))]
    for format in ("columns", "safetensors"):
        sources: list[Any] = [whole, whole, halves]
        outs = [str(tmp_path / f"{format}-{number}") for number in range(3)]
        for source, out in zip(sources, outs, strict=True):
            apply(source, out, pipeline=file, format=format, steps_per_batch=10)
        files = [{file.name: file.read_bytes() for file in (Path(out) / "data").iterdir()} for out in outs]
        assert len(files[0]) == 3
        assert files[0] == files[1] == files[2]


def test_what_pieces_learned_is_beside_the_batches_and_goes_back_into_a_pipeline(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    out, file = tmp_path / "out", pipeline_file(FILTER_AND_STACK)
    told = apply(dataset(episodes), str(out), pipeline=file, steps_per_batch=10)
    assert isinstance(told, ApplyResult)
    assert told.state == "connectors.msgpack"
    pipeline = load_pipeline(file, observation_space=episodes.observation_space, action_space=episodes.action_space)
    pipeline.set_state(state_from_bytes((out / told.state).read_bytes(), where="test"))
    moments = pipeline.get_state()["MeanStdFilter"]["shared"]["obs"]
    assert int(moments["count"]) == 40
    np.testing.assert_allclose(moments["mean"], episodes.acted_obs().mean(0), rtol=1e-5)


def test_a_limit_takes_the_first_episodes_only(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    told = apply(dataset(episodes), str(tmp_path / "out"), pipeline=pipeline_file(), limit=2)
    assert isinstance(told, ApplyResult)
    assert (told.episodes, told.steps) == (2, 14)


def test_the_first_batch_is_filtered_by_the_moments_of_all_episodes(
    episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    file = pipeline_file('[[pieces]]\nname = "mean_std_filter"\n')
    apply(dataset(episodes), str(tmp_path / "out"), pipeline=file, steps_per_batch=14)
    batches = [batch["obs"] for batch in stored(str(tmp_path / "out"))]
    assert abs(batches[0].mean()) > 0.01
    np.testing.assert_allclose(np.concatenate(batches).mean(0), 0.0, atol=1e-5)


def test_actions_come_in_the_units_of_networks(random_batch: Callable[..., EpisodeBatch]) -> None:
    batch = random_batch(gym.spaces.Box(-1.0, 1.0, (4,), np.float32), ARM, lengths=(4, 3))
    learned = in_learner_units(batch, ARM, "env")
    np.testing.assert_allclose(learned.actions * 4.0 + 1.0, batch.actions, rtol=1e-5, atol=1e-6)  # bounds -3 and 5
    assert learned.action_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
