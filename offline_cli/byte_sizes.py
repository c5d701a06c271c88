"""Sizes in bytes as people write them: `256MiB`, `1.5GB`."""

from __future__ import annotations

import re
from typing import Final

from offline_cli.errors import UsageError

SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def byte_size(size: int | str, *, option: str, minimum: int = 0) -> int:
    """`256MiB`, `1.5GB`, `1g` or a plain number as bytes. Raises UsageError for what is none, or fewer than `minimum`."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    found = SIZE.fullmatch(size) if isinstance(size, str) else None
    fix = "write a number and a unit: 256MiB, 1GiB"
    if found is None:
        raise UsageError(f"{size!r} is not a size", where=option, fix=fix)
    number, unit, binary = found.groups()
    count = int(float(number) * (1024 if binary else 1000) ** POWERS[unit.lower()])
    if count < minimum:
        raise UsageError(f"{option} {size} is less than {minimum}", where=option, fix=fix)
    return count
