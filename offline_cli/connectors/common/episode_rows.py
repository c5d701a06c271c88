"""The rows of single episodes without the cost of general indices; refuses to know lookback buffers but by leaving them out."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_cli.episodes.buffers.lookback_buffer import InfiniteLookbackBuffer

__all__ = ["first_rows"]


def first_rows(buffer: InfiniteLookbackBuffer, count: int) -> Any:
    """The first `count` records after the lookback buffer: leaves (count, ...), views, or a list where not numpy'ized."""
    if buffer.finalized and type(buffer.data) is np.ndarray:
        return buffer.data[buffer.lookback : buffer.lookback + count]
    return buffer.get(slice(0, count))
