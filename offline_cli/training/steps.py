"""The steps of a run, in memory or in a temporary file; their order; and mini-batches.

An epoch is a permutation of all rows that depends on (seed, epoch) only, or, with source weights, the same number of random
draws. So the update number is the position in the data, and resuming needs no saved position. The order is the same in memory
and streaming.

`--streaming` keeps rows in a temporary file, with all leaves of a row adjacent, and reads the rows of each batch. The file is
not memory-mapped, so that the page cache does not count against the memory limit.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.learner_batches import FrameStacks, gather_stacks
from offline_cli.columns import Columns
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.modules.python_network import fits_on
from offline_cli.policies.policy import draw
from offline_cli.storage.local_files import TempFile
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = ["WEIGHTS", "Batches", "Steps", "epoch_order"]

WEIGHTS: Final = "weights"  # (N,) float32 for the N steps of a batch, sequences flattened; sum 1; 0 for padding
ORDER: Final = 11  # distinguishes these seeds from others of the same run seed
PART_BYTES: Final = 2 << 20  # size of a part of `Steps.parts`


class MemoryRows:
    """Rows in memory: a tensor (N, ...) for each leaf."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        self.held = list(held)
        self.row_bytes = sum(leaf.nbytes for leaf in held) // max(1, len(self))

    def __len__(self) -> int:
        return len(self.held[0])

    def take(self, chosen: Tensor, targets: Sequence[Tensor] | None = None) -> list[Tensor]:
        """The rows `chosen` (B,), a tensor (B, ...) for each leaf, written to `targets` if given."""
        into: Sequence[Tensor | None] = targets or [None] * len(self.held)
        return [torch.index_select(leaf, 0, chosen, out=target) for leaf, target in zip(self.held, into, strict=True)]

    def range(self, first: int, stop: int) -> list[Tensor]:
        """The rows from `first` to `stop`."""
        return [leaf[first:stop] for leaf in self.held]


class FileRows(TempFile):
    """Rows in an unnamed temporary file; a row is one read. Raises StorageError."""

    def __init__(self, temp_dir: str | None, like: Sequence[Tensor]) -> None:
        """`like`: leaves of any rows, for dtypes and shapes. The file exists until `close`."""
        super().__init__(temp_dir, holding="steps")
        forms = [(str(number), leaf[:0].numpy().dtype, tuple(leaf.shape[1:])) for number, leaf in enumerate(like)]
        self._row, self._count = np.dtype(forms), 0
        self.row_bytes = self._row.itemsize
        self.__enter__()

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Sequence[Tensor]) -> None:
        """Append rows, leaves (n, ...)."""
        made = np.empty(len(rows[0]), self._row)
        for number, leaf in enumerate(rows):
            made[str(number)] = leaf.numpy()
        self.append(made.view(np.uint8))
        self._count += len(made)

    def take(self, chosen: Tensor, targets: Sequence[Tensor] | None = None) -> list[Tensor]:
        found = self._read(1, chosen.tolist())
        for target, leaf in zip(targets or (), found, strict=targets is not None):
            target.copy_(leaf)
        return found

    def range(self, first: int, stop: int) -> list[Tensor]:
        return self._read(stop - first, [first])

    def close(self) -> None:
        """Delete the file."""
        self.__exit__(None, None, None)

    def _read(self, together: int, rows: Sequence[int]) -> list[Tensor]:
        """Read `together` consecutive rows starting at each of `rows`."""
        size, file = self.row_bytes, self._file.fileno()
        with self._failures("reading steps of a temporary file"):
            content = b"".join([os.pread(file, together * size, row * size) for row in rows])
            if len(content) != len(rows) * together * size:
                raise OSError(errno.EIO, "the file is truncated")
        read = np.frombuffer(content, self._row)
        return [torch.from_numpy(np.array(read[name], order="C")) for name in self._row.names or ()]


class Steps:
    """N rows of columns, in memory or on disk: a row is a step, or, for recurrent policies, a sequence.

    Frame stacks are stored as indices of frames, and each frame once.
    """

    def __init__(self, columns: Mapping[str, Any] | None = None, *, on_disk: bool = False, temp_dir: str | None = None) -> None:
        """`columns`: the first rows, see `add`."""
        self.columns: Mapping[str, Any] = {}  # the last added rows, for dtypes and shapes
        self.sources: Tensor | None = None  # (N,) source index of each row, if sources have weights
        self.shares: Sequence[float] = ()  # each source's share of an epoch's rows; sum 1
        self._on_disk, self._temp_dir = on_disk, temp_dir
        self._rows: MemoryRows | FileRows | None = None
        self._frames: MemoryRows | FileRows | None = None
        if columns is not None:
            self.add(columns)

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append rows: trees of tensors (n, ...), or FrameStacks that share their frames. In memory, call it once."""
        frames = next((leaves(one.frames) for one in columns.values() if isinstance(one, FrameStacks)), None)
        before = len(self._frames) if self._on_disk and self._frames is not None else 0
        rows = [leaf for column in columns.values() for leaf in _row_leaves(column, before)]
        self.columns = dict(columns)
        if not self._on_disk:
            self._rows, self._frames = MemoryRows(rows), None if frames is None else MemoryRows(frames)
            return
        if self._rows is None:
            self._rows = FileRows(self._temp_dir, rows)
            self._frames = None if frames is None else FileRows(self._temp_dir, frames)
        for file, added in ((self._rows, rows), (self._frames, frames)):
            if isinstance(file, FileRows) and added is not None:
                file.add(added)

    def replace(self, columns: Mapping[str, Any]) -> None:
        """Replace the values of all rows, with the same shapes; only in memory."""
        stacks = next((leaves(one.frames) for one in columns.values() if isinstance(one, FrameStacks)), [])
        new = [leaf for column in columns.values() for leaf in _row_leaves(column, 0)]
        for held, leaf in zip(self._in_memory(), [*new, *stacks], strict=True):
            held.copy_(leaf)

    def rows(self, which: slice, names: Sequence[str] | None = None) -> dict[str, Tree]:
        """A range of rows as trees of tensors, with gathered stacks; `names`: only these columns."""
        assert self._rows is not None, "no rows were added"
        left, found = iter(self._rows.range(*which.indices(len(self))[:2])), dict[str, Tree]()
        for name, column in self.columns.items():
            own = [next(left) for _ in _row_leaves(column, 0)]
            if names is not None and name not in names:
                continue
            made = own
            if isinstance(column, FrameStacks):
                like = zip(leaves(column.frames), column.shapes, strict=True)
                made = [leaf.new_empty((len(own[0]), *shape), device=own[0].device) for leaf, shape in like]
                self._gather_stacks(column, own, made)
            found[name] = unflatten_like(column.frames if isinstance(column, FrameStacks) else column, made)
        return found

    def parts(self, names: Sequence[str]) -> Iterator[dict[str, Tree]]:
        """The existing columns among `names`, for all rows, part by part."""
        assert self._rows is not None, "no rows were added"
        size = max(1, PART_BYTES // max(1, self._rows.row_bytes))
        for first in range(0, len(self), size):
            yield self.rows(slice(first, first + size), names)

    def gather(self, chosen: Tensor, targets: Sequence[Tensor]) -> None:
        """Write the rows `chosen` (B,) into `targets`, a tensor (B, ...) for each leaf of all columns."""
        assert self._rows is not None, "no rows were added"
        left, direct, stacks = iter(targets), list[Tensor](), list[tuple[FrameStacks, list[Tensor], list[Tensor]]]()
        for column in self.columns.values():
            if isinstance(column, FrameStacks):
                own = [part.new_empty(len(chosen), device=chosen.device) for part in (column.rows, column.ages)]
                stacks.append((column, own, [next(left) for _ in column.shapes]))
                direct += own
            else:
                direct += [next(left) for _ in leaves(column)]
        self._rows.take(chosen, direct)
        for column, own, made in stacks:
            self._gather_stacks(column, own, made)

    def on(self, device: torch.device) -> tuple[Self, torch.device]:
        """A copy on `device` if it fits there, else itself; and its device."""
        there, home = copy.copy(self), torch.device("cpu")
        if not self._on_disk and fits_on(device, sum(leaf.nbytes for leaf in self._in_memory())):
            home = device
            moved = [None if one is None else MemoryRows([leaf.to(home) for leaf in one.held]) for one in self._stores()]
            there._rows, there._frames = moved
        return there, home

    def close(self) -> None:
        """Delete temporary files."""
        for one in (self._rows, self._frames):
            if isinstance(one, FileRows):
                one.close()

    def _stores(self) -> list[MemoryRows | None]:
        return [one if isinstance(one, MemoryRows) else None for one in (self._rows, self._frames)]

    def _in_memory(self) -> list[Tensor]:
        return [leaf for one in self._stores() if one is not None for leaf in one.held]

    def _gather_stacks(self, column: FrameStacks, own: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        assert self._frames is not None, "stacks have frames"
        gather_stacks(self._frames.take, own[0], own[1], column.size, targets)


def _row_leaves(column: Any, frames_before: int) -> list[Tensor]:
    """The stored leaves of a column; for stacks the index of the newest frame, and its age."""
    if isinstance(column, FrameStacks):
        return [column.rows + frames_before if frames_before else column.rows, column.ages]
    return leaves(column)


def epoch_order(steps: Steps, seed: int, epoch: int) -> Tensor:
    """(N,) int32: the order of rows in an epoch.

    With weights, each position draws a source, and each source yields its rows in successive permutations.
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
    """Fills one batch buffer repeatedly.

    Updates read `batch`: a tree of tensors (B, ...) on `device` per column, and `weights`. All batches have the same shape: the
    last one of an epoch is padded with rows of weight 0. Data that does not fit on the GPU is gathered in pinned memory, while
    the GPU runs the previous update.
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
        """`batch_size`: steps. `before`: columns, leaves (...), that are equal in all rows, such as the initial state. `ranks`:
        processes that divide each batch; `batch` holds this rank's rows, with weights relative to the whole batch.
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
        self.batch |= self._repeated(self._own)
        self.batch[WEIGHTS] = torch.empty(self._own * per_row, device=device)
        self._epoch, self._order, self._rows = -1, torch.empty(0, dtype=torch.int32), -1

    def fill(self, update: int) -> int | Tensor:
        """Fill `batch` for update `update` (0-based); return its number of unmasked steps, for sequences as a tensor () on the
        device.
        """
        epoch, index = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            self._order = torch.empty(0)  # free the old order first
            self._epoch, self._order = epoch, epoch_order(self._store, self._seed, epoch).to(self._home)
        first = index * self.batch_size
        rows = min(self.batch_size, self.steps - first)
        own = self._ranks.share(rows)
        chosen = self._order[first + own.start : first + own.stop]
        if len(chosen) < self._own:
            chosen = torch.cat([chosen, self._order[: self._own - len(chosen)]])
        if self._home == self._device:
            self._store.gather(chosen, self._targets)
        else:
            held = [torch.empty(one.shape, dtype=one.dtype, pin_memory=one.is_cuda) for one in self._targets]
            self._store.gather(chosen, held)
            for target, leaf in zip(self._targets, held, strict=True):
                target.copy_(leaf, non_blocking=True)  # torch keeps pinned memory until the copy is done
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
        """Replace the values of all steps, with the same shapes; only in memory."""
        self._store.replace(columns)

    def in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """This rank's share of all steps, in stored order, as (batch of at most B rows on the device, size)."""
        for number, first in enumerate(range(0, self.steps, self.batch_size)):
            if number % self._ranks.count == self._ranks.rank:
                batch = self._store.rows(slice(first, first + self.batch_size))
                rows = min(self.batch_size, self.steps - first)
                there = {name: map_leaves(lambda leaf: leaf.to(self._device), tree) for name, tree in batch.items()}
                yield there | self._repeated(rows), rows

    def _repeated(self, rows: int) -> dict[str, Any]:
        return {name: map_leaves(lambda leaf: leaf.expand(rows, *leaf.shape), tree) for name, tree in self._before.items()}
