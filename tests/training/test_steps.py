"""Batches: every step once an epoch, in an order of seed and epoch alone, in memory and in a file alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.training import steps as stores
from offline_cli.training.steps import WEIGHTS, Batches, Steps, epoch_order
from offline_cli.trees import leaves

CPU = torch.device("cpu")
Make = Callable[[int], Steps]


def columns_of(rows: torch.Tensor) -> dict[str, Any]:
    """Leaves of every item size, each of which tells its row."""
    return {"obs": {"a": rows.float()[:, None], "b": ((rows % 251).to(torch.uint8), rows > 7)}, "actions": rows}


def in_memory(count: int) -> Steps:
    return Steps(columns_of(torch.arange(count)))


def in_file(count: int) -> Steps:
    """The same, appended in parts."""
    made = Steps(on_disk=True)
    for rows in torch.split(torch.arange(count), 7):
        made.add(columns_of(rows))
    return made


BOTH = pytest.mark.parametrize("make", [in_memory, in_file])


def seen(batches: Batches, update: int) -> list[int]:
    """The steps that count in one batch."""
    rows = batches.fill(update)
    assert (batches.batch[WEIGHTS][rows:] == 0).all()
    assert batches.batch[WEIGHTS].sum().item() == pytest.approx(1)
    for left, right in zip(
        leaves(batches.batch["obs"]), leaves(columns_of(batches.batch["actions"].cpu())["obs"]), strict=True
    ):
        assert torch.equal(left.cpu(), right), "columns of a step came apart"
    values: list[int] = batches.batch["actions"][:rows].tolist()
    return values


@pytest.fixture
def batches() -> Iterator[Callable[..., Batches]]:
    """Makes batches of so many steps, which are closed in the end."""
    made: list[Steps] = []

    def make(count: int, batch_size: int, make: Make = in_memory, **how: Any) -> Batches:
        made.append(make(count))
        return Batches(made[-1], batch_size=batch_size, **{"seed": 0, "device": CPU, **how})

    yield make
    for one in made:
        one.close()


@BOTH
@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 300), batch_size=st.integers(1, 80), epoch=st.integers(0, 3))
def test_every_step_comes_exactly_once_per_epoch(make: Make, count: int, batch_size: int, epoch: int) -> None:
    with closing(make(count)) as steps:
        stream = Batches(steps, batch_size=batch_size, seed=0, device=CPU)
        updates = range(epoch * stream.updates_per_epoch, (epoch + 1) * stream.updates_per_epoch)
        assert sorted(step for update in updates for step in seen(stream, update)) == list(range(count))


def test_a_seed_gives_the_orders_that_it_gave_to_runs_before() -> None:
    assert epoch_order(in_memory(6), 3, 0).tolist() == [4, 1, 2, 3, 5, 0]
    assert epoch_order(in_memory(6), 3, 2).tolist() == [0, 1, 3, 2, 4, 5]


def test_two_epochs_have_two_orders_and_two_seeds_too(batches: Callable[..., Batches]) -> None:
    one, other = batches(64, 64), batches(64, 64, seed=1)
    assert len({tuple(seen(one, 0)), tuple(seen(one, 1)), tuple(seen(other, 0))}) == 3


def test_batches_can_begin_anywhere_and_are_the_same_in_memory_and_in_a_file(batches: Callable[..., Batches]) -> None:
    through, jumped = batches(123, 16), batches(123, 16, in_file)
    orders = [seen(through, update) for update in range(30)]
    for update in (19, 2, 3, 3, 29, 0, 7, 8):  # on, back, the same again, over the end of an epoch
        assert seen(jumped, update) == orders[update]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_data_that_does_not_fit_the_device_gives_the_same_batches(
    batches: Callable[..., Batches], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    resident = batches(50, 16)
    monkeypatch.setattr(stores, "fits_on", lambda device, nbytes: False)
    sent = batches(50, 16, device=torch.device(device))
    for update in (0, 1, 2, 3, 4, 9, 9, 2, 3):
        assert seen(sent, update) == seen(resident, update)


@BOTH
@pytest.mark.parametrize("batch_size", [4, 7, 1000])
def test_reading_in_order_gives_every_step_in_the_order_of_the_data(
    batches: Callable[..., Batches], make: Make, batch_size: int
) -> None:
    parts = [(batch["actions"].tolist(), size) for batch, size in batches(30, batch_size, make).in_order()]
    assert [step for part, _ in parts for step in part] == list(range(30))
    assert [size for _, size in parts[:-1]] == [min(batch_size, 30)] * (len(parts) - 1)


def test_weights_draw_the_share_of_each_source_and_no_step_again_before_all_of_its_source() -> None:
    steps = in_memory(2000)
    steps.sources, steps.shares = (torch.arange(2000) >= 1900).int(), [0.7, 0.3]
    orders = [epoch_order(steps, 5, epoch) for epoch in (0, 0, 1)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    small = orders[0] >= 1900
    assert int(small.sum()) == pytest.approx(600, abs=80)  # four standard deviations
    assert set(orders[0][small][:100].tolist()) == set(range(1900, 2000))
    assert int((small[1:] != small[:-1]).sum()) > 2000 / 4  # mixed: of independent draws 0.42 of the steps
