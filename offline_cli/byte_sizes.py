"""Sizes in bytes as people write them: `256MiB`, `1.5GB`."""

from __future__ import annotations

import re
from typing import Final

from offline_cli.errors import BadConfig, UsageError

__all__ = ["byte_size"]

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


FIX: Final = "write a number and a unit: 256MiB, 1GiB"


def byte_size(size: int | str, *, option: str, minimum: int = 0) -> int:
    """`256MiB`, `1.5GB`, `1g` or a plain number as bytes. Raises UsageError for other text, or one of fewer bytes than
    `minimum`, BadConfig for other types."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if not isinstance(size, str):
        raise BadConfig(f"{size!r} is not a size", where=option, fix=FIX)
    found = SIZE.fullmatch(size)
    if found is None:
        raise UsageError(f"{size!r} is not a size", where=option, fix=FIX)
    number, unit = found.groups()
    count = int(float(number) * UNITS[(unit or "").lower()])
    if count < minimum:
        raise UsageError(f"{option} {size} is less than {minimum}", where=option, fix=FIX)
    return count
