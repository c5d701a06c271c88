"""The loader: true epochs, static shapes, an order that follows from seed and epoch alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.training import memory_store
from offline_cli.training.loader import WEIGHTS, StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.trees import leaves

CPU = torch.device("cpu")


def loader(steps: int, batch_size: int, seed: int = 0) -> StepLoader:
    rows = torch.arange(steps)
    columns = {"obs": {"a": rows.float()[:, None], "b": (rows,)}, "actions": rows}
    return StepLoader(MemoryStore(columns), batch_size=batch_size, seed=seed, device=CPU)


def seen(stream: StepLoader, update: int) -> list[int]:
    """The steps that count in one batch."""
    rows = stream.fill(update)
    assert (stream.batch[WEIGHTS][rows:] == 0).all()
    assert stream.batch[WEIGHTS].sum().item() == pytest.approx(1)
    values: list[int] = stream.batch["actions"][:rows].tolist()
    return values


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 300), batch_size=st.integers(1, 80), epoch=st.integers(0, 3))
def test_every_step_comes_exactly_once_per_epoch(steps: int, batch_size: int, epoch: int) -> None:
    stream = loader(steps, batch_size)
    updates = range(epoch * stream.updates_per_epoch, (epoch + 1) * stream.updates_per_epoch)
    assert sorted(step for update in updates for step in seen(stream, update)) == list(range(steps))


def test_rows_of_all_columns_stay_together() -> None:
    stream = loader(50, 16)
    for update in range(8):
        stream.fill(update)
        assert torch.equal(stream.batch["obs"]["a"][:, 0].long(), stream.batch["actions"])
        assert torch.equal(stream.batch["obs"]["b"][0], stream.batch["actions"])


def test_two_epochs_have_two_orders_and_two_seeds_too() -> None:
    one, other = loader(64, 64), loader(64, 64, seed=1)
    assert len({tuple(seen(one, 0)), tuple(seen(one, 1)), tuple(seen(other, 0))}) == 3


def test_a_loader_can_begin_anywhere() -> None:
    through, jumped = loader(50, 16), loader(50, 16)
    orders = [seen(through, update) for update in range(12)]
    assert seen(jumped, 7) == orders[7]
    assert seen(jumped, 2) == orders[2]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_data_that_does_not_fit_the_device_gives_the_same_batches(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    resident = loader(50, 16)
    monkeypatch.setattr(memory_store, "fits_on", lambda device, nbytes: False)
    rows = torch.arange(50)
    columns = {"obs": {"a": rows.float()[:, None], "b": (rows,)}, "actions": rows}
    sent = StepLoader(MemoryStore(columns), batch_size=16, seed=0, device=torch.device(device))
    for update in (0, 1, 2, 3, 4, 9, 9, 2, 3):  # over the end of an epoch, again, and back
        assert seen(sent, update) == seen(resident, update)
        for left, right in zip(leaves(sent.batch), leaves(resident.batch), strict=True):
            assert torch.equal(left.cpu(), right)


def test_reading_in_order_gives_every_step_in_the_order_of_the_data() -> None:
    parts: list[Any] = [(batch["actions"].tolist(), size) for batch, size in loader(10, 4).in_order()]
    assert parts == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9], 2)]
