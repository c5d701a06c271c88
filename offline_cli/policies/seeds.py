"""Seeds of episodes, and the random numbers of policies: each follows from (--seed, what is played for, episode, step).

So a resumed recording draws what an uninterrupted one draws. A seed for an environment has 31 bits, since some environments
take no more; its highest two bits are the purpose, so that no two purposes ever play the same episode.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Purpose", "chance_key", "draw", "for_torch", "reset_seed", "uniform"]

BITS_BELOW_PURPOSE: Final = 29
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MIXING: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


class Purpose(IntEnum):
    """What episodes are played for."""

    EVALUATE = 0
    CHECK = 1
    CONFIRM = 2
    RECORD = 3


def draw(*key: int) -> int:
    """63 bits that follow from `key`, whose parts are not negative."""
    return int(np.random.SeedSequence([int(part) for part in key]).generate_state(1, np.uint64)[0]) >> 1


def for_torch(seed: int) -> int:
    """`seed`, which is not negative, as torch takes one: itself where it fits into 64 bits, else bits that follow from it."""
    return seed if seed < 1 << 64 else draw(seed)


def reset_seed(seed: int, episode: int, purpose: Purpose = Purpose.RECORD, round_: int = 0) -> int:
    """What episode `episode`, from 0 on, is reset with: no two of a command alike. `round_` tells checks of a run apart."""
    first = draw(seed, purpose, round_) if round_ else draw(seed, purpose)
    return (int(purpose) << BITS_BELOW_PURPOSE) | ((first + episode) % (1 << BITS_BELOW_PURPOSE))


def chance_key(seed: int, purpose: Purpose, round_: int = 0) -> int:
    """The key of the random numbers of policies: see `uniform`."""
    return draw(seed, purpose, round_, 1)


def uniform(key: int, episodes: NDArray[np.int64], steps: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """(B, size) numbers in [0, 1) for steps (B,) of episodes (B,), by hashing. Source: Steele et al. 2014 (SplitMix64)."""
    with np.errstate(over="ignore"):
        rows = _mixed(np.uint64(key) + episodes.astype(np.uint64) * GOLDEN)
        rows = _mixed(rows + steps.astype(np.uint64) * GOLDEN)
        numbers = _mixed(rows[:, None] + np.arange(1, size + 1, dtype=np.uint64) * GOLDEN)
    found: NDArray[np.float64] = (numbers >> np.uint64(11)) * np.float64(2.0**-53)
    return found


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits
