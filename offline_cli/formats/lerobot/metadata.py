"""What a LeRobot dataset says of itself: `meta/info.json`, its tasks, and a record for each episode.

v3.0 keeps tasks and episodes in Parquet, many episodes in one data file; v2.1 keeps them in JSON lines, and has a data file for
each episode. Both become the same `Episodes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.errors import BadData
from offline_cli.formats.lerobot.paths import INFO, Folder, Template
from offline_cli.formats.parquet_files import chunks, schema_of
from offline_cli.json_documents import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects

__all__ = ["Episodes", "Info", "read_episodes", "read_info", "read_tasks"]

MAX_INFO: Final = 16 << 20  # bytes of info.json
MAX_LINES: Final = 256 << 20  # bytes of a file of JSON lines
MAX_FEATURES: Final = 4096
MAX_SIZE: Final = 1 << 20  # numbers of one value
LARGEST: Final = 1 << 53
SUPPORTED: Final = ("v2", "v3")

TASKS, EPISODES = "meta/tasks", "meta/episodes"
INDEX, LENGTH, OF_TASKS, EPS_ID = "episode_index", "length", "tasks", "eps_id"
CHUNK, FILE = "data/chunk_index", "data/file_index"
DERIVED: Final = ("stats/", "videos/", "data/", "meta/")  # records that follow from the frames, or say where they are
RANGES: Final = ("dataset_from_index", "dataset_to_index")
TEXTS: Final = ("task", "__index_level_0__")  # what pandas calls an index: with a name, without
FIX: Final = "write the dataset again with LeRobot, or copy it again"


@dataclass(frozen=True, slots=True)
class Info:
    """`meta/info.json`, as far as it is used."""

    version: str  # of the layout: v3.0
    fps: float
    robot_type: str | None
    features: Mapping[str, Mapping[str, Any]]  # by name: dtype, shape, names
    data_path: Template
    chunks_size: int  # of v2: episodes in a folder

    @property
    def has_files_of_many(self) -> bool:
        """Whether a data file holds many episodes, as it does since v3.0."""
        return self.version.startswith("v3")


@dataclass(frozen=True, slots=True)
class Episodes:
    """(E,) the records of all episodes, by ascending index."""

    index: NDArray[np.int64]
    length: NDArray[np.int64]
    tasks: Sequence[Sequence[str]]
    paths: Sequence[str]  # of the data file of each
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # further records by name: plain values
    eps_ids: Sequence[str] | None = None  # of episodes that we wrote


def read_info(folder: Folder) -> Info:
    """Raises BadData."""
    where = folder.place(INFO)
    document = _document(folder.file(INFO), where)
    version = document.get("codebase_version")
    if not isinstance(version, str) or version[:2] not in SUPPORTED or version[2:3] != ".":
        fix = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
        raise BadData(f"a LeRobot dataset of version {str(version)[:20]!r}; read are v3.0 and v2.1", where=where, fix=fix)
    fps, chunks_size = document.get("fps"), document.get("chunks_size", 1000)
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < LARGEST:
        raise BadData(f"fps is {str(fps)[:40]}, not a number of frames a second", where=where, fix=FIX)
    if type(chunks_size) is not int or not 0 < chunks_size < LARGEST:
        raise BadData(f"chunks_size is {str(chunks_size)[:40]}, not a number of episodes", where=where, fix=FIX)
    robot = document.get("robot_type")
    fields = ("chunk_index", "file_index") if version.startswith("v3") else ("episode_chunk", INDEX)
    return Info(
        version=version,
        fps=fps,
        robot_type=robot[:200] if isinstance(robot, str) else None,
        features=_features(document.get("features"), where),
        data_path=Template.parsed(document.get("data_path"), fields, where=where),
        chunks_size=chunks_size,
    )


def _document(file: Location, where: str) -> Mapping[str, Any]:
    if file.size() > MAX_INFO:
        raise BadData(f"{file.size()} bytes, more than {MAX_INFO >> 20} MiB", where=where, fix=FIX)
    try:
        document = from_json(file.read_bytes())
    except ValueError as error:
        raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
    if not isinstance(document, dict):
        raise BadData("not a JSON object", where=where, fix=FIX)
    return document


def _features(said: Any, where: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(said, dict) or not said or len(said) > MAX_FEATURES:
        raise BadData("features is no object of features by name", where=where, fix=FIX)
    found: dict[str, Mapping[str, Any]] = {}
    for name, feature in said.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        sized = isinstance(shape, list) and all(type(size) is int and 0 < size <= MAX_SIZE for size in shape)
        if not sized or len(shape or ()) > 8 or not isinstance(feature.get("dtype"), str):
            what = f"the feature {name[:80]!r} has no dtype and shape that could be read"
            raise BadData(what, where=where, fix='write it as {"dtype": "float32", "shape": [6], "names": null}')
        found[name] = feature
    return found


# ---- episodes ----


def read_episodes(folder: Folder, info: Info) -> Episodes:
    """Raises BadData where a record is missing, or no such record."""
    found = _of_v3(folder, info) if info.has_files_of_many else _of_v2(folder, info)
    where = folder.place(EPISODES)
    if not len(found.index):
        raise BadData("the dataset has no episodes", where=where, fix="record some")
    if len(found.index) != len(np.unique(found.index)):
        raise BadData("two episodes have one episode_index", where=where, fix=FIX)
    if found.index.min() < 0 or found.length.min() < 1:
        raise BadData("an episode_index below 0, or a length below 1", where=where, fix=FIX)
    return _sorted(found)


def _sorted(found: Episodes) -> Episodes:
    order = np.argsort(found.index, kind="stable")
    if (np.diff(order) == 1).all():
        return found
    chosen = order.tolist()
    return Episodes(
        found.index[order],
        found.length[order],
        [found.tasks[at] for at in chosen],
        [found.paths[at] for at in chosen],
        {name: [values[at] for at in chosen] for name, values in found.fields.items()},
        None if found.eps_ids is None else [found.eps_ids[at] for at in chosen],
    )


def _of_v3(folder: Folder, info: Info) -> Episodes:
    files = folder.below(EPISODES, ".parquet")
    if not files:
        raise BadData("no Parquet file of episodes is here", where=folder.place(EPISODES), fix=FIX)
    names = schema_of(files[0]).names
    wanted = [name for name in names if not name.startswith(DERIVED) or name in (CHUNK, FILE)]
    tables = [chunk.table for chunk in chunks(files, Rejects(), columns=wanted)]
    where = files[0].url
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise BadData(f"files of episodes differ: {error}", where=where, fix=FIX) from error
    index, length, chunk, number = (_integers(table, name, where) for name in (INDEX, LENGTH, CHUNK, FILE))
    tasks = _texts_of_each(table, where)
    paths: dict[tuple[int, int], str] = {}
    for pair in set(zip(chunk.tolist(), number.tolist(), strict=True)):
        paths[pair] = info.data_path.filled({"chunk_index": pair[0], "file_index": pair[1]})
    own = {INDEX, LENGTH, OF_TASKS, CHUNK, FILE, EPS_ID, *RANGES}
    fields = {name: table[name].to_pylist() for name in wanted if name not in own and _is_plain(table.schema.field(name).type)}
    ids = table[EPS_ID].to_pylist() if EPS_ID in table.column_names else None
    if ids is not None and (len(set(ids)) < len(ids) or not all(isinstance(name, str) for name in ids)):
        ids = None
    return Episodes(
        index, length, tasks, [paths[pair] for pair in zip(chunk.tolist(), number.tolist(), strict=True)], fields, ids
    )


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _integers(table: pa.Table, name: str, where: str) -> NDArray[np.int64]:
    if name not in table.column_names or not pa.types.is_integer(table.schema.field(name).type) or table[name].null_count:
        raise BadData(f"no column {name} with a whole number for each episode", where=where, fix=FIX)
    return np.asarray(table[name].to_numpy()).astype(np.int64)


def _texts_of_each(table: pa.Table, where: str) -> Sequence[Sequence[str]]:
    kind = table.schema.field(OF_TASKS).type if OF_TASKS in table.column_names else None
    if kind is None:
        return [()] * table.num_rows
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise BadData(f"column {OF_TASKS} holds {kind}, not lists of texts", where=where, fix=FIX)
    return [_texts(row, where) for row in table[OF_TASKS].to_pylist()]


def _texts(value: Any, where: str) -> Sequence[str]:
    texts = [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadData("tasks of an episode that are no texts", where=where, fix=FIX)
    return tuple(texts)


def _of_v2(folder: Folder, info: Info) -> Episodes:
    where = folder.place(f"{EPISODES}.jsonl")
    index, length, tasks, paths = [], [], [], []
    fields: dict[str, list[Any]] = {}
    for number, record in enumerate(_records(folder.file(f"{EPISODES}.jsonl"), where)):
        sizes = record.get(INDEX), record.get(LENGTH)
        if not all(type(size) is int and 0 <= size < LARGEST for size in sizes):
            raise BadData(f"no {INDEX} and {LENGTH}", where=f"{where} line {number + 1}", fix=FIX)
        index.append(record[INDEX])
        length.append(record[LENGTH])
        tasks.append(_texts(record.get(OF_TASKS), f"{where} line {number + 1}"))
        values = {"episode_chunk": record[INDEX] // info.chunks_size, INDEX: record[INDEX]}
        paths.append(info.data_path.filled(values))
        for name, value in record.items():
            if name not in (INDEX, LENGTH, OF_TASKS) and isinstance(value, str | int | float | bool):
                fields.setdefault(name, [None] * number).append(value)
        for values_of in fields.values():
            values_of += [None] * (number + 1 - len(values_of))
    return Episodes(np.array(index, np.int64), np.array(length, np.int64), tasks, paths, fields)


def _records(file: Location, where: str) -> list[Mapping[str, Any]]:
    if file.size() > MAX_LINES:
        raise BadData(f"{file.size()} bytes, more than {MAX_LINES >> 20} MiB", where=where, fix=FIX)
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = from_json(line)
        except ValueError as error:
            raise BadData(f"not JSON: {error}", where=f"{where} line {number}", fix=FIX) from error
        if not isinstance(record, dict):
            raise BadData("not a JSON object", where=f"{where} line {number}", fix=FIX)
        found.append(record)
    return found


# ---- tasks ----


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """The texts of tasks by their number; none where the dataset has no such file. Raises BadData."""
    lines = folder.files.get(f"{TASKS}.jsonl")
    if lines is not None:
        records = _records(lines, lines.url)
        return {one["task_index"]: str(one.get("task", "")) for one in records if type(one.get("task_index")) is int}
    file = folder.files.get(f"{TASKS}.parquet")
    if file is None:
        return {}
    schema = schema_of(file)
    texts = [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
    names = [name for name in TEXTS if name in texts] or texts
    if not names or "task_index" not in schema.names:
        raise BadData("no columns of tasks and their numbers", where=file.url, fix=FIX)
    found: dict[int, str] = {}
    for chunk in chunks([file], Rejects(), columns=("task_index", names[0])):
        numbers = _integers(chunk.table, "task_index", file.url).tolist()
        found |= dict(zip(numbers, map(str, chunk.table[names[0]].to_pylist()), strict=True))
    return found
