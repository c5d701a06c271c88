"""The batches that `apply` writes: the numbers of the pipeline, in either format, with a run's network and without."""

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
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.parquet.arrow_trees import space_field
from offline_cli.progress import no_progress
from offline_cli.training.config import BCConfig
from offline_cli.training.training_data import load_data
from offline_cli.trees import flatten

FILTER_AND_STACK = '[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 4\n'
BOX = gym.spaces.Box
POSE = gym.spaces.Tuple([BOX(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(5)])
CAMERA = gym.spaces.Dict([("pose", POSE), ("camera", BOX(0, 255, (2, 3, 1), np.uint8))])
ARM = BOX(-3.0, 5.0, (2,), np.float32)
Dataset = Callable[..., str]
Pipeline = Callable[..., str]
Stored = Callable[[str], list[dict[str, Any]]]
Make = Callable[..., EpisodeBatch]


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """What a file holds against what a pipeline gives, leaf by leaf, dtypes too."""
    mine, other = dict(flatten(found)), dict(flatten(wanted))
    assert list(mine) == list(other)
    for path, leaf in other.items():
        np.testing.assert_array_equal(mine[path], leaf.numpy(), err_msg=path, strict=True)


def learner(episodes: EpisodeBatch, *pieces: Any) -> Any:
    assert episodes.observation_space is not None
    assert episodes.action_space is not None
    return learner_pipeline(episodes.observation_space, episodes.action_space, custom=list(pieces))


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_batches_are_those_of_the_pipeline_whose_pieces_have_learned_from_all_episodes(
    format: str, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    out, file = tmp_path / "out", pipeline_file(FILTER_AND_STACK)
    done = apply(dataset(episodes, format=format), str(out), pipeline=file, steps_per_batch=14)
    assert isinstance(done, ApplyResult)
    assert (done.batches, done.rows, done.episodes, done.steps) == (3, 40, 6, 40)
    options: dict[str, Any] = {"as_learner_connector": True}
    pipeline = learner(episodes, MeanStdFilter(**options), FrameStacking(num_frames=4, **options))
    pipeline(episodes=episodes)
    pipeline.freeze()
    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]  # 14, 20 and 6 steps
    for found, part in zip(stored(str(out)), parts, strict=True):
        same(found, pipeline(episodes=episodes.select(part)))
    again = PipelineSpec.from_file(file).build(Setting(episodes.observation_space, episodes.action_space))
    again.set_state(state_from_bytes((out / "connectors.msgpack").read_bytes(), where="test"))
    moments = again.get_state()["MeanStdFilter"]["obs"]
    assert int(moments["count"]) == 40
    np.testing.assert_allclose(moments["mean"], episodes.acted_obs().mean(0), rtol=1e-5)


def test_one_batch_is_what_train_bc_learns_from_with_actions_in_the_units_of_networks(
    random_batch: Make, dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    batch = random_batch(BOX(-1.0, 1.0, (4,), np.float32), ARM, lengths=(4, 3, 2))
    source, out, file = dataset(batch), str(tmp_path / "out"), pipeline_file(FILTER_AND_STACK)
    apply(source, out, pipeline=file)
    learned = load_data(source, BCConfig(), pipeline=file, on_progress=no_progress)
    (found,) = stored(out)
    for name in ("obs", "actions"):
        np.testing.assert_array_equal(found[name], columns_in(learned.train)[name].numpy())
    np.testing.assert_allclose(found["actions"] * 4.0 + 1.0, batch.actions, rtol=1e-5, atol=1e-6)  # bounds -3 and 5
    assert in_learner_units(batch, ARM, "env").action_space == BOX(-np.inf, np.inf, (2,), np.float32)


def test_both_formats_hold_the_same_numbers_and_tables_have_the_layout_of_our_columns_datasets(
    random_batch: Make, dataset: Dataset, pipeline_file: Pipeline, stored: Stored, tmp_path: Path
) -> None:
    source = dataset(random_batch(CAMERA, gym.spaces.MultiDiscrete([2, 3]), lengths=(4, 3)))
    for format in ("columns", "safetensors"):
        apply(source, str(tmp_path / format), pipeline=pipeline_file(), format=format)
    (table,), (tensors,) = stored(str(tmp_path / "columns")), stored(str(tmp_path / "safetensors"))
    flat = dict(pair for name, tree in table.items() for pair in flatten(tree, name))
    assert {"obs.camera", "obs.pose.0", "obs.pose.1"} <= set(flat)
    assert flat.keys() == tensors.keys()
    for name, array in flat.items():
        np.testing.assert_array_equal(array, tensors[name], strict=True)
    field, wanted = pq.read_schema(tmp_path / "columns/data/batch-000000.parquet").field("obs"), space_field("obs", CAMERA)
    assert field == wanted
    assert field.type.field("pose").metadata == wanted.type.field("pose").metadata


@pytest.mark.parametrize("format", ["columns", "safetensors"])
def test_how_episodes_were_stored_does_not_change_a_byte(
    format: Any, episodes: EpisodeBatch, dataset: Dataset, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    file, whole = pipeline_file(FILTER_AND_STACK), dataset(episodes, name="one")
    halves: Any = [dataset(episodes.select(part), name=str(part.start)) for part in (slice(0, 3), slice(3, 6))]
    for name, source in (("whole", whole), ("halves", halves)):
        apply(source, str(tmp_path / name), pipeline=file, format=format, steps_per_batch=10)
    files = [{file.name: file.read_bytes() for file in (tmp_path / name / "data").iterdir()} for name in ("whole", "halves")]
    assert len(files[0]) == 3
    assert files[0] == files[1]
