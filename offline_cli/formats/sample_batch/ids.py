"""Which episode each row of a SampleBatch line belongs to; refuses nothing, but counts every id that it had to make up.

With `eps_id`: rows of one episode and agent that stand apart in a line (agents that took turns) are brought together, in
their order. Without it an episode begins after an end flag, where the agent changes, where `t` does not follow and, where
there is no `t` either, where `new_obs` is not the next `obs`; a line goes on with the episode that the line before it in the
file left unfinished, by the same rules. Such episodes are named `<8 hex of file and its first line>-<number>`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.sample_batch.files import Line
from offline_cli.formats.sample_batch.rows import PolicyRows
from offline_cli.formats.step_rows import chained
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["Identifier", "run_starts"]


def run_starts(rows: PolicyRows) -> NDArray[np.bool_]:
    """(N,) true where a row does not go on from the one before it in its line; always at a line's first row."""
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
    return all(path == other and np.array_equal(mine, theirs) for (path, mine), (other, theirs) in pairs)
