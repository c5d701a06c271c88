"""Minibatches in true epochs from steps on disk: every step exactly once per epoch, in an order that follows from seed and
epoch alone; refuses to hold more than two pools of them.

An epoch goes through all units of the store in an order of its own, a pool of units at a time, and shuffles the steps of each
pool among each other. While batches are taken from one pool, a thread reads the next; a batch may span pools. As in memory, the
position in the data is the update number: a loader can begin anywhere, and a resumed run makes the same store again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.training.batches import WEIGHTS
from offline_cli.training.host_feed import HostFeed
from offline_cli.training.seeds import draw
from offline_cli.training.step_store import StepStore

__all__ = ["StreamLoader"]

UNIT_ORDER, POOL_ORDER = 13, 14  # set these seeds apart from others drawn from the same run seed
READ_BYTES: Final = 4 << 20  # read at a time where steps come in the order of the data


class StreamLoader:
    """Fills one batch, again and again, as `StepLoader` does, from a store; attributes and methods are those of that."""

    def __init__(self, store: StepStore, *, batch_size: int, seed: int, device: torch.device) -> None:
        self.steps = store.steps
        assert self.steps > 0, "no rows"
        self.batch_size = min(batch_size, self.steps)
        self.updates_per_epoch = -(-self.steps // self.batch_size)
        self._store, self._pools = store, _Pools(store, seed)
        self.batch: dict[str, Any] = store.record.empty(self.batch_size, device)
        self.batch[WEIGHTS] = torch.empty(self.batch_size, device=device)
        self._records = torch.zeros((self.batch_size, store.record.words), dtype=torch.int64, device=device)
        self._pairs = store.record.pairs(self._records, {name: tree for name, tree in self.batch.items() if name != WEIGHTS})
        self._feed = None if device.type == "cpu" else HostFeed([self._records], device)
        self._rows = -1

    def fill(self, update: int) -> int:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the rows that are not padding."""
        if self._feed is not None:
            self._feed.fill(update, self._gather)
        else:
            self._gather(update, [self._records])
        for view, leaf in self._pairs:
            leaf.copy_(view)
        rows = self._size(update)
        if rows != self._rows:
            self.batch[WEIGHTS].fill_(1 / rows)[rows:] = 0
            self._rows = rows
        return rows

    def _size(self, update: int) -> int:
        return min(self.batch_size, self.steps - update % self.updates_per_epoch * self.batch_size)

    def _gather(self, update: int, targets: Sequence[Tensor]) -> None:
        """The records of one batch, padded with its own first one, into the only target (B, words)."""
        epoch, index = divmod(update, self.updates_per_epoch)
        records, rows = targets[0], self._size(update)
        self._pools.gather(epoch, index * self.batch_size, records[:rows])
        records[rows:] = records[0]

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Every step once, in the order of the store, as batches of at most B rows on the device, with their sizes."""
        record, device = self._store.record, self.batch[WEIGHTS].device
        per_read = max(1, READ_BYTES // (self.batch_size * record.nbytes)) * self.batch_size
        for first in range(0, self.steps, per_read):
            records = torch.empty((min(per_read, self.steps - first), record.words), dtype=torch.int64)
            self._store.reader.submit(self._store.read, first, records).result()
            for part in torch.split(records, self.batch_size):
                batch = record.empty(len(part), device)
                record.unpack(part.to(device), batch)
                yield batch, len(part)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The order of one epoch: its units, and with which step of the epoch each pool of them begins."""

    units: Tensor  # (units,) int64
    starts: Tensor  # (pools,) int64

    @classmethod
    def of(cls, store: StepStore, generator: torch.Generator) -> _Plan:
        """All units are of one size but the last of the file, wherever it comes."""
        unit, per_pool = store.form.unit, store.form.units_per_pool
        count = -(-store.steps // unit)
        units = torch.randperm(count, generator=generator)
        starts = torch.arange(0, count, per_pool) * unit
        short = (units == count - 1).nonzero()[0, 0]
        starts[short // per_pool + 1 :] -= count * unit - store.steps
        return cls(units, starts)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Some of the steps of an epoch, in memory."""

    number: int  # counted through all epochs
    first: int  # step of its epoch
    order: Tensor  # (n,) int64
    records: Tensor  # (n or more, words)


class _Pools:
    """The steps of every epoch in their order. Two pools have memory, and take turns."""

    def __init__(self, store: StepStore, seed: int) -> None:
        self._store, self._seed = store, seed
        self._per_epoch = -(-store.steps // store.form.pool)
        rows = min(store.form.pool, store.steps)
        self._spare = [torch.empty((rows, store.record.words), dtype=torch.int64) for _ in range(2)]
        self._now: _Pool | None = None
        self._next: tuple[int, Future[_Pool]] | None = None
        self._epoch, self._plan = 0, self._plan_of(0)

    def gather(self, epoch: int, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the steps from number `first` of that epoch on. Raises StorageError."""
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._plan_of(epoch)
        while len(target):
            number = int(torch.searchsorted(self._plan.starts, first, right=True)) - 1
            pool = self._pool(epoch * self._per_epoch + number)
            chosen = pool.order[first - pool.first :][: len(target)]
            torch.index_select(pool.records, 0, chosen, out=target[: len(chosen)])
            target, first = target[len(chosen) :], first + len(chosen)

    def _plan_of(self, epoch: int) -> _Plan:
        return _Plan.of(self._store, self._generator(UNIT_ORDER, epoch))

    def _generator(self, purpose: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(draw(self._seed, purpose, number))

    def _pool(self, number: int) -> _Pool:
        """That pool; the one after it is read meanwhile."""
        if self._now is None or self._now.number != number:
            if self._now is not None:
                self._spare.append(self._now.records)
            if self._next is not None and self._next[0] != number:  # somebody goes back, or begins elsewhere
                self._spare.append(self._next[1].result().records)
                self._next = None
            asked = self._ask_for(number) if self._next is None else self._next[1]
            self._now = asked.result()
            self._next = number + 1, self._ask_for(number + 1)
        return self._now

    def _ask_for(self, number: int) -> Future[_Pool]:
        return self._store.reader.submit(self._read, number, self._spare.pop())

    def _read(self, number: int, memory: Tensor) -> _Pool:
        """In the reader's thread: the units in the order of the file, and then an order for all their steps."""
        epoch, index = divmod(number, self._per_epoch)
        form, plan, rows = self._store.form, self._plan_of(epoch), 0
        units = plan.units[index * form.units_per_pool :][: form.units_per_pool].sort().values
        for begin in (units * form.unit).tolist():
            size = min(form.unit, self._store.steps - begin)
            self._store.read(begin, memory[rows : rows + size])
            rows += size
        order = torch.randperm(rows, generator=self._generator(POOL_ORDER, number))
        return _Pool(number, int(plan.starts[index]), order, memory)
