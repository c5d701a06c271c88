"""The steps of a run, a tensor per leaf, in memory or mapped from files; their order; and minibatches of them.

An epoch is a permutation of all rows that follows from (seed, epoch) alone, or, where sources have weights, as many draws from
them. So the number of an update is the position in the data: nothing is saved to resume, and a resumed run continues with the
batches that would have come next. In memory and streaming the order is the same.

`--streaming` appends each leaf to a temporary file and maps it (`MappedColumns`). Pages that were read are released, once they
may take their share of the memory limit; the system keeps them in its cache as far as there is room.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.frame_stacks import FrameStacks, expanded
from offline_cli.columns import Columns
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.modules.devices import fits_on
from offline_cli.policies.seeds import draw
from offline_cli.storage.local_files import TempFile
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["WEIGHTS", "Batches", "MappedColumns", "Steps", "epoch_order"]

WEIGHTS: Final = "weights"  # (N,) float32 of the N steps of a batch, sequences one after the other; sum 1; 0 on padding

ORDER: Final = 11  # sets these seeds apart from others drawn from the same run seed
ROWS, AGES, FRAMES = "rows", "ages", "_frames"
AROUND: Final = 1 << 16  # bytes around a mapped row that the system may bring into memory with it
RESIDENT: Final = 64 << 20  # of mapped files, unless a share of the memory limit is given


@dataclass(slots=True, eq=False)
class Steps:
    """N rows: each is a step, or, for policies with memory, a sequence of steps."""

    columns: Mapping[str, Any]  # by name: trees of tensors (N, ...) on the CPU, or FrameStacks that share their frames
    sources: Tensor | None = None  # (N,) the source of each row, where sources have weights
    shares: Sequence[float] = ()  # of each source, of the rows of an epoch; sum 1
    mapped: MappedColumns | None = None  # what holds the columns, where they are not in memory

    def __len__(self) -> int:
        return len(leaves(next(iter(self.columns.values())))[0])

    def rows(self, which: slice) -> dict[str, Tree]:
        """A range of rows as trees of tensors, stacks gathered."""
        return expanded(self.columns, which)

    def by_source(self, count: int) -> list[int]:
        """The rows of each of so many sources, where these have weights."""
        return [] if self.sources is None else self.sources.bincount(minlength=count).tolist()

    def close(self) -> None:
        """Release what is held on disk."""
        if self.mapped is not None:
            self.columns = {}
            self.mapped.close()


def epoch_order(steps: Steps, seed: int, epoch: int) -> Tensor:
    """(N,) int32: the rows of an epoch.

    With weights each place draws its source, and a source gives its rows in permutations of all of them.
    """
    count, chance = len(steps), torch.Generator().manual_seed(draw(seed, ORDER, epoch))
    if steps.sources is None:
        return torch.randperm(count, generator=chance, dtype=torch.int32)
    drawn = torch.multinomial(torch.tensor(steps.shares, dtype=torch.float64), count, replacement=True, generator=chance)
    order = torch.empty(count, dtype=torch.int32)
    for number in range(len(steps.shares)):
        places, rows = drawn == number, (steps.sources == number).nonzero()[:, 0]
        wanted = int(places.sum())
        if wanted:
            passes = [torch.randperm(len(rows), generator=chance) for _ in range(-(-wanted // len(rows)))]
            order[places] = rows[torch.cat(passes)[:wanted]].to(torch.int32)
    return order


class Batches:
    """Fills one batch, again and again.

    `batch` is what updates read: per column a tree of tensors (B, ...) on `device`, and `weights`. Every batch has the same
    shape: the last one of an epoch is padded with rows of weight 0. Rows that are not on the device are gathered by a thread,
    one batch ahead.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        before: Mapping[str, Tree] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`batch_size`: steps. `before`: columns, leaves (...), that every row has alike: the state before a sequence.
        `ranks`: the processes that share out each batch; `batch` holds this one's rows, with their weights in all of it.
        """
        first = steps.rows(slice(0, 1))
        per_row = int(first[Columns.LOSS_MASK].shape[1]) if Columns.LOSS_MASK in first else 1
        self.steps = len(steps)
        self.batch_size = min(max(1, batch_size // per_row), self.steps)  # rows
        self.updates_per_epoch = -(-self.steps // self.batch_size)
        self._store, self._seed, self._ranks, self._device = steps, seed, ranks, device
        self._own = -(-self.batch_size // ranks.count)  # rows of `batch`
        self._before = {
            name: map_leaves(lambda leaf: torch.as_tensor(leaf).to(device), tree) for name, tree in (before or {}).items()
        }
        self._columns, self._home = _placed(steps, device)
        self.batch: dict[str, Any] = {
            name: map_leaves(lambda leaf: leaf.new_empty((self._own, *leaf.shape[1:]), device=device), tree)
            for name, tree in first.items()
        }
        self._targets = [leaf for name in self._columns for leaf in leaves(self.batch[name])]
        self._thread: ThreadPoolExecutor | None = None
        if steps.mapped is not None or self._home != device:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="step-reader")
        self._ahead: tuple[int, Future[list[Tensor]]] | None = None  # the number of an update, and its batch
        self.batch |= self._repeated(self._own)
        self.batch[WEIGHTS] = torch.empty(self._own * per_row, device=device)
        self._epoch, self._order, self._rows = -1, torch.empty(0, dtype=torch.int32), -1

    def close(self) -> None:
        """End the thread that gathers ahead."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _repeated(self, rows: int) -> dict[str, Any]:
        return {name: map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape), tree) for name, tree in self._before.items()}

    def fill(self, update: int) -> int | Tensor:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the steps in it that are learned from,
        of sequences as a tensor () on the device.
        """
        if self._thread is None:
            self._gather(update, self._targets)
        else:
            self._take_ahead(self._thread, update)
        rows, own = self._part(update)
        if Columns.LOSS_MASK in self.batch:
            mask: Tensor = self.batch[Columns.LOSS_MASK]
            mask[own.stop - own.start :] = False
            count = self._ranks.sum_(mask.sum())
            torch.div(mask.flatten(), count, out=self.batch[WEIGHTS])
            return count
        if rows != self._rows:
            self.batch[WEIGHTS].fill_(1 / rows)[own.stop - own.start :] = 0
            self._rows = rows
        return rows

    def _take_ahead(self, thread: ThreadPoolExecutor, update: int) -> None:
        if self._ahead is None or self._ahead[0] != update:
            if self._ahead is not None:
                self._ahead[1].result()  # one gathers at a time
            self._ahead = update, thread.submit(self._gathered, update)
        gathered = self._ahead[1].result()
        for target, held in zip(self._targets, gathered, strict=True):
            target.copy_(held, non_blocking=True)  # torch keeps pinned memory until the copy has left it
        self._ahead = update + 1, thread.submit(self._gathered, update + 1)

    def _gathered(self, update: int) -> list[Tensor]:
        pinned = self._device.type == "cuda"
        held = [torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=pinned) for leaf in self._targets]
        self._gather(update, held)
        return held

    def _part(self, update: int) -> tuple[int, slice]:
        """Rows of the batch of that update, and which of them are this rank's."""
        rows = min(self.batch_size, self.steps - update % self.updates_per_epoch * self.batch_size)
        return rows, self._ranks.share(rows)

    def _gather(self, update: int, targets: Sequence[Tensor]) -> None:
        """Put this rank's rows of a batch, and what pads them, into `targets`, one for each leaf."""
        epoch, index = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            self._order = torch.empty(0)  # two orders would take twice the memory
            self._epoch, self._order = epoch, epoch_order(self._store, self._seed, epoch).to(self._home)
        own, first = self._part(update)[1], index * self.batch_size
        chosen = self._order[first + own.start : first + own.stop]
        if len(chosen) < self._own:
            chosen = torch.cat([chosen, self._order[: self._own - len(chosen)]])
        size = len(chosen) if self._store.mapped is None else self._store.mapped.rows_at_once
        for start in range(0, len(chosen), size):
            part = slice(start, start + size)
            left = iter(targets)
            for leaf in (leaf for tree in self._columns.values() for leaf in leaves(tree)):
                if isinstance(leaf, FrameStacks):
                    leaf.gather(chosen[part], [next(left)[part] for _ in leaf.shapes])
                else:
                    torch.index_select(leaf, 0, chosen[part], out=next(left)[part])
            if self._store.mapped is not None:
                self._store.mapped.touched(len(chosen[part]))

    def replace(self, columns: Mapping[str, Any]) -> None:
        """Take other values of the same steps, of the same forms; they are in memory."""
        if self._ahead is not None:
            self._ahead[1].result()
            self._ahead = None
        for name, tree in columns.items():
            for held, leaf in zip(leaves(self._columns[name]), leaves(tree), strict=True):
                held.copy_(leaf)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """This rank's share of all steps, in the order of the store, as batches of at most B rows on the device, with their
        sizes."""
        for number, first in enumerate(range(0, self.steps, self.batch_size)):
            if number % self._ranks.count == self._ranks.rank:
                batch = expanded(self._columns, slice(first, first + self.batch_size))
                rows = min(self.batch_size, self.steps - first)
                there = {name: map_leaves(lambda leaf: leaf.to(self._device), tree) for name, tree in batch.items()}
                yield there | self._repeated(rows), rows
                if self._store.mapped is not None:
                    self._store.mapped.touched(rows)


def _placed(steps: Steps, device: torch.device) -> tuple[dict[str, Any], torch.device]:
    """The columns on `device` where they fit, else where they are; and where that is."""
    frames = {id(column.frames): column.frames for column in steps.columns.values() if isinstance(column, FrameStacks)}
    held = [leaf for tree in (*steps.columns.values(), *frames.values()) for leaf in leaves(tree)]
    home = device if steps.mapped is None and fits_on(device, sum(leaf.nbytes for leaf in held)) else torch.device("cpu")
    there = {key: map_leaves(lambda leaf: leaf.to(home), tree) for key, tree in frames.items()}

    def moved(leaf: Any) -> Any:
        return leaf.to(home, there[id(leaf.frames)]) if isinstance(leaf, FrameStacks) else leaf.to(home)

    return {name: map_leaves(moved, tree) for name, tree in steps.columns.items()}, home


class MappedColumns:
    """Columns that come in parts: a temporary file without a name for each leaf, mapped once all parts are there."""

    def __init__(self, temp_dir: str | None, resident: int = RESIDENT) -> None:
        """`resident`: bytes of the files that may be in this process's memory at a time."""
        self._temp_dir, self._resident = temp_dir, resident
        self._files: list[_LeafFile] = []
        self._like: dict[str, Any] = {}
        self._size = self._frames = 0  # frames in a stack; frames so far
        self._maps: list[mmap.mmap] = []
        self._touched = 0  # bytes that may be in memory

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append the rows of a part. Raises StorageError, for instance where the disk is full."""
        plain: dict[str, Any] = dict(columns)
        stacks = {name: column for name, column in columns.items() if isinstance(column, FrameStacks)}
        for name, column in stacks.items():
            plain[name] = {ROWS: column.rows + self._frames, AGES: column.ages}
            plain[FRAMES], self._size = column.frames, column.size
        self._frames += len(leaves(plain[FRAMES])[0]) if stacks else 0
        parts = leaves(plain)
        if not self._files:
            self._files = [_LeafFile(self._temp_dir, leaf) for leaf in parts]
        for file, leaf in zip(self._files, parts, strict=True):
            file.append(leaf.contiguous().numpy())
        self._like = plain

    def finish(self) -> Steps:
        """The rows of all parts. Raises StorageError."""
        made = []
        for file in self._files:
            found, leaf = file.mapped()
            self._maps += [found] if found is not None else []
            made.append(leaf)
        columns = dict(unflatten_like(self._like, made))
        frames = columns.pop(FRAMES, None)
        for name, column in columns.items():
            if frames is not None and isinstance(column, dict) and column.keys() == {ROWS, AGES}:
                columns[name] = FrameStacks(frames, column[ROWS], column[AGES], self._size)
        return Steps(columns, mapped=self)

    @property
    def rows_at_once(self) -> int:
        """How many rows may be read before `touched` is called."""
        return max(16, self._resident // 2 // AROUND)

    def touched(self, rows: int) -> None:
        """So many rows were read. Where more may be in memory than is allowed, all files give their pages back."""
        sizes = [min(rows * (AROUND + file.row_bytes), file.size) for file in self._files]
        self._touched += sum(sizes)
        if self._touched > self._resident // 2 and hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)
            self._touched = 0

    def close(self) -> None:
        """Release the disk; its space is free once nothing refers to the columns any more."""
        for file in self._files:
            file.__exit__(None, None, None)


class _LeafFile(TempFile):
    """The rows of one leaf."""

    def __init__(self, temp_dir: str | None, leaf: Tensor) -> None:
        super().__init__(temp_dir, holding="steps")
        self._row = leaf[:0].numpy()
        self.row_bytes = leaf[:1].nbytes
        self.__enter__()

    def mapped(self) -> tuple[mmap.mmap | None, Tensor]:
        """All rows; and the map that is behind them, None where there is none."""
        if not self.size:
            return None, torch.from_numpy(self._row)
        with self._failures("mapping steps of a temporary file"):
            found = np.memmap(self._file, self._row.dtype, "r+").reshape(-1, *self._row.shape[1:])
        return found._mmap, torch.from_numpy(found)  # type: ignore[attr-defined]  # numpy's name for its map
