"""Steps as records of one size, all columns of a step side by side.

A record is whole 8-byte words, so that any number of them is one tensor (N, words) that can be gathered, written and read as it
is, and each leaf of it a strided view: one look-up in memory per step, however many columns there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from offline_cli.trees import Tree, flatten, map_leaves, unflatten_like

__all__ = ["RecordForm"]

WORD: Final = 8  # bytes


@dataclass(frozen=True, slots=True)
class _Field:
    """One leaf in every record."""

    path: str
    offset: int  # bytes from the record's start, a multiple of the item size
    dtype: torch.dtype
    shape: tuple[int, ...]  # of one step

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class RecordForm:
    """How a step's leaves lie in its record; columns are trees of tensors (N, ...) by name."""

    fields: tuple[_Field, ...]
    columns: Mapping[str, Tree]  # the structure; its leaves are empty
    words: int

    @classmethod
    def of(cls, columns: Mapping[str, Tree]) -> RecordForm:
        """The form for columns like these."""
        fields, end = [], 0
        for path, leaf in flatten(dict(columns)):
            end = -(-end // leaf.dtype.itemsize) * leaf.dtype.itemsize
            fields.append(_Field(path, end, leaf.dtype, tuple(leaf.shape[1:])))
            end += fields[-1].nbytes
        empty = {name: map_leaves(lambda leaf: leaf[:0], tree) for name, tree in columns.items()}
        return cls(tuple(fields), empty, -(-end // WORD))

    @property
    def nbytes(self) -> int:
        """Of one record."""
        return self.words * WORD

    @property
    def name(self) -> str:
        """Text that is the same for the same form alone."""
        return "; ".join(f"{field.path} {field.dtype} {field.shape} at {field.offset}" for field in self.fields)

    def packed(self, columns: Mapping[str, Tree]) -> Tensor:
        """(N, words) int64. Raises ValueError for columns of another form."""
        if RecordForm.of(columns).name != self.name:
            raise ValueError(f"columns {RecordForm.of(columns).name}, not {self.name}")
        parts = [leaf for _, leaf in flatten(dict(columns))]
        records = torch.zeros((len(parts[0]), self.words), dtype=torch.int64)
        for view, leaf in zip(self.views(records), parts, strict=True):
            view.copy_(leaf.reshape(len(leaf), math.prod(leaf.shape[1:])))
        return records

    def views(self, records: Tensor) -> list[Tensor]:
        """The leaves of `records` (N, words) in place, each as (N, numbers of one step)."""
        plain = records.view(torch.uint8)
        return [plain[:, field.offset : field.offset + field.nbytes].view(field.dtype) for field in self.fields]

    def empty(self, rows: int, device: torch.device) -> dict[str, Tree]:
        """Columns for so many steps, on `device`, not filled."""
        made = [torch.empty((rows, *field.shape), dtype=field.dtype, device=device) for field in self.fields]
        return dict(unflatten_like(dict(self.columns), made))

    def unpack(self, records: Tensor, columns: Mapping[str, Tree]) -> None:
        """Copy `records` (B, words) into `columns` of as many steps, on the same device."""
        for view, leaf in self.pairs(records, columns):
            leaf.copy_(view)

    def pairs(self, records: Tensor, columns: Mapping[str, Tree]) -> list[tuple[Tensor, Tensor]]:
        """The leaves of `records` in place, each with that of `columns` it belongs in; for copying the same ones repeatedly."""
        leaves = [leaf.view(len(leaf), math.prod(leaf.shape[1:])) for _, leaf in flatten(dict(columns))]
        return list(zip(self.views(records), leaves, strict=True))
