"""Dtypes of plain lists: what only many lines of a SampleBatch source show together.

JSON has no float32. RLlib writes float32 values as the decimals of the float64 they equal, so a column whose values all survive
the way to float32 and back is taken as float32, as the same column packed would say; any other as float64. Integers are int64,
and among decimals such a decimal if they are small: 1.0 may have been written as 1. Where the caller knows the spaces, a dtype
of theirs that holds every value exactly is taken instead. Rewards are float64 always. Each column of decimals is counted once,
as `dtype-inferred`.

A source is settled on its first lines, in most cases on all of them. A later value that does not fit what was settled makes the
column wider from there on (`dtype-widened`): nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.rllib.batch_lines import PolicyRows
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.tally import Tally
from offline_cli.trees import equal_values, flatten, unflatten_like

__all__ = ["Dtypes"]

FLOAT32: Final = np.dtype(np.float32)
SMALL: Final = np.dtype(np.int16)  # evidence of plain integers that float32 holds too
Leaf = tuple[str | None, str]  # policy, dotted path


@dataclass(slots=True)
class Dtypes:
    """Collects the narrowest dtypes that the first lines need, then settles them for all."""

    tally: Tally
    observation_space: Space | None = None
    action_space: Space | None = None
    _needed: dict[Leaf, np.dtype[Any]] = field(default_factory=dict)
    _plain: set[Leaf] = field(default_factory=set)  # of which a value was in a plain list
    _inferred: set[Leaf] = field(default_factory=set)  # from decimals
    _is_settled: bool = False

    def observe(self, rows: PolicyRows) -> None:
        """Take `rows` into account."""
        for name, tree in rows.columns.items():
            for path, leaf in flatten(tree, _shared_name(name)):
                key, is_plain = (rows.policy, path), name not in rows.typed
                known = self._needed.get(key)
                by_space = self._dtype_by_space(name, path) if is_plain else None
                found = _narrowest(leaf, by_space) if is_plain else leaf.dtype
                needed = found if known is None or known == found else np.promote_types(known, found)
                self._needed[key] = needed
                if is_plain and found != by_space:
                    self._plain.add(key)
                    if leaf.dtype.kind == "f" and key not in self._inferred:
                        self._inferred.add(key)
                        self.tally.assume("dtype-inferred", int(self._is_settled and known is None))
                if self._is_settled and known is not None:
                    self.tally.assume("dtype-widened", int(needed != known))

    def _dtype_by_space(self, name: str, path: str) -> np.dtype[Any] | None:
        space = self.action_space if name == Columns.ACTIONS else self.observation_space
        if space is None or name not in (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS):
            return None
        leaf = leaf_spaces(space, _shared_name(name)).get(path)
        return None if leaf is None or leaf.dtype is None else np.dtype(leaf.dtype)

    def settle(self) -> None:
        """Count what was inferred; what comes later can only widen it."""
        if not self._is_settled:
            self._is_settled = True
            self.tally.assume("dtype-inferred", len(self._inferred))

    def settled(self, rows: PolicyRows) -> PolicyRows:
        """The rows with their columns in the settled dtypes."""
        found = {}
        for name, tree in rows.columns.items():
            keys = [((rows.policy, path), leaf) for path, leaf in flatten(tree, _shared_name(name))]
            found[name] = unflatten_like(tree, [leaf.astype(self._dtype_of(key), copy=False) for key, leaf in keys])
        return replace(rows, columns=found)

    def _dtype_of(self, key: Leaf) -> np.dtype[Any]:
        needed = self._needed[key]
        return np.dtype(np.int64) if needed == SMALL and key in self._plain else needed


def _narrowest(leaf: NDArray[Any], wanted: np.dtype[Any] | None) -> np.dtype[Any]:
    """For values of a plain list; `wanted`: the dtype of their space."""
    if wanted is not None and _survives(leaf, wanted):
        return wanted
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
