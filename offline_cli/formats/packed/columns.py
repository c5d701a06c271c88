"""How a column of cells is read: a few cells as the patterns of many, the cells that are left one by one."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.formats.packed.template import Texts
from offline_cli.formats.packed.text import MAX_RATIO, SMALL_BYTES

__all__ = ["Column", "check_size", "fill"]

MAX_PATTERNS: Final = 8  # cells that are tried as the pattern of many; RLlib's columns need one or two
FEW: Final = 32  # so few cells are read one by one


class Column(Protocol):
    """Arrays being filled from the cells of a column."""

    def fill_alike(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Read the first of `rows`, and with it all that differ from it in the bytes of numbers only; the rows left."""

    def fill_one(self, row: int) -> Any:
        """Read cell `row` on its own."""


def fill(column: Column, count: int) -> None:
    """Read all `count` cells of a column."""
    rows = np.arange(count)
    for _ in range(MAX_PATTERNS):
        if len(rows) <= FEW:
            break
        rows = column.fill_alike(rows)
    for row in rows.tolist():
        column.fill_one(row)


def check_size(texts: Texts, first_bytes: int, *, kind: str, where: str) -> None:
    """Raise BadEpisode where the cells are too short to be all as large as the first, of `first_bytes` when unfolded."""
    if first_bytes * len(texts) > MAX_RATIO * len(texts.data) + SMALL_BYTES:
        what = f"{len(texts)} {kind} cells that cannot all be as large as the first"
        raise BadEpisode(what, where=where, fix="convert the files of each kind into a dataset of its own")
