"""The steps of a run, in memory or in a file; their order; and minibatches of them.

An epoch is a permutation of all rows that follows from (seed, epoch) alone, or, where sources have weights, as many draws from
them. So the number of an update is the position in the data: nothing is saved to resume, and a resumed run continues with the
batches that would have come next. In memory and streaming the order is the same.

`--streaming` keeps rows in a temporary file, all leaves of a row side by side, and reads each row that a batch asks for. The
file is not mapped: what the system caches of it is no memory of this process, so that a limit on memory holds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.frame_stacks import FrameStacks, gather_stacks
from offline_cli.columns import Columns
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.modules.devices import fits_on
from offline_cli.policies.seeds import draw
from offline_cli.storage.local_files import TempFile
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["WEIGHTS", "Batches", "FileSteps", "Steps", "epoch_order"]

WEIGHTS: Final = "weights"  # (N,) float32 of the N steps of a batch, sequences one after the other; sum 1; 0 on padding
ORDER: Final = 11  # sets these seeds apart from others drawn from the same run seed
AT_A_TIME: Final = 1 << 16  # rows that `parts` gives together
READ_BYTES: Final = 8 << 20  # of a file, likewise


@dataclass(slots=True, eq=False)
class Steps:
    """N rows in memory: each is a step, or, for policies with memory, a sequence of steps."""

    columns: Mapping[str, Any]  # by name: trees of tensors (N, ...), or FrameStacks that share their frames
    sources: Tensor | None = None  # (N,) the source of each row, where sources have weights
    shares: Sequence[float] = ()  # of each source, of the rows of an epoch; sum 1

    def __len__(self) -> int:
        return len(leaves(next(iter(self.columns.values())))[0])

    def rows(self, which: slice) -> dict[str, Tree]:
        """A range of rows as trees of tensors, stacks gathered."""
        return {
            name: column.gathered(which) if isinstance(column, FrameStacks) else map_leaves(lambda leaf: leaf[which], column)
            for name, column in self.columns.items()
        }

    def parts(self, names: Sequence[str]) -> Iterator[dict[str, Tree]]:
        """Those columns of all rows, part by part."""
        chosen = Steps({name: self.columns[name] for name in names if name in self.columns})
        for first in range(0, len(self), AT_A_TIME) if chosen.columns else ():
            yield chosen.rows(slice(first, first + AT_A_TIME))

    def gather(self, chosen: Tensor, targets: Sequence[Tensor]) -> None:
        """Put the rows `chosen` (B,) into `targets`, a tensor (B, ...) for each leaf of all columns."""
        left = iter(targets)
        for leaf in (leaf for column in self.columns.values() for leaf in leaves(column)):
            if isinstance(leaf, FrameStacks):
                leaf.gather(chosen, [next(left) for _ in leaf.shapes])
            else:
                torch.index_select(leaf, 0, chosen, out=next(left))

    def on(self, device: torch.device) -> tuple[Self, torch.device]:
        """The same on `device` where it fits, else where it is; and where that is."""
        stacks = [column for column in self.columns.values() if isinstance(column, FrameStacks)]
        frames = {id(column.frames): column.frames for column in stacks}
        held = [leaf for tree in (*self.columns.values(), *frames.values()) for leaf in leaves(tree)]
        home = device if fits_on(device, sum(leaf.nbytes for leaf in held)) else torch.device("cpu")
        there = {key: map_leaves(lambda leaf: leaf.to(home), tree) for key, tree in frames.items()}

        def moved(leaf: Any) -> Any:
            return leaf.to(home, there[id(leaf.frames)]) if isinstance(leaf, FrameStacks) else leaf.to(home)

        return replace(self, columns={name: map_leaves(moved, tree) for name, tree in self.columns.items()}), home

    def close(self) -> None:
        """Release what is held on disk."""


class RowFile(TempFile):
    """Rows of several leaves in a temporary file without a name: a row is one read. Raises StorageError."""

    def __init__(self, temp_dir: str | None, like: Sequence[Tensor]) -> None:
        """`like`: the leaves of any rows. The file is made now, and ends with `close`."""
        super().__init__(temp_dir, holding="steps")
        forms = [(str(number), leaf[:0].numpy().dtype, tuple(leaf.shape[1:])) for number, leaf in enumerate(like)]
        self._row, self.count = np.dtype(forms), 0
        self.__enter__()

    def add(self, rows: Sequence[Tensor]) -> None:
        """Append rows, (n, ...) of each leaf."""
        made = np.empty(len(rows[0]), self._row)
        for number, leaf in enumerate(rows):
            made[str(number)] = leaf.numpy()
        self.append(made.view(np.uint8))
        self.count += len(made)

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self._row.itemsize

    def take(self, chosen: Tensor) -> list[Tensor]:
        """The rows `chosen` (B,), a tensor (B, ...) for each leaf."""
        return self._read(1, chosen.tolist())

    def expect(self, chosen: Tensor) -> None:
        """Have the system read those rows meanwhile, all at once, where its cache has not got them."""
        size, file = self._row.itemsize, self._file.fileno()
        for row in chosen.tolist() if hasattr(os, "posix_fadvise") else ():
            os.posix_fadvise(file, row * size, size, os.POSIX_FADV_WILLNEED)

    def range(self, first: int, stop: int) -> list[Tensor]:
        """The rows from `first` to `stop`."""
        return self._read(stop - first, [first])

    def close(self) -> None:
        """Release the disk."""
        self.__exit__(None, None, None)

    def _read(self, together: int, rows: Sequence[int]) -> list[Tensor]:
        """So many rows from each of `rows` on."""
        size, file = self._row.itemsize, self._file.fileno()
        with self._failures("reading steps of a temporary file"):
            content = b"".join([os.pread(file, together * size, row * size) for row in rows])
            if len(content) != len(rows) * together * size:
                raise OSError(errno.EIO, "it has become shorter")
        read = np.frombuffer(content, self._row)
        return [torch.from_numpy(np.array(read[name], order="C")) for name in self._row.names or ()]


@dataclass(slots=True, eq=False)
class FileSteps(Steps):
    """Rows that come in parts and are kept in files; `columns` are those of the last part, for their forms."""

    temp_dir: str | None = None
    file: RowFile | None = None
    frames: RowFile | None = None  # of FrameStacks: each frame once

    def __len__(self) -> int:
        return 0 if self.file is None else self.file.count

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append the rows of a part."""
        stacks = [column for column in columns.values() if isinstance(column, FrameStacks)]
        before = 0 if self.frames is None else self.frames.count
        rows = [leaf for column in columns.values() for leaf in _row_leaves(column, before)]
        if self.file is None:
            self.file = RowFile(self.temp_dir, rows)
            self.frames = RowFile(self.temp_dir, leaves(stacks[0].frames)) if stacks else None
        self.file.add(rows)
        if self.frames is not None:
            self.frames.add(leaves(stacks[0].frames))
        self.columns = dict(columns)

    def rows(self, which: slice) -> dict[str, Tree]:
        """See Steps."""
        assert self.file is not None, "rows were added"
        return self._expanded(self.file.range(*which.indices(len(self))[:2]))

    def parts(self, names: Sequence[str]) -> Iterator[dict[str, Tree]]:
        """See Steps."""
        assert self.file is not None, "rows were added"
        rows = max(1, min(AT_A_TIME >> 4, READ_BYTES // self.file.row_bytes))
        for first in range(0, len(self), rows):
            yield self._expanded(self.file.range(first, min(first + rows, len(self))), names)

    def gather(self, chosen: Tensor, targets: Sequence[Tensor]) -> None:
        """See Steps."""
        assert self.file is not None, "rows were added"
        found = self._expanded(self.file.take(chosen))
        for target, leaf in zip(targets, (leaf for tree in found.values() for leaf in leaves(tree)), strict=True):
            target.copy_(leaf)

    def on(self, device: torch.device) -> tuple[Self, torch.device]:
        """See Steps: files stay where they are."""
        return self, torch.device("cpu")

    def close(self) -> None:
        """See Steps."""
        for file in (self.file, self.frames):
            if file is not None:
                file.close()

    def _expanded(self, rows: Sequence[Tensor], names: Sequence[str] | None = None) -> dict[str, Tree]:
        """Trees of tensors by column, from the leaves of rows; `names`: those wanted, None: all."""
        left, found = iter(rows), dict[str, Tree]()
        for name, column in self.columns.items():
            own = [next(left) for _ in ((1, 2) if isinstance(column, FrameStacks) else leaves(column))]
            if names is not None and name not in names:
                continue
            if isinstance(column, FrameStacks):
                assert self.frames is not None, "stacks have frames"
                like = leaves(column.frames)
                made = [leaf.new_empty((len(own[0]), *shape)) for leaf, shape in zip(like, column.shapes, strict=True)]
                gather_stacks(self.frames.take, own[0], own[1], column.size, made)
                found[name] = unflatten_like(column.frames, made)
            else:
                found[name] = unflatten_like(column, own)
        return found


def _row_leaves(column: Any, frames_before: int) -> list[Tensor]:
    if isinstance(column, FrameStacks):
        return [column.rows + frames_before, column.ages]
    return leaves(column)


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
    shape: the last one of an epoch is padded with rows of weight 0. For another device a thread gathers rows, one batch ahead;
    beside updates on the CPU it would cost more than it saves, as both wait for Python's lock at each read.
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
        self._seed, self._ranks, self._device = seed, ranks, device
        self._own = -(-self.batch_size // ranks.count)  # rows of `batch`
        self._before = {
            name: map_leaves(lambda leaf: torch.as_tensor(leaf, device=device), tree) for name, tree in (before or {}).items()
        }
        self._store, self._home = steps.on(device)
        self.batch: dict[str, Any] = {
            name: map_leaves(lambda leaf: leaf.new_empty((self._own, *leaf.shape[1:]), device=device), tree)
            for name, tree in first.items()
        }
        self._targets = [leaf for tree in self.batch.values() for leaf in leaves(tree)]
        self._thread: ThreadPoolExecutor | None = None
        if self._home != device:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="step-reader")
        self._ahead: tuple[int, Future[list[Tensor]]] | None = None  # the number of an update, and its batch
        self.batch |= self._repeated(self._own)
        self.batch[WEIGHTS] = torch.empty(self._own * per_row, device=device)
        self._epoch, self._order, self._rows = -1, torch.empty(0, dtype=torch.int32), -1

    def close(self) -> None:
        """End the thread that gathers ahead."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def fill(self, update: int) -> int | Tensor:
        """Put the batch of update number `update`, counted from 0, into `batch`; gives the steps in it that are learned from,
        of sequences as a tensor () on the device.
        """
        if self._thread is None:
            self._gather(update, self._targets)
        else:
            for target, held in zip(self._targets, self._taken(self._thread, update), strict=True):
                target.copy_(held, non_blocking=True)  # torch keeps pinned memory until the copy has left it
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

    def replace(self, columns: Mapping[str, Any]) -> None:
        """Take other values of the same steps, of the same forms; they are in memory."""
        if self._ahead is not None:
            self._ahead[1].result()
            self._ahead = None
        for name, tree in columns.items():
            for held, leaf in zip(leaves(self._store.columns[name]), leaves(tree), strict=True):
                held.copy_(leaf)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """This rank's share of all steps, in the order of the store, as batches of at most B rows on the device, with their
        sizes."""
        for number, first in enumerate(range(0, self.steps, self.batch_size)):
            if number % self._ranks.count == self._ranks.rank:
                batch = self._store.rows(slice(first, first + self.batch_size))
                rows = min(self.batch_size, self.steps - first)
                there = {name: map_leaves(lambda leaf: leaf.to(self._device), tree) for name, tree in batch.items()}
                yield there | self._repeated(rows), rows

    def _repeated(self, rows: int) -> dict[str, Any]:
        return {name: map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape), tree) for name, tree in self._before.items()}

    def _taken(self, thread: ThreadPoolExecutor, update: int) -> list[Tensor]:
        """The batch that was gathered ahead, or is now; the next one is begun."""
        if self._ahead is None or self._ahead[0] != update:
            if self._ahead is not None:
                self._ahead[1].result()  # one gathers at a time
            self._ahead = update, thread.submit(self._gathered, update)
        gathered = self._ahead[1].result()
        self._ahead = update + 1, thread.submit(self._gathered, update + 1)
        return gathered

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
        self._store.gather(chosen, targets)
        if isinstance(self._store, FileSteps) and self._store.file is not None:
            after = first + self.batch_size
            self._store.file.expect(self._order[after + own.start : after + own.stop])
