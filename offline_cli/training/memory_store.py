"""Steps in memory, one tensor per leaf.

All episodes go through the pipeline at once, and are there several times over while columns are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules.devices import fits_on
from offline_cli.training.epoch_order import EpochOrder
from offline_cli.training.memory_bounds import InMemory
from offline_cli.training.metrics_file import RecordForm
from offline_cli.training.stores import Columns, Store, StoreReader
from offline_cli.training.training_source import TrainingSource
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["MemoryStore", "MemoryStoreBuilder"]


class MemoryStoreBuilder:
    """All steps in memory."""

    in_parts = False

    def __init__(self, source: TrainingSource, limit: InMemory | None) -> None:
        """`limit`: on what all episodes may take; None: they may take what there is."""
        self._source, self._limit = source, limit
        self._whole: EpisodeBatch | None = None
        self._stores: dict[bool, Store] = {}

    def ids(self) -> Iterator[tuple[str, ...]]:
        """See StoreBuilder; the episodes stay to be taken."""
        self._whole = self._read()
        yield self._whole.ids

    def parts(self) -> Iterator[EpisodeBatch]:
        """All episodes at once."""
        yield self._taken()

    def _taken(self) -> EpisodeBatch:
        whole, self._whole = self._whole or self._read(), None
        return whole

    def _read(self) -> EpisodeBatch:
        episodes = self._source.episodes()
        batches = list(episodes if self._limit is None else self._limit.checked(episodes, where=self._source.where))
        if not batches:
            raise self._source.no_steps()
        return EpisodeBatch.concat(batches)

    def add(self, columns: Mapping[str, Tree], *, held_out: bool) -> None:
        """See StoreBuilder."""
        self._stores[held_out] = MemoryStore(columns)

    def finish(self) -> tuple[Store, Store | None]:
        """See StoreBuilder."""
        return self._stores[False], self._stores.get(True)

    @property
    def layout(self) -> str:
        """Empty: memory has no other."""
        return ""

    def close(self) -> None:
        """Nothing is outside of memory."""


class MemoryStore:
    """Steps as one tensor per leaf, on the CPU."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        held = [leaf for _, leaf in flatten(dict(columns))]
        self.steps = len(held[0])
        assert all(len(leaf) == self.steps for leaf in held), [len(leaf) for leaf in held]

    @property
    def record(self) -> RecordForm:
        """See Store."""
        return RecordForm.of(self.columns)

    def reader(self, batch: Columns, order: EpochOrder, device: torch.device) -> StoreReader:
        """See Store. The columns live on the device where they fit."""
        return _MemoryReader(self, batch, order, device)

    def first(self) -> dict[str, Any]:
        """See Store."""
        return {name: map_leaves(lambda leaf: leaf[:1], tree) for name, tree in self.columns.items()}

    def close(self) -> None:
        """Nothing: memory goes with the last reference."""


class _MemoryReader:
    """Gathers each leaf by itself."""

    def __init__(self, store: MemoryStore, batch: Columns, order: EpochOrder, device: torch.device) -> None:
        held = [leaf for tree in store.columns.values() for leaf in leaves(tree)]
        self.is_resident = fits_on(device, sum(leaf.nbytes for leaf in held))
        self._home = device if self.is_resident else torch.device("cpu")
        self._columns = {name: map_leaves(lambda leaf: leaf.to(self._home), tree) for name, tree in store.columns.items()}
        self._sources = [leaf for tree in self._columns.values() for leaf in leaves(tree)]
        self.targets: Sequence[Tensor] = [leaf for name in self._columns for leaf in leaves(batch[name])]
        self._steps, self._order, self._device = store.steps, order, device
        self._epoch, self._chosen = -1, torch.empty(0, dtype=torch.int64)

    def gather(self, epoch: int, first: int, rows: int, targets: Sequence[Tensor]) -> None:
        size = len(targets[0])
        if epoch != self._epoch:
            self._epoch, self._chosen = epoch, self._padded(self._order.of_steps(epoch, self._steps), size)
        chosen = self._chosen.narrow(0, first, size)
        for source, target in zip(self._sources, targets, strict=True):
            torch.index_select(source, 0, chosen, out=target)

    def _padded(self, order: Tensor, size: int) -> Tensor:
        """`order`, with its own first steps behind it, up to whole batches of `size`."""
        return torch.cat([order, order[: -len(order) % size]]).to(self._home)

    def settle(self) -> None:
        """Nothing: the targets are the columns."""

    def replace(self, columns: Columns) -> None:
        for name, tree in columns.items():
            for held, leaf in zip(leaves(self._columns[name]), leaves(tree), strict=True):
                held.copy_(leaf)

    def in_order(self, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
        for first in range(0, self._steps, rows):
            part = slice(first, first + rows)
            batch = {
                name: map_leaves(lambda leaf, p=part: leaf[p].to(self._device), tree) for name, tree in self._columns.items()
            }
            yield batch, min(rows, self._steps - first)
