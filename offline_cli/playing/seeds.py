"""Where chance comes from: one seed per purpose and number, derived from the run's; refuses to let two purposes share seeds.

A seed for an environment has 31 bits, since some environments take no more. Its highest two bits are the purpose, so that
checks during training, confirmations, `evaluate` and `record` never play the same episode.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = ["Purpose", "draw", "episode_seed", "episode_seeds", "for_torch"]

BITS_BELOW_PURPOSE = 29
BITS_OF_TORCH = 64


class Purpose(IntEnum):
    """What episodes are played for."""

    EVALUATE = 0
    CHECK = 1
    CONFIRM = 2
    RECORD = 3


def episode_seed(seed: int, purpose: Purpose, index: int, round_: int = 0) -> int:
    """The environment's seed for the `index`-th episode started; `round_` tells apart the checks of one run."""
    return (int(purpose) << BITS_BELOW_PURPOSE) | (draw(seed, purpose, round_, index) & ((1 << BITS_BELOW_PURPOSE) - 1))


def episode_seeds(seed: int, purpose: Purpose, count: int, round_: int = 0) -> list[int]:
    """The seeds of `count` episodes."""
    return [episode_seed(seed, purpose, index, round_) for index in range(count)]


def draw(*key: int) -> int:
    """63 bits that follow from `key`, whose parts are not negative."""
    return int(np.random.SeedSequence([int(part) for part in key]).generate_state(1, np.uint64)[0]) >> 1


def for_torch(seed: int) -> int:
    """`seed`, which is not negative, as torch takes one: itself where there is room for it, else bits that follow from it."""
    return seed if seed < 1 << BITS_OF_TORCH else draw(seed)
