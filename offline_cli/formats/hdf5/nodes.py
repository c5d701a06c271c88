"""What is told of objects of an HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alike", "Form", "Node"]

Form = tuple[str, tuple[int, ...]]
"""dtype of one value (or TEXT, FRAMES) and shape of a dataset."""


@dataclass(frozen=True, slots=True)
class Node:
    """A group or a dataset, and the datasets below it by their path from here; of a dataset, itself under ''."""

    attributes: Mapping[str, Any]  # JSON values
    left_out: tuple[str, ...]  # attributes that are neither numbers nor texts
    datasets: Mapping[str, Form]
    groups: tuple[str, ...]
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of datasets, as far as they were loaded


@dataclass(frozen=True, slots=True)
class Alike:
    """Groups of one form: they differ in values, and in numbers of rows, alone."""

    names: Sequence[str]  # N
    attributes: Sequence[Mapping[str, Any]]  # N, JSON values
    rows: Mapping[str, NDArray[np.int64]]  # (N,) by dataset
    values: Mapping[str, NDArray[Any]]  # (rows of all groups, ...) by dataset, one group after another

    @property
    def joined(self) -> Node:
        """All of them as if they were one group, without attributes."""
        return Node({}, (), {name: (one.dtype.str, one.shape) for name, one in self.values.items()}, (), self.values)

    def part(self, first: int, stop: int) -> Alike:
        """Groups [first, stop)."""
        values = {}
        for name, rows in self.rows.items():
            before = int(rows[:first].sum())
            part = self.values[name][before : before + int(rows[first:stop].sum())]
            values[name] = part if 2 * len(part) > len(self.values[name]) else part.copy()  # which does not hold the whole
        counts = {name: rows[first:stop] for name, rows in self.rows.items()}
        return Alike(self.names[first:stop], self.attributes[first:stop], counts, values)
