"""Read LeRobot datasets as whole episodes.

Features are mapped as follows:

* `observation.*`: the observation, an array if `observation.state` is its only part, otherwise a Dict by name;
* `action`, or without it `action.*`: the action;
* `next.reward`, `next.done`, `next.truncated`: reward and end flags;
* other numbers: extra model outputs, by their dotted names;
* images, videos and text: dropped, and reported by name.

A row holds an observation and the action taken there, so the final observation is unknown: the last one is repeated, and
counted as in other formats. Rows may be in any order: they are collected until an episode has the length in its record.
Incomplete episodes are errors.

`meta/info.json` describes the dataset; tasks and episode records are also in `meta/`. v3.0 stores these as Parquet, with many
episodes per data file; v2.1 and v2.0 as JSON lines, with one data file per episode. Frames are read from all Parquet files
below `data/` and assigned by their `episode_index`; no path named in `info.json` is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pydantic
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, BadEpisode, NoData
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.parquet_files import Chunk, chunks, schema_of
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import tree_of_names
from offline_cli.formats.source import ENV_SCALE, Fragments, Source, SourceInfo, source_hash
from offline_cli.formats.step_rows import END_FLAGS, one_number_each
from offline_cli.formats.tables import TableSource
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads, whole_episode
from offline_cli.meanings import Element, Meanings
from offline_cli.schema_files import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import GAP, MISSING_REWARDS, Lost, Rejects, Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

INFO: Final = "meta/info.json"
TASKS, EPISODES = "meta/tasks", "meta/episodes"
EPS_ID, CUSTOM_DATA = "eps_id", "offline_cli"  # fields of the records that our sink writes: id, and custom data as JSON
DERIVED: Final = ("stats/", "videos/", "data/", "meta/", "dataset_")  # prefixes of record fields derived from the frames
MAX_FILE: Final = 256 << 20  # size limit of a JSON file, in bytes
LARGEST: Final = 1 << 53
SAVE_AGAIN: Final = "write the dataset again with LeRobot, or copy it again"
OLD: Final = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
Model = TypeVar("Model", bound=pydantic.BaseModel)


class Feature(pydantic.BaseModel):
    """One feature: numbers, video, images or text."""

    dtype: str
    shape: tuple[Annotated[int, pydantic.Field(gt=0, le=1 << 20)], ...] = pydantic.Field(max_length=8)
    names: Any = None  # names of the elements, in one of several layouts

    @property
    def number(self) -> np.dtype[Any] | None:
        """The dtype; None if the feature is not numeric."""
        try:
            found = np.dtype(self.dtype) if self.dtype.isalnum() else None
        except TypeError:
            return None
        return found if found is not None and found.kind in "biuf" else None

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one step; integers and flags of shape [1] are scalars."""
        is_float = self.number is not None and self.number.kind == "f"
        return self.shape if is_float or self.shape != (1,) else ()


class Info(pydantic.BaseModel):
    """The fields used of `meta/info.json`."""

    codebase_version: str = pydantic.Field(pattern=r"^v[23]\.")  # version of the layout: v3.0
    fps: pydantic.StrictInt | pydantic.StrictFloat = pydantic.Field(gt=0, lt=LARGEST)
    robot_type: Any = None
    features: dict[str, Feature] = pydantic.Field(min_length=1, max_length=4096)


class Episode(pydantic.BaseModel, extra="allow"):
    """The record of one episode; other fields are in `model_extra`."""

    episode_index: int = pydantic.Field(ge=0, lt=LARGEST)
    length: int = pydantic.Field(gt=0, lt=LARGEST)
    tasks: list[str] | None = None
    eps_id: str | None = None
    custom_data: pydantic.Json[dict[str, Any]] | None = pydantic.Field(None, alias="offline_cli")


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one dataset, by path relative to its root."""

    root: str  # path or URL, for messages
    files: Mapping[str, Location]

    @classmethod
    def of(cls, files: Sequence[Location], location: str) -> Folder:
        """Find the dataset among `files`. Raises NoData if there is not exactly one."""
        infos = [file for file in files if file.path.endswith(f"/{INFO}") or file.path == INFO]
        if len(infos) != 1:
            fix = f"name the folder of one dataset, which has {INFO}"
            raise NoData(f"found {len(infos)} LeRobot datasets instead of one", where=location, fix=fix)
        root = infos[0].path.removesuffix(INFO)
        below = {file.path.removeprefix(root): file for file in files if file.path.startswith(root)}
        return cls(infos[0].url.removesuffix(INFO).rstrip("/") or ".", below)

    def place(self, path: str) -> str:
        """The full path of a file, for messages."""
        return f"{self.root}/{path}"

    def parquet(self, folder: str) -> list[Location]:
        """The Parquet files below a folder, sorted by path. Raises BadData if there are none."""
        found = [path for path in sorted(self.files) if path.startswith(f"{folder}/") and path.endswith(".parquet")]
        if not found:
            fix = "download the whole dataset, not only a part of it"
            raise BadData("no Parquet files found", where=self.place(folder), fix=fix)
        return [self.files[path] for path in found]

    def documents(self, path: str) -> Iterator[tuple[Any, str]]:
        """The JSON values of a file (one per line for JSON lines), each with its place. Raises BadData."""
        if path not in self.files or self.files[path].size() > MAX_FILE:
            what = f"the file is missing, or larger than {MAX_FILE >> 20} MiB"
            raise BadData(what, where=self.place(path), fix="copy or download the dataset again")
        data = self.files[path].read_bytes()
        for number, text in enumerate(data.splitlines() if path.endswith(".jsonl") else [data], 1):
            where = f"{self.place(path)} line {number}" if path.endswith(".jsonl") else self.place(path)
            try:
                if text.strip():
                    yield from_json(text), where
            except ValueError as error:
                raise BadData(f"not JSON: {error}", where=where, fix=SAVE_AGAIN) from error


def _checked(kind: type[Model], document: Any, where: str) -> Model:
    """Validate a document. Raises BadData, naming the field."""
    try:
        return kind.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "document"
        what = f"{place}: {first['msg']}, not {str(first['input'])[:80]!r}"
        raise BadData(what, where=where, fix=OLD if place == "codebase_version" else SAVE_AGAIN) from error


def read_info(folder: Folder) -> Info:
    """Read `meta/info.json`. Raises BadData."""
    return next((_checked(Info, *one) for one in folder.documents(INFO)), None) or _checked(Info, None, folder.place(INFO))


def read_episodes(folder: Folder, info: Info) -> dict[int, Episode]:
    """Read the episode records, by ascending index. Raises BadData if they are missing, invalid or duplicated."""
    is_v3 = info.codebase_version.startswith("v3")
    found = [_checked(Episode, *one) for one in (_rows(folder) if is_v3 else folder.documents(f"{EPISODES}.jsonl"))]
    ids = [one.eps_id for one in found if one.eps_id is not None]
    by_index = {one.episode_index: one for one in sorted(found, key=lambda one: one.episode_index)}
    if not found or len(by_index) < len(found) or len(set(ids)) < len(ids):
        raise BadData(
            f"no episodes, or two with the same episode_index or {EPS_ID}", where=folder.place(EPISODES), fix=SAVE_AGAIN
        )
    return by_index


def _rows(folder: Folder) -> Iterator[tuple[Any, str]]:
    """Episode records of v3.0."""
    for file in folder.parquet(EPISODES):
        names = [name for name in schema_of(file).names if not name.startswith(DERIVED)]
        for chunk in chunks([file], Rejects(), columns=names):
            yield from ((row, file.url) for row in chunk.table.to_pylist())


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """Task descriptions by index; empty if the dataset has no tasks file. Raises BadData."""
    rows: list[Any] = []
    if f"{TASKS}.jsonl" in folder.files:
        rows = [record for record, _ in folder.documents(f"{TASKS}.jsonl") if isinstance(record, dict)]
    elif (file := folder.files.get(f"{TASKS}.parquet")) is not None:
        for chunk in chunks([file], Rejects()):
            texts = [one.name for one in chunk.table.schema if is_text(one.type)]
            named = [name for name in ("task", "__index_level_0__") if name in texts] or texts  # pandas's name for an index
            if not named or "task_index" not in chunk.table.column_names:
                raise BadData("the columns task and task_index are missing", where=chunk.where(0), fix=SAVE_AGAIN)
            rows += chunk.table.select(["task_index", named[0]]).rename_columns(["task_index", "task"]).to_pylist()
    return {row["task_index"]: str(row.get("task", "")) for row in rows if type(row.get("task_index")) is int}


OBSERVATION, STATE, ACTION = "observation", "state", "action"
REWARDS: Final = ("next.reward", "reward")
DONE: Final = ("next.done", "done")
TRUNCATED: Final = "next.truncated"
FRAME: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns in every dataset."""
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = FRAME
ROLES: Final = {OBSERVATION: Columns.OBS, ACTION: Columns.ACTIONS}

MOST: Final = 1 << 22  # limit of numbers per step
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.SOURCE_ID})
FIX: Final = "write the dataset again with LeRobot, or copy it again; or skip the episode with --on-error skip"
SAY_ROLES: Final = (
    'give --mapping FILE, which maps them: [columns] eps_id = "episode_index", t = "frame_index", obs = "state",'
    ' actions = "actions"'
)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Feature names by their role."""

    obs: Tree
    actions: Tree
    extra: Mapping[str, Tree]
    reward: str | None
    done: str | None
    truncated: str | None
    dropped: Mapping[str, str]  # dropped features, and why

    @property
    def columns(self) -> list[str]:
        """The columns to read, besides those of `FRAME`."""
        flags = [name for name in (self.reward, self.done, self.truncated) if name is not None]
        return [*flags, *leaves(self.obs), *leaves(self.actions), *leaves(dict(self.extra))]


def _roles_of(features: Mapping[str, Feature], schema: pa.Schema, where: str) -> _Roles:
    """Assign roles to the features of info.json and the columns of the data files. Raises BadData."""
    numbers = [name for name, feature in features.items() if feature.number is not None]
    dropped = {name: f"{features[name].dtype[:40]}, not numbers" for name in features if name not in numbers}
    dropped |= {name: "not a feature in info.json" for name in schema.names if name not in features and name not in FRAME}
    lacking = [name for name in numbers if name not in schema.names]
    if lacking or sum(math.prod(features[name].shape) for name in numbers) > MOST:
        what = f"the feature {lacking[0][:80]!r} is not in the data files" if lacking else f"more than {MOST} numbers per step"
        raise BadData(what, where=where, fix="write the dataset again with LeRobot, with fewer features")
    reward, done = (next((name for name in names if name in numbers), None) for names in (REWARDS, DONE))
    truncated, rest = TRUNCATED if TRUNCATED in numbers else None, dict[str, str]()  # feature by our dotted path
    for name in numbers:
        head, dot, below = name.partition(".")
        ours = ROLES.get(head, head)
        if head in RESERVED:
            dropped[name] = "the name is reserved"
        elif name not in (*FRAME, reward, done, truncated):
            is_part = name != ACTION and head == ACTION and ACTION in numbers  # `action` exists as a whole
            rest[name if is_part else f"{ours}{dot}{below}"] = name
    try:
        tree = tree_of_names(rest, ".")
    except ValueError as error:
        what = f"the feature {str(error)[:80]!r} conflicts with another feature: it cannot be both a part and a Dict"
        raise BadData(what, where=where, fix=f"rename it with lerobot-edit-dataset, or {SAY_ROLES}") from error
    missing = [theirs for theirs, ours in ROLES.items() if ours not in tree]
    if missing:
        there = ", ".join(f"{name} {list(features[name].shape)}" for name in numbers if name not in FRAME)
        what = f"no numeric feature is named {' or '.join(missing)}; numeric features: {there[:500] or 'none'}"
        fix = SAY_ROLES if there else "images and videos are not read: add the state with LeRobot"
        raise BadData(what, where=where, fix=fix)
    obs, actions = tree.pop(Columns.OBS), tree.pop(Columns.ACTIONS)
    obs = obs[STATE] if isinstance(obs, dict) and list(obs) == [STATE] else obs
    return _Roles(obs, actions, tree, reward, done, truncated, dropped)


def _meanings(roles: _Roles, info: Info) -> Meanings:
    """Names of vector elements (a list, or in older recordings a list under one key), and the duration of a step."""
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
    """Open a dataset; with a mapping, read its frames as a table instead. Raises NoData, BadData."""
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
        raise BadData(
            f"the data has no column {' or '.join(lacking)}", where=data[0].url, fix="write the dataset again with LeRobot"
        )
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
    """The frames of one episode in one chunk."""

    chunk: Chunk
    rows: NDArray[np.int64]  # row numbers in the chunk
    arrays: Mapping[str, NDArray[Any]]  # whole columns of the chunk; empty if a value in it is missing or invalid

    def values(self, name: str) -> NDArray[Any]:
        """Values of a column, (T, ...). Raises BadData, naming the row."""
        if name in self.arrays:
            return self.arrays[name][self.rows]
        table = self.chunk.table.take(self.rows)
        return _numbers(table, name, lambda row: self.chunk.where(int(self.rows[row])))


def _numbers(table: pa.Table, name: str, where: Callable[[int], str]) -> NDArray[Any]:
    """Values of a column, (N, ...). Raises BadData."""
    at = table.column_names.index(name)
    found = tree_of(table.column(at), table.schema.field(at), where=where)
    if not isinstance(found, np.ndarray):
        raise BadData(f"column {name} holds {str(table.schema.field(at).type)[:80]}, not numbers", where=where(0), fix=FIX)
    return found


@dataclass(slots=True)
class LeRobotSource(EpisodeFiles):
    """The data files of a dataset, in order of path."""

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
        """Episodes as soon as all their frames are read; incomplete ones at the end."""
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
        is_told = rejects.count > before and bool(cut or len(whole) < len(self.files))  # a damaged file was already reported
        lost = set(waiting) if is_told else missing.union(waiting)
        for index in sorted(lost):
            yield [index], partial(self._episode, self.records[index], prefix, waiting.get(index, []), tally)

    def _by_episode(self, chunk: Chunk, rejects: Rejects) -> Iterator[tuple[int, _Frames]]:
        """The frames of a chunk by episode; frames of unknown episodes go to `rejects`."""
        table = chunk.table
        needed = (*self.roles.columns, FRAME_INDEX, EPISODE_INDEX)
        lacking = [name for name in needed if name not in table.column_names]
        if lacking or not pa.types.is_integer(table.schema.field(EPISODE_INDEX).type):
            what = f"the column {(lacking or [EPISODE_INDEX])[0][:80]!r} is missing or not integers, unlike in other files"
            rejects.add(BadData(what, where=chunk.where(0), fix=FIX), rows=table.num_rows)
            rejects.lose_episodes(Lost.UNREADABLE)
            return
        index = np.asarray(pc.fill_null(table[EPISODE_INDEX].cast(pa.int64(), safe=False), -1).to_numpy())
        try:
            arrays = {name: _numbers(table, name, chunk.where) for name in table.column_names if name != EPISODE_INDEX}
        except BadData:  # read each episode separately, to find the bad ones
            arrays = {}
        order = np.argsort(index, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(index[order])) + 1):
            number = int(index[rows[0]])
            if number in self.records:
                yield number, _Frames(chunk, rows, arrays)
            else:
                what = f"the frame is of episode {table[EPISODE_INDEX][int(rows[0])]}, which has no record in meta/episodes"
                rejects.add(BadData(what, where=chunk.where(int(rows[0])), fix=FIX), rows=len(rows))

    def _episode(self, one: Episode, prefix: str, parts: Sequence[_Frames], tally: Tally) -> EpisodeBatch:
        """Build an episode from its frames. Raises BadEpisode if frames or values are missing."""
        roles, count = self.roles, sum(len(part.rows) for part in parts)
        place = parts[0].chunk.where(int(parts[0].rows[0])) if parts else self.info.location
        if count != one.length:
            what = f"episode {one.episode_index} has {count} frames, but its record in meta says {one.length}"
            raise BadEpisode(what, where=place, fix=FIX, details={PROBLEM: GAP})
        order: Any = slice(None)

        def values(name: str) -> NDArray[Any]:
            """Values of a column, (T, ...), in the feature's shape: LeRobot stores shape [1] as a plain number."""
            found = [part.values(name) for part in parts]
            shape = self.meta.features[name].row if name in self.meta.features else ()
            if any(math.prod(one.shape[1:]) != math.prod(shape) for one in found):
                raise BadEpisode(f"{name} does not have shape {list(shape)}", where=place, fix=FIX)
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
        """Custom data of an episode, from its record and the dataset's."""
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
