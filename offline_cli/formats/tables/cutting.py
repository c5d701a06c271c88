"""Where episodes end in rows that stand in order; refuses nothing, what was doubtful is counted.

* `flags`: after a row with an end flag.
* `t`: also before a row whose `t` is not larger.
* `chain`: also after a row that did not lead to the observation of the next one.

Between two files an episode goes on unless one of these ends it; under `flags` the chain decides, where there is `new_obs`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offline_cli.formats.tables.rows import Rows
from offline_cli.tally import Tally

__all__ = ["CHAIN", "FLAGS", "ORDER", "goes_on"]

FLAGS = "flags"
ORDER = "t"
CHAIN = "chain"


def goes_on(rows: Rows, ends: str, tally: Tally) -> NDArray[np.bool_]:
    """(N-1,) whether a row is of the same episode as the one before it."""
    ended = np.logical_or.reduce([np.zeros(len(rows), np.bool_), *rows.flags.values()])
    joined: NDArray[np.bool_] = ~ended[:-1]
    if ends == ORDER and rows.t is not None:
        joined &= rows.t[1:] > rows.t[:-1]
    chains = rows.chains() if ends == CHAIN or (ends == FLAGS and rows.next_obs is not None) else None
    files_end = rows.file[1:] != rows.file[:-1]
    if chains is not None:
        joined &= chains if ends == CHAIN else chains | ~files_end
    if ends != ORDER and rows.t is not None:
        tally.assume("t-falls-back", int((joined & (rows.t[1:] < rows.t[:-1])).sum()))
    tally.fragments_stitched += int((joined & files_end).sum())
    return joined
