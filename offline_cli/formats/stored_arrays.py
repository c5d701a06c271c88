"""Arrays of HDF5 files and NumPy archives, as known before their values are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class StoredArray:
    """The name, type and shape of one array."""

    name: str  # its path, `/` between parts
    dtype: np.dtype[Any] | None  # of its numbers; None: it holds none that are read
    shape: tuple[int, ...]
    said: str  # what it holds, for messages: a dtype, or text

    @property
    def row_bytes(self) -> int:
        """Of one row; 0 without numbers."""
        return 0 if self.dtype is None else math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.row_bytes * (self.shape[0] if self.shape else 1)

    def has_rows(self, rows: int) -> bool:
        """Whether it has a number, or an array of numbers, for each of `rows` rows."""
        return self.dtype is not None and self.shape[:1] == (rows,)

    def why_no_column(self, rows: int) -> str:
        """Why it is no column of `rows` rows: for its shape, or else for what it holds."""
        if self.shape[:1] != (rows,):
            return f"of shape {list(self.shape)}, and not one value for each of {rows:,} rows"
        return f"{self.said} of shape {list(self.shape)}, and not a number, or an array of numbers, a row"
