"""The frames of a LeRobot dataset as a `Source`: rows with RLlib's column names, which `formats/rllib/columns.py` reads.

Of its features become

* `observation.*` the observation: an array where `observation.state` is its only part, else a Dict by name;
* `action`, or without it `action.*`, the action;
* `next.reward`, `next.done`, `next.truncated` reward and end flags;
* further numbers extra model outputs, by their dotted names;
* pictures, videos and texts nothing: they are left out by name.

A row holds an observation and the action taken there, so that the observation after the last action is unknown: it is repeated,
and counted as everywhere. An episode is whole where it has as many rows as its record says; fewer are an error that names it.
That is known once all files are read, which is why the source is not divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import PROBLEM, BadData
from offline_cli.formats.leaf_names import tree_of_names
from offline_cli.formats.lerobot.dataset import INFO, Episode, Feature, Folder, Info, read_episodes, read_info, read_tasks
from offline_cli.formats.parquet_files import Chunk, chunks, schema_of
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.rllib.columns import ColumnsReading
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Source, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables import TableSource
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import GAP, MISSING_REWARDS, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["ACTION", "DONE", "FRAME", "OBSERVATION", "REWARDS", "STATE", "TRUNCATED", "LeRobotSource", "open_lerobot"]

OBSERVATION, STATE, ACTION = "observation", "state", "action"
REWARDS: Final = ("next.reward", "reward")
DONE: Final = ("next.done", "done")
TRUNCATED: Final = "next.truncated"
FRAME: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has."""
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = FRAME

MOST: Final = 1 << 22  # numbers of one step
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.SOURCE_ID})
FIX: Final = "write the dataset again with LeRobot, or copy it again; --on-error skip leaves the episode out"
SAY_ROLES: Final = (
    '--mapping FILE, which says which are which: [columns] eps_id = "episode_index", t = "frame_index", obs = "state",'
    ' actions = "actions" (docs/formats.md#lerobot)'
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
    rest = [name for name in numbers if name not in {*FRAME, reward, done, TRUNCATED}]
    obs, actions = (
        {name.removeprefix(f"{role}."): name for name in rest if name.startswith(f"{role}.")} for role in (OBSERVATION, ACTION)
    )
    whole_action = ACTION if ACTION in rest else None
    missing = [f"{OBSERVATION}.*"] * (not obs) + [ACTION] * (not actions and whole_action is None)
    if missing:
        there = ", ".join(f"{name} {list(features[name].shape)}" for name in rest)
        what = f"no feature of numbers is called {' or '.join(missing)}; there are {there[:500] or 'none'}"
        fix = SAY_ROLES if rest else "pictures and videos are not read: add the state with LeRobot"
        raise BadData(what, where=where, fix=fix)
    extra = [name for name in rest if name not in {*obs.values(), *([whole_action] if whole_action else actions.values())}]
    dropped |= {name: "the name has a meaning here" for name in extra if name.partition(".")[0] in RESERVED}
    try:
        return _Roles(
            obs=obs[STATE] if list(obs) == [STATE] else tree_of_names(obs, "."),
            actions=whole_action or tree_of_names(actions, "."),
            extra=tree_of_names({name: name for name in extra if name not in dropped}, "."),
            reward=reward,
            done=done,
            truncated=TRUNCATED if TRUNCATED in numbers else None,
            dropped=dropped,
        )
    except ValueError as error:
        what = f"the feature {str(error)[:80]!r} cannot be part of a Dict beside the others"
        raise BadData(what, where=where, fix=f"rename it with lerobot-edit-dataset, or {SAY_ROLES}") from error


def _space(tree: Tree, features: Mapping[str, Feature], schema: pa.Schema) -> Space | None:
    """As shapes and columns say; None where the values decide, as of whole numbers."""
    if isinstance(tree, dict):
        parts = {key: found for key, part in tree.items() if (found := _space(part, features, schema)) is not None}
        return spaces.Dict(parts) if len(parts) == len(tree) else None
    kind = schema.field(tree).type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return spaces.Box(-np.inf, np.inf, features[tree].row, kind.to_pandas_dtype()) if pa.types.is_floating(kind) else None


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
    """The dataset; with a mapping, its frames as the table that the mapping explains. Raises NoData, BadData, UnsafeData."""
    folder = Folder.of(files, context.location)
    info = read_info(folder)
    if context.tables.mapping is not None or context.tables.rows_as_episodes:
        data, storage = folder.below("data"), context.storage_options
        return TableSource(data, context.location, options=context.tables, storage_options=storage, kind="parquet")
    episodes = read_episodes(folder, info)
    paths = list(dict.fromkeys(one.path for one in episodes))
    there = [folder.files[path] for path in paths if path in folder.files]
    if not there:
        fix = "download data/ as well: the whole dataset, and not only meta/"
        raise BadData("no file of frames is here", where=folder.place(paths[0]), fix=fix)
    schema = schema_of(there[0])
    lacking = [name for name in (FRAME_INDEX, EPISODE_INDEX) if name not in schema.names]
    roles = _roles_of(info.features, schema, folder.place(INFO))
    if lacking:
        raise BadData(f"no column {' or '.join(lacking)}", where=there[0].url, fix="write the dataset again with LeRobot")
    known = [_space(tree, info.features, schema) for tree in (roles.obs, roles.actions)]
    observation, action = known if None not in known else (None, None)
    declared = SourceInfo(
        format=LeRobotSource.format,
        location=context.location,
        observation_space=observation,
        action_space=action,
        spaces_inferred=True,
        action_scale=ENV_SCALE,
        said_by=INFO,
        longest=max(one.length for one in episodes),
        meanings=_meanings(roles, info),
    )
    dataset = _Dataset(folder, info, episodes, read_tasks(folder), roles, f"{source_hash(there)}-")
    return LeRobotSource(there, context.location, declared, dataset=dataset)


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What is known before the frames are read."""

    folder: Folder
    info: Info
    episodes: Sequence[Episode]
    tasks: Mapping[int, str]
    roles: _Roles
    prefix: str  # of ids, with its hyphen

    @property
    def has_steps_of_tasks(self) -> bool:
        """Whether some episode has several tasks."""
        return any(len(one.tasks) > 1 for one in self.episodes)

    def name(self, at: int) -> str:
        """The id of an episode: of one that we wrote its own, else with the hash of the files."""
        return self.episodes[at].eps_id or f"{self.prefix}{self.episodes[at].index}"

    def data_of(self, at: int) -> dict[str, Any]:
        """The custom data of an episode."""
        one = self.episodes[at]
        data: dict[str, Any] = {**one.fields, Columns.SOURCE_ID: str(one.index), "fps": self.info.fps}
        if isinstance(self.info.robot_type, str):
            data["robot_type"] = self.info.robot_type[:200]
        if one.tasks:
            data["task"] = "; ".join(one.tasks)
        if len(one.tasks) > 1:
            data["tasks"] = {str(number): text for number, text in self.tasks.items() if text in one.tasks}
        return data


@dataclass(slots=True)
class LeRobotSource(FileSource):
    """The data files that hold the episodes, in their order."""

    format: ClassVar = "lerobot"
    dataset: _Dataset = field(kw_only=True)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows, each at its `frame_index`."""
        self.done = 0
        dataset, roles = self.dataset, self.dataset.roles
        missing = [one.path for one in dataset.episodes if one.path not in dataset.folder.files]
        for path in dict.fromkeys(missing):
            rejects.add(BadData("a file of frames is missing", where=dataset.folder.place(path), fix=FIX))
            rejects.lose_episodes(Lost.UNREADABLE, missing.count(path))
        for name, reason in roles.dropped.items():
            tally.drop_column(name, reason)
        tally.assume("missing-end-flags", int(roles.done is None and roles.truncated is None))
        frames, before = _Frames(dataset, tally, rejects), rejects.count
        reading, options = ColumnsReading(tally, rejects), self.read_options
        columns = [*roles.columns, TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, *([TASK_INDEX] * dataset.has_steps_of_tasks)]
        for chunk in chunks(
            self.files, rejects, columns=columns, workers=options.workers, first_rows=options.limit, scope=self.scope
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            try:
                table, positions = frames.of_chunk(chunk)
            except BadData as error:
                rejects.add(error, rows=chunk.table.num_rows)
                rejects.lose_episodes(Lost.UNREADABLE)
                continue
            for found in reading.of_chunk(replace(chunk, table=table)):
                data = tuple(dataset.data_of(positions[name]) for name in found.batch.ids)
                yield replace(found, batch=replace(found.batch, custom_data=data))
        frames.check_whole(any_lost=rejects.count > before or bool(missing))


class _Frames:
    """Rows of frames as rows with RLlib's column names, and how many have been seen of each episode."""

    def __init__(self, dataset: _Dataset, tally: Tally, rejects: Rejects) -> None:
        self._dataset, self._tally, self._rejects = dataset, tally, rejects
        self._index = np.array([one.index for one in dataset.episodes])
        self._length = np.array([one.length for one in dataset.episodes])
        self._seen = np.zeros(len(self._index), np.int64)

    def of_chunk(self, chunk: Chunk) -> tuple[pa.Table, dict[str, int]]:
        """The rows, and the position of each episode in the records by its id. Raises BadData for columns of other types."""
        table, roles, place = chunk.table, self._dataset.roles, chunk.where(0)
        lacking = [name for name in (*roles.columns, FRAME_INDEX, EPISODE_INDEX) if name not in table.column_names]
        if lacking:
            raise BadData(f"no column {lacking[0][:80]!r}, which other files have", where=place, fix=FIX)
        index, frame = (
            _column(table, name, pa.types.is_integer, "whole numbers", place) for name in (EPISODE_INDEX, FRAME_INDEX)
        )
        at = np.minimum(np.searchsorted(self._index, index), len(self._index) - 1)
        strange = self._index[at] != index
        if strange.any():
            row = int(np.argmax(strange))
            what = f"a frame of episode_index {table[EPISODE_INDEX][row]}, which has no record in meta/episodes"
            self._rejects.add(BadData(what, where=chunk.where(row), fix=FIX), rows=0)
        self._seen += np.bincount(at[~strange], minlength=len(self._seen))
        found, code = np.unique(at, return_inverse=True)
        names = [self._dataset.name(position) for position in found.tolist()]
        terminated, truncated = self._ends(table, frame == self._length[at] - 1, place)
        if TIMESTAMP in table.column_names and pa.types.is_floating(table.schema.field(TIMESTAMP).type):
            said, regular = table[TIMESTAMP].to_numpy(), (frame / self._dataset.info.fps).astype(np.float32)
            self._tally.assume("irregular-timestamp", int((np.abs(said - regular) > np.spacing(np.abs(regular))).sum()))
        columns: dict[str, Any] = {
            Columns.EPS_ID: pa.array(names, pa.string()).take(pa.array(np.ma.masked_array(code, strange))),
            Columns.T: table[FRAME_INDEX].cast(pa.int64()),
            Columns.OBS: self._leaf(table, roles.obs),
            Columns.ACTIONS: self._leaf(table, roles.actions),
            Columns.REWARDS: pa.array(np.zeros(table.num_rows)) if roles.reward is None else table[roles.reward],
            Columns.TERMINATEDS: pa.array(terminated),
            Columns.TRUNCATEDS: pa.array(truncated),
            **{name: self._leaf(table, tree) for name, tree in roles.extra.items()},
        }
        self._tally.assume(MISSING_REWARDS, table.num_rows if roles.reward is None else 0)
        if self._dataset.has_steps_of_tasks and TASK_INDEX in table.column_names:
            columns[TASK_INDEX] = table[TASK_INDEX]
        return pa.table(columns), dict(zip(names, found.tolist(), strict=True))

    def _ends(self, table: pa.Table, ended: NDArray[np.bool_], place: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) terminateds and truncateds: an episode ends with its last row, and a flag says how."""
        done, truncated = (
            np.zeros(len(ended), np.bool_) if name is None else _column(table, name, _is_flag, "flags", place) > 0
            for name in (self._dataset.roles.done, self._dataset.roles.truncated)
        )
        self._tally.assume("end-flag-before-end", int((done & ~ended).sum()))
        terminated = ended & done & ~truncated
        if self._dataset.roles.truncated is None:
            self._tally.assume("dones-as-terminateds", int(terminated.sum()))
        return terminated, ended & ~terminated

    def _leaf(self, table: pa.Table, tree: Tree) -> pa.Array:
        """One column: of a feature, or a struct by name. LeRobot writes one number, not a list of one."""
        if isinstance(tree, dict):
            return pa.StructArray.from_arrays([self._leaf(table, part) for part in tree.values()], list(tree))
        array = pa.concat_arrays(table[tree].chunks)
        is_one = self._dataset.info.features[tree].row == (1,) and not pa.types.is_nested(array.type)
        return pa.FixedSizeListArray.from_arrays(array, 1) if is_one else array

    def check_whole(self, *, any_lost: bool) -> None:
        """Report episodes with fewer rows than their records say; those without any, unless something was lost."""
        for at in np.flatnonzero(self._seen < self._length).tolist():
            one, file = self._dataset.episodes[at], self._dataset.folder.files.get(self._dataset.episodes[at].path)
            if file is None or (any_lost and not self._seen[at]):
                continue
            what = f"episode {one.index} has {self._seen[at]} frames, and its record in meta says {one.length}"
            self._rejects.add(BadData(what, where=file.url, fix=FIX, details={PROBLEM: GAP}), rows=0)
            self._rejects.lose(self._dataset.name(at), file.url)


def _is_flag(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _column(table: pa.Table, name: str, is_right: Any, words: str, where: str) -> NDArray[np.int64]:
    """(N,) whole numbers, -1 for null. Raises BadData for a column of another type."""
    column = table[name]
    if not is_right(column.type):
        raise BadData(f"column {name} holds {column.type}, not {words}", where=where, fix=FIX)
    whole = column if pa.types.is_integer(column.type) else column.cast(pa.bool_())
    return np.asarray(pc.fill_null(whole.cast(pa.int64()), -1).to_numpy()).astype(np.int64)
