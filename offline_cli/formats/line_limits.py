"""How long a line of JSON may be; refuses packed files whose lines are far larger than the file itself."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_LINE_BYTES", "line_limit_of"]

MAX_LINE_BYTES: Final = 1 << 30  # RLlib starts a new file after 64 MiB, and a line is a part of a file
SMALL_LINE_BYTES: Final = 8 << 20  # parsed, a line can take 30 times its bytes
MAX_RATIO: Final = 200  # a longer line may be so often the size of its packed file; bombs reach 1032 with deflate


def line_limit_of(size: int, *, packed: bool) -> int:
    """Bytes that a line may have in a file of `size` bytes as it is stored."""
    return min(MAX_LINE_BYTES, max(SMALL_LINE_BYTES, MAX_RATIO * size)) if packed else MAX_LINE_BYTES
