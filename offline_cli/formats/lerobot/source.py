"""The frames of a LeRobot dataset as a `Source`.

A row holds an observation and the action taken there, so that the observation after the last action is unknown: it is repeated,
and counted as everywhere. An episode is whole where it has as many rows as its record says; fewer are an error that names it.
That is known once all files are read, which is why the source is not divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import PROBLEM, BadData
from offline_cli.formats.lerobot.dataset import INFO, Episodes, Folder, Info, read_episodes, read_info, read_tasks
from offline_cli.formats.lerobot.features import FRAME, Leaf, Plan
from offline_cli.formats.parquet_files import Chunk, chunks, schema_of
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.rllib.columns import ColumnsReading
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Source, SourceInfo
from offline_cli.formats.tables import TableSource
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.meanings import Element, Meanings
from offline_cli.storage.locations import Location
from offline_cli.tally import GAP, MISSING_REWARDS, Lost, Rejects, Tally

__all__ = ["LeRobotSource", "open_lerobot"]

TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, _, TASK_INDEX = FRAME
FIX: Final = "write the dataset again with LeRobot, or copy it again; --on-error skip leaves the episode out"


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What is known before the frames are read."""

    folder: Folder
    info: Info
    episodes: Episodes
    tasks: Mapping[int, str]
    plan: Plan
    prefix: str  # of ids, with its hyphen
    has_steps_of_tasks: bool  # some episode has several tasks

    def ids(self, positions: Sequence[int]) -> list[str]:
        """Of the episodes at these positions: those that we wrote, else with the hash of the files."""
        kept = self.episodes.eps_ids
        return [f"{self.prefix}{self.episodes.index[at]}" if kept is None else kept[at] for at in positions]

    def data_of(self, position: int) -> dict[str, Any]:
        """The fields of one episode."""
        known, tasks = self.episodes, self.episodes.tasks[position]
        data: dict[str, Any] = {Columns.SOURCE_ID: str(known.index[position]), "fps": self.info.fps}
        if self.info.robot_type is not None:
            data["robot_type"] = self.info.robot_type
        if tasks:
            data["task"] = "; ".join(tasks)
        if len(tasks) > 1:
            data["tasks"] = {str(number): text for number, text in self.tasks.items() if text in tasks}
        return {**known.fields[position], **data}


@dataclass(slots=True)
class LeRobotSource(FileSource):
    """The data files that hold the episodes, in their order."""

    format: ClassVar = "lerobot"
    dataset: _Dataset | None = None
    missing: Mapping[str, int] = field(default_factory=dict)  # paths of data files that are not there: how many episodes

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Runs of rows, each at its `frame_index`."""
        self.done = 0
        dataset = self._dataset
        for path, count in self.missing.items():
            rejects.add(BadData("a file of frames is missing", where=dataset.folder.place(path), fix=FIX))
            rejects.lose_episodes(Lost.UNREADABLE, count)
        for name, reason in dataset.plan.dropped.items():
            tally.drop_column(name, reason)
        if dataset.plan.done is None and dataset.plan.truncated is None:
            tally.assume("missing-end-flags")
        frames, before = _Frames(dataset, tally, rejects), rejects.count
        reading = ColumnsReading(tally, rejects)
        for chunk in chunks(
            self.files,
            rejects,
            columns=frames.columns,
            workers=self.read_options.workers,
            first_rows=self.read_options.limit,
            scope=self.scope,
        ):
            tally.rows_in += chunk.table.num_rows
            self.done += chunk.nbytes
            table = frames.of_chunk(chunk)
            if table is None:
                continue
            for found in reading.of_chunk(replace(chunk, table=table)):
                yield replace(found, batch=replace(found.batch, custom_data=frames.data_of(found.batch.ids)))
        frames.check_whole([file.url for file in self.files], any_lost=rejects.count > before or bool(self.missing))

    @property
    def _dataset(self) -> _Dataset:
        assert self.dataset is not None  # set when opened
        return self.dataset


def open_lerobot(files: Sequence[Location], context: OpenContext) -> Source:
    """The dataset; with a mapping, its frames as the table that the mapping explains. Raises NoData, BadData, UnsafeData."""
    folder = Folder.of(files, context.location)
    info = read_info(folder)
    if context.tables.mapping is not None or context.tables.rows_as_episodes:
        data, storage = folder.below("data"), context.storage_options
        return TableSource(data, context.location, options=context.tables, storage_options=storage, kind="parquet")
    episodes = read_episodes(folder, info)
    paths = list(dict.fromkeys(episodes.paths))
    there = [folder.files[path] for path in paths if path in folder.files]
    if not there:
        fix = "download data/ as well: the whole dataset, and not only meta/"
        raise BadData("no file of frames is here", where=folder.place(paths[0]), fix=fix)
    schema = schema_of(there[0])
    plan = Plan.of(info.features, schema, where=folder.place(INFO))
    lacking = [name for name in FRAME[1:3] if name not in schema.names]
    if lacking:
        raise BadData(f"no column {' or '.join(lacking)}", where=there[0].url, fix="write the dataset again with LeRobot")
    several = any(len(tasks) > 1 for tasks in episodes.tasks)
    dataset = _Dataset(folder, info, episodes, read_tasks(folder), plan, f"{source_hash(there)}-", several)
    missing = {path: episodes.paths.count(path) for path in paths if path not in folder.files}
    observation, action = plan.spaces
    declared = SourceInfo(
        format=LeRobotSource.format,
        location=context.location,
        observation_space=observation if action is not None else None,
        action_space=action if observation is not None else None,
        spaces_inferred=True,
        action_scale=ENV_SCALE,
        said_by=INFO,
        longest=int(episodes.length.max()),
        meanings=Meanings({**plan.names, Columns.T: (Element(unit=f"1/{info.fps:g} s"),)}),
    )
    return LeRobotSource(there, context.location, declared, dataset=dataset, missing=missing)


class _Frames:
    """Rows of frames as rows with RLlib's column names, and what has been seen of each episode."""

    def __init__(self, dataset: _Dataset, tally: Tally, rejects: Rejects) -> None:
        self._dataset, self._tally, self._rejects = dataset, tally, rejects
        self._seen = np.zeros(len(dataset.episodes.index), np.int64)
        self._positions: dict[str, int] = {}  # by id, of the episodes of the chunk at hand

    @property
    def columns(self) -> list[str]:
        """Those to read."""
        unused = {FRAME[3]} if self._dataset.has_steps_of_tasks else {FRAME[3], TASK_INDEX}
        return [name for name in self._dataset.plan.columns if name not in unused]

    def data_of(self, ids: Sequence[str]) -> tuple[dict[str, Any], ...]:
        """The fields of these episodes."""
        return tuple(self._dataset.data_of(self._positions[name]) for name in ids)

    def of_chunk(self, chunk: Chunk) -> pa.Table | None:
        """The rows; None where their columns cannot be read, which is reported."""
        try:
            return self._table(chunk)
        except BadData as error:
            self._rejects.add(error, rows=chunk.table.num_rows)
            self._rejects.lose_episodes(Lost.UNREADABLE)
            return None

    def _table(self, chunk: Chunk) -> pa.Table:
        table, plan, known = chunk.table, self._dataset.plan, self._dataset.episodes
        place = chunk.where(0)
        lacking = [name for name in self.columns if name not in table.column_names and name not in (TIMESTAMP, TASK_INDEX)]
        if lacking:
            raise BadData(f"no column {lacking[0][:80]!r}, which other files have", where=place, fix=FIX)
        index, frame = _integers(table, EPISODE_INDEX, place), _integers(table, FRAME_INDEX, place)
        at = np.minimum(np.searchsorted(known.index, index), len(known.index) - 1)
        strange = known.index[at] != index
        if strange.any():
            row = int(np.argmax(strange))
            what = f"a frame of episode_index {table[EPISODE_INDEX][row]}, which has no record in meta/episodes"
            self._rejects.add(BadData(what, where=chunk.where(row), fix=FIX), rows=0)
        self._seen += np.bincount(at[~strange], minlength=len(self._seen))
        found, code = np.unique(at, return_inverse=True)
        names = self._dataset.ids(found.tolist())
        self._positions = dict(zip(names, found.tolist(), strict=True))
        ended = frame == known.length[at] - 1
        terminated, truncated = self._ends(table, ended)
        self._count_times(table, frame)
        columns: dict[str, Any] = {
            Columns.EPS_ID: pa.array(names, pa.string()).take(pa.array(np.ma.masked_array(code, strange))),
            Columns.T: table[FRAME_INDEX].cast(pa.int64()),
            Columns.OBS: _tree(table, plan.observation),
            Columns.ACTIONS: _tree(table, plan.action),
            Columns.REWARDS: self._rewards(table),
            Columns.TERMINATEDS: pa.array(terminated),
            Columns.TRUNCATEDS: pa.array(truncated),
        }
        for name in dict.fromkeys(leaf.path[0] for leaf in plan.extra):
            leaves = [replace(leaf, path=leaf.path[1:]) for leaf in plan.extra if leaf.path[0] == name]
            columns[name] = _tree(table, leaves)
        if self._dataset.has_steps_of_tasks and TASK_INDEX in table.column_names:
            columns[TASK_INDEX] = table[TASK_INDEX]
        return pa.table(columns)

    def _ends(self, table: pa.Table, ended: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) terminateds and truncateds: an episode ends with its last row, and a flag says how."""
        plan = self._dataset.plan
        done, truncated = _flags(table, plan.done), _flags(table, plan.truncated)
        if done is not None:
            self._tally.assume("end-flag-before-end", int((done & ~ended).sum()))
        terminated = ended & (np.zeros(len(ended), np.bool_) if done is None else done)
        if truncated is not None:
            terminated &= ~truncated
        elif done is not None:
            self._tally.assume("dones-as-terminateds", int(terminated.sum()))
        return terminated, ended & ~terminated

    def _rewards(self, table: pa.Table) -> Any:
        name = self._dataset.plan.reward
        if name is None:
            self._tally.assume(MISSING_REWARDS, table.num_rows)
            return pa.array(np.zeros(table.num_rows))
        return table[name]

    def _count_times(self, table: pa.Table, frame: NDArray[np.int64]) -> None:
        """A timestamp that is not its frame's, by `fps`, is not kept."""
        if TIMESTAMP not in table.column_names or not pa.types.is_floating(table.schema.field(TIMESTAMP).type):
            return
        said = table[TIMESTAMP].to_numpy()
        regular = (frame / self._dataset.info.fps).astype(np.float32)
        self._tally.assume("irregular-timestamp", int((np.abs(said - regular) > np.spacing(np.abs(regular))).sum()))

    def check_whole(self, files: Sequence[str], *, any_lost: bool) -> None:
        """Report episodes of these files with fewer rows than their records say; without any, unless something was lost."""
        known = self._dataset.episodes
        places = {path: self._dataset.folder.files[path].url for path in set(known.paths) if path in self._dataset.folder.files}
        here = set(files)
        short = np.flatnonzero(self._seen < known.length)
        for at in short.tolist():
            place = places.get(known.paths[at])
            if place not in here or (any_lost and not self._seen[at]):
                continue
            name = self._dataset.ids([at])[0]
            what = f"episode {known.index[at]} has {self._seen[at]} frames, and its record in meta says {known.length[at]}"
            self._rejects.add(BadData(what, where=str(place), fix=FIX, details={PROBLEM: GAP}), rows=0)
            self._rejects.lose(name, str(place))


def _integers(table: pa.Table, name: str, where: str) -> NDArray[np.int64]:
    """(N,) whole numbers, -1 for null."""
    column = table[name]
    if not pa.types.is_integer(column.type):
        raise BadData(f"column {name} holds {column.type}, not whole numbers", where=where, fix=FIX)
    return np.asarray(column.fill_null(-1).to_numpy()).astype(np.int64)


def _flags(table: pa.Table, name: str | None) -> NDArray[np.bool_] | None:
    if name is None:
        return None
    column = table[name]
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise BadData(f"column {name} holds {kind}, not flags", where="", fix=FIX)
    return np.asarray(pc.fill_null(column.cast(pa.bool_()), False).to_numpy())


def _tree(table: pa.Table, leaves: Sequence[Leaf]) -> Any:
    """One column: of the only leaf, or a struct by name."""
    if len(leaves) == 1 and not leaves[0].path:
        return _column(table, leaves[0])
    names = list(dict.fromkeys(leaf.path[0] for leaf in leaves))
    parts = [[replace(leaf, path=leaf.path[1:]) for leaf in leaves if leaf.path[0] == name] for name in names]
    return pa.StructArray.from_arrays([_tree(table, part) for part in parts], names)


def _column(table: pa.Table, leaf: Leaf) -> pa.Array:
    array = table[leaf.name].combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if leaf.shape == (1,) and not is_list:  # LeRobot writes one number, not a list of one
        return pa.FixedSizeListArray.from_arrays(array, 1)
    return array
