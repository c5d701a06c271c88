"""What only many lines together can tell: dtypes of plain lists, columns that repeat others, how many agents there are.

JSON knows no float32. RLlib writes float32 values as the decimals of the float64 they equal, so a column whose values all
survive the way to float32 and back is taken as float32, as the same column packed would say; any other as float64. Integers
are int64. Where the caller knows the spaces, a dtype of theirs that holds every value exactly is taken instead. Rewards are
float64 always. Each column of decimals is counted once, as `dtype-inferred`.

A source is settled on its first lines (`source.LOOKAHEAD_BYTES`), in most cases on all of them. A later value that does
not fit what was settled makes the column wider from there on (`dtype-widened`): nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.sample_batch.ids import run_starts
from offline_cli.formats.sample_batch.rows import PolicyRows
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, map_leaves, unflatten_like

__all__ = ["Settlement"]

PREVIOUS: Final = {"prev_actions": Columns.ACTIONS, "prev_rewards": Columns.REWARDS}
"""Columns that repeat another one a step later, 0 at first steps: left out where they do no more than that."""
EXACT_IN_FLOAT32: Final = 1 << 24

Path = tuple[str | None, str]  # policy, dotted path of the leaf


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The narrowest dtype that the values seen need."""

    dtype: np.dtype[Any]
    small_int: bool = False  # plain integers that float32 holds too: 1.0 may have been written as 1
    inferred: bool = False  # from decimals

    def with_more(self, other: _Evidence) -> _Evidence:
        """What both need."""
        if self.dtype == other.dtype:
            return _Evidence(self.dtype, self.small_int and other.small_int, self.inferred or other.inferred)
        small, large = (self, other) if self.small_int else (other, self)
        if small.small_int and large.dtype.kind in "iuf" and large.dtype.itemsize >= 4:
            return large
        return _Evidence(np.promote_types(self.dtype, other.dtype), inferred=self.inferred or other.inferred)


@dataclass(slots=True)
class Settlement:
    """Collects evidence from the first lines, then says what holds for all."""

    tally: Tally
    observation_space: Space | None = None
    action_space: Space | None = None
    _evidence: dict[Path, _Evidence] = field(default_factory=dict)
    _underived: set[tuple[str | None, str]] = field(default_factory=set)  # policy, column of PREVIOUS that says more
    _agents: set[tuple[str | None, Any]] = field(default_factory=set)  # policy, agent index
    _is_settled: bool = False

    # ---- evidence ----

    def takes_together(self, rows: PolicyRows) -> bool:
        """Whether `rows` can be observed before the rows ahead of them are cast, and all of their lines as one.

        Not where one of the lines might make a column wider: it does so from there on.
        """
        return all(self._is_as_known(*leaf, len(rows.lines)) for leaf in self._leaves_of(rows))

    def _is_as_known(self, path: Path, leaf: NDArray[Any], typed: bool, wanted: np.dtype[Any] | None, lines: int) -> bool:
        found, known = _evidence_of(leaf, typed, wanted), self._evidence.get(path)
        if lines > 1 and wanted is not None and found.dtype != wanted:
            return False
        return not self._is_settled or (known is not None and known.with_more(found).dtype == known.dtype)

    def observe(self, rows: PolicyRows) -> None:
        """Take `rows` into account."""
        for path, leaf, typed, wanted in self._leaves_of(rows):
            self._observe(path, _evidence_of(leaf, typed, wanted))
        if not self._is_settled:
            self._agents |= {(rows.policy, agent) for agent in set(rows.agent_index.tolist())}
        self._observe_previous(rows)

    def _leaves_of(self, rows: PolicyRows) -> Iterator[tuple[Path, NDArray[Any], bool, np.dtype[Any] | None]]:
        """Each leaf: its path, its values, whether they came with a dtype of their own, and if not the dtype by the space."""
        for name, column in rows.columns.items():
            for path, leaf in flatten(column.tree, _shared_name(name)):
                wanted = None if column.typed else self._dtype_by_space(name, path)
                yield (rows.policy, path), leaf, column.typed, wanted

    def _observe(self, path: Path, found: _Evidence) -> None:
        known = self._evidence.get(path)
        merged = found if known is None else known.with_more(found)
        if self._is_settled:
            if known is not None and merged.dtype != known.dtype:
                self.tally.assume("dtype-widened")
            elif known is None and merged.inferred:
                self.tally.assume("dtype-inferred")
        self._evidence[path] = merged

    def _observe_previous(self, rows: PolicyRows) -> None:
        """Find the columns that say more than those that they could repeat."""
        names = [name for name in PREVIOUS if name in rows.columns and not self._keeps(rows.policy, name)]
        if not names:
            return
        first = run_starts(rows)
        for name in names:
            if _is_derivable(rows, name, first):
                continue
            more = sum(part.rows for part in rows.by_line() if not _is_derivable(part, name, run_starts(part)))
            if self._is_settled:
                self.tally.assume(f"{name}-dropped".replace("_", "-"), more)
            elif more:
                self._underived.add((rows.policy, name))

    def _dtype_by_space(self, name: str, path: str) -> np.dtype[Any] | None:
        space = self.action_space if name == Columns.ACTIONS else self.observation_space
        if space is None or name not in (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS):
            return None
        leaf = leaf_spaces(space, _shared_name(name)).get(path)
        return None if leaf is None or leaf.dtype is None else np.dtype(leaf.dtype)

    # ---- what holds ----

    def settle(self) -> None:
        """Count what was inferred; what comes later can only widen it."""
        if not self._is_settled:
            self._is_settled = True
            inferred = [key for key, evidence in self._evidence.items() if evidence.inferred]
            self.tally.assume("dtype-inferred", sum(self._keeps(policy, path.partition(".")[0]) for policy, path in inferred))

    def trees_of(self, rows: PolicyRows) -> dict[str, Tree]:
        """The columns by name in their settled dtypes, without those that repeat others."""
        kept = {name: column.tree for name, column in rows.columns.items() if self._keeps(rows.policy, name)}
        return {name: self._cast(rows.policy, name, tree) for name, tree in kept.items()}

    def _keeps(self, policy: str | None, name: str) -> bool:
        return name not in PREVIOUS or (policy, name) in self._underived

    def _cast(self, policy: str | None, name: str, tree: Tree) -> Tree:
        if isinstance(tree, np.ndarray):
            return tree.astype(self._evidence[policy, _shared_name(name)].dtype, copy=False)
        cast = [leaf.astype(self._evidence[policy, path].dtype, copy=False) for path, leaf in flatten(tree, _shared_name(name))]
        return unflatten_like(tree, cast)

    def needs_suffix(self, policy: str | None, agent: Any) -> bool:
        """Whether that agent's episodes need more than `eps_id` to be told from other agents' (they share it)."""
        return self._agents != {(policy, agent)}


def _shared_name(name: str) -> str:
    """obs and new_obs are parts of one column in the end, and have one dtype."""
    return Columns.OBS if name == Columns.NEXT_OBS else name


def _evidence_of(leaf: NDArray[Any], typed: bool, wanted: np.dtype[Any] | None) -> _Evidence:
    if typed:
        return _Evidence(leaf.dtype)
    if wanted is not None and _survives(leaf, wanted):
        return _Evidence(wanted)
    if leaf.dtype == np.float32:  # narrowed already
        return _Evidence(leaf.dtype, inferred=True)
    if leaf.dtype.kind == "f":
        return _Evidence(np.dtype(np.float32 if _survives(leaf, np.dtype(np.float32)) else np.float64), inferred=True)
    if leaf.dtype.kind in "iu":
        small = not leaf.size or max(-int(leaf.min()), int(leaf.max())) <= EXACT_IN_FLOAT32
        return _Evidence(leaf.dtype, small_int=small)
    return _Evidence(leaf.dtype)


def _survives(leaf: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether every value of `leaf` is exact in `dtype`."""
    with np.errstate(over="ignore", invalid="ignore"):
        back = leaf.astype(dtype).astype(leaf.dtype)
    return bool(((back == leaf) | (leaf != leaf)).all())


def _is_derivable(rows: PolicyRows, name: str, first: NDArray[np.bool_]) -> bool:
    """Whether `name` is absent, or the column it repeats a step later: 0 at timestep 0, unknown where a line begins later.

    `first`: (N,) the rows that do not go on from the one before. True of several lines, it is true of each of them.
    """
    if name not in rows.columns:
        return True
    repeated = rows.rewards if PREVIOUS[name] == Columns.REWARDS else rows.columns[PREVIOUS[name]].tree
    begins = first & (rows.t == 0) if rows.t is not None else np.zeros_like(first)

    def same(previous: NDArray[Any], current: NDArray[Any]) -> bool:
        if previous.shape != current.shape and len(rows.lines) > 1:  # numpy may find a common one, which depends on the rows
            return False
        return not previous[begins].any() and bool((previous[1:] == current[:-1])[~first[1:]].all())

    try:
        return all(flat for _, flat in flatten(map_leaves(same, rows.columns[name].tree, repeated)))
    except ValueError:  # another structure or shape: it says something else
        return False
