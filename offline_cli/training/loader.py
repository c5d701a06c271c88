"""Minibatches in true epochs from any store: every step exactly once per epoch, in the order that `EpochOrder` gives.

The position in the data is the update number, so nothing has to be saved to resume exactly where a run stopped. Every batch has
the same shape: the last of an epoch is padded with rows of weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.training.epoch_order import EpochOrder
from offline_cli.training.stores import Store
from offline_cli.training.updates import HostFeed
from offline_cli.trees import Tree

__all__ = ["WEIGHTS", "StepLoader"]

WEIGHTS: Final = "weights"  # (B,) float32, sum 1; 0 on padding


class StepLoader:
    """Fills one batch, again and again.

    `batch` is what updates read: per column a tree of tensors (B, ...) on `device`, and `weights`. Where the steps are not on
    the device, each batch is sent ahead of its update (`HostFeed`).
    """

    def __init__(self, store: Store, *, batch_size: int, seed: int, device: torch.device) -> None:
        assert store.steps > 0, "no rows"
        self.steps = store.steps
        self.batch_size = min(batch_size, self.steps)
        self.updates_per_epoch = -(-self.steps // self.batch_size)
        self.batch: dict[str, Any] = store.record.empty(self.batch_size, device)
        self._reader = store.reader(dict(self.batch), EpochOrder(seed), device)
        self._feed = None if self._reader.is_resident else HostFeed(self._reader.targets, device)
        self.batch[WEIGHTS] = torch.empty(self.batch_size, device=device)
        self._rows = -1

    def fill(self, update: int) -> int:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the rows that are not padding."""
        if self._feed is not None:
            self._feed.fill(update, self._gather)
        else:
            self._gather(update, self._reader.targets)
        self._reader.settle()
        rows = self._size(update % self.updates_per_epoch)
        if rows != self._rows:
            self.batch[WEIGHTS].fill_(1 / rows)[rows:] = 0
            self._rows = rows
        return rows

    def replace(self, columns: Mapping[str, Tree]) -> None:
        """Take other values of the same steps, of the same forms; they are in memory."""
        self._reader.replace(columns)
        if self._feed is not None:
            self._feed.forget()

    def _size(self, index: int) -> int:
        """Steps of the batch with this number in its epoch."""
        return min(self.batch_size, self.steps - index * self.batch_size)

    def _gather(self, update: int, targets: Sequence[Tensor]) -> None:
        epoch, index = divmod(update, self.updates_per_epoch)
        self._reader.gather(epoch, index * self.batch_size, self._size(index), targets)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Every step once, in the order of the store, as batches of at most B rows on the device, with their sizes."""
        return self._reader.in_order(self.batch_size)
