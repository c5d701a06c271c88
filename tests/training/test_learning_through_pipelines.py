"""train_bc through learner pipelines: what is learned from, what a run keeps of the pieces, what is refused and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from signal_at import signal_at
from stored_steps import columns_in

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted, SpaceMismatch
from offline_cli.training.config import resolve_config
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import Recorded, TrainingData, load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
FILTER_AND_STACK = '[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n'


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., Path]:
    """Writes a pipeline file and gives its path."""

    def write(pieces: str = FILTER_AND_STACK, *, kind: str = "learner", name: str = "pipeline.toml") -> Path:
        (tmp_path / name).write_text(f'kind = "{kind}"\n{pieces}')
        return tmp_path / name

    return write


def loaded(data: Path, pipeline: Any, **options: Any) -> TrainingData:
    return load_data(data, resolve_config(options), pipeline=pipeline, on_progress=lambda progress: None)


def held_out(ids: tuple[str, ...], fraction: float, seed: int) -> np.ndarray[Any, Any]:
    """(E,) which episodes a run with that seed holds out."""
    ranks = [int.from_bytes(blake2b(id_.encode(), digest_size=8, key=str(seed).encode()).digest(), "big") for id_ in ids]
    return np.array([sorted(ranks).index(rank) < max(1, round(fraction * len(ids))) for rank in ranks])


def rows_of(batch: EpisodeBatch, chosen: Any) -> np.ndarray[Any, Any]:
    """(N, 3) the observations that were acted on in the episodes chosen (E,)."""
    return np.concatenate([np.asarray(episode.get_observations(slice(0, len(episode)))) for episode in batch.select(chosen)])


def test_what_a_filter_learns_it_learns_from_episodes_that_are_not_held_out(
    write_dataset: Write, make_batch: Make, pipeline: Any
) -> None:
    batch = make_batch()
    data = loaded(write_dataset(batch), pipeline('[[pieces]]\nname = "mean_std_filter"\n'), val_fraction=0.25)
    aside = held_out(batch.ids, 0.25, 0)
    kept, val = rows_of(batch, np.flatnonzero(~aside)).astype(np.float64), rows_of(batch, np.flatnonzero(aside))
    assert data.trained is not None
    assert data.val is not None
    learned = data.trained.state["MeanStdFilter"]["obs"]
    assert learned["count"] == len(kept)
    np.testing.assert_allclose(learned["mean"], kept.mean(0), rtol=1e-9)
    wanted = (val - kept.mean(0)) / (kept.std(0, ddof=1) + 1e-6)
    np.testing.assert_allclose(columns_in(data.val)["obs"], wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_a_pipeline_masks_are_neither_learned_from_nor_measured_on(write_dataset: Write, pipeline: Any) -> None:
    recorded = write_dataset()
    longer = loaded(recorded, pipeline('[[pieces]]\nname = "add_one_ts_to_episodes_and_truncate"\n'), val_fraction=0.25)
    plain = loaded(recorded, None, val_fraction=0.25)
    assert longer.val is not None
    assert plain.val is not None
    for column in ("obs", "actions"):
        assert torch.equal(columns_in(longer.train)[column], columns_in(plain.train)[column])
        assert torch.equal(columns_in(longer.val)[column], columns_in(plain.val)[column])


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading episodes fails the test."""

    def read(*_: Any) -> Any:
        raise AssertionError("data was read")

    monkeypatch.setattr(Recorded, "once", read)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("pieces", "error", "named"),
    [
        ('[[pieces]]\nname = "one_hot"\n', SpaceMismatch, "OneHot"),
        ('[[pieces]]\nname = "frame_stacking"\nnum_frams = 2\n', BadConfig, "'num_frames'"),
        ('[[pieces]]\nname = "frame_stackin"\n', BadConfig, "frame_stacking"),
        ('[[pieces]]\nuse = "odd_pieces:Nothing"\n', BadConfig, "'Nothing'"),
    ],
)
def test_a_pipeline_that_does_not_fit_is_refused_before_data_is_read(
    write_dataset: Write, pipeline: Any, tmp_path: Path, pieces: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        train_bc(write_dataset(), tmp_path / "run", pipeline=pipeline(pieces))
    assert not (tmp_path / "run").exists()


OPTIONS: dict[str, Any] = {"updates": 60, "val_fraction": 0.25, "eval_every": 20, "env": "Sign-v0", "eval_episodes": 2}


@pytest.fixture
def interrupted(write_dataset: Write, config: Path, pipeline: Any, tmp_path: Path) -> Path:
    """The data of a run, `run`, that was stopped half way."""
    recorded = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(recorded, tmp_path / "run", config=config, pipeline=pipeline(), on_progress=signal_at(30), **OPTIONS)
    return recorded


def test_a_resumed_run_through_pieces_is_the_undisturbed_one(
    interrupted: Path, config: Path, pipeline: Any, tmp_path: Path
) -> None:
    train_bc(interrupted, tmp_path / "run", pipeline=pipeline(), resume=True)
    train_bc(interrupted, tmp_path / "whole", config=config, pipeline=pipeline(), **OPTIONS)
    for name in ("policy.safetensors", "connectors.msgpack", "policy.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [
        [json.loads(line).get("eval_return_mean") for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("run", "whole")
    ]
    assert rows[0] == rows[1]
