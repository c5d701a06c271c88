"""`train --weight`: an epoch has each source's share of its steps, in memory and in streams, resumed or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signal_at import signal_at

from offline_cli.applying import learner_batches
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted, NoData, UsageError
from offline_cli.training.train import train

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 45, "batch_size": 32, "hidden": (8,), "device": "cpu", "eval_every": 15}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)


@pytest.fixture
def sources(write_dataset: Write, make_batch: Make) -> list[str]:
    """Two datasets, the second the smaller one."""
    batches = {"large": make_batch(episodes=12, seed=1), "small": make_batch(episodes=4, length=20, seed=2)}
    return [str(write_dataset(batch, name=name)) for name, batch in batches.items()]


@pytest.mark.parametrize(("streaming", "more"), [(False, {}), (True, {"top_fraction": 0.9, "val_fraction": 0.3})], ids=str)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(
    sources: list[str], tmp_path: Path, streaming: bool, more: dict[str, Any]
) -> None:
    how: dict[str, Any] = {**OPTIONS, "streaming": streaming, **more}
    train(sources, tmp_path / "whole", weight={sources[1]: 0.4}, **how)
    with pytest.raises(Interrupted):
        train(sources, tmp_path / "parts", weight={sources[1]: 0.4}, on_progress=signal_at(15), **how)
    train(sources, tmp_path / "parts", weight={sources[1]: 0.4}, resume=True)
    policies = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts")]
    assert policies[0] == policies[1]


def test_a_run_resumes_with_its_own_weights_alone(sources: list[str], tmp_path: Path) -> None:
    train(sources, tmp_path / "run", weight={sources[1]: 0.4}, **OPTIONS)
    with pytest.raises(BadConfig, match="weights"):
        train(sources, tmp_path / "run", resume=True, updates=60)
    with pytest.raises(BadConfig, match="weights"):
        train(sources, tmp_path / "run", resume=True, updates=60, weight={sources[1]: 0.5})
    assert train(sources, tmp_path / "run", resume=True, updates=60, weight={sources[1]: 0.4}).updates == 60


def test_all_mistakes_are_told_at_once(sources: list[str], tmp_path: Path) -> None:
    large, small = sources
    wrong = [f"{large}=0.7", f"{large}=0.6", f"{small}=-1", f"{small[:-1]}=0.1", "nowhere=much"]
    with pytest.raises(UsageError) as caught:
        train(sources, tmp_path / "run", weight=wrong, **OPTIONS)
    assert caught.value.exit_code == 2
    for text in (
        f"{large!r} has two weights",
        f"{small}=-1: must be a number from 0 to 1",
        f"{small[:-1]!r} is not among the sources",
        "'nowhere' is not among the sources",
        "nowhere=much: must be a number from 0 to 1",
    ):
        assert text in caught.value.what
    assert not (tmp_path / "run").exists()


def test_a_source_of_weight_0_is_left_out_and_one_without_steps_is_refused(sources: list[str], tmp_path: Path) -> None:
    result = train(sources, tmp_path / "run", weight={sources[1]: 0.0}, **OPTIONS)
    assert [one["per_epoch"] for one in result.weights.values()] == [result.steps, 0]
    same = [sources[0], f"{sources[0]}/../{Path(sources[0]).name}"]  # the second holds copies of the first alone
    with pytest.raises(NoData):
        train(same, tmp_path / "twice", weight={same[1]: 0.5}, **OPTIONS)
