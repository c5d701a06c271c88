"""Files with one bit flipped, to see that no reader takes one for what was written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path


def flips(files: list[Path], count: int) -> Iterator[Path]:
    """`count` times one of the files with one bit flipped, the same times each; then as it was."""
    chance = random.Random(1)
    for number in range(count):
        file = files[number % len(files)]
        whole = file.read_bytes()
        at = chance.randrange(8 * len(whole))
        spoilt = bytearray(whole)
        spoilt[at // 8] ^= 1 << at % 8
        file.write_bytes(spoilt)
        yield file
        file.write_bytes(whole)
