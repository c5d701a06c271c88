"""Which steps ended their episode, by the flags that a source has; refuses to choose in silence between flags that differ.

Where there is no `terminateds`, an end that the legacy `dones` (or `done`) tells and that is no truncation is a termination.
Beside `terminateds` the legacy column is not needed, and is only compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.tally import Tally

__all__ = ["END_FLAGS", "end_flags"]

LEGACY: Final = (Columns.DONES, "done")
END_FLAGS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS, *LEGACY)
"""Every column that may tell an end."""


def end_flags(columns: Mapping[str, NDArray[Any]], rows: int, tally: Tally) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(N,) terminateds and truncateds of the flags among `columns`.

    Counts the terminations that only `dones` tells (`dones-as-terminateds`), and the steps where it says something else than
    the flags beside it (`dones-disagree`).
    """
    read = {name: np.asarray(columns[name]).astype(np.bool_) for name in END_FLAGS if name in columns}
    none = np.zeros(rows, np.bool_)
    truncateds = read.get(Columns.TRUNCATEDS, none)
    legacy = [read[name] for name in LEGACY if name in read]
    if Columns.TERMINATEDS in read:
        terminateds = read[Columns.TERMINATEDS]
    else:
        terminateds = legacy[0] & ~truncateds if legacy else none
        tally.assume("dones-as-terminateds", int(terminateds.sum()))
    for dones in legacy:
        tally.assume("dones-disagree", int((dones != (terminateds | truncateds)).sum()))
    return terminateds, truncateds
