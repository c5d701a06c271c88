"""`train --weight`: an epoch has each source's share of its steps, in memory and in streams, resumed or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from signal_at import signal_at

from offline_cli.applying import learner_batches
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted, NoData, UsageError
from offline_cli.training import training_source
from offline_cli.training.config import resolve_config
from offline_cli.training.disk_store import StoreForm
from offline_cli.training.loader import StepLoader
from offline_cli.training.mixing import MixedOrder, Mixture, Selection, Weights
from offline_cli.training.train import train
from offline_cli.training.training_data import TrainingData, load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 45, "batch_size": 32, "hidden": (8,), "device": "cpu", "eval_every": 15}
MANNERS = pytest.mark.parametrize("streaming", [False, True])


@pytest.fixture(autouse=True)
def small_windows_and_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreForm, "within", lambda *args: StoreForm(window=60, pool=50, unit=5))
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)


@pytest.fixture
def sources(write_dataset: Write, make_batch: Make) -> list[str]:
    """Two datasets, the second the smaller one."""
    batches = {"large": make_batch(episodes=12, seed=1), "small": make_batch(episodes=4, length=20, seed=2)}
    return [str(write_dataset(batch, name=name)) for name, batch in batches.items()]


def loaded(sources: list[str], weight: Any, **options: Any) -> TrainingData:
    weights = Weights.of(weight, sources)
    assert weights is not None
    selection = Selection(weights=weights, numbers=weights.numbers(sources, None, beside=()))
    return load_data(sources, resolve_config(options), selection=selection, on_progress=lambda progress: None)


def drawn(data: TrainingData, epochs: int, batch_size: int = 32) -> list[list[tuple[float, ...]]]:
    """The observations of each epoch, in the order in which a loader gives them."""
    loader = StepLoader(data.train, batch_size=batch_size, seed=0, device=torch.device("cpu"))
    found: list[list[tuple[float, ...]]] = []
    for update in range(epochs * loader.updates_per_epoch):
        if update % loader.updates_per_epoch == 0:
            found.append([])
        rows = loader.fill(update)
        found[-1] += map(tuple, loader.batch["obs"][:rows].tolist())
    return found


def steps_of(source: str) -> set[tuple[float, ...]]:
    data = load_data(source, resolve_config({}), on_progress=lambda progress: None)
    return {tuple(row) for epoch in drawn(data, 1) for row in epoch}


@MANNERS
def test_every_epoch_has_exactly_the_share_of_each_source(sources: list[str], streaming: bool) -> None:
    small, large = steps_of(sources[1]), steps_of(sources[0])
    data = loaded(sources, {sources[1]: 0.3}, streaming=streaming)
    total = len(small) + len(large)
    for epoch in drawn(data, 3):
        assert (len(epoch), sum(row in small for row in epoch)) == (total, round(0.3 * total))
        assert sum(row in large for row in epoch) == total - round(0.3 * total)
    data.close()


@MANNERS
def test_the_sources_come_mixed_within_an_epoch(sources: list[str], streaming: bool) -> None:
    small = steps_of(sources[1])
    data = loaded(sources, {sources[1]: 0.3}, streaming=streaming)
    (epoch,) = drawn(data, 1)
    data.close()
    is_small = [row in small for row in epoch]
    changes = sum(one != following for one, following in pairwise(is_small))
    assert changes > len(epoch) / 4  # of independent draws with these shares: 0.42 of the steps


@MANNERS
def test_no_step_comes_again_before_all_of_its_source_have_come(sources: list[str], streaming: bool) -> None:
    small, large = steps_of(sources[1]), steps_of(sources[0])
    data = loaded(sources, {sources[1]: 0.3}, streaming=streaming)
    rows = [row for epoch in drawn(data, 5) for row in epoch]
    data.close()
    for steps in (small, large):
        mine = [row for row in rows if row in steps]
        for first in range(0, len(mine) - len(steps), len(steps)):
            assert set(mine[first : first + len(steps)]) == steps


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
    with pytest.raises(BadConfig, match=r"the run draws .* this call every step once an epoch"):
        train(sources, tmp_path / "run", resume=True, updates=60)
    with pytest.raises(BadConfig, match="the run draws"):
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
        f"{small}=-1: a number from 0 to 1 is wanted",
        f"{small[:-1]!r} is not among the sources, did you mean {small!r}?",
        "'nowhere' is not among the sources",
        "nowhere=much: a number from 0 to 1 is wanted",
    ):
        assert text in caught.value.what
    assert not (tmp_path / "run").exists()


def test_a_source_of_weight_0_is_left_out_and_one_without_steps_is_refused(sources: list[str], tmp_path: Path) -> None:
    result = train(sources, tmp_path / "run", weight={sources[1]: 0.0}, **OPTIONS)
    assert [one["per_epoch"] for one in result.weights.values()] == [result.steps, 0]
    same = [sources[0], f"{sources[0]}/../{Path(sources[0]).name}"]  # the second holds copies of the first alone
    with pytest.raises(NoData, match="no step to learn from is in"):
        train(same, tmp_path / "twice", weight={same[1]: 0.5}, **OPTIONS)


def test_a_pipeline_whose_rows_are_not_the_steps_is_refused(
    sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = training_source.learner_columns

    def halves(*args: Any, **options: Any) -> dict[str, Any]:
        return {name: column[::2] for name, column in made(*args, **options).items()}

    monkeypatch.setattr(training_source, "learner_columns", halves)
    with pytest.raises(BadConfig, match="of which source each is, is not known") as caught:
        train(sources, tmp_path / "run", weight={sources[1]: 0.5}, **OPTIONS)
    assert caught.value.exit_code == 4


@MANNERS
def test_steps_that_a_mask_leaves_out_count_for_no_source(
    write_dataset: Write, make_batch: Make, tmp_path: Path, streaming: bool
) -> None:
    found = []
    for seed, name in enumerate(("one", "two")):
        batch = make_batch(seed=seed)
        mask = np.arange(batch.num_steps) % (seed + 2) > 0
        found.append((str(write_dataset(replace(batch, extra={"loss_mask": mask}), name=name)), int(mask.sum())))
    weight = [f"{found[0][0]}=0.25"]
    result = train([name for name, _ in found], tmp_path / "run", weight=weight, streaming=streaming, **OPTIONS)
    assert [one["steps"] for one in result.weights.values()] == [count for _, count in found]


def test_a_mixture_counts_whole_steps_of_many_sources_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.training.mixing.BLOCK", 64)
    steps = [7, 900, 0, 3, 50, 40]
    names = tuple("abcdef")
    mixture = Mixture.of(Weights(names, {"a": 0.2, "c": 0.0, "d": 0.31}), steps)
    assert (sum(mixture.drawn), mixture.drawn[0], mixture.drawn[2], mixture.drawn[3]) == (1000, 200, 0, 310)
    assert mixture.blocks > 10
    rows = [torch.arange(count) + 1000 * number for number, count in enumerate(steps)]
    order = MixedOrder(5, mixture, rows)
    first, second = order.of_steps(0, 1000), order.of_steps(1, 1000)
    assert Counter((first // 1000).tolist()) == {n: c for n, c in enumerate(mixture.drawn) if c}
    assert Counter((first // 1000)[:500].tolist())[3] == pytest.approx(155, abs=16)
    assert not torch.equal(first, second)
    assert torch.equal(first, MixedOrder(5, mixture, rows).of_steps(0, 1000))
