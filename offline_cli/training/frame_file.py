"""Frames on disk, each once, in the order of the episodes, from which records of steps get their stacks as they are read.

A record with stacks of N frames would be N times as large as what its step adds. `FrameFile` takes the stacks out of columns
(`taken`) and leaves which frame each ends with: records of this are what is shuffled and written. When they are read,
`put_back` reads the frames that they need, neighbours with one call, and makes whole records of them. So sizes, order and
batches are those of records with their stacks, and disk holds each frame once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.frame_stacks import FrameStacks, expanded
from offline_cli.storage.temp_files import TempFile
from offline_cli.training.metrics_file import RecordForm
from offline_cli.trees import Tree, leaves, unflatten_like

__all__ = ["FrameFile", "record_of"]

ROW, AGE, FRAME = "row", "age", "frame"
AT_ONCE: Final = 64  # records whose frames are read together: their stacks are in memory twice meanwhile


def without_frames(columns: Mapping[str, Any], first: int = 0) -> dict[str, Tree]:
    """The columns with row and age in place of stacks. `first`: added to the rows."""
    return {
        name: {ROW: column.rows + first, AGE: column.ages} if isinstance(column, FrameStacks) else column
        for name, column in columns.items()
    }


class FrameFile:
    """The frames of one store, until `close`."""

    def __init__(self, columns: Mapping[str, Any], record: RecordForm, temp_dir: str | None) -> None:
        """`columns`: like those to come; `record`: of these with their stacks. Raises StorageError."""
        self.small = RecordForm.of(without_frames(columns))
        self._record = record
        stacks = {name: column for name, column in columns.items() if isinstance(column, FrameStacks)}
        first = next(iter(stacks.values()))
        self._stacked, self._size, self._frame = list(stacks), first.size, RecordForm.of({FRAME: first.frames})
        self._file = TempFile(temp_dir, holding="frames").__enter__()
        self._count = 0

    def taken(self, columns: Mapping[str, Any]) -> Tensor:
        """(N, words) records without frames, which are written. Raises StorageError."""
        frames = next(column for column in columns.values() if isinstance(column, FrameStacks)).frames
        first, count = self._count, len(leaves(frames)[0])
        self._file.append(self._frame.packed({FRAME: frames}).numpy().data)
        self._count += count
        return self.small.packed(without_frames(columns, first))

    def put_back(self, small: Tensor, records: Tensor) -> None:
        """Fill `records` (N, words) from those without frames. Raises StorageError."""
        for part, target in zip(torch.split(small, AT_ONCE), torch.split(records, AT_ONCE), strict=True):
            self._put_back(part, target)

    def _put_back(self, small: Tensor, records: Tensor) -> None:
        count = len(small)
        known = self.small.empty(count, torch.device("cpu"))
        self.small.unpack(small, known)
        views = iter(self._record.views(records))
        for name, column in self._record.columns.items():
            targets = [next(views) for _ in leaves(column)]
            if name in self._stacked:
                rows, ages = known[name][ROW], known[name][AGE]
                self._stacks(rows, ages).gather(torch.arange(count), targets)
            else:
                for leaf, target in zip(leaves(known[name]), targets, strict=True):
                    target.copy_(leaf.reshape(count, -1))

    def _stacks(self, rows: Tensor, ages: Tensor) -> FrameStacks:
        """These stacks, over the frames that they need."""
        backs = torch.arange(self._size)
        needed = torch.unique(torch.where(ages[:, None] >= backs, rows[:, None] - backs, rows[:, None]))
        held = torch.empty((len(needed), self._frame.words), dtype=torch.int64)
        numbers = needed.numpy()
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            self._file.read_into(int(numbers[begin]) * self._frame.nbytes, held[begin:end].numpy().data)
        frames = [
            view.view(len(held), *leaf.shape[1:])
            for view, leaf in zip(self._frame.views(held), leaves(self._frames), strict=True)
        ]
        return FrameStacks(unflatten_like(self._frames, frames), torch.searchsorted(needed, rows), ages, self._size)

    @property
    def _frames(self) -> Tree:
        return self._frame.columns[FRAME]

    def close(self) -> None:
        """Release the disk."""
        self._file.__exit__(None, None, None)


def record_of(columns: Mapping[str, Any]) -> RecordForm:
    """Of a step with its stacks."""
    return RecordForm.of(expanded(columns, slice(0, 1)))
