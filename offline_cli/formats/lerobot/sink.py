"""What `convert --to lerobot` writes: a dataset of layout v3.0, which LeRobot's own reader loads from its folder.

A Dict's parts are `observation.NAME`, an array alone is `observation.state`; actions are `action`, or `action.NAME`. One number
is a scalar column of shape [1], a vector a list of fixed length, and what has more dimensions nested lists, as LeRobot's own
`datasets.Array2D` to `Array5D` are stored. LeRobot has no place for the observation after an episode's last action: it is left
out, and counted. Frames a second, kind of robot and tasks are read from the custom data of episodes (`fps`, `robot_type`,
`task`), where reading a LeRobot dataset puts them; the rest of it is one JSON object in their records. Without `fps` a frame is
a second, which is counted.

`data/chunk-000/file-000.parquet` has a row group for each episode, `meta/episodes/...` a row with its statistics. Quantiles of
all episodes are means of those of each, weighted by their lengths, as LeRobot's own `aggregate_stats` makes them (source:
lerobot 0.4.4, `datasets/compute_stats.py`). What is written is no dataset before `meta/info.json`, which is the last file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, OfflineCliError, UnsupportedSpace
from offline_cli.formats.lerobot.reader import (
    ACTION,
    CUSTOM_DATA,
    DONE,
    EPS_ID,
    FRAME,
    INFO,
    OBSERVATION,
    REWARDS,
    STATE,
    TRUNCATED,
)
from offline_cli.formats.sink import ForeignSink, SinkContext, SinkKind, Written, count_finals, count_left_out, refuse_folder
from offline_cli.meanings import Meanings
from offline_cli.parquet.writing import ShardWriter
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.trees import Tree, flatten

SECOND: Final = 1  # frames of one, where nothing is said
MAX_DIMENSIONS: Final = 5
CHUNKS: Final = 1000  # files in a folder
DATA: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
QUANTILES: Final = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
FPS, ROBOT, TASK, TASKS = "fps", "robot_type", "task", "tasks"
OWN: Final = (FPS, ROBOT, TASK, TASKS, Columns.SOURCE_ID, Columns.FINAL_OBS_ASSUMED)
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = FRAME
Features = dict[str, dict[str, Any]]  # as info.json has them


class LeRobotSink(ForeignSink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "lerobot")
        self._features: Features = {}
        self._tasks: dict[str, int] = {}
        self._said: dict[str, Any] = {}  # fps and robot of the first episode
        self._records: list[pa.Table] = []  # of each batch
        self._files: list[Location] = []  # that have been begun
        self._open: ShardWriter | None = None
        self._size = 0  # bytes in the open file, before compression
        self._bytes = 0  # of whole files
        self._is_whole = False

    def __enter__(self) -> Self:
        _check_space(self.context.observation_space, OBSERVATION)
        _check_space(self.context.action_space, ACTION)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove what was written of a dataset that is not whole."""
        if self._open is not None:
            self._open.discard()
        if not self._is_whole:
            with suppress(OfflineCliError):  # the error that ends the writing is the one to report
                for file in self._files:
                    file.remove()

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: a row group and a record for each episode."""
        columns, all_data = self._counted(batch), batch.custom_data or ({},) * len(batch)
        steps, whole = int(batch.num_steps), np.flatnonzero(batch.lengths)
        numbers = np.zeros(len(batch), np.int64)
        numbers[whole] = self.episodes + np.arange(len(whole))
        frame = np.arange(steps) - np.repeat(batch.starts[:-1], batch.lengths)
        fps = np.repeat([self._fps(data, name) for data, name in zip(all_data, batch.ids, strict=True)], batch.lengths)
        columns |= {
            TIMESTAMP: (frame / fps).astype(np.float32),
            FRAME_INDEX: frame,
            EPISODE_INDEX: np.repeat(numbers, batch.lengths),
            INDEX: np.arange(self.steps, self.steps + steps),
            TASK_INDEX: self._tasks_of(batch, all_data),
        }
        typed = {"info": {"features": {name: _huggingface(feature) for name, feature in self._features.items()}}}
        table = pa.table({name: _arrow_column(values) for name, values in columns.items()})
        table = table.replace_schema_metadata({b"huggingface": json.dumps(typed).encode()})
        records = []
        for at in whole.tolist():
            rows = slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            file = self._write_rows(table[rows.start : rows.stop])
            records.append(self._record({name: values[rows] for name, values in columns.items()}, file))
            records[-1] |= {EPS_ID: batch.ids[at], CUSTOM_DATA: self._json_of(all_data[at])}
        if records:
            self._records.append(pa.Table.from_pylist(records))
        self.episodes, self.steps = self.episodes + len(whole), self.steps + steps

    def _record(self, columns: Mapping[str, NDArray[Any]], file: int) -> dict[str, Any]:
        """Of an episode whose frames are in a file."""
        texts, index = list(self._tasks), columns[INDEX]
        statistics = {
            f"stats/{name}/{kind}": found for name in columns for kind, found in _statistics_of(columns[name]).items()
        }
        return {
            EPISODE_INDEX: int(columns[EPISODE_INDEX][0]),
            "tasks": [texts[task] for task in dict.fromkeys(columns[TASK_INDEX].tolist())],
            "length": len(index),
            "data/chunk_index": file // CHUNKS,
            "data/file_index": file % CHUNKS,
            "dataset_from_index": int(index[0]),
            "dataset_to_index": int(index[-1]) + 1,
            **{name: found.tolist() for name, found in statistics.items()},
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }

    def _json_of(self, data: Mapping[str, Any]) -> str:
        """Further custom data as a JSON object; what is not JSON is left out and counted."""
        found = {key: value for key, value in data.items() if key not in OWN and _is_json(value)}
        self.context.tally.assume("custom-data-not-kept", int(not data.keys() <= {*OWN, *found}))
        return json.dumps(found)

    def _write_rows(self, episode: pa.Table) -> int:
        """Write the rows of an episode; the number of the file that has them."""
        rows = self._open.rows + episode.num_rows if self._open is not None else 0
        is_long = self.context.max_rows_per_file is not None and rows > self.context.max_rows_per_file
        if is_long or (self._open is not None and self._size + episode.nbytes > self.context.max_bytes_per_file):
            self._close_file()
        if self._open is None:
            name = DATA.format(chunk_index=len(self._files) // CHUNKS, file_index=len(self._files) % CHUNKS)
            self._open, self._size = self._opened(name, episode.schema, self.context.compression), 0
        self._open.write(episode)
        self._size += episode.nbytes
        return len(self._files) - 1

    def _opened(self, name: str, schema: pa.Schema, compression: str) -> ShardWriter:
        target = self.target.join(name)
        (target.parent() or target).make_folder()
        self._files.append(target)
        return ShardWriter(target, schema, folder=self.target, compression=compression)

    def _close_file(self) -> None:
        if self._open is not None:
            self._bytes += self._open.commit()[0]
            self._open = None

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self._close_file()
        count, stats = len(self._files), dict[str, Any]()
        if self._records:
            records = pa.concat_tables(self._records)
            self._open = self._opened("meta/episodes/chunk-000/file-000.parquet", records.schema, "snappy")
            self._open.write(records)
            self._close_file()
            stats = {name: _total_statistics(records, name) for name in self._features}
        documents = {"meta/stats.json": stats, INFO: self._info()}
        files = {name: json.dumps(one, indent=4, ensure_ascii=False).encode() for name, one in documents.items()}
        for name, data in {"meta/tasks.parquet": _tasks_file(self._tasks), **files}.items():
            write_whole(self.target.join(name), data, folder=self.target)
            self._bytes += len(data)
        self._is_whole = True
        return Written(self.episodes, self.steps, count, self._bytes)

    def _info(self) -> Mapping[str, Any]:
        return {
            "codebase_version": "v3.0",
            "robot_type": self._said.get(ROBOT),
            "total_episodes": self.episodes,
            "total_frames": self.steps,
            "total_tasks": len(self._tasks),
            "chunks_size": CHUNKS,
            "data_files_size_in_mb": max(1, self.context.max_bytes_per_file >> 20),
            "video_files_size_in_mb": 200,
            "fps": self._said.get(FPS, SECOND),
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": DATA,
            "video_path": None,
            "features": self._features,
        }

    # ---- what is known of episodes ----

    def _counted(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """The columns of a batch, with the features of the first one. Raises BadEpisode for others."""
        tally = self.context.tally
        count_left_out(batch, tally, kept=None, ids=True)
        count_finals(batch, tally)
        tally.assume("zero-length-episode", int((batch.lengths == 0).sum()))
        columns = _step_columns(batch)
        features = _features_of(columns, self.context.meanings)
        self._features = self._features or features
        if self._features != features:
            odd = next(name for name in {**self._features, **features} if self._features.get(name) != features.get(name))
            what = f"the feature {odd!r} is of another form than before"
            raise BadEpisode(what, where=f"episode {batch.ids[0]}", fix="convert them into two datasets")
        return columns

    def _fps(self, data: Mapping[str, Any], name: str) -> float:
        """Frames a second. Raises BadData where episodes differ."""
        fps: Any = data.get(FPS)
        if not isinstance(fps, int | float) or not fps > 0:
            self.context.tally.assume("fps-assumed", int(not self._said))
            fps = SECOND
        said = {FPS: fps, ROBOT: data.get(ROBOT)}
        self._said = self._said or said
        if self._said != said:
            what = f"fps and robot_type are {list(said.values())} here, and {list(self._said.values())} before"
            raise BadData(what, where=f"episode {name}", fix="convert each kind into its own dataset: LeRobot's have one")
        return float(fps)

    def _tasks_of(self, batch: EpisodeBatch, all_data: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
        """(N,) number of the task of each step."""
        found, numbers = [], batch.extra.get(TASK_INDEX)
        for at, data in enumerate(all_data):
            text, several, steps = data.get(TASK), data.get(TASKS), int(batch.lengths[at])
            texts = [text if isinstance(text, str) else ""] * steps
            if isinstance(several, Mapping) and isinstance(numbers, np.ndarray) and numbers.ndim == 1:
                texts = [str(several.get(str(number), "")) for number in numbers[int(batch.starts[at]) :][:steps].tolist()]
            found += [self._tasks.setdefault(one, len(self._tasks)) for one in texts]
        return np.array(found, np.int64)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_space(space: Space, name: str) -> None:
    """Raise UnsupportedSpace for structures that LeRobot has no features for."""
    where, fix = "--to lerobot", "--to episodes keeps every space"
    if isinstance(space, spaces.Tuple):
        raise UnsupportedSpace(f"{name} is a Tuple, and LeRobot's features have names", where=where, fix=fix)
    for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else ():
        if "/" in key or not all(key.split(".")):
            raise UnsupportedSpace(f"a feature cannot be called {name}.{key[:80]}", where=where, fix=fix)
        _check_space(part, f"{name}.{key}")
    if len(space.shape or ()) > MAX_DIMENSIONS:
        what = f"{name} has {len(space.shape or ())} dimensions, and {MAX_DIMENSIONS} can be written"
        raise UnsupportedSpace(what, where=where, fix=fix)


# ---- columns and features ----


def _step_columns(batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
    """(N, ...) by the name of the feature; the final observation of each episode is not among them."""
    terminateds, truncateds = batch.step_flags()
    known = {
        **_named(OBSERVATION, f"{OBSERVATION}.{STATE}", batch.acted_obs(view=True)),
        **_named(ACTION, ACTION, batch.actions),
        REWARDS[0]: batch.rewards,
        DONE[0]: terminateds,
        TRUNCATED: truncateds,
    }
    further = {path: leaf for name, tree in batch.extra.items() for path, leaf in flatten(tree, name)}
    return {**{path: leaf for path, leaf in further.items() if path not in FRAME and path not in known}, **known}


def _named(role: str, alone: str, tree: Tree) -> dict[str, NDArray[Any]]:
    return {alone: tree} if isinstance(tree, np.ndarray) else dict(flatten(tree, role))


def _features_of(columns: Mapping[str, NDArray[Any]], meanings: Meanings) -> Features:
    """Those of the columns, and those that every dataset has."""
    found: Features = {}
    for name, values in columns.items():
        shape = list(values.shape[1:] or (1,))
        role, dot, rest = name.partition(".")
        ours = {OBSERVATION: Columns.OBS, ACTION: Columns.ACTIONS}.get(role, role)
        elements = meanings.by_path.get(f"{ours}{dot}{rest}") or (meanings.by_path.get(ours, ()) if rest == STATE else ())
        names = [one.name for one in elements if one.name is not None]
        found[name] = {"dtype": values.dtype.name, "shape": shape, "names": names if shape == [len(names)] else None}
    dtypes = {name: "float32" if name == TIMESTAMP else "int64" for name in FRAME}
    return found | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in dtypes.items()}


def _huggingface(feature: Mapping[str, Any]) -> dict[str, Any]:
    """The type of a column, as the `datasets` library has it."""
    shape, value = feature["shape"], {"dtype": feature["dtype"], "_type": "Value"}
    if len(shape) > 1:
        return {"shape": shape, "dtype": feature["dtype"], "_type": f"Array{len(shape)}D"}
    return value if shape == [1] else {"feature": value, "length": shape[0], "_type": "Sequence"}


def _arrow_column(values: NDArray[Any]) -> pa.Array:
    """(N, ...) as LeRobot stores it."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.shape[1:] in ((), (1,)):
        return flat
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(pa.field("element", flat.type), values.shape[1]))
    for size in reversed(values.shape[1:]):
        flat = pa.ListArray.from_arrays(pa.array(np.arange(0, len(flat) + 1, size, dtype=np.int32)), flat)
    return flat


# ---- statistics and tasks ----


def _statistics_of(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Of (T, ...) values of one feature in one episode: arrays (D,), D the size of the last dimension."""
    rows = values.reshape(len(values), -1) if values.ndim < 3 else values.reshape(-1, values.shape[-1])
    wide = rows.astype(np.float64)
    ends = wide if values.dtype == np.uint64 else rows  # LeRobot has no whole numbers beyond int64 there
    found = {"min": ends.min(axis=0), "max": ends.max(axis=0), "mean": wide.mean(axis=0), "std": wide.std(axis=0)}
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return found | {"count": np.array([len(values)])} | dict(zip(QUANTILES, quantiles, strict=True))


def _total_statistics(records: pa.Table, name: str) -> dict[str, list[Any]]:
    """Of one feature in all episodes, from the statistics in their records."""

    def of(kind: str) -> NDArray[Any]:
        """(E, D)"""
        column = records[f"stats/{name}/{kind}"]
        return np.asarray(pa.concat_arrays(column.chunks).flatten()).reshape(len(column), -1)

    count = of("count")
    share = count / count.sum()
    mean = (of("mean") * share).sum(axis=0)
    variance = ((of("std") ** 2 + of("mean") ** 2) * share).sum(axis=0) - mean**2
    found = {"min": of("min").min(axis=0), "max": of("max").max(axis=0), "mean": mean}
    found |= {"std": np.sqrt(np.maximum(variance, 0.0)), "count": count.sum(axis=0)}
    found |= {quantile: (of(quantile) * share).sum(axis=0) for quantile in QUANTILES}
    return {kind: values.tolist() for kind, values in found.items()}


def _tasks_file(tasks: Mapping[str, int]) -> bytes:
    """The tasks by their numbers, as a data frame of pandas indexed by text."""
    number = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", "metadata": None}
    text = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    names = {**text, "name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
    frame = {"index_columns": ["task"], "column_indexes": [names], "columns": [number, text], "pandas_version": "2.0.0"}
    frame["creator"] = {"library": "pyarrow", "version": pa.__version__}
    numbers, texts = pa.array(list(tasks.values()), pa.int64()), pa.array(list(tasks), pa.string())
    table = pa.table({"task_index": numbers, "task": texts}).replace_schema_metadata({b"pandas": json.dumps(frame).encode()})
    output = pa.BufferOutputStream()
    pq.write_table(table, output)
    return bytes(output.getvalue().to_pybytes())


LEROBOT_SINK: Final = SinkKind(
    "lerobot",
    "a LeRobot dataset v3.0",
    LeRobotSink,
    refuse_folder,
    {"compression", "max_bytes_per_file", "max_rows_per_file"},
    "steps, extra outputs, ids, custom data; not last observations, infos, clocks; images as arrays",
)
