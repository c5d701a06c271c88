"""Stacks of frames gathered from single ones: the batches are those of the piece that stacks, bit for bit, from less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_cli.applying import learner_batches
from offline_cli.applying.learner_batches import FrameStacks
from offline_cli.connectors import ClipRewards, FrameStacking, MeanStdFilter
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.datasets.write_dataset import write_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.progress import no_progress
from offline_cli.spaces import Space
from offline_cli.training import training_data
from offline_cli.training.config import resolve_config
from offline_cli.training.steps import Batches
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data
from offline_cli.trees import Tree, flatten, map_leaves

CPU = torch.device("cpu")
PIXELS = spaces.Box(0, 255, (3, 2, 1), np.uint8)
LEAVES: dict[str, Space] = {
    "pixels": PIXELS,
    "colours": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "vector": spaces.Box(-9, 9, (3,), np.float32),
    "number": spaces.Box(-9, 9, (), np.float64),
    "both": spaces.Dict({"b": PIXELS, "a": spaces.Tuple([spaces.Box(-9, 9, (2,), np.float32)])}),
}


def rows_of(space: Any, count: int, chance: np.random.Generator) -> Tree:
    if isinstance(space, spaces.Dict):
        return {name: rows_of(part, count, chance) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(rows_of(part, count, chance) for part in space.spaces)
    drawn = chance.integers(0, 256, (count, *space.shape))
    return drawn.astype(space.dtype) if space.dtype == np.uint8 else (drawn / 32 - 4).astype(space.dtype)


def recording(lengths: list[int], space: Space = PIXELS, *, seed: int = 0, masked: bool = False) -> EpisodeBatch:
    """Of these lengths; `masked`: every third step is not learned from."""
    chance, steps, count = np.random.default_rng(seed), sum(lengths), len(lengths)
    ended = np.arange(count) % 2 == 0
    return EpisodeBatch(
        ids=tuple(f"{seed}-{number}" for number in range(count)),
        starts=np.cumsum([0, *lengths]),
        obs=rows_of(space, steps + count, chance),
        actions=chance.integers(0, 3, steps),
        rewards=chance.normal(size=steps),
        terminated=ended,
        truncated=~ended,
        extra={"loss_mask": np.arange(steps) % 3 > 0} if masked else {},
        observation_space=space,
        action_space=spaces.Discrete(3),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def write(batch: EpisodeBatch, **options: Any) -> Path:
        out = tmp_path_factory.mktemp("frames") / "data"
        write_dataset([batch], out, action_scale="normalized", **options)
        return out

    return write


@pytest.fixture
def piecewise(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Have the piece make the stacks, or the loader."""
    by_rows = training_data.stack_by_rows

    def choose(by_piece: bool) -> None:
        monkeypatch.setattr(training_data, "stack_by_rows", (lambda pipeline: None) if by_piece else by_rows)

    return choose


def loaded(data: Any, pieces: list[ConnectorV2], **options: Any) -> TrainingData:
    asked = {"epochs": 2, "seed": 3, "batch_size": 7, "device": "cpu"} | options
    config = resolve_config(
        {name: value for name, value in asked.items() if name != "algorithm"}, algorithm=asked.get("algorithm")
    )
    return load_data(data, config, pipeline=pieces, on_progress=no_progress)


def batches(data: TrainingData, *, epochs: int = 2) -> Iterator[Tree]:
    """All of so many epochs to learn from, and all that is held out."""
    loader = Batches(data.train, batch_size=7, seed=3, device=CPU)
    for update in range(epochs * loader.updates_per_epoch):
        loader.fill(update)
        yield map_leaves(torch.clone, loader.batch)
    yield from (columns for columns, _ in loader.in_order())
    if data.val is not None:
        yield from (columns for columns, _ in Batches(data.val, batch_size=7, seed=3, device=CPU).in_order())


def assert_equal(one: TrainingData, other: TrainingData) -> None:
    compared = 0
    for left, right in zip(batches(one), batches(other), strict=True):
        for (path, leaf), (other_path, other_leaf) in zip(flatten(left), flatten(right), strict=True):
            assert (path, leaf.dtype, leaf.shape) == (other_path, other_leaf.dtype, other_leaf.shape)
            assert leaf.numpy().tobytes() == other_leaf.numpy().tobytes(), path
            compared += leaf.numel()
    assert compared


def stacks_of(data: TrainingData) -> FrameStacks:
    found = data.train.columns["obs"]
    assert isinstance(found, FrameStacks)
    return found


def test_stacks_that_come_in_many_parts_are_the_same_on_disk_and_in_memory(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_batches, "PART_BYTES", 64)
    source, pieces = written(recording([4, 7, 2, 5])), [FrameStacking(num_frames=3, as_learner_connector=True)]
    in_memory, streamed = loaded(source, pieces), loaded(source, pieces, streaming=True, memory_limit=16 << 30)
    with closing(in_memory), closing(streamed):
        assert_equal(streamed, in_memory)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    size=st.integers(2, 5),
    leaf=st.sampled_from(sorted(LEAVES)),
    masked=st.booleans(),
    how=st.sampled_from([{}, {"val_fraction": 0.4}, {"streaming": True}, {"streaming": True, "val_fraction": 0.4}]),
)
def test_batches_are_those_of_the_piece_bit_for_bit(
    lengths: list[int],
    size: int,
    leaf: str,
    masked: bool,
    how: dict[str, Any],
    written: Callable[..., Path],
    piecewise: Callable[[bool], None],
) -> None:
    sources = [written(recording(part, LEAVES[leaf], seed=seed, masked=masked)) for seed, part in enumerate((lengths, [4, 1]))]
    found = []
    for by_piece in (False, True):
        piecewise(by_piece)
        found.append(loaded(sources, [FrameStacking(num_frames=size, as_learner_connector=True)], **how))
    with closing(found[0]), closing(found[1]):
        assert found[0].facts.digest == found[1].facts.digest, "a run may be resumed with either"
        assert_equal(*found)
        assert stacks_of(found[0]).size == size


def stacking() -> list[ConnectorV2]:
    return [
        MeanStdFilter(as_learner_connector=True),
        FrameStacking(num_frames=3, as_learner_connector=True),
        ClipRewards(bound=0.5),
    ]


@pytest.mark.parametrize("how", [{}, {"streaming": True}], ids=["in memory", "streaming"])
def test_a_run_has_the_weights_of_one_whose_piece_stacks_and_resumes_it(
    how: dict[str, Any], written: Callable[..., Path], piecewise: Callable[[bool], None], tmp_path: Path
) -> None:
    data = written(recording([9, 12, 7, 5]))
    options: dict[str, Any] = {"batch_size": 8, "hidden": [8], "val_fraction": 0.3, **how}
    options["pipeline"] = lambda observations, actions: stacking()
    for run, by_piece, updates in (("whole", False, 12), ("old", True, 6), ("old", False, 12)):
        piecewise(by_piece)
        train_bc(data, tmp_path / run, **options, updates=updates, resume=(tmp_path / run).exists())
    assert (tmp_path / "whole" / "policy.safetensors").read_bytes() == (tmp_path / "old" / "policy.safetensors").read_bytes()


@pytest.mark.parametrize("algorithm", ["iql", "td3-bc"])
def test_the_observation_that_a_step_led_to_is_stacked_too(algorithm: str, written: Callable[..., Path]) -> None:
    batch = recording([4, 2, 6])
    actions = spaces.Box(-1, 1, (1,), np.float32)
    batch = replace(batch, action_space=actions, actions=batch.actions[:, None].astype(np.float32) - 1)
    data = loaded(written(batch), [FrameStacking(num_frames=3, as_learner_connector=True)], algorithm={"name": algorithm})
    columns = data.train.rows(slice(None))
    for name, first in (("obs", 0), ("new_obs", 1)):
        for episode in range(3):
            seen = batch.obs[batch.obs_starts[episode] : batch.obs_starts[episode + 1]]
            padded = np.concatenate([np.zeros((2, 3, 2, 1), np.uint8), seen])
            wanted = [np.concatenate(padded[t + first : t + first + 3], axis=-1) for t in range(len(seen) - 1)]
            rows = slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
            np.testing.assert_array_equal(columns[name][rows], wanted)
