"""Bytes to episodes: one at a time, exactly and without haste, and many at a time.

* `decode`: the state is RLlib's (`SingleAgentEpisode.get_state`, 2.40 to 2.60), numpy'ized or not, and may come from anywhere.
  Parts that are missing, of the wrong kind, or of lengths that disagree raise, and so do unsupported spaces. RLlib 2.40 passed
  numpy'ized steps of Dict and Tuple spaces through `space.to_jsonable([data])`, which took the episode for one sample: a leaf
  is a list of one nested list, (1, T, *shape). Only Box, MultiDiscrete and MultiBinary leaves got through.
* `decode_batch`: no Python object per step, and per episode only a row of values: items of one layout are cut (`layouts.py`),
  and each leaf of a batch is one join of the items' payloads. An item in no known layout goes through `decode`, which reads it
  or reports what is wrong with it. Lookback buffers are dropped: their steps belong to an earlier chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch, forms
from offline_cli.episodes.codec.arrays import check_values, unpack
from offline_cli.episodes.codec.layouts import INSIDE, NAMES, BufferFields, ItemLayout, learn_layout
from offline_cli.episodes.episode_spaces import OWN_SPACES, space_in_state, space_node, zero_rows
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import MAX_DEPTH, concatenate, stack
from offline_cli.errors import PROBLEM, BadData, BadEpisode, OfflineCliError, UnsupportedSpace
from offline_cli.spaces import Space, bound_bytes
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BatchDecoder", "decode", "decode_batch"]

NEEDED = ("id_", "observations", "actions", "rewards", "infos", "is_terminated", "is_truncated", "t_started", "t")
DATA_BUFFERS = {"observations": 1, "actions": 0, "rewards": 0, "infos": 1}  # rows more than steps
OLD_CUSTOM_DATA = "_temporary_timestep_data"  # RLlib before 2.45
LAST_TIMESTEP = 1 << 53
FIX = "write the file again from its source"
MAX_LAYOUTS = 8  # at once: each costs one attempt per item that has another
LAYOUT_BYTES = 32 << 20  # of the bounds of their spaces; the newest is kept however large
PATIENCE = 16  # layouts learned before one item in four earns another


def decode(data: bytes, *, where: str) -> SingleAgentEpisode:
    """The episode in `data`; arrays that came from bytes copy on write.

    Raises BadEpisode for cut or malformed bytes and lengths that disagree, UnsafeData for bytes that would build objects or
    need memory out of proportion, UnsupportedSpace for spaces that episodes cannot have. `where` names file and row.
    """
    state = _checked_state(unpack(data, where=where), where)
    try:
        return SingleAgentEpisode.from_state(state)
    except OfflineCliError as err:  # a state does not know where it was read
        raise type(err)(err.what, where=f"{where}, {err.where}", fix=err.fix, details=err.details) from err


def decode_batch(
    items: Iterable[bytes], *, where: Callable[[int], str], rejects: Rejects, tally: Tally
) -> Iterator[EpisodeBatch]:
    """The episodes in `items`, in order; a new batch begins where the structure changes.

    `items` may be a pyarrow array of binary as well. `where(i)` names the place of item i, and is called for errors only. Bad
    items go through `rejects`. Episodes may be fragments (t_started > 0, no flag set); of a lookback buffer nothing is taken.
    """
    return BatchDecoder(rejects, tally).decode(items, where=where)


class BatchDecoder:
    """`decode_batch` for many files: layouts that it has seen (about a millisecond each to learn) are known to the next call.

    Not for several threads at once.
    """

    def __init__(self, rejects: Rejects, tally: Tally) -> None:
        self.rejects, self.tally = rejects, tally
        self.layouts: list[ItemLayout] = []  # that of the last item first
        self.unknown = self.learned = 0

    def decode(self, items: Iterable[bytes], *, where: Callable[[int], str]) -> Iterator[EpisodeBatch]:
        """As `decode_batch`; read each call to its end before the next."""
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
        spaces = [space for one in self.layouts for space in (one.observation_space, one.action_space)]
        if sum(map(bound_bytes, spaces)) > LAYOUT_BYTES:
            self.layouts = [new]
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
            batch = _Columns(layout, rows, tally).batch()
        except BadEpisode:
            return None
        self.tally.assumptions.update(tally.assumptions)
        return batch

    def _alone(self, item: Any, place: str) -> Iterator[EpisodeBatch]:
        try:
            if not isinstance(item, bytes):
                raise BadEpisode(f"a {type(item).__name__} where packed bytes belong", where=place, fix="leave this row out")
            yield EpisodeBatch.from_episodes([decode(item, where=place)], tally=self.tally)
        except (BadData, UnsupportedSpace) as err:
            self.rejects.add(err, raw=item if isinstance(item, bytes) else b"")
            self.rejects.lose_episodes(Lost.UNREADABLE)


class _Columns:
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
        spaces = {"observations": layout.observation_space, "actions": layout.action_space, "rewards": None}
        trees = {name: self.tree(layout.buffers[name], DATA_BUFFERS[name], space) for name, space in spaces.items()}
        rewards = trees["rewards"]
        if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            raise BadEpisode("rewards that are not one number per step", where=INSIDE, fix="")
        return EpisodeBatch(
            ids=tuple(self.values("id_")),
            starts=np.concatenate([[0], np.cumsum(self.steps)]),
            obs=trees["observations"],
            actions=trees["actions"],
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
        for index in leaves(fields.data):
            if [value[0] for value in self.columns[index]] != want:
                raise BadEpisode("buffers of other lengths than the timesteps imply", where=INSIDE, fix="")
        if isinstance(fields.data, int) and fields.data in self.layout.steps:
            return self.listed(fields.data, skip, space)
        return map_leaves(lambda index: self.joined(index, skip), fields.data)

    def skipped(self, fields: BufferFields) -> Sequence[int]:
        return (0,) * len(self.steps) if fields.lookback is None else self.columns[fields.lookback]

    def joined(self, index: int, skip: Sequence[int]) -> NDArray[Any]:
        field = self.layout.arrays[index]
        payloads = [payload for _, payload in self.columns[index]]
        if any(skip):
            payloads = [payload[k * field.row_bytes :] for payload, k in zip(payloads, skip, strict=True)]
        rows = sum(count for count, _ in self.columns[index]) - sum(skip)
        array = np.frombuffer(bytearray().join(payloads), field.dtype).reshape(rows, *field.shape)
        check_values(array, where=INSIDE)
        return array

    def listed(self, index: int, skip: Sequence[int], space: Space | None) -> Tree:
        template = self.layout.steps[index].template
        parts = [values for _, values in self.columns[index]]
        if template is not None:
            parts = [rows[k * template.size :] if k else rows for rows, k in zip(parts, skip, strict=True)]
            table = bytearray().join(parts)
            tree = template.read(table, 0, len(table) // template.size)
            if tree is None:
                raise BadEpisode("steps that differ in more than their values", where=INSIDE, fix="")
            return tree
        trees = [stack(part, space, tally=self.tally) for values, k in zip(parts, skip, strict=True) if (part := values[k:])]
        if not trees:
            return zero_rows(space, 0)
        if any(forms(tree, "") != forms(trees[0], "") for tree in trees):
            raise BadEpisode("steps of several structures", where=INSIDE, fix="")
        return concatenate(*trees)

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


# ---- checks of a state from outside ----


def _checked_state(state: Any, where: str) -> dict[str, Any]:
    """A state in RLlib 2.60's layout with plain flags and names, of which all lengths agree."""
    if not isinstance(state, dict):
        raise BadEpisode(f"a {type(state).__name__} where an episode's state belongs", where=where, fix=FIX)
    missing = [key for key in NEEDED if state.get(key) is None]
    if missing:
        raise BadEpisode(f"an episode without {', '.join(missing)}", where=where, fix=FIX)
    here = f"{where}, episode {_name(state['id_'], 'id_', where)}"
    custom_data = state.get("custom_data", state.get(OLD_CUSTOM_DATA))
    checked = {
        **{key: _name(state.get(key), key, here) for key in ("id_", *NAMES)},
        **{key: _flag(state[key], key, here) for key in ("is_terminated", "is_truncated")},
        **{key: _count(state[key], key, here) for key in ("t_started", "t")},
        **{key: _seconds(state.get(key), key, here) for key in ("_start_time", "_last_step_time")},
        **{key: space_node(state, name) for name, key in OWN_SPACES.items()},
        "custom_data": _mapping(custom_data, "custom_data", here),
    }
    steps = checked["t"] - checked["t_started"]
    if steps < 0:
        raise BadEpisode(f"t is {checked['t']}, before t_started {checked['t_started']}", where=here, fix=FIX)
    for name, more in DATA_BUFFERS.items():
        checked[name] = _buffer(_as_arrays(state, name, here), name, steps + more, here)
    _check_rewards(checked["rewards"], here)
    checked["infos"]["data"] = _infos(checked["infos"]["data"], here)
    extra = _mapping(state.get("extra_model_outputs"), "extra_model_outputs", here)
    if not all(isinstance(name, str) for name in extra):
        raise BadEpisode("extra model outputs whose names are not text", where=here, fix=FIX)
    outputs = {name: _buffer(part, f"extra model output {name}", steps, here) for name, part in extra.items()}
    return {**checked, "extra_model_outputs": outputs or None}


def _as_arrays(state: dict[str, Any], name: str, where: str) -> Any:
    """The buffer `name` of a state, in arrays where RLlib 2.40 wrote nested lists."""
    buffer = state[name]
    if name not in ("observations", "actions") or not isinstance(buffer, dict) or buffer.get("finalized") is not True:
        return buffer
    space, data = space_in_state(state, name, where=where), buffer.get("data")
    if space is None or isinstance(data, np.ndarray) or not _is_jsonable(data, space):
        return buffer
    return {**buffer, "data": _arrays_from_jsonable(data, space, name=name, where=where)}


def _buffer(buffer: Any, name: str, rows: int, where: str) -> dict[str, Any]:
    """The buffer's state, with `rows` records after its lookback buffer."""
    if not isinstance(buffer, dict) or "data" not in buffer:
        raise BadEpisode(f"{name} is no buffer", where=where, fix=FIX)
    data, lookback = buffer["data"], _count(buffer.get("lookback", 0), f"the lookback of {name}", where)
    finalized = not isinstance(data, list) or _flag(buffer.get("finalized", False), f"finalized of {name}", where)
    have = {len(data)} if not finalized else _row_counts(data, name, where, 0)
    if have != {lookback + rows}:
        counts = " or ".join(map(str, sorted(have))) or "no"
        what = f"{name} has {counts} rows, of which {lookback} lookback; {rows} are wanted after these"
        raise BadEpisode(what, where=where, fix=FIX, details={PROBLEM: "length-mismatch"})
    return {"data": data, "lookback": lookback, "finalized": finalized, "space": buffer.get("space")}


def _row_counts(tree: Any, name: str, where: str, depth: int) -> set[int]:
    if isinstance(tree, np.ndarray) and tree.ndim:
        return {len(tree)}
    if depth > MAX_DEPTH:
        raise BadEpisode(f"{name} is nested deeper than {MAX_DEPTH}", where=where, fix=FIX)
    if isinstance(tree, (dict, list)):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return set().union(*(_row_counts(part, f"{name}.{key}", where, depth + 1) for key, part in parts))
    raise BadEpisode(f"{name} holds a {type(tree).__name__} where an array of steps belongs", where=where, fix=FIX)


def _check_rewards(buffer: Mapping[str, Any], where: str) -> None:
    data = buffer["data"]
    listed = isinstance(data, list) and not buffer["finalized"]  # a list has one number for each step, an array all of them
    values, want = (data, 1) if listed else ([data], None)
    if not all(_holds_numbers(value, want) for value in values):
        raise BadEpisode("rewards that are not one number per step", where=where, fix=FIX)


def _holds_numbers(value: Any, size: int | None) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biuf" and (value.ndim == 1 if size is None else value.size == size)
    return size == 1 and isinstance(value, (bool, int, float))


def _infos(data: Any, where: str) -> list[dict[Any, Any]]:
    if not isinstance(data, list) or not all(info is None or isinstance(info, dict) for info in data):
        raise BadEpisode("infos that are not a list of maps", where=where, fix=FIX)
    return [info or {} for info in data]


def _mapping(value: Any, name: str, where: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadEpisode(f"{name} is a {type(value).__name__}, not a map", where=where, fix=FIX)
    return value


def _name(value: Any, key: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))  # agents of a multi-agent environment may be numbered
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not text", where=where, fix=FIX)


def _flag(value: Any, key: str, where: str) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not true or false", where=where, fix=FIX)


def _count(value: Any, key: str, where: str) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= LAST_TIMESTEP:
        return int(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not a count", where=where, fix=FIX)


def _seconds(value: Any, key: str, where: str) -> float | None:
    if value is None or (isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)):
        return None if value is None or math.isnan(float(value)) else float(value)
    raise BadEpisode(f"{key} is {str(value)[:40]!r}, not seconds", where=where, fix=FIX)


def _is_jsonable(data: Any, space: Space | None) -> bool:
    """Whether `data` (numpy'ized, of a Dict or Tuple space) holds lists where its arrays belong."""
    if isinstance(space, spaces.Dict):
        return isinstance(data, dict) and any(_is_jsonable(data.get(key), part) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return isinstance(data, list) and any(_is_jsonable(item, part) for item, part in zip(data, space.spaces, strict=False))
    return isinstance(data, list)


def _arrays_from_jsonable(data: Any, space: Space, *, name: str, where: str) -> Tree:
    """Leaves (T, *shape) in the dtypes of `space`. Raises BadEpisode, naming the leaf, for lists that are not rows of it."""
    if isinstance(space, spaces.Dict):
        if not isinstance(data, dict) or data.keys() != space.spaces.keys():
            raise _misfit(name, space, where)
        return {
            key: _arrays_from_jsonable(data[key], part, name=f"{name}.{key}", where=where) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            raise _misfit(name, space, where)
        parts = enumerate(zip(data, space.spaces, strict=True))
        return [_arrays_from_jsonable(item, part, name=f"{name}.{i}", where=where) for i, (item, part) in parts]
    return _leaf(data, space, name, where)


def _leaf(data: Any, space: Space, name: str, where: str) -> NDArray[Any]:
    if not isinstance(data, list) or len(data) != 1:
        raise _misfit(name, space, where)
    try:
        rows = np.array(data[0], space.dtype)
    except (ValueError, TypeError, OverflowError) as err:
        raise _misfit(name, space, where) from err
    if rows.shape[1:] != space.shape or not rows.ndim:
        raise _misfit(name, space, where)
    return rows


def _misfit(name: str, space: Space, where: str) -> BadEpisode:
    return BadEpisode(f"{name} is not one row of {type(space).__name__} per step", where=where, fix=FIX)
