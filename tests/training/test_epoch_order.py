"""The order of epochs: what earlier runs learned in, drawn once for each epoch."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from offline_cli.training.disk_store import DiskStore, ShuffledWriter, StoreForm
from offline_cli.training.loader import EpochOrder, StepLoader, of_window
from offline_cli.training.metrics_file import RecordForm


def test_a_seed_gives_the_orders_that_it_gave_to_runs_before() -> None:
    order = EpochOrder(3)
    assert order.of_steps(0, 6).tolist() == [4, 1, 2, 3, 5, 0]
    assert order.of_steps(2, 6).tolist() == [0, 1, 3, 2, 4, 5]
    assert order.of_pool(5, 6).tolist() == [0, 3, 1, 4, 2, 5]
    assert of_window(3, 1, 6).tolist() == [3, 0, 4, 2, 5, 1]
    plan = order.plan(1, steps=23, unit=5, units_per_pool=2)
    assert (plan.units.tolist(), plan.starts.tolist()) == ([4, 2, 3, 0, 1], [0, 8, 18])


def test_an_epoch_draws_the_order_of_its_units_once_however_many_pools_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": torch.arange(400)}
    record, drawn, draw = RecordForm.of(columns), list[int](), torch.randperm

    def counted(count: int, **given: Any) -> torch.Tensor:
        drawn.append(count)
        return draw(count, **given)

    with closing(DiskStore(record, StoreForm(window=100, pool=8, unit=2), None)) as store:
        writer = ShuffledWriter(store, seed=0)
        writer.add(record.packed(columns))
        writer.finish()
        monkeypatch.setattr(torch, "randperm", counted)
        loader = StepLoader(store, batch_size=8, seed=0, device=torch.device("cpu"))
        for update in range(loader.updates_per_epoch - 1):  # after the last one, the next epoch is on its way
            loader.fill(update)
    assert drawn.count(200) == 1
    assert drawn.count(8) >= 48


def test_the_plan_of_an_epoch_is_held_while_the_next_one_begins() -> None:
    order = EpochOrder(0)
    first, second = order.plan(0, 100, 2, 5), order.plan(1, 100, 2, 5)
    assert order.plan(0, 100, 2, 5) is first
    assert order.plan(1, 100, 2, 5) is second
