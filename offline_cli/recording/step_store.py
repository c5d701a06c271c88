"""Collects the steps of many slots as they come and returns whole episodes in order.

Each step writes one row per slot into arrays made beforehand (C, S, ...), without an object per step. Every C steps the rows
are gathered into a store that holds what has not been given out: runs of rows, each of one episode. Whole episodes leave it in
order of their numbers. An episode has T + 1 rows there, the last for its last observation alone. A row is copied three times
on its way, and the store is packed when less than half of it is still needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.playing.plan import Plan
from offline_cli.policies.policy import Acted
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves, unflatten_like

__all__ = ["StepStore", "steps_of_plan"]

CHUNK_BYTES: Final = 8 << 20
MIN_STEPS, MAX_STEPS = 8, 1024  # C
EPISODE, ORDER, ROW, LENGTH = range(4)  # of a run of rows: episode, number among the episode's runs, first row, number of rows
Index = NDArray[np.int64]
Rows = NDArray[Any]


def _rows(runs: Index, stride: Index | int = 1) -> Index:
    """The rows of all `runs` (4, n), one after the other; `stride` between two rows of a run."""
    first, length = runs[ROW], runs[LENGTH]
    ends = np.cumsum(length)
    within: Index = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - length, length)
    strides = np.repeat(stride, length) if isinstance(stride, np.ndarray) else stride
    rows: Index = np.repeat(first, length) + within * strides
    return rows


def _packed(runs: Index, first: int = 0) -> Index:
    """`runs` with their rows one after the other, from row `first` on."""
    lengths = runs[LENGTH]
    return np.stack([runs[EPISODE], runs[ORDER], first + np.cumsum(lengths) - lengths, lengths])


class _Column:
    """One array of a recording: the rows of the current chunk, and those that are kept."""

    def __init__(self, like: Rows, steps: int, slots: int, spare: int) -> None:
        """`spare`: rows after the chunk's, for last observations; 0 for what steps have and observations have not."""
        empty = None if like.dtype == object else 0
        self.chunk = np.full((steps * slots + spare, *like.shape[1:]), empty, like.dtype)
        self.by_step = self.chunk[: steps * slots].reshape(steps, slots, *like.shape[1:])
        self.spare = self.chunk[steps * slots :]
        self._store = self.chunk[:0]

    def keep(self, rows: Index, used: int) -> None:
        """Append these rows of the chunk to the `used` rows of the store."""
        wanted = used + len(rows)
        if wanted > len(self._store):
            larger = np.empty((max(wanted, 2 * len(self._store)), *self.chunk.shape[1:]), self.chunk.dtype)
            larger[:used] = self._store[:used]
            self._store = larger
        taken = rows if len(self.spare) else np.minimum(rows, len(self.chunk) - 1)  # a last observation has no step
        np.take(self.chunk, taken, axis=0, out=self._store[used:wanted], mode="clip")

    def given(self, rows: Index) -> Rows:
        return self._store[rows]

    def pack(self, rows: Index) -> None:
        """Keep only these rows, in this order."""
        self._store = self._store[rows]


class StepStore:
    """Collects rows of S slots into episodes: a Sink that returns EpisodeBatches, in order."""

    def __init__(self, slots: int, spaces: tuple[Space, Space], ids: Callable[[Index], tuple[str, ...]]) -> None:
        """`spaces`: of observations and actions. `ids`: from episode numbers (E,) to as many ids."""
        self._spaces, self._ids = spaces, ids
        self._slots = slots
        self.row_bytes = 1
        self._steps = self._spare = 0  # rows of a chunk, by step and for last observations; 0: nothing has come yet
        self._obs: list[_Column] = []
        self._infos: _Column | None = None
        self._row = 0  # in the chunk
        self._finals = 0  # rows of spare that will be taken
        self._used = 0  # rows of the store
        self._chunks = 0
        # Of the chunk, as they come: slots, the episodes that begin there, and the first row
        self._begins: list[tuple[Index, Index, int]] = []
        self._ends: list[tuple[Index, int]] = []  # slots, and the row after the last
        self._flags: list[tuple[Rows, Rows]] = []  # terminated and truncated of the same, and
        self._last: list[tuple[Tree, Rows | None]] = []  # their last observations and infos
        self._runs = np.zeros((4, 0), np.int64)
        self._ended = np.zeros((3, 0), np.int64)  # of whole episodes not given out: number, terminated, truncated
        self._next = 0  # episode to give out

    def _make_columns(self, obs: Tree, acted: Acted) -> None:
        """`obs` and `acted` show what a row is made of: leaves (at least S, ...)."""
        trees = (obs, acted.actions, *acted.extras.values())
        self.row_bytes = 8 + sum(int(leaf.nbytes) // max(1, len(leaf)) for tree in trees for leaf in leaves(tree))
        self._steps = int(np.clip(CHUNK_BYTES // (self.row_bytes * self._slots), MIN_STEPS, MAX_STEPS))
        self._spare = self._slots * max(1, self._steps // 8)
        self._obs_like, self._actions_like, self._extras_like = obs, acted.actions, dict(acted.extras)
        self._obs = [self._column(leaf, self._spare) for leaf in leaves(obs)]
        self._actions = [self._column(leaf) for leaf in leaves(acted.actions)]
        self._extras = [self._column(leaf) for tree in acted.extras.values() for leaf in leaves(tree)]
        self._rewards = self._column(np.zeros(1))

    def _column(self, like: Rows, spare: int = 0) -> _Column:
        return _Column(like, self._steps, self._slots, spare)

    # ---- one step ----

    @property
    def full(self) -> bool:
        """Whether `take` must come before the next step."""
        return self._row == self._steps or self._finals + self._slots > self._spare

    def begin(self, slots: Index, episodes: Index) -> None:
        """These slots begin these episodes at the next step."""
        self._begins.append((slots, episodes, self._row))

    def act(self, obs: Tree, infos: Rows | None, acted: Acted) -> None:
        """Observations and actions; rows of slots without an episode are ignored."""
        if not self._steps:
            self._make_columns(obs, acted)
        row, slots = self._row, self._slots
        for column, leaf in zip(self._obs, _flat(obs), strict=True):
            column.by_step[row] = leaf if len(leaf) == slots else leaf[:slots]
        for column, leaf in zip(self._actions, _flat(acted.actions), strict=True):
            column.by_step[row] = leaf
        if acted.extras:
            of_extras = (leaf for tree in acted.extras.values() for leaf in _flat(tree))
            for column, leaf in zip(self._extras, of_extras, strict=True):
                column.by_step[row] = leaf
        if infos is not None:
            self._info_column().by_step[row] = infos

    def _info_column(self) -> _Column:
        if self._infos is None:
            self._infos = self._column(np.full(1, None), self._spare)
            self._infos.keep(np.zeros(self._used, np.int64), 0)  # nothing was said before: the chunk is still empty
        return self._infos

    def reward(self, rewards: NDArray[Any]) -> None:
        """The rewards; ends the step."""
        self._rewards.by_step[self._row] = rewards
        self._row += 1

    def end(self, slots: Index, flags: tuple[Rows, Rows], finals: Tree, infos: Rows | None) -> None:
        """The episodes of these slots have ended with the last step; flags: terminated and truncated, (k,) each."""
        self._ends.append((slots, self._row))
        self._flags.append(flags)
        self._last.append((finals, infos))
        self._finals += len(slots)

    # ---- many ----

    def take(self, limit: int | None = None) -> EpisodeBatch | None:
        """The whole episodes that come next, up to number `limit`; None where there are none."""
        if not self._steps:
            return None
        self._keep_chunk()
        count = self._count_next(limit)
        batch = self._given(count) if count else None
        self._drop(self._next + count)
        return batch

    def _fill_spare(self) -> None:
        """Write the last observations of the chunk, in order of their ends."""
        if not self._last:
            return
        finals, infos = zip(*self._last, strict=True)
        for column, *parts in zip(self._obs, *map(_flat, finals), strict=True):
            np.concatenate(parts, out=column.spare[: self._finals])
        if self._infos is not None or any(part is not None for part in infos):
            parts = [np.full(len(end[0]), None) if part is None else part for end, part in zip(self._ends, infos, strict=True)]
            np.concatenate(parts, out=self._info_column().spare[: self._finals])

    def _keep_chunk(self) -> None:
        self._fill_spare()
        slots, episodes, first, stop = self._parts()
        steps, ends = len(slots), sum(len(ended) for ended, _ in self._ends)
        last = episodes[:ends]
        if ends:
            flags = [np.concatenate(parts) for parts in zip(*self._flags, strict=True)]
            self._ended = np.concatenate([self._ended, np.stack([last, *flags])], axis=1)
        order = np.repeat([2 * self._chunks, 2 * self._chunks + 1], [steps, ends])
        row = np.concatenate([first * self._slots + slots, np.arange(ends) + self._steps * self._slots])
        length = np.concatenate([stop - first, np.ones(ends, np.int64)])
        runs = np.stack([np.concatenate([episodes, last]), order, row, length])
        rows = _rows(runs, np.repeat([self._slots, 1], [steps, ends]))
        for column in self._columns():
            column.keep(rows, self._used)
        self._runs = np.concatenate([self._runs, _packed(runs, self._used)], axis=1)
        self._used += len(rows)
        self._row = self._finals = 0
        self._begins, self._ends, self._flags, self._last = [(slots[ends:], episodes[ends:], 0)], [], [], []
        self._chunks += 1
        if self._infos is not None:
            self._infos.chunk[:] = None

    def _parts(self) -> tuple[Index, Index, Index, Index]:
        """The parts of episodes that the chunk has, those that ended first, in that order: slots, episodes, first row, row
        after the last."""
        slots, episodes = (np.concatenate([begin[part] for begin in self._begins]) for part in range(2))
        first = np.repeat([begin[2] for begin in self._begins], [len(begin[0]) for begin in self._begins])
        ended = np.concatenate([np.zeros(0, np.int64), *(end[0] for end in self._ends)])
        stop = np.repeat([end[1] for end in self._ends], [len(end[0]) for end in self._ends]).astype(np.int64)
        going_on = np.flatnonzero(np.bincount(slots, minlength=self._slots) > np.bincount(ended, minlength=self._slots))
        ended, stop = np.concatenate([ended, going_on]), np.concatenate([stop, np.full(len(going_on), self._row)])
        began = np.empty(len(slots), np.int64)  # a slot's first end is that of what began there first, and so on
        began[np.argsort(ended, kind="stable")] = np.argsort(slots, kind="stable")
        return ended, episodes[began], first[began], stop

    def _columns(self) -> list[_Column]:
        infos = [] if self._infos is None else [self._infos]
        return [*self._obs, *self._actions, *self._extras, self._rewards, *infos]

    def _count_next(self, limit: int | None) -> int:
        """How many whole episodes follow each other from `_next` on."""
        self._ended = self._ended[:, np.argsort(self._ended[0])]
        numbers = self._ended[0]
        in_line = numbers == self._next + np.arange(len(numbers))
        count = len(numbers) if in_line.all() else int(np.argmin(in_line))
        return count if limit is None else max(0, min(count, limit - self._next))

    def _given(self, count: int) -> EpisodeBatch:
        runs = self._runs[:, self._runs[EPISODE] < self._next + count]
        runs = runs[:, np.lexsort((runs[ORDER], runs[EPISODE]))]
        rows = _rows(runs)
        observed = np.zeros(count, np.int64)
        np.add.at(observed, runs[EPISODE] - self._next, runs[LENGTH])
        is_step = np.ones(len(rows), np.bool_)
        is_step[np.cumsum(observed) - 1] = False
        steps = rows[is_step]
        return EpisodeBatch(
            ids=self._ids(self._next + np.arange(count)),
            starts=np.concatenate([[0], np.cumsum(observed - 1)]).astype(np.int64),
            obs=unflatten_like(self._obs_like, [column.given(rows) for column in self._obs]),
            actions=unflatten_like(self._actions_like, [column.given(steps) for column in self._actions]),
            rewards=self._rewards.given(steps),
            terminated=self._ended[1, :count].astype(np.bool_),
            truncated=self._ended[2, :count].astype(np.bool_),
            extra=self._extra(steps),
            infos=None if self._infos is None else _dicts(self._infos.given(rows)),
            observation_space=self._spaces[0],
            action_space=self._spaces[1],
        )

    def _extra(self, steps: Index) -> Mapping[str, Tree]:
        columns, forms = iter(self._extras), self._extras_like.items()
        return {name: unflatten_like(like, [next(columns).given(steps) for _ in leaves(like)]) for name, like in forms}

    def _drop(self, first: int) -> None:
        """Drop all episodes before `first`."""
        count, self._next = first - self._next, first
        self._ended = self._ended[:, count:]
        self._runs = self._runs[:, self._runs[EPISODE] >= first]
        wanted = int(self._runs[LENGTH].sum())
        if 2 * wanted <= self._used:
            rows = _rows(self._runs)
            for column in self._columns():
                column.pack(rows)
            self._runs = _packed(self._runs)
            self._used = wanted


def steps_of_plan(plan: Plan, runner: int, slots: int, spaces: tuple[Space, Space], fingerprint: str) -> StepStore:
    """The store of one runner: see MakeSink."""
    return StepStore(slots, spaces, lambda own: plan.ids(fingerprint, plan.indices(runner, own)))


def _flat(tree: Tree) -> list[Rows]:
    """The leaves; fast for a single leaf, because this is called at every step."""
    return [tree] if isinstance(tree, np.ndarray) else leaves(tree)


def _dicts(infos: Rows) -> list[Mapping[str, Any]] | None:
    """One dict per observation; None where all are empty."""
    found = infos.tolist()
    return [info or {} for info in found] if any(found) else None
