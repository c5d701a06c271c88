"""The frames of a LeRobot dataset as whole episodes.

Of its features become

* `observation.*` the observation: an array where `observation.state` is its only part, else a Dict by name;
* `action`, or without it `action.*`, the action;
* `next.reward`, `next.done`, `next.truncated` reward and end flags;
* further numbers extra model outputs, by their dotted names;
* pictures, videos and texts nothing: they are left out by name.

A row holds an observation and the action taken there, so that the observation after the last action is unknown: it is repeated,
and counted as everywhere. Rows wait until an episode has as many as its record says, whatever their order; one that never has
is an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.action_shapes import one_number_each
from offline_cli.formats.arrow_leaves import tree_of
from offline_cli.formats.leaf_names import tree_of_names
from offline_cli.formats.lerobot.dataset import INFO, Episode, Feature, Folder, Info, read_episodes, read_info, read_tasks
from offline_cli.formats.parquet_files import Chunk, chunks, schema_of
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, Fragments, Source, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables import TableSource
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads, whole_episode
from offline_cli.meanings import Element, Meanings
from offline_cli.storage.locations import Location
from offline_cli.tally import GAP, MISSING_REWARDS, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

OBSERVATION, STATE, ACTION = "observation", "state", "action"
REWARDS: Final = ("next.reward", "reward")
DONE: Final = ("next.done", "done")
TRUNCATED: Final = "next.truncated"
FRAME: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has."""
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = FRAME
ROLES: Final = {OBSERVATION: Columns.OBS, ACTION: Columns.ACTIONS}

MOST: Final = 1 << 22  # numbers of one step
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.SOURCE_ID})
FIX: Final = "write the dataset again with LeRobot, or copy it again; --on-error skip leaves the episode out"
SAY_ROLES: Final = (
    '--mapping FILE, which says which are which: [columns] eps_id = "episode_index", t = "frame_index", obs = "state",'
    ' actions = "actions" (docs/howto/formats.md#lerobot)'
)


@dataclass(frozen=True, slots=True)
class _Roles:
    """The names of features by what becomes of them."""

    obs: Tree
    actions: Tree
    extra: Mapping[str, Tree]
    reward: str | None
    done: str | None
    truncated: str | None
    dropped: Mapping[str, str]  # features left out, and why

    @property
    def columns(self) -> list[str]:
        """Those that are read, beside the columns of `FRAME`."""
        flags = [name for name in (self.reward, self.done, self.truncated) if name is not None]
        return [*flags, *leaves(self.obs), *leaves(self.actions), *leaves(dict(self.extra))]


def _roles_of(features: Mapping[str, Feature], schema: pa.Schema, where: str) -> _Roles:
    """For the features of info.json, and the columns of the data files. Raises BadData."""
    numbers = [name for name, feature in features.items() if feature.number is not None]
    dropped = {name: f"{features[name].dtype[:40]}, and not numbers" for name in features if name not in numbers}
    dropped |= {name: "not among the features" for name in schema.names if name not in features and name not in FRAME}
    lacking = [name for name in numbers if name not in schema.names]
    if lacking or sum(math.prod(features[name].shape) for name in numbers) > MOST:
        what = f"the feature {lacking[0][:80]!r} is not in the data files" if lacking else f"more than {MOST} numbers a step"
        raise BadData(what, where=where, fix="write the dataset again with LeRobot, with fewer features")
    reward, done = (next((name for name in names if name in numbers), None) for names in (REWARDS, DONE))
    truncated, rest = TRUNCATED if TRUNCATED in numbers else None, dict[str, str]()  # by dotted path of ours
    for name in numbers:
        head, dot, below = name.partition(".")
        ours = ROLES.get(head, head)
        if head in RESERVED:
            dropped[name] = "the name has a meaning here"
        elif name not in (*FRAME, reward, done, truncated):
            is_part = name != ACTION and head == ACTION and ACTION in numbers  # of the action that is there as a whole
            rest[name if is_part else f"{ours}{dot}{below}"] = name
    try:
        tree = tree_of_names(rest, ".")
    except ValueError as error:
        what = f"the feature {str(error)[:80]!r} cannot be part of a Dict beside the others"
        raise BadData(what, where=where, fix=f"rename it with lerobot-edit-dataset, or {SAY_ROLES}") from error
    missing = [theirs for theirs, ours in ROLES.items() if ours not in tree]
    if missing:
        there = ", ".join(f"{name} {list(features[name].shape)}" for name in numbers if name not in FRAME)
        what = f"no feature of numbers is called {' or '.join(missing)}; there are {there[:500] or 'none'}"
        fix = SAY_ROLES if there else "pictures and videos are not read: add the state with LeRobot"
        raise BadData(what, where=where, fix=fix)
    obs, actions = tree.pop(Columns.OBS), tree.pop(Columns.ACTIONS)
    obs = obs[STATE] if isinstance(obs, dict) and list(obs) == [STATE] else obs
    return _Roles(obs, actions, tree, reward, done, truncated, dropped)


def _meanings(roles: _Roles, info: Info) -> Meanings:
    """The names of elements of vectors, a list or, of older recordings, a list under one key; and the time of a step."""
    found: dict[str, tuple[Element, ...]] = {Columns.T: (Element(unit=f"1/{info.fps:g} s"),)}
    for path, name in (*flatten(roles.obs, Columns.OBS), *flatten(roles.actions, Columns.ACTIONS)):
        said, shape = info.features[name].names, info.features[name].row
        if isinstance(said, dict) and len(said) == 1:
            said = next(iter(said.values()))
        texts = [text for text in said if isinstance(text, str) and 0 < len(text) <= 200] if isinstance(said, list) else []
        if len(shape) == 1 and len(texts) == shape[0] == len(set(texts)):
            found[path] = tuple(map(Element, texts))
    return Meanings(found)


def open_lerobot(files: Sequence[Location], context: OpenContext) -> Source:
    """The dataset; with a mapping, its frames as the table that the mapping explains. Raises NoData, BadData."""
    folder = Folder.of(files, context.location)
    info, data = read_info(folder), folder.parquet("data")
    if context.tables.mapping is not None or context.tables.rows_as_episodes:
        storage = context.storage_options
        return TableSource(data, context.location, options=context.tables, storage_options=storage, kind="parquet")
    schema, episodes = schema_of(data[0]), read_episodes(folder, info)
    roles = _roles_of(info.features, schema, folder.place(INFO))
    if any(len(one.tasks or ()) > 1 for one in episodes.values()):
        roles = replace(roles, extra={**roles.extra, TASK_INDEX: TASK_INDEX})
    lacking = [name for name in (FRAME_INDEX, EPISODE_INDEX) if name not in schema.names]
    if lacking:
        raise BadData(f"no column {' or '.join(lacking)}", where=data[0].url, fix="write the dataset again with LeRobot")
    declared = SourceInfo(
        format=LeRobotSource.format,
        location=context.location,
        action_scale=ENV_SCALE,
        said_by=INFO,
        longest=max(one.length for one in episodes.values()),
        meanings=_meanings(roles, info),
    )
    tasks = read_tasks(folder)
    return LeRobotSource(data, context.location, declared, meta=info, records=episodes, tasks=tasks, roles=roles)


class _Frames(NamedTuple):
    """Frames of one episode in one chunk."""

    chunk: Chunk
    rows: NDArray[np.int64]  # in the chunk
    arrays: Mapping[str, NDArray[Any]]  # of all its rows, by column; none where a value of the chunk is missing or odd

    def values(self, name: str) -> NDArray[Any]:
        """(T, ...) of a column. Raises BadData, naming the row."""
        if name in self.arrays:
            return self.arrays[name][self.rows]
        table = self.chunk.table.take(self.rows)
        return _numbers(table, name, lambda row: self.chunk.where(int(self.rows[row])))


def _numbers(table: pa.Table, name: str, where: Callable[[int], str]) -> NDArray[Any]:
    """(N, ...) of a column. Raises BadData."""
    at = table.column_names.index(name)
    found = tree_of(table.column(at), table.schema.field(at), where=where)
    if not isinstance(found, np.ndarray):
        raise BadData(f"column {name} holds {str(table.schema.field(at).type)[:80]}, not numbers", where=where(0), fix=FIX)
    return found


@dataclass(slots=True)
class LeRobotSource(EpisodeFiles):
    """The data files, in their order."""

    format: ClassVar = "lerobot"
    meta: Info = field(kw_only=True)
    records: Mapping[int, Episode] = field(kw_only=True)  # by ascending index
    tasks: Mapping[int, str] = field(kw_only=True)
    roles: _Roles = field(kw_only=True)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes."""
        self.done = 0
        for name, reason in self.roles.dropped.items():
            tally.drop_column(name, reason)
        tally.assume("missing-end-flags", int(self.roles.done is None and self.roles.truncated is None))
        yield from self.joined(self._episodes(tally, rejects), self.info.location, tally, rejects)
        self.done = self.size or self.done

    def _episodes(self, tally: Tally, rejects: Rejects) -> Reads:
        """Each as soon as all of its frames have been read; last those that lack some."""
        waiting, missing = dict[int, list[_Frames]](), set(self.records)
        options, before, prefix = self.read_options, rejects.count, f"{source_hash(self.files)}-"
        columns, whole, cut = [*self.roles.columns, TIMESTAMP, FRAME_INDEX, EPISODE_INDEX], set[str](), list[str]()
        for chunk in chunks(
            self.files,
            rejects,
            columns=columns,
            workers=options.workers,
            first_rows=options.limit,
            on_cut=cut.append,
            scope=self.scope,
        ):
            whole.update(chunk.files if {*columns} - {TIMESTAMP} <= {*chunk.table.column_names} else ())
            for index, frames in self._by_episode(chunk, rejects):
                parts = waiting.setdefault(index, [])
                parts.append(frames)
                if sum(len(part.rows) for part in parts) >= self.records[index].length:
                    missing.discard(index)
                    yield [index], partial(self._episode, self.records[index], prefix, waiting.pop(index), tally)
        is_told = rejects.count > before and bool(cut or len(whole) < len(self.files))  # of a damaged file
        lost = set(waiting) if is_told else missing.union(waiting)
        for index in sorted(lost):
            yield [index], partial(self._episode, self.records[index], prefix, waiting.get(index, []), tally)

    def _by_episode(self, chunk: Chunk, rejects: Rejects) -> Iterator[tuple[int, _Frames]]:
        """The frames of a chunk; those of no episode go to `rejects`."""
        table = chunk.table
        needed = (*self.roles.columns, FRAME_INDEX, EPISODE_INDEX)
        lacking = [name for name in needed if name not in table.column_names]
        if lacking or not pa.types.is_integer(table.schema.field(EPISODE_INDEX).type):
            what = f"no column {(lacking or [EPISODE_INDEX])[0][:80]!r}, which other files have, or no whole numbers in it"
            rejects.add(BadData(what, where=chunk.where(0), fix=FIX), rows=table.num_rows)
            rejects.lose_episodes(Lost.UNREADABLE)
            return
        index = np.asarray(pc.fill_null(table[EPISODE_INDEX].cast(pa.int64(), safe=False), -1).to_numpy())
        try:
            arrays = {name: _numbers(table, name, chunk.where) for name in table.column_names if name != EPISODE_INDEX}
        except BadData:  # then each episode is read by itself
            arrays = {}
        order = np.argsort(index, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(index[order])) + 1):
            number = int(index[rows[0]])
            if number in self.records:
                yield number, _Frames(chunk, rows, arrays)
            else:
                what = f"a frame of episode {table[EPISODE_INDEX][int(rows[0])]}, which has no record in meta/episodes"
                rejects.add(BadData(what, where=chunk.where(int(rows[0])), fix=FIX), rows=len(rows))

    def _episode(self, one: Episode, prefix: str, parts: Sequence[_Frames], tally: Tally) -> EpisodeBatch:
        """An episode from all of its frames. Raises BadEpisode where some are missing, or a value is."""
        roles, count = self.roles, sum(len(part.rows) for part in parts)
        place = parts[0].chunk.where(int(parts[0].rows[0])) if parts else self.info.location
        if count != one.length:
            what = f"episode {one.episode_index} has {count} frames, and its record in meta says {one.length}"
            raise BadEpisode(what, where=place, fix=FIX, details={PROBLEM: GAP})
        order: Any = slice(None)

        def values(name: str) -> NDArray[Any]:
            """(T, ...) of a column; LeRobot writes one number, not a list of one."""
            found = [part.values(name) for part in parts]
            shape = self.meta.features[name].row if name in self.meta.features else ()
            if any(math.prod(one.shape[1:]) != math.prod(shape) for one in found):
                raise BadEpisode(f"{name} is of another shape than {list(shape)}", where=place, fix=FIX)
            return np.asarray(np.concatenate(found)[order]).reshape(count, *shape)

        frame = values(FRAME_INDEX)
        if (frame[1:] < frame[:-1]).any():
            order = np.argsort(frame, kind="stable")
        if not np.array_equal(frame[order], np.arange(count)):
            raise BadEpisode(f"{FRAME_INDEX} of episode {one.episode_index} does not count from 0", where=place, fix=FIX)
        flags = [np.zeros(count) if name is None else values(name) for name in (roles.done, roles.truncated)]
        done, is_truncated = (one_number_each(flag, DONE[0], where=place, fix=FIX) > 0 for flag in flags)
        terminated = bool(done[-1] and not is_truncated[-1])
        obs, extra = map_leaves(values, roles.obs), {name: map_leaves(values, tree) for name, tree in roles.extra.items()}
        made = whole_episode(
            one.eps_id or f"{prefix}{one.episode_index}",
            place,
            obs=obs,
            next_obs=obs,
            actions=map_leaves(values, roles.actions),
            rewards=np.zeros(count) if roles.reward is None else values(roles.reward),
            terminated=terminated,
            truncated=not terminated,
            extra=extra,
            custom_data=(self._data_of(one),),
        )
        if all(TIMESTAMP in part.chunk.table.column_names for part in parts):
            regular = (np.arange(count) / self.meta.fps).astype(np.float32)
            tally.assume(
                "irregular-timestamp", int((np.abs(values(TIMESTAMP).reshape(-1) - regular) > np.spacing(regular)).sum())
            )
        tally.assume("end-flag-before-end", int(done[:-1].sum()))
        tally.assume("dones-as-terminateds", int(terminated and roles.truncated is None))
        tally.assume(MISSING_REWARDS, count if roles.reward is None else 0)
        return made

    def _data_of(self, one: Episode) -> dict[str, Any]:
        """The custom data of an episode."""
        data: dict[str, Any] = {}
        data |= {key: value for key, value in (one.model_extra or {}).items() if isinstance(value, str | int | float | bool)}
        data |= {**(one.custom_data or {}), Columns.SOURCE_ID: str(one.episode_index), "fps": self.meta.fps}
        if isinstance(self.meta.robot_type, str):
            data["robot_type"] = self.meta.robot_type[:200]
        if one.tasks:
            data["task"] = "; ".join(one.tasks)
        if len(one.tasks or ()) > 1:
            data["tasks"] = {str(number): text for number, text in self.tasks.items() if text in (one.tasks or ())}
        return data
