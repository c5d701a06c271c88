"""Steps on disk, to be read in any order of small units; refuses to be of any size in memory but that of one window.

Steps are collected into windows as large as memory allows, and each full window is shuffled and appended to one file. So a unit
(a fixed number of neighbouring records) is a random sample of its window, and any handful of units from all over the file is
close to a random sample of all steps, wherever they came from. How it is read: `stream_loader.py`.

Decision: windows and not partitions that every step is dealt to, which would be exactly random, because those want the number
of steps beforehand or a second pass on disk, as many write buffers as there are partitions, and a bound on how many these may
be. Windows cost one sequential write, need no index, and have no largest size. (Shuffled blocks, shuffled again as they are
read: Xu et al. 2022, "In-Database Machine Learning with CorgiPile", 3.2; there without the shuffle before writing.)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.errors import UsageError
from offline_cli.storage.temp_file import TempFile
from offline_cli.training.seeds import draw
from offline_cli.training.step_records import RecordForm

__all__ = ["StepStore", "StoreForm", "StoreWriter"]

WINDOW_ORDER: Final = 12  # sets these seeds apart from others drawn from the same run seed
UNITS_PER_POOL: Final = 256
PERMUTATION: Final = 8  # bytes per record of a pool
SCRATCH: Final = 1 << 20  # bytes of records that are put in order and written at a time


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
            what = f"one step takes {record.nbytes / 1e6:,.1f} MB, of which the memory limit does not hold a few"
            raise UsageError(what, where="--memory-limit", fix="raise it")
        unit = max(1, pool // UNITS_PER_POOL)
        return cls(window=max(1, window_bytes // record.nbytes // unit) * unit, pool=pool // unit * unit, unit=unit)

    @property
    def units_per_pool(self) -> int:
        """Of all pools but the last of an epoch."""
        return self.pool // self.unit


class StepStore:
    """Records in a temporary file; `close` ends it."""

    def __init__(self, record: RecordForm, form: StoreForm, temp_dir: str | None) -> None:
        """Raises StorageError where no file can be made in `temp_dir`."""
        self.record, self.form = record, form
        self.steps = 0
        self._file = TempFile(temp_dir, holding="steps").__enter__()
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="step-reader")  # the one thread that reads, once all is written

    def __len__(self) -> int:
        return self.steps

    def append(self, records: Tensor) -> None:
        """Write `records` (n, words) at the end. Raises StorageError, for instance where the disk is full."""
        self._file.append(_bytes(records))
        self.steps += len(records)

    def read(self, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the records from `first` on; in the reader's thread."""
        self._file.read_into(first * self.record.nbytes, _bytes(target))

    def close(self) -> None:
        """Give memory and disk back, once a read that is under way has ended."""
        self.reader.shutdown(wait=True, cancel_futures=True)
        self._file.__exit__(None, None, None)


class StoreWriter:
    """Fills a store with steps in a random order, window by window; the same steps in the same order, whatever the parts."""

    def __init__(self, store: StepStore, *, seed: int) -> None:
        self._store, self._seed, self._windows, self._held = store, seed, 0, 0
        self._window = torch.empty((store.form.window, store.record.words), dtype=torch.int64)

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
        """Write what is left; nothing can be added any more."""
        if self._held:
            self._write()
        del self._window

    def _write(self) -> None:
        generator = torch.Generator().manual_seed(draw(self._seed, WINDOW_ORDER, self._windows))
        order = torch.randperm(self._held, generator=generator)
        for part in torch.split(order, max(1, SCRATCH // self._store.record.nbytes)):
            self._store.append(self._window[part])
        self._windows, self._held = self._windows + 1, 0


def _bytes(records: Tensor) -> Any:
    return records.numpy().data
