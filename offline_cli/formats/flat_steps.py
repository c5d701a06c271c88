"""Flat arrays of a row a step, several episodes in each: blocks of them, and episodes as such arrays for writing.

D4RL has them in HDF5, OGBench and others in NumPy archives.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.leaf_names import named_leaves
from offline_cli.formats.left_out import count_finals
from offline_cli.formats.whole_episodes import Reads
from offline_cli.tally import Tally
from offline_cli.trees import Tree

OBS, ACTIONS, REWARDS, TERMINALS = "observations", "actions", "rewards", "terminals"
NEXT, TIMEOUTS = "next_observations", "timeouts"
BLOCK: Final = 32 << 20  # bytes of rows that are read at a time


class FlatArrays(Protocol):
    """The arrays of one open file."""

    starts: NDArray[np.int64]  # (E+1,) the rows of episode e are starts[e]:starts[e+1]
    row_bytes: int  # of one row of all arrays

    def episodes(self, begin: int, stop: int, ids: tuple[str, ...]) -> EpisodeBatch:
        """Episodes [begin, stop), by these ids; they are asked for one block after the other. Raises BadData."""


def blocks(flat: FlatArrays, prefix: str) -> Reads:
    """The episodes of a file, as many at a time as fit into `BLOCK`, or a single one; `prefix`: how their ids begin.

    What is wrong with a block ends the file, because arrays are read on from where the last one ended.
    """
    starts, rows, begin = flat.starts, max(1, BLOCK // max(1, flat.row_bytes)), 0
    while begin < len(starts) - 1:
        stop = max(begin + 1, int(np.searchsorted(starts, starts[begin] + rows, side="right")) - 1)
        batch = flat.episodes(begin, stop, tuple(f"{prefix}{at}" for at in range(begin, stop)))
        yield starts[begin:stop].tolist(), partial(EpisodeBatch.concat, [batch])
        begin = stop


# ---- writing ----


def narrow(rewards: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
    """As float32, as other programs write them, where that changes none."""
    with np.errstate(over="ignore"):
        cast = rewards.astype(np.float32)
    return cast if np.array_equal(cast.astype(np.float64), rewards, equal_nan=True) else rewards


class FlatSteps:
    """Steps of batches as arrays by name. `next_observations` keep the final observation of each episode: they are for files
    in which each of these was recorded.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally, self._finals = tally, Tally()  # the second counts the final observations that are known
        self._are_known = True  # all of them

    def arrays(self, batch: EpisodeBatch, extra: Mapping[str, Tree]) -> dict[str, NDArray[Any]]:
        """Those of a batch; an extra output whose name is taken is left out."""
        count_finals(batch, self._finals)
        self._are_known &= not batch.final_obs_assumed.any()
        terminateds, truncateds = batch.step_flags()
        further = {path: leaf for name, tree in extra.items() for path, leaf in named_leaves(name, tree).items()}
        return {
            **further,
            **named_leaves(OBS, batch.acted_obs(view=True)),
            **named_leaves(ACTIONS, batch.actions),
            REWARDS: batch.rewards,
            **named_leaves(NEXT, batch.next_obs(view=True)),
            TERMINALS: terminateds,
            TIMEOUTS: truncateds,
        }

    def are_finals_known(self) -> bool:
        """Whether `next_observations` are to be written; to be asked once, at the end: it counts what is not kept."""
        if not self._are_known:
            self._tally.add(self._finals)
        return self._are_known
