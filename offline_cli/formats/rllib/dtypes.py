"""Dtypes of plain lists: what only many lines of a SampleBatch source show together.

JSON has no float32. RLlib writes float32 values as the decimals of the float64 they equal, so a column whose values all survive
the way to float32 and back is taken as float32, as the same column packed would say; any other as float64. Integers are int64.
Where the caller knows the spaces, a dtype of theirs that holds every value exactly is taken instead. Rewards are float64
always. Each column of decimals is counted once, as `dtype-inferred`.

A source is settled on its first lines, in most cases on all of them. A later value that does not fit what was settled makes the
column wider from there on (`dtype-widened`): nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.rllib.batch_lines import Column, PolicyRows
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.tally import Tally
from offline_cli.trees import equal_values, flatten, unflatten_like

__all__ = ["Dtypes"]

EXACT_IN_FLOAT32: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The narrowest dtype that the values seen need."""

    dtype: np.dtype[Any]
    small_int: bool = False  # plain integers that float32 holds too: 1.0 may have been written as 1
    inferred: bool = False  # from decimals

    @classmethod
    def of(cls, leaf: NDArray[Any], wanted: np.dtype[Any] | None) -> _Evidence:
        """Of values of a plain list; `wanted`: the dtype of their space."""
        if wanted is not None and _survives(leaf, wanted):
            return cls(wanted)
        if leaf.dtype.kind == "f":
            narrow = np.dtype(np.float32)
            return cls(narrow if _survives(leaf, narrow) else np.dtype(np.float64), inferred=True)
        if leaf.dtype.kind in "iu":
            small = not leaf.size or max(-int(leaf.min()), int(leaf.max())) <= EXACT_IN_FLOAT32
            return cls(leaf.dtype, small_int=small)
        return cls(leaf.dtype)

    def with_more(self, other: _Evidence) -> _Evidence:
        """What both need."""
        if self.dtype == other.dtype:
            return _Evidence(self.dtype, self.small_int and other.small_int, self.inferred or other.inferred)
        small, large = (self, other) if self.small_int else (other, self)
        if small.small_int and large.dtype.kind in "iuf" and large.dtype.itemsize >= 4:
            return large
        return _Evidence(np.promote_types(self.dtype, other.dtype), inferred=self.inferred or other.inferred)


def _survives(leaf: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether every value of `leaf` is exact in `dtype`."""
    if leaf.dtype == dtype:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        back = leaf.astype(dtype).astype(leaf.dtype)
    return bool((back == leaf).all()) or bool(equal_values(back, leaf).all())


@dataclass(slots=True)
class Dtypes:
    """Collects evidence from the first lines, then settles it for all."""

    tally: Tally
    observation_space: Space | None = None
    action_space: Space | None = None
    _evidence: dict[tuple[str | None, str], _Evidence] = field(default_factory=dict)  # by policy, dotted path of the leaf
    _is_settled: bool = False

    def observe(self, rows: PolicyRows) -> None:
        """Take `rows` into account."""
        for name, column in rows.columns.items():
            for path, leaf in flatten(column.tree, _shared_name(name)):
                found = _Evidence(leaf.dtype) if column.typed else _Evidence.of(leaf, self._dtype_by_space(name, path))
                known = self._evidence.get((rows.policy, path))
                merged = found if known is None else known.with_more(found)
                if self._is_settled:
                    self.tally.assume("dtype-widened", int(known is not None and merged.dtype != known.dtype))
                    self.tally.assume("dtype-inferred", int(known is None and merged.inferred))
                self._evidence[rows.policy, path] = merged

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
            self.tally.assume("dtype-inferred", sum(evidence.inferred for evidence in self._evidence.values()))

    def settled(self, rows: PolicyRows) -> PolicyRows:
        """The rows with their columns in the settled dtypes."""
        found = {}
        for name, column in rows.columns.items():
            named = flatten(column.tree, _shared_name(name))
            cast = [leaf.astype(self._evidence[rows.policy, path].dtype, copy=False) for path, leaf in named]
            found[name] = Column(unflatten_like(column.tree, cast), typed=True)
        return replace(rows, columns=found)


def _shared_name(name: str) -> str:
    """obs and new_obs are parts of one column in the end, and have one dtype."""
    return Columns.OBS if name == Columns.NEXT_OBS else name
