"""Bytes to episodes: one at a time, exactly and without haste, and many at a time.

* `decode`: what `SingleAgentEpisode.from_state` makes of the state in the bytes, RLlib's (2.40 to 2.60) or ours.
* `decode_batch`: no Python object per step, and per episode only a row of values: items of one layout are cut (`layouts.py`),
  and each leaf of a batch is one join of the items' payloads. An item in no known layout goes through `decode`, which reads it
  or reports what is wrong with it. Lookback buffers are dropped: their steps belong to an earlier chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec.arrays import unpack
from offline_cli.episodes.codec.layouts import INSIDE, NAMES, ArrayField, BufferFields, ItemLayout, StepsField, learn_layout
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadData, BadEpisode, OfflineCliError, UnsupportedSpace
from offline_cli.spaces import Space
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["BatchDecoder", "decode", "decode_batch"]

FIX = "write the file again from its source"
MAX_LAYOUTS = 8  # at once: each costs one attempt per item that has another
PATIENCE = 16  # layouts learned before one item in four earns another


def decode(data: bytes, *, where: str) -> SingleAgentEpisode:
    """The episode in `data`; arrays that came from bytes copy on write.

    Raises BadEpisode for cut or malformed bytes and lengths that disagree, UnsafeData for bytes that would build objects or
    need memory out of proportion, UnsupportedSpace for spaces that episodes cannot have. `where` names file and row.
    """
    state = unpack(data, where=where)
    if not isinstance(state, dict):
        raise BadEpisode(f"a {type(state).__name__} where an episode's state belongs", where=where, fix=FIX)
    state |= {key: _name(state.get(key), key, where) for key in ("id_", *NAMES)}
    try:
        episode = SingleAgentEpisode.from_state(state)
    except OfflineCliError as err:  # a state does not know where it was read
        raise type(err)(err.what, where=f"{where}, {err.where}", fix=err.fix, details=err.details) from err
    if state["id_"] is None or not episode.is_reset:
        raise BadEpisode("an episode without id or without a first observation", where=where, fix=FIX)
    return episode


def _name(value: Any, key: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))  # agents of a multi-agent environment may be numbered
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not text", where=where, fix=FIX)


def decode_batch(
    items: Iterable[bytes], *, where: Callable[[int], str], rejects: Rejects, tally: Tally
) -> Iterator[EpisodeBatch]:
    """The episodes in `items`, in order; a new batch begins where the structure changes.

    `items` may be a pyarrow array of binary as well. `where(i)` names the place of item i, and is called for errors only. Bad
    items go through `rejects`. Episodes may be fragments (t_started > 0, no flag set); of a lookback buffer nothing is taken.
    """
    return BatchDecoder(rejects, tally).decode(items, where=where)


class BatchDecoder:
    """`decode_batch` for many files: keeps learned layouts (a millisecond each) between calls.

    Not for several threads at once.
    """

    def __init__(self, rejects: Rejects, tally: Tally) -> None:
        self.rejects, self.tally = rejects, tally
        self.layouts: list[ItemLayout] = []  # that of the last item first
        self.unknown = self.learned = 0

    def decode(self, items: Iterable[bytes], *, where: Callable[[int], str]) -> Iterator[EpisodeBatch]:
        """As `decode_batch`; exhaust one iterator before the next call."""
        to_list = getattr(items, "to_pylist", None)  # pyarrow arrays: one pass in C instead of a scalar object per item
        pending: list[EpisodeBatch] = []
        for batch in self._batches(to_list() if to_list else items if isinstance(items, list) else list(items), where):
            if pending and pending[0].structure_difference(batch):
                yield EpisodeBatch.concat(pending)
                pending = []
            pending.append(batch)
        if pending:
            yield EpisodeBatch.concat(pending)

    def _batches(self, items: Sequence[Any], where: Callable[[int], str]) -> Iterator[EpisodeBatch]:
        layout: ItemLayout | None = None
        rows: list[list[Any]] = []
        for index, item in enumerate(items):
            row, used = self._row(item)
            if used is not layout or row is None:
                yield from self._flush(layout, rows, items, index, where)
                layout, rows = used, []
            if row is None:
                yield from self._alone(item, where(index))
            else:
                rows.append(row)
        yield from self._flush(layout, rows, items, len(items), where)

    def _row(self, item: Any) -> tuple[list[Any] | None, ItemLayout | None]:
        if not isinstance(item, bytes):
            return None, None
        for layout in self.layouts:
            row = layout.read(item)
            if row is not None:
                if layout is not self.layouts[0]:
                    self.layouts = [layout, *(other for other in self.layouts if other is not layout)]
                return row, layout
        self.unknown += 1
        if self.learned > PATIENCE + self.unknown // 4:
            return None, None
        self.learned += 1
        new = learn_layout(item)
        if new is None:
            return None, None
        self.layouts = [new, *self.layouts][:MAX_LAYOUTS]
        return new.read(item), new

    def _flush(
        self, layout: ItemLayout | None, rows: list[list[Any]], items: Sequence[Any], stop: int, where: Callable[[int], str]
    ) -> Iterator[EpisodeBatch]:
        """The batch of `rows`, of the items before `stop`."""
        if layout is None or not rows:
            return
        batch = self._batch_of(layout, rows)
        if batch is not None:
            yield batch
            return
        for index, row in enumerate(rows, start=stop - len(rows)):  # the odd episode is found by reading each alone
            batch = self._batch_of(layout, [row]) if len(rows) > 1 else None
            if batch is not None:
                yield batch
            else:
                yield from self._alone(items[index], where(index))

    def _batch_of(self, layout: ItemLayout, rows: Sequence[Sequence[Any]]) -> EpisodeBatch | None:
        """The batch of these rows; None where something in them does not fit."""
        tally = Tally()
        try:
            batch = _RowsOfLayout(layout, rows, tally).batch()
        except BadEpisode:
            return None
        self.tally.assumptions.update(tally.assumptions)
        return batch

    def _alone(self, item: Any, place: str) -> Iterator[EpisodeBatch]:
        try:
            if not isinstance(item, bytes):
                raise BadEpisode(f"a {type(item).__name__} where packed bytes belong", where=place, fix="leave this row out")
            episode = decode(item, where=place)
            try:
                batch = EpisodeBatch.from_episodes([episode], tally=self.tally)
            except BadEpisode as err:
                err.where = f"{place}, {err.where}"
                raise
            yield batch
        except (BadData, UnsupportedSpace) as err:
            self.rejects.add(err, raw=item if isinstance(item, bytes) else b"")
            self.rejects.lose_episodes(Lost.UNREADABLE)


class _RowsOfLayout:
    """Rows of one layout, transposed. What does not fit raises BadEpisode, without a place."""

    def __init__(self, layout: ItemLayout, rows: Sequence[Sequence[Any]], tally: Tally) -> None:
        self.layout, self.tally = layout, tally
        self.columns = list(zip(*rows, strict=True))
        self.starts_at = np.array(self.values("t_started"), np.int64)
        self.steps = np.array(self.values("t"), np.int64) - self.starts_at

    def batch(self) -> EpisodeBatch:
        layout = self.layout
        if (self.steps < 0).any() or None in self.values("id_"):
            raise BadEpisode("t before t_started, or no id", where=INSIDE, fix="")
        rewards = self.tree(layout.buffers["rewards"], 0, None)
        if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            raise BadEpisode("rewards that are not one number per step", where=INSIDE, fix="")
        return EpisodeBatch(
            ids=tuple(self.values("id_")),
            starts=np.concatenate([[0], np.cumsum(self.steps)]),
            obs=self.tree(layout.buffers["observations"], 1, layout.observation_space),
            actions=self.tree(layout.buffers["actions"], 0, layout.action_space),
            rewards=rewards.astype(np.float64, copy=False),
            terminated=np.array(self.values("is_terminated"), np.bool_),
            truncated=np.array(self.values("is_truncated"), np.bool_),
            extra={name: self.tree(fields, 0, None) for name, fields in layout.extra.items()},
            infos=self.infos(),
            t_started=self.starts_at if self.starts_at.any() else None,
            agent_ids=self.some("agent_id"),
            module_ids=self.some("module_id"),
            multi_agent_ids=self.some("multi_agent_episode_id"),
            custom_data=self.some("custom_data") or self.some("_temporary_timestep_data"),
            clock=self.clock(),
            observation_space=layout.observation_space,
            action_space=layout.action_space,
        )

    def values(self, key: str) -> Sequence[Any]:
        return self.columns[self.layout.slots[key]]

    def some(self, key: str) -> tuple[Any, ...] | None:
        """The values of a field; None where all are missing or empty maps."""
        index = self.layout.slots.get(key)
        found = () if index is None else self.columns[index]
        return found if any(value is not None and value != {} for value in found) else None

    def tree(self, fields: BufferFields, more: int, space: Space | None) -> Tree:
        """Leaves (rows, *shape) of all episodes, each `more` rows than steps, lookback buffers left out."""
        skip = self.skipped(fields)
        want = (self.steps + more + np.array(skip, np.int64)).tolist()

        def joined(field: ArrayField | StepsField) -> Tree:
            column = self.columns[field.index]
            if [count for count, _ in column] != want:
                raise BadEpisode("buffers of other lengths than the timesteps imply", where=INSIDE, fix="")
            return field.joined(column, skip, space, self.tally)

        return map_leaves(joined, fields.data)

    def skipped(self, fields: BufferFields) -> Sequence[int]:
        return (0,) * len(self.steps) if fields.lookback is None else self.columns[fields.lookback]

    def infos(self) -> list[Mapping[str, Any]] | None:
        fields = self.layout.buffers["infos"]
        found, skip = self.columns[fields.data], self.skipped(fields)
        if [count for count, _ in found] != (self.steps + 1 + np.array(skip, np.int64)).tolist():
            raise BadEpisode("infos of another number than observations", where=INSIDE, fix="")
        if all(infos is None for _, infos in found):
            return None
        empty: Mapping[str, Any] = {}
        joined: list[Mapping[str, Any]] = []
        for (count, infos), k in zip(found, skip, strict=True):
            joined += [empty] * (count - k) if infos is None else infos[k:]
        return joined if any(joined) else None

    def clock(self) -> NDArray[np.float64] | None:
        indices = [self.layout.slots.get(key) for key in ("_start_time", "_last_step_time")]
        unknown = [np.nan] * len(self.steps)
        clock = np.array([unknown if index is None else self.columns[index] for index in indices], np.float64).T.copy()
        return None if np.isnan(clock).all() else clock
