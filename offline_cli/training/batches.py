"""Minibatches in true epochs: every step exactly once per epoch, in an order that follows from seed and epoch alone.

So the position in the data is the update number, and nothing has to be saved to go on exactly where a run stopped. Every batch
has the same shape: the last of an epoch is padded with rows of weight 0. Refuses columns without rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.training.devices import fits_on
from offline_cli.training.host_feed import HostFeed
from offline_cli.training.seeds import draw
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["WEIGHTS", "StepLoader"]

WEIGHTS: Final = "weights"  # (B,) float32, sum 1; 0 on padding
SHUFFLE: Final = 11  # sets the order's seeds apart from others drawn from the same run seed


class StepLoader:
    """Fills one batch, again and again, from columns that are trees of tensors (N, ...).

    `batch` is what updates read: per column a tree of tensors (B, ...) on `device`, and `weights`. Columns live on the device
    where they fit, else on the host, from where each batch is sent ahead of its update (`HostFeed`).
    """

    def __init__(self, columns: Mapping[str, Tree], *, batch_size: int, seed: int, device: torch.device) -> None:
        held = [leaf for tree in columns.values() for leaf in leaves(tree)]
        self.steps = len(held[0])
        assert self.steps > 0, "no rows"
        assert all(len(leaf) == self.steps for leaf in held), [len(leaf) for leaf in held]
        self.batch_size = min(batch_size, self.steps)
        self.updates_per_epoch = -(-self.steps // self.batch_size)
        self._seed = seed
        resident = fits_on(device, sum(leaf.nbytes for leaf in held))
        self._home = device if resident else torch.device("cpu")
        self._columns = {name: map_leaves(lambda leaf: leaf.to(self._home), tree) for name, tree in columns.items()}
        self.batch: dict[str, Any] = {
            name: map_leaves(
                lambda leaf: torch.empty((self.batch_size, *leaf.shape[1:]), dtype=leaf.dtype, device=device), tree
            )
            for name, tree in columns.items()
        }
        self.batch[WEIGHTS] = torch.empty(self.batch_size, device=device)
        self._pairs = [
            (source, target)
            for name in columns
            for source, target in zip(leaves(self._columns[name]), leaves(self.batch[name]), strict=True)
        ]
        self._feed = None if resident else HostFeed([target for _, target in self._pairs], device)
        self._order = torch.empty(0, dtype=torch.int64)
        self._epoch = self._rows = -1

    def fill(self, update: int) -> int:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the rows that are not padding."""
        if self._feed is not None:
            self._feed.fill(update, self._gather)
        else:
            self._gather(update, [target for _, target in self._pairs])
        rows = min(self.batch_size, self.steps - update % self.updates_per_epoch * self.batch_size)
        if rows != self._rows:
            self.batch[WEIGHTS].fill_(1 / rows)[rows:] = 0
            self._rows = rows
        return rows

    def _gather(self, update: int, targets: Sequence[Tensor]) -> None:
        chosen = self._chosen(update)
        for (source, _), target in zip(self._pairs, targets, strict=True):
            torch.index_select(source, 0, chosen, out=target)

    def _chosen(self, update: int) -> Tensor:
        """(B,) the steps of the batch of that update."""
        epoch, index = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self._order.narrow(0, index * self.batch_size, self.batch_size)

    def _shuffled(self, epoch: int) -> Tensor:
        """The order of an epoch, padded with its own first steps up to whole batches."""
        generator = torch.Generator().manual_seed(draw(self._seed, SHUFFLE, epoch))
        order = torch.randperm(self.steps, generator=generator)
        padding = self.updates_per_epoch * self.batch_size - self.steps
        return torch.cat([order, order[:padding]]).to(self._home)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Every step once, in the order of the data, as batches of at most B rows on the device, with their sizes."""
        device = self.batch[WEIGHTS].device
        for first in range(0, self.steps, self.batch_size):
            part = slice(first, first + self.batch_size)
            batch = {name: map_leaves(lambda leaf, p=part: leaf[p].to(device), tree) for name, tree in self._columns.items()}
            yield batch, min(self.batch_size, self.steps - first)
