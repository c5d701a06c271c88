"""Steps to learn from, in memory or on disk: what a store offers to the loader, and the store in memory.

A store holds every step once, with all of its columns. A reader of it puts the steps of one batch into tensors (`gather`) and
makes columns of these where they are none yet (`settle`); which steps a batch has, `EpochOrder` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from offline_cli.modules.devices import fits_on
from offline_cli.training.epoch_order import EpochOrder
from offline_cli.training.step_records import RecordForm
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["MemoryStore", "Store", "StoreReader"]

Columns = Mapping[str, Tree]
"""By name, trees of tensors (N, ...): one row per step."""


class StoreReader(Protocol):
    """Reads a store for one loader, whose columns (B, ...) are filled again and again."""

    targets: Sequence[Tensor]  # what `gather` fills, on the loader's device
    is_resident: bool  # `gather` reads from that device: else batches are gathered on the host, and sent ahead

    def gather(self, epoch: int, first: int, rows: int, targets: Sequence[Tensor]) -> None:
        """Put the `rows` steps from number `first` of that epoch on into `targets` (B, ...), or tensors like these on the host;
        what follows them is padding. Raises StorageError.
        """

    def settle(self) -> None:
        """Make the loader's columns of what is in `targets`."""

    def replace(self, columns: Columns) -> None:
        """Take other values of the same steps, of the same forms; only of a store in memory."""

    def in_order(self, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Every step once, in the store's order: columns of at most `rows` steps on the loader's device, and how many."""


class Store(Protocol):
    """Steps of one form."""

    steps: int

    @property
    def record(self) -> RecordForm:
        """How one step would be packed."""

    def reader(self, batch: Columns, order: EpochOrder, device: torch.device) -> StoreReader:
        """Fills `batch`, columns (B, ...) on `device`."""

    def first(self) -> dict[str, Any]:
        """Columns (1, ...) of its first step, on the CPU."""

    def close(self) -> None:
        """Give back what it holds outside of memory."""


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
