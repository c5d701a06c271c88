"""Dtypes of plain lists: what only many lines of a SampleBatch source show together.

JSON has no float32. RLlib writes float32 values as the decimals of the float64 they equal, so a column whose values all survive
the way to float32 and back is taken as float32, as the same column packed would say; any other as float64. Integers are int64,
and among decimals such a decimal if they are small: 1.0 may have been written as 1. Rewards are float64 always. Each column of
decimals is counted once, as `dtype-inferred`.

Dtypes are settled on a block of lines, in most cases on all of the source. A later block that does not fit what was settled
makes the column wider from there on (`dtype-widened`): nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.rllib.batch_lines import TREES, PolicyRows
from offline_cli.tally import Tally
from offline_cli.trees import equal_values, flatten, unflatten_like

FLOAT32: Final = np.dtype(np.float32)
SMALL: Final = np.dtype(np.int16)  # stands for plain integers that float32 holds too
Leaf = tuple[str | None, str]  # policy, dotted path


@dataclass(slots=True)
class Dtypes:
    """The narrowest dtype of each leaf that holds all of its values so far."""

    tally: Tally
    known: frozenset[str] = frozenset()  # columns whose spaces are known: converting gives their values the dtypes of these
    _settled: dict[Leaf, np.dtype[Any]] = field(default_factory=dict)
    _plain: set[Leaf] = field(default_factory=set)  # of which a value was in a plain list
    _inferred: set[Leaf] = field(default_factory=set)  # from decimals

    def settle(self, block: Sequence[PolicyRows]) -> None:
        """Take all rows of a block into account."""
        needed: dict[Leaf, np.dtype[Any]] = {}
        for rows in block:
            for name in (*TREES, *rows.extras):
                for path, leaf in flatten(rows.columns.get(name, {}), _shared_name(name)):
                    key, is_plain = (rows.policy, path), name not in rows.typed
                    found = _narrowest(leaf) if is_plain else leaf.dtype
                    needed[key] = np.promote_types(needed.get(key, found), found)
                    if is_plain:
                        self._plain.add(key)
                        if leaf.dtype.kind == "f" and key not in self._inferred and name not in self.known:
                            self._inferred.add(key)
                            self.tally.assume("dtype-inferred")
        for key, dtype in needed.items():
            before = self._dtype_of(key, dtype)
            self._settled[key] = np.promote_types(self._settled.get(key, dtype), dtype)
            self.tally.assume("dtype-widened", int(self._dtype_of(key, dtype) != before))

    def of(self, rows: PolicyRows) -> PolicyRows:
        """The rows with their columns in the settled dtypes."""
        found = dict(rows.columns)
        for name in (*TREES, *rows.extras):
            if name in found:
                keys = [((rows.policy, path), leaf) for path, leaf in flatten(found[name], _shared_name(name))]
                cast = [leaf.astype(self._dtype_of(key, leaf.dtype), copy=False) for key, leaf in keys]
                found[name] = unflatten_like(found[name], cast)
        return replace(rows, columns=found)

    def _dtype_of(self, key: Leaf, default: np.dtype[Any]) -> np.dtype[Any]:
        dtype = self._settled.get(key, default)
        return np.dtype(np.int64) if dtype == SMALL and key in self._plain else dtype


def _narrowest(leaf: NDArray[Any]) -> np.dtype[Any]:
    """For values of a plain list."""
    if leaf.dtype.kind == "f":
        return FLOAT32 if _survives(leaf, FLOAT32) else leaf.dtype
    if leaf.dtype.kind in "iu":
        return SMALL if not leaf.size or (leaf.min() >= -(2**15) and leaf.max() < 2**15) else leaf.dtype
    return leaf.dtype


def _survives(leaf: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether every value of `leaf` is exact in `dtype`."""
    if leaf.dtype == dtype:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        back = leaf.astype(dtype).astype(leaf.dtype)
    return bool((back == leaf).all()) or bool(equal_values(back, leaf).all())


def _shared_name(name: str) -> str:
    """obs and new_obs are parts of one column in the end, and have one dtype."""
    return Columns.OBS if name == Columns.NEXT_OBS else name
