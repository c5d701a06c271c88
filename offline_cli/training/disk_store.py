"""Steps on disk, read in any order of small units; of any size, while memory holds two pools of them.

The steps lie in one file as records, in windows that were shuffled before they were written (`ShuffledWriter`). So a unit (a
fixed number of neighbouring records) is a random sample of its window, and a handful of units from all over the file is close
to a random sample of all steps, wherever they came from. An epoch takes a pool of units at a time (`EpochOrder`): while batches
come from one pool, a thread reads the next; a batch may span pools.

Decision: windows and not partitions that every step is assigned to, which would be exactly random, because those need the
number of steps beforehand or a second pass on disk, and many write buffers. Windows cost one sequential write and have no
largest size. (Shuffled blocks, shuffled again as they are read: Xu et al. 2022, "In-Database Machine Learning with CorgiPile",
3.2; there without the shuffle before writing.)

Episodes go through the pipeline some at a time; an episode is in memory whole. The file is made anew by every run, resumed ones
included: it follows from episodes, seed and memory limit alone, all of which a resumed run must have in common. It has no name,
so that nothing is left of it, however the process ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.applying.frame_stacks import FrameStacks
from offline_cli.applying.learned_pieces import check_streamable
from offline_cli.applying.learner_batches import in_parts
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UsageError
from offline_cli.formats.memory_limits import give_back
from offline_cli.storage.temp_files import TempFile
from offline_cli.training.frame_file import FrameFile, record_of
from offline_cli.training.loader import EpochOrder, PoolPlan, Store, of_window
from offline_cli.training.memory_store import Shares
from offline_cli.training.metrics_file import RecordForm
from offline_cli.training.mixing import MixedPools, Mixture, seed_of
from offline_cli.training.training_source import TrainingSource
from offline_cli.trees import Tree, flatten

__all__ = ["DiskStore", "DiskStoreBuilder", "MixedStore", "ShuffledWriter", "StoreForm"]

UNITS_PER_POOL: Final = 256
PERMUTATION: Final = 8  # bytes per record of a pool
SCRATCH: Final = 1 << 20  # bytes of records that are put in order and written at a time
TIDY: Final = 16  # parts, or batches, after which free memory is returned to the system: else it becomes twice what is in use
READ_BYTES: Final = 4 << 20  # read at a time where steps come in the order of the store


@dataclass(frozen=True, slots=True)
class StoreForm:
    """Sizes, in records; they follow from memory limit and size of a record alone, so that a resumed run has them too."""

    window: int
    pool: int  # that is in memory at a time while training; a second one is on its way
    unit: int  # divides both

    @classmethod
    def within(cls, window_bytes: int, pool_bytes: int, record: RecordForm) -> StoreForm:
        """The sizes for so much memory. Raises UsageError where it does not hold a few records."""
        pool = pool_bytes // (record.nbytes + PERMUTATION)
        if min(pool, window_bytes // record.nbytes) < 2:
            what = f"one step takes {record.nbytes / 1e6:,.1f} MB, too much for the memory limit"
            raise UsageError(what, where="--memory-limit", fix="raise it")
        unit = max(1, pool // UNITS_PER_POOL)
        return cls(window=max(1, window_bytes // record.nbytes // unit) * unit, pool=pool // unit * unit, unit=unit)

    @property
    def units_per_pool(self) -> int:
        """Of all pools but the last of an epoch."""
        return self.pool // self.unit


class DiskStore:
    """Records in a temporary file; `close` ends it."""

    def __init__(
        self, record: RecordForm, form: StoreForm, temp_dir: str | None, like: Mapping[str, Any] | None = None
    ) -> None:
        """`like`: columns to come, where they have stacks of frames. Raises StorageError where no file can be made."""
        self.record: RecordForm = record
        self.form = form
        self.steps = 0
        self._frames = None if like is None else FrameFile(like, record, temp_dir)
        self.written = record if self._frames is None else self._frames.small
        self._file = TempFile(temp_dir, holding="steps").__enter__()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="step-reader")  # the one that reads, once all is written

    @property
    def parts(self) -> Sequence[DiskStore]:
        """Its files."""
        return [self]

    def packed(self, columns: Mapping[str, Any]) -> Tensor:
        """(n, words) records to append; of stacks the frames are written. Raises StorageError."""
        return self.record.packed(columns) if self._frames is None else self._frames.taken(columns)

    def append(self, records: Tensor) -> None:
        """Write `records` (n, words of `written`) at the end. Raises StorageError, for instance where the disk is full."""
        self._file.append(records.numpy().data)
        self.steps += len(records)

    def read(self, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the records from `first` on; in the store's thread."""
        if self._frames is None:
            self._file.read_into(first * self.record.nbytes, target.numpy().data)
            return
        small = torch.empty((len(target), self.written.words), dtype=torch.int64)
        self._file.read_into(first * self.written.nbytes, small.numpy().data)
        self._frames.put_back(small, target)

    def reader(self, batch: Mapping[str, Tree], order: EpochOrder, device: torch.device) -> _DiskReader:
        """See Store. Batches on other devices than the CPU are copied through the host."""
        return _DiskReader(self, _Pools(self, order), batch, device)

    def first(self) -> dict[str, Any]:
        """See Store."""
        records = torch.empty((1, self.record.words), dtype=torch.int64)
        self.thread.submit(self.read, 0, records).result()
        columns = self.record.empty(1, torch.device("cpu"))
        self.record.unpack(records, columns)
        return columns

    def close(self) -> None:
        """Release memory and disk, once a pending read has ended."""
        self.thread.shutdown(wait=True, cancel_futures=True)
        self._file.__exit__(None, None, None)
        if self._frames is not None:
            self._frames.close()


class MixedStore:
    """Stores of one form, one for each source, of which every epoch draws shares."""

    def __init__(self, parts: Sequence[DiskStore], mixture: Mixture, seed: int) -> None:
        self.parts, self.steps, self.record = parts, mixture.total, parts[0].record
        self._mixture, self._seed = mixture, seed

    def reader(self, batch: Mapping[str, Tree], order: EpochOrder, device: torch.device) -> _DiskReader:
        """See Store."""
        orders = (EpochOrder(seed_of(self._seed, number)) for number in range(len(self.parts)))
        pools = [_Pools(part, order) if part.steps else None for part, order in zip(self.parts, orders, strict=True)]
        return _DiskReader(self, MixedPools(self._mixture, self._seed, pools), batch, device)

    def first(self) -> dict[str, Any]:
        """See Store."""
        return next(part for part in self.parts if part.steps).first()

    def close(self) -> None:
        """See Store."""
        for part in self.parts:
            part.close()


class ShuffledWriter:
    """Fills a store with steps in a random order, window by window; the same steps in the same order, whatever the parts."""

    def __init__(self, store: DiskStore, *, seed: int) -> None:
        self._store, self._seed, self._windows, self._held = store, seed, 0, 0
        self._window = torch.empty((store.form.window, store.written.words), dtype=torch.int64)

    def add(self, records: Tensor) -> None:
        """Take `records` (n, words)."""
        while len(records):
            part = records[: len(self._window) - self._held]
            self._window[self._held : self._held + len(part)] = part
            self._held += len(part)
            records = records[len(part) :]
            if self._held == len(self._window):
                self._write()

    def finish(self) -> None:
        """Write what is left; nothing can be added afterwards."""
        if self._held:
            self._write()
        del self._window

    def _write(self) -> None:
        order = of_window(self._seed, self._windows, self._held)
        for part in torch.split(order, max(1, SCRATCH // self._store.written.nbytes)):
            self._store.append(self._window[part])
        self._windows, self._held = self._windows + 1, 0


class _DiskReader:
    """Gathers whole records."""

    def __init__(
        self, store: DiskStore | MixedStore, pools: _Pools | MixedPools, batch: Mapping[str, Tree], device: torch.device
    ) -> None:
        rows = len(next(leaf for _, leaf in flatten(dict(batch))))
        records = torch.zeros((rows, store.record.words), dtype=torch.int64, device=device)
        self.targets: Sequence[Tensor] = [records]
        self.is_resident = device.type == "cpu"
        self._pairs = store.record.pairs(records, batch)
        self._store, self._device, self._pools = store, device, pools

    def gather(self, epoch: int, first: int, rows: int, targets: Sequence[Tensor]) -> None:
        """See StoreReader; padding is the batch's own first step."""
        records = targets[0]
        self._pools.gather(epoch, first, records[:rows])
        records[rows:] = records[0]

    def settle(self) -> None:
        """Copy each leaf out of the records."""
        for view, leaf in self._pairs:
            leaf.copy_(view)

    def replace(self, columns: Mapping[str, Tree]) -> None:
        raise AssertionError("columns on disk stay: see `bc._setup`")

    def in_order(self, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
        """See StoreReader."""
        record = self._store.record
        per_read = max(1, READ_BYTES // (rows * record.nbytes)) * rows
        for store, first in ((part, first) for part in self._store.parts for first in range(0, part.steps, per_read)):
            records = torch.empty((min(per_read, store.steps - first), record.words), dtype=torch.int64)
            store.thread.submit(store.read, first, records).result()
            for part in torch.split(records, rows):
                batch = record.empty(len(part), self._device)
                record.unpack(part.to(self._device), batch)
                yield batch, len(part)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Some of the steps of an epoch, in memory."""

    number: int  # counted through all epochs
    first: int  # step of its epoch
    order: Tensor  # (n,) int64
    records: Tensor  # (n or more, words)


class _Pools:
    """The steps of every epoch in their order. Two pools in memory take turns."""

    def __init__(self, store: DiskStore, order: EpochOrder) -> None:
        self._store, self._order = store, order
        self._per_epoch = -(-store.steps // store.form.pool)
        rows = min(store.form.pool, store.steps)
        self._spare = [torch.empty((rows, store.record.words), dtype=torch.int64) for _ in range(2)]
        self._now: _Pool | None = None
        self._next: tuple[int, Future[_Pool]] | None = None

    def gather(self, epoch: int, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the steps from number `first` of that epoch on. Raises StorageError."""
        starts = self._plan(epoch).starts
        while len(target):
            number = int(torch.searchsorted(starts, first, right=True)) - 1
            pool = self._pool(epoch * self._per_epoch + number)
            chosen = pool.order[first - pool.first :][: len(target)]
            torch.index_select(pool.records, 0, chosen, out=target[: len(chosen)])
            target, first = target[len(chosen) :], first + len(chosen)

    def _plan(self, epoch: int) -> PoolPlan:
        form = self._store.form
        return self._order.plan(epoch, self._store.steps, form.unit, form.units_per_pool)

    def _pool(self, number: int) -> _Pool:
        """That pool; the one after it is read meanwhile."""
        if self._now is None or self._now.number != number:
            if self._now is not None:
                self._spare.append(self._now.records)
            if self._next is not None and self._next[0] != number:  # the reader goes back, or begins elsewhere
                self._spare.append(self._next[1].result().records)
                self._next = None
            asked = self._ask_for(number) if self._next is None else self._next[1]
            self._now = asked.result()
            self._next = number + 1, self._ask_for(number + 1)
        return self._now

    def _ask_for(self, number: int) -> Future[_Pool]:
        return self._store.thread.submit(self._read, number, self._spare.pop())

    def _read(self, number: int, memory: Tensor) -> _Pool:
        """In the store's thread: the units in the order of the file, and then an order for all their steps."""
        epoch, index = divmod(number, self._per_epoch)
        form, plan, rows = self._store.form, self._plan(epoch), 0
        units = plan.units[index * form.units_per_pool :][: form.units_per_pool].sort().values
        for begin in (units * form.unit).tolist():
            size = min(form.unit, self._store.steps - begin)
            self._store.read(begin, memory[rows : rows + size])
            rows += size
        return _Pool(number, int(plan.starts[index]), self._order.of_pool(number, rows), memory)


class DiskStoreBuilder:
    """Steps as records on disk; those held out in a store of their own, in their order."""

    in_parts = True

    def __init__(self, source: TrainingSource, shares: Shares, *, seed: int, holds_out: bool, temp_dir: str | None) -> None:
        """`seed`: of the run; `holds_out`: whether some episodes are. Raises BadConfig for pieces that may need all episodes at
        once, and where memory is too small already.
        """
        check_streamable(source.connectors)
        shares.check_start(fetched=source.fetched)
        self._source, self._shares, self._temp_dir = source, shares, temp_dir
        self._seed, self._holds_out = seed, holds_out
        weights = source.selection.weights
        self._names = ("",) if weights is None else weights.names  # of the sources, which have a store each
        self.mixed: Mapping[str, Any] = {}
        self._writers: list[ShuffledWriter] = []
        self._train: list[DiskStore] = []
        self._val: DiskStore | None = None
        self._stores: list[DiskStore] = []

    def ids(self) -> Iterator[tuple[str, ...]]:
        """See StoreBuilder."""
        for batch in _tidily(self._source.episodes()):
            yield batch.ids
        give_back()

    def parts(self) -> Iterator[EpisodeBatch]:
        """As many at a time as follows from the episodes alone, and not from how they are read."""
        batches = self._source.episodes()
        first = next(batches, None)
        if first is None:
            raise self._source.no_steps()
        whole = chain([first], batches)
        del first
        return _tidily(in_parts(whole))

    def looked_at(self) -> Iterator[EpisodeBatch]:
        """See StoreBuilder."""
        return self.parts()

    def add(self, columns: Mapping[str, Tree], *, held_out: bool, sources: Tensor | None = None) -> None:
        """See StoreBuilder; the stores are made for the first columns, and share the memory."""
        if not self._train:
            record, count = record_of(columns), len(self._names)
            form = StoreForm.within(self._shares.window // count, self._shares.pool // count, record)
            like = columns if any(isinstance(column, FrameStacks) for column in columns.values()) else None
            self._train = [self._store(record, form, like) for _ in self._names]
            self._val = self._store(record, form, like) if self._holds_out else None
            self._writers = [ShuffledWriter(store, seed=self._seed) for store in self._train]
        if held_out:
            assert self._val is not None, "nothing is held out"
            self._val.append(self._val.packed(columns))
            return
        for number, (store, writer) in enumerate(zip(self._train, self._writers, strict=True)):
            if sources is None:
                writer.add(store.packed(columns))
            elif bool((sources == number).any()):
                writer.add(store.packed(columns)[sources == number])

    def _store(self, record: RecordForm, form: StoreForm, like: Mapping[str, Any] | None) -> DiskStore:
        self._stores.append(DiskStore(record, form, self._temp_dir, like))
        return self._stores[-1]

    def finish(self) -> tuple[Store, Store | None]:
        """See StoreBuilder."""
        assert self._writers, "no parts"
        for writer in self._writers:
            writer.finish()
        self._writers, weights = [], self._source.selection.weights
        give_back()
        if weights is None or not any(store.steps for store in self._train):
            return self._train[0], self._val
        mixture = Mixture.of(weights, [store.steps for store in self._train])
        self.mixed = mixture.as_dict()
        return MixedStore(self._train, mixture, self._seed), self._val

    @property
    def layout(self) -> str:
        """Form and order of the records: another one is another run."""
        return f"{self._train[0].form} {self._train[0].record.name}"

    def close(self) -> None:
        """See StoreBuilder."""
        for store in self._stores:
            store.close()


def _tidily(batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    for number, batch in enumerate(batches):
        if number % TIDY == TIDY - 1:
            give_back()
        yield batch
