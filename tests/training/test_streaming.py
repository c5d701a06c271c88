"""train-bc --streaming: the steps of a run in memory, resumed bit for bit, nothing left behind; what cannot is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from signal_at import signal_at
from stored_steps import columns_in

from offline_cli.applying import learner_batches
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Interrupted
from offline_cli.progress import Progress
from offline_cli.training import training_data
from offline_cli.training.config import resolve_config
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data
from offline_cli.trees import leaves

Write = Callable[..., Path]
OPTIONS: dict[str, Any] = {"updates": 95, "val_fraction": 0.25, "eval_every": 15, "seed": 4, "streaming": True}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred steps go through pipelines in several parts, too."""
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)


@contextmanager
def loaded(data: Path, pipeline: Any = None, **options: Any) -> Iterator[TrainingData]:
    made = load_data(data, resolve_config(options), pipeline=pipeline, on_progress=lambda progress: None)
    try:
        yield made
    finally:
        made.close()


def rows(steps: Any) -> list[tuple[float, ...]]:
    """Every step as numbers, in the order that it is held in."""
    columns = columns_in(steps)
    flat = [leaf.reshape(len(leaf), -1).double() for name in ("obs", "actions") for leaf in leaves(columns[name])]
    return [tuple(row) for row in torch.cat(flat, 1).tolist()]


def test_streaming_learns_from_the_steps_of_a_run_in_memory_and_holds_out_the_same(write_dataset: Write) -> None:
    data = write_dataset()
    with loaded(data, val_fraction=0.25) as whole, loaded(data, val_fraction=0.25, streaming=True) as streamed:
        assert rows(streamed.train) == rows(whole.train)
        assert rows(streamed.val) == rows(whole.val)
        assert streamed.facts.digest == whole.facts.digest


def test_a_streaming_run_ends_with_the_weights_of_one_in_memory_whenever_it_was_stopped(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "streaming": False})
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "streamed", config=config, on_progress=signal_at(35), **OPTIONS)
    train_bc(data, tmp_path / "streamed", resume=True)
    one, other = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "streamed"))
    assert one == other


# ---- what cannot stream ----


class OfAll(ConnectorV2):
    """Somebody's own piece, which may look at all episodes."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        return batch


class OfEach(OfAll):
    per_episode: ClassVar[bool] = True


class Heir(OfEach):
    """Does not say it for itself."""


def test_pieces_that_may_need_all_episodes_are_refused_by_name(write_dataset: Write) -> None:
    with (
        pytest.raises(BadConfig, match="OfAll") as caught,
        loaded(write_dataset(), [OfAll(), Heir()], streaming=True),
    ):
        pass
    assert len(caught.value.details["problems"]) == 2
    assert "per_episode = True" in caught.value.fix


def test_a_source_that_changes_between_two_readings_is_refused(write_dataset: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real, readings = training_data.of_one_module, []

    def one_less(batches: Any, *args: Any, **options: Any) -> Iterator[EpisodeBatch]:
        readings.append(1)
        return (batch.select(slice(0, len(batch) + 1 - len(readings))) for batch in real(batches, *args, **options))

    monkeypatch.setattr(training_data, "of_one_module", one_less)
    with pytest.raises(BadData, match=r"11.*12"), loaded(write_dataset(), streaming=True, val_fraction=0.25):
        pass


def test_nothing_is_left_in_the_temporary_folder_and_nothing_is_seen_there(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, place, seen = write_dataset(), tmp_path / "temp", []
    place.mkdir()

    def look(progress: Progress) -> None:
        seen.append(list(place.iterdir()))

    train_bc(data, tmp_path / "run", config=config, temp_dir=str(place), on_progress=look, **OPTIONS)
    assert seen
    assert not any(seen)
    assert list(place.iterdir()) == []


def test_data_that_memory_will_not_hold_is_refused_with_the_way_out(tmp_path: Path, write_dataset: Write) -> None:
    data = write_dataset()
    assert train_bc(data, tmp_path / "run", updates=1, memory_limit=1 << 30).updates == 1
    with pytest.raises(BadConfig) as caught:
        train_bc(data, tmp_path / "other", updates=1, memory_limit=4000)
    assert "--streaming" in caught.value.fix
