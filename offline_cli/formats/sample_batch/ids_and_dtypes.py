"""Which episode each row of a SampleBatch line belongs to, and what only many lines together show: dtypes and agents.

* `Identifier`: with `eps_id`, rows of one episode and agent that are apart in a line (agents that took turns) are brought
  together, in their order. Without it an episode begins after an end flag, where the agent changes, where `t` does not follow
  and, where there is no `t` either, where `new_obs` is not the next `obs`; a line continues the episode that the line before it
  in the file left unfinished, by the same rules. Such episodes are named `<8 hex of file and its first line>-<number>`. Every
  id that had to be made up is counted.
* `Settlement`: dtypes of plain lists, columns that repeat others, how many agents there are.

JSON has no float32. RLlib writes float32 values as the decimals of the float64 they equal, so a column whose values all survive
the way to float32 and back is taken as float32, as the same column packed would say; any other as float64. Integers are int64.
Where the caller knows the spaces, a dtype of theirs that holds every value exactly is taken instead. Rewards are float64
always. Each column of decimals is counted once, as `dtype-inferred`.

A source is settled on its first lines (`blocks.LOOKAHEAD_BYTES`), in most cases on all of them. A later value that does not fit
what was settled makes the column wider from there on (`dtype-widened`): nothing is rounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.sample_batch.files import Line
from offline_cli.formats.sample_batch.rows import PolicyRows
from offline_cli.formats.step_rows import chained
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.tally import Tally
from offline_cli.trees import Tree, equal_values, flatten, map_leaves, same_leaf, unflatten_like

__all__ = ["Identifier", "Settlement", "run_starts"]

PREVIOUS: Final = {"prev_actions": Columns.ACTIONS, "prev_rewards": Columns.REWARDS}
"""Columns that repeat another one a step later, 0 at first steps: left out where they add nothing."""
EXACT_IN_FLOAT32: Final = 1 << 24

Path = tuple[str | None, str]  # policy, dotted path of the leaf


def run_starts(rows: PolicyRows) -> NDArray[np.bool_]:
    """(N,) true where a row does not continue the one before it in its line; always at a line's first row."""
    ended = rows.terminateds | rows.truncateds
    follows = ~ended[:-1] & (rows.agent_index[1:] == rows.agent_index[:-1])
    if rows.eps_id is not None:
        follows &= rows.eps_id[1:] == rows.eps_id[:-1]
    if rows.t is not None:
        follows &= rows.t[1:] == rows.t[:-1] + 1
    elif rows.eps_id is None and Columns.NEXT_OBS in rows.columns:
        follows &= chained(rows.columns[Columns.OBS].tree, rows.columns[Columns.NEXT_OBS].tree)
    starts = np.concatenate([[True], ~follows])
    starts[rows.starts[:-1]] = True
    return starts


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """The last row of a policy's last line, which did not end its episode."""

    eps_id: str
    agent: Any
    t: int | None
    new_obs: Tree | None  # leaves (...)

    def goes_on_in(self, rows: PolicyRows) -> bool:
        """Whether row 0 is the next step."""
        if rows.agent_index[0] != self.agent:
            return False
        if rows.t is not None and self.t is not None:
            return bool(rows.t[0] == self.t + 1)
        if self.new_obs is None:
            return True
        return _same(self.new_obs, map_leaves(lambda leaf: leaf[0], rows.columns[Columns.OBS].tree))


@dataclass(slots=True)
class Identifier:
    """Gives every row an `eps_id`; one for all files of a source, in their order."""

    tally: Tally
    _file: str = ""
    _files: int = 0
    _prefix: str = ""
    _made: int = 0
    _unfinished: dict[str | None, _Unfinished] = field(default_factory=dict)  # by policy

    def identify(self, rows: PolicyRows, line: Line) -> PolicyRows:
        """`rows` with an id on each row, and the rows of one episode and agent one after the other; `line` is their first."""
        if line.file != self._file:
            self._start_file(line)
        if rows.eps_id is None:
            rows.eps_id = np.concatenate([self._made_up(part) for part in rows.by_line()])
            return rows
        return _brought_together(rows, self.tally)

    def _start_file(self, line: Line) -> None:
        self._file, self._made = line.file, 0
        self._unfinished.clear()
        name = line.file.replace("\\", "/").rpartition("/")[2]
        self._prefix = hashlib.blake2b(f"{self._files}:{name}:".encode() + line.data, digest_size=4).hexdigest()
        self._files += 1

    def _made_up(self, rows: PolicyRows) -> NDArray[np.str_]:
        """Ids for the rows of one line."""
        first = np.flatnonzero(run_starts(rows))
        before = self._unfinished.pop(rows.policy, None)
        goes_on = before is not None and before.goes_on_in(rows)
        names = [before.eps_id] if before is not None and goes_on else []
        for _ in range(len(first) - len(names)):
            names.append(f"{self._prefix}-{self._made}")
            self._made += 1
        self.tally.assume("missing-eps-id", len(first) - int(goes_on))
        if not (rows.terminateds[-1] or rows.truncateds[-1]):
            self._unfinished[rows.policy] = _last_row(rows, names[-1])
        return np.repeat(np.array(names), np.diff(np.append(first, rows.rows)))


def _last_row(rows: PolicyRows, eps_id: str) -> _Unfinished:
    new_obs = rows.columns.get(Columns.NEXT_OBS)
    last = None if new_obs is None else map_leaves(lambda leaf: leaf[-1].copy(), new_obs.tree)
    return _Unfinished(eps_id, rows.agent_index[-1], None if rows.t is None else int(rows.t[-1]), last)


def _brought_together(rows: PolicyRows, tally: Tally) -> PolicyRows:
    """The same rows, those of one episode and agent one after the other within each line."""
    assert rows.eps_id is not None
    changes = (rows.eps_id[1:] != rows.eps_id[:-1]) | (rows.agent_index[1:] != rows.agent_index[:-1])
    begins = np.concatenate([[True], changes])
    begins[rows.starts[:-1]] = True
    first = np.flatnonzero(begins)
    line = np.searchsorted(rows.starts, first, side="right") - 1
    keys = zip(line.tolist(), rows.eps_id[first].tolist(), rows.agent_index[first].tolist(), strict=True)
    order: dict[Any, int] = {}
    groups = [order.setdefault(key, len(order)) for key in keys]
    if len(order) == len(first):
        return rows
    mixed = np.bincount(line) != np.bincount([number for number, *_ in order])
    tally.assume("rows-brought-together", int(np.diff(rows.starts)[mixed].sum()))
    group = np.repeat(groups, np.diff(np.append(first, rows.rows)))
    return rows.take(np.argsort(group, kind="stable"))


def _same(left: Tree, right: Tree) -> bool:
    pairs = zip(flatten(left), flatten(right), strict=True)
    return all(path == other and same_leaf(mine, theirs) for (path, mine), (other, theirs) in pairs)


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
    """Collects evidence from the first lines, then settles it for all."""

    tally: Tally
    observation_space: Space | None = None
    action_space: Space | None = None
    _evidence: dict[Path, _Evidence] = field(default_factory=dict)
    _underived: set[tuple[str | None, str]] = field(default_factory=set)  # policy, column of PREVIOUS that adds something
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
        """Find the columns that do not merely repeat others."""
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
        """Whether that agent's episodes need more than `eps_id` to be distinguished from other agents' (they share it)."""
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

    `first`: (N,) the rows that do not continue the one before. True of several lines, it is true of each of them.
    """
    if name not in rows.columns:
        return True
    repeated = rows.rewards if PREVIOUS[name] == Columns.REWARDS else rows.columns[PREVIOUS[name]].tree
    begins = first & (rows.t == 0) if rows.t is not None else np.zeros_like(first)

    def same(previous: NDArray[Any], current: NDArray[Any]) -> bool:
        if previous.shape != current.shape and len(rows.lines) > 1:  # numpy may find a common one, which depends on the rows
            return False
        return not previous[begins].any() and bool(equal_values(previous[1:], current[:-1])[~first[1:]].all())

    try:
        return all(flat for _, flat in flatten(map_leaves(same, rows.columns[name].tree, repeated)))
    except ValueError:  # another structure or shape: it is no repetition
        return False
