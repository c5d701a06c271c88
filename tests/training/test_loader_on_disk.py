"""Steps on disk: true epochs, an order that follows from seed and epoch alone, and steps of every shard in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.errors import UsageError
from offline_cli.training.disk_store import DiskStore, ShuffledWriter, StoreForm
from offline_cli.training.loader import WEIGHTS, StepLoader
from offline_cli.training.metrics_file import RecordForm
from offline_cli.trees import leaves

CPU = torch.device("cpu")
FORM = StoreForm(window=20, pool=15, unit=5)
MakeLoader = Callable[..., StepLoader]


def columns_of(rows: torch.Tensor) -> dict[str, Any]:
    """Leaves of every item size, each of which tells its row."""
    return {"obs": {"a": rows.float()[:, None], "b": ((rows % 251).to(torch.uint8), rows > 7)}, "actions": rows}


def stored(steps: int, form: StoreForm = FORM, *, seed: int = 0, part: int = 7) -> DiskStore:
    """A store of the steps 0 ... steps-1, handed over in parts."""
    record = RecordForm.of(columns_of(torch.arange(1)))
    store = DiskStore(record, form, None)
    writer = ShuffledWriter(store, seed=seed)
    for rows in torch.split(torch.arange(steps), part):
        writer.add(record.packed(columns_of(rows)))
    writer.finish()
    return store


@pytest.fixture
def loader() -> Iterator[MakeLoader]:
    """Makes loaders whose stores are closed in the end."""
    made: list[DiskStore] = []

    def make(steps: int, batch_size: int, *, seed: int = 0, device: torch.device = CPU, **given: Any) -> StepLoader:
        made.append(stored(steps, seed=seed, **given))
        return StepLoader(made[-1], batch_size=batch_size, seed=seed, device=device)

    yield make
    for store in made:
        store.close()


def seen(stream: StepLoader, update: int) -> list[int]:
    """The steps that count in one batch."""
    rows = stream.fill(update)
    assert (stream.batch[WEIGHTS][rows:] == 0).all()
    assert stream.batch[WEIGHTS].sum().item() == pytest.approx(1)
    values: list[int] = stream.batch["actions"][:rows].tolist()
    return values


@settings(max_examples=30, deadline=None)
@given(
    steps=st.integers(1, 300),
    batch_size=st.integers(1, 80),
    epoch=st.integers(0, 3),
    unit=st.integers(1, 9),
    units=st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_every_step_comes_exactly_once_per_epoch(
    steps: int, batch_size: int, epoch: int, unit: int, units: tuple[int, int]
) -> None:
    form = StoreForm(window=unit * units[0], pool=unit * units[1], unit=unit)
    with closing(stored(steps, form)) as store:
        stream = StepLoader(store, batch_size=batch_size, seed=0, device=CPU)
        updates = range(epoch * stream.updates_per_epoch, (epoch + 1) * stream.updates_per_epoch)
        assert sorted(step for update in updates for step in seen(stream, update)) == list(range(steps))


def test_all_columns_of_a_step_stay_together(loader: MakeLoader) -> None:
    stream = loader(50, 16)
    for update in range(8):
        stream.fill(update)
        wanted = columns_of(stream.batch["actions"])
        for left, right in zip(leaves(stream.batch["obs"]), leaves(wanted["obs"]), strict=True):
            assert torch.equal(left, right)


def test_two_epochs_have_two_orders_and_two_seeds_too(loader: MakeLoader) -> None:
    one, other = loader(64, 64), loader(64, 64, seed=1)
    assert len({tuple(seen(one, 0)), tuple(seen(one, 1)), tuple(seen(other, 0))}) == 3


def test_the_same_seed_gives_the_same_batches_whatever_parts_the_steps_came_in(loader: MakeLoader) -> None:
    one, other = loader(123, 16, part=7), loader(123, 16, part=123)
    assert [seen(one, update) for update in range(20)] == [seen(other, update) for update in range(20)]


def test_a_loader_can_begin_anywhere(loader: MakeLoader) -> None:
    through, jumped = loader(123, 16), loader(123, 16)
    orders = [seen(through, update) for update in range(30)]
    for update in (19, 2, 3, 3, 29, 0):  # on, back, the same again
        assert seen(jumped, update) == orders[update]


def test_a_batch_mixes_steps_from_all_over_the_source(loader: MakeLoader) -> None:
    """Of 40 stretches of the source in their order, every batch has steps of more than 30: chance alone would give about 37."""
    stream = loader(4000, 100, form=StoreForm(window=200, pool=400, unit=2))
    for update in range(stream.updates_per_epoch):
        assert len({step // 100 for step in seen(stream, update)}) > 30


def test_two_epochs_meet_other_steps_together(loader: MakeLoader) -> None:
    stream = loader(400, 40, form=StoreForm(window=100, pool=80, unit=2))
    first, second = ({frozenset(seen(stream, update + epoch * 10)) for update in range(0, 10, 2)} for epoch in (0, 1))
    assert max(len(one & other) for one in first for other in second) < 25


@pytest.mark.parametrize("batch_size", [4, 7, 1000])
def test_reading_in_order_gives_every_step_in_the_order_of_the_store(batch_size: int) -> None:
    record = RecordForm.of(columns_of(torch.arange(1)))
    with closing(DiskStore(record, FORM, None)) as store:
        for rows in torch.split(torch.arange(30), 7):
            store.append(record.packed(columns_of(rows)))
        stream = StepLoader(store, batch_size=batch_size, seed=0, device=CPU)
        parts = [batch["actions"].tolist() for batch, _ in stream.in_order()]
    assert [step for part in parts for step in part] == list(range(30))
    assert [len(part) for part in parts[:-1]] == [min(batch_size, 30)] * (len(parts) - 1)


def test_steps_of_which_memory_does_not_hold_two_are_refused() -> None:
    with pytest.raises(UsageError, match=r"one step takes 30\.0 MB"):
        StoreForm.within(40 << 20, 50 << 20, RecordForm.of({"obs": torch.zeros((1, 30_000_000), dtype=torch.uint8)}))
