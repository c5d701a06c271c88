"""What a LeRobot dataset says of itself: where its files are, `meta/info.json`, its tasks, and a record for each episode.

v3.0 keeps tasks and episodes in Parquet, many episodes in one data file; v2.1 and v2.0 keep them in JSON lines, and have a data
file for each episode.

A template of paths (`data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet`) comes from a file that anybody may have
written, and `str.format` would follow its fields into objects. Here a field is one of a few names with a width, and a filled
path has to be that of a file found in the folder, so that no path leads out of it. Links have to stay in the folder too, except
for those of Hugging Face's cache, whose snapshots link to the blobs beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, NoData, UnsafeData
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.parquet_files import chunks, schema_of
from offline_cli.json_documents import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects

__all__ = ["EPS_ID", "INFO", "Episodes", "Folder", "Info", "checked_template", "read_episodes", "read_info", "read_tasks"]

INFO: Final = "meta/info.json"
TASKS, EPISODES = "meta/tasks", "meta/episodes"
INDEX, LENGTH, OF_TASKS, EPS_ID = "episode_index", "length", "tasks", "eps_id"
CHUNK, FILE = "data/chunk_index", "data/file_index"
DERIVED: Final = ("stats/", "videos/", "data/", "meta/")  # records that follow from the frames, or say where they are
OWN: Final = (INDEX, LENGTH, OF_TASKS, CHUNK, FILE, EPS_ID, "dataset_from_index", "dataset_to_index")
MAX_INFO, MAX_LINES = 16 << 20, 256 << 20  # bytes of info.json, of a file of JSON lines
MAX_FEATURES: Final = 4096
MAX_SIZE: Final = 1 << 20  # numbers of one value
LARGEST: Final = 1 << 53
FIELD: Final = re.compile(r"\{([a-z_]+)(?::0?([0-9]{1,2})d)?\}")
FIX: Final = "write the dataset again with LeRobot, or copy it again"


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one dataset, by their path below its root."""

    root: str  # path or URL, for messages
    files: Mapping[str, Location]

    @classmethod
    def of(cls, files: Sequence[Location], location: str) -> Folder:
        """The dataset that `files` are of. Raises NoData where there is none, or several; UnsafeData for links out of it."""
        infos = [file for file in files if file.path.endswith(f"/{INFO}") or file.path == INFO]
        if len(infos) != 1:
            what = f"{len(infos)} LeRobot datasets are here" if infos else f"no {INFO}: this is no LeRobot dataset"
            fix = f"name the folder of one of them, such as {infos[0].url.removesuffix(f'/{INFO}')}" if infos else ""
            raise NoData(what, where=location, fix=fix or f"name the folder that has {INFO}")
        root = infos[0].path.removesuffix(INFO)
        below = {file.path.removeprefix(root): file for file in files if file.path.startswith(root)}
        if infos[0].is_local:
            _refuse_links(root, below)
        return cls(infos[0].url.removesuffix(INFO).rstrip("/") or ".", below)

    def place(self, path: str) -> str:
        """For messages."""
        return f"{self.root}/{path}"

    def file(self, path: str) -> Location:
        """Raises BadData where the dataset has no such file."""
        if path not in self.files:
            raise BadData("a file of the dataset is missing", where=self.place(path), fix="copy or download the dataset again")
        return self.files[path]

    def below(self, folder: str) -> list[Location]:
        """The Parquet files below a folder, sorted by path."""
        found = (path for path in sorted(self.files) if path.startswith(f"{folder}/") and path.endswith(".parquet"))
        return [self.files[path] for path in found]


def _refuse_links(root: str, files: Mapping[str, Location]) -> None:
    real = os.path.realpath(root or ".")
    above, name = os.path.split(os.path.dirname(real))
    inside = (real, os.path.join(above, "blobs")) if name == "snapshots" else (real,)
    roots = tuple(os.path.join(place, "") for place in inside)
    outside = next((file for file in files.values() if not os.path.realpath(file.path).startswith(roots)), None)
    if outside is not None:
        fix = "copy what the link names into the dataset"
        raise UnsafeData("a link leads out of the dataset", where=outside.url, fix=fix)


@dataclass(frozen=True, slots=True)
class Info:
    """`meta/info.json`, as far as it is used."""

    version: str  # of the layout: v3.0
    fps: float
    robot_type: str | None
    features: Mapping[str, Mapping[str, Any]]  # by name: dtype, shape, names
    data_path: str  # with fields
    chunks_size: int  # of v2: episodes in a folder

    @property
    def has_files_of_many(self) -> bool:
        """Whether a data file holds many episodes, as it does since v3.0."""
        return self.version.startswith("v3")

    def path(self, **values: int) -> str:
        """Of the data file with these numbers."""
        return FIELD.sub(lambda match: f"{values[match[1]]:0{match[2] or 0}d}", self.data_path)


def read_info(folder: Folder) -> Info:
    """Raises BadData; UnsafeData for paths that leave the folder."""
    file, where = folder.file(INFO), folder.place(INFO)
    try:
        document = from_json(file.read_bytes()) if file.size() <= MAX_INFO else None
    except ValueError as error:
        raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
    if not isinstance(document, dict):
        raise BadData(f"not a JSON object, or more than {MAX_INFO >> 20} MiB", where=where, fix=FIX)
    version = document.get("codebase_version")
    if not isinstance(version, str) or not version.startswith(("v2.", "v3.")):
        fix = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
        raise BadData(f"a LeRobot dataset of version {str(version)[:20]!r}; read are v3.0, v2.1 and v2.0", where=where, fix=fix)
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
        data_path=checked_template(document.get("data_path"), fields, where),
        chunks_size=chunks_size,
    )


def checked_template(path: Any, fields: Sequence[str], where: str) -> str:
    """A path with fields. Raises BadData for others than numbers of these names, UnsafeData for one that leaves its folder."""
    fix = f"write one such as data/chunk-{{{fields[0]}:03d}}/..., with the fields {', '.join(fields)}"
    plain = FIELD.sub(lambda match: "" if match[1] in fields else "{", path) if isinstance(path, str) else "{"
    if not isinstance(path, str) or "{" in plain or "}" in plain or len(path) > 512:
        raise BadData(f"data_path has other fields than {', '.join(fields)}: {str(path)[:80]!r}", where=where, fix=fix)
    if path.startswith("/") or "\\" in path or "\0" in path or ":" in plain or ".." in path.split("/"):
        fix = "name a path below its folder"
        raise UnsafeData(f"data_path leads out of the dataset: {path[:80]!r}", where=where, fix=fix)
    return path


def _features(said: Any, where: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(said, dict) or not said or len(said) > MAX_FEATURES:
        raise BadData("features is no object of features by name", where=where, fix=FIX)
    for name, feature in said.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        is_shape = (
            isinstance(shape, list) and len(shape) <= 8 and all(type(size) is int and 0 < size <= MAX_SIZE for size in shape)
        )
        if not is_shape or not isinstance(feature.get("dtype"), str):
            what = f"the feature {name[:80]!r} has no dtype and shape that could be read"
            raise BadData(what, where=where, fix='write it as {"dtype": "float32", "shape": [6], "names": null}')
    return said


# ---- episodes ----


@dataclass(frozen=True, slots=True)
class Episodes:
    """(E,) the records of all episodes, by ascending index."""

    index: NDArray[np.int64]
    length: NDArray[np.int64]
    tasks: Sequence[Sequence[str]]
    paths: Sequence[str]  # of the data file of each
    fields: Sequence[Mapping[str, Any]] = field(default_factory=list)  # further plain values by name
    eps_ids: Sequence[str] | None = None  # of episodes that we wrote


def read_episodes(folder: Folder, info: Info) -> Episodes:
    """Raises BadData where a record is missing, or no such record."""
    found: list[tuple[int, int, Sequence[str], str, Mapping[str, Any]]] = []
    for record, where in _rows_of(folder) if info.has_files_of_many else _records(folder.file(f"{EPISODES}.jsonl")):
        index, length, tasks = record.get(INDEX), record.get(LENGTH), record.get(OF_TASKS) or []
        if not all(type(size) is int and 0 <= size < LARGEST for size in (index, length)) or not length:
            raise BadData(f"no {INDEX} and {LENGTH}", where=where, fix=FIX)
        if not isinstance(tasks, list) or not all(isinstance(text, str) for text in tasks):
            raise BadData("tasks of an episode that are no texts", where=where, fix=FIX)
        assert isinstance(index, int)  # as was just checked
        numbers: Mapping[str, Any]
        if info.has_files_of_many:
            numbers = {"chunk_index": record.get(CHUNK), "file_index": record.get(FILE)}
        else:
            numbers = {"episode_chunk": index // info.chunks_size, INDEX: index}
        if not all(type(number) is int and 0 <= number < LARGEST for number in numbers.values()):
            raise BadData(f"no {CHUNK} and {FILE}", where=where, fix=FIX)
        kept = {name: one for name, one in record.items() if name not in OWN or name == EPS_ID}
        plain = {name: one for name, one in kept.items() if isinstance(one, str | int | float | bool)}
        found.append((index, length, tuple(tasks), info.path(**numbers), plain))
    if not found:
        raise BadData("the dataset has no episodes", where=folder.place(EPISODES), fix="record some")
    found.sort(key=lambda one: one[0])
    index, length, tasks, paths, fields = zip(*found, strict=True)
    if len(set(index)) < len(index):
        raise BadData(f"two episodes have one {INDEX}", where=folder.place(EPISODES), fix=FIX)
    ids = [one.get(EPS_ID) for one in fields]
    are_ours = len(set(ids)) == len(ids) and all(isinstance(name, str) for name in ids)
    others = [{name: value for name, value in one.items() if name != EPS_ID} for one in fields]
    return Episodes(np.array(index), np.array(length), tasks, paths, others, [str(one) for one in ids] if are_ours else None)


def _rows_of(folder: Folder) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Records of v3.0. Raises BadData where there are none."""
    files = folder.below(EPISODES)
    if not files:
        raise BadData("no Parquet file of episodes is here", where=folder.place(EPISODES), fix=FIX)
    for file in files:
        names = [name for name in schema_of(file).names if not name.startswith(DERIVED) or name in (CHUNK, FILE)]
        for chunk in chunks([file], Rejects(), columns=names):
            yield from ((row, file.url) for row in chunk.table.to_pylist())


def _records(file: Location) -> Iterator[tuple[Mapping[str, Any], str]]:
    if file.size() > MAX_LINES:
        raise BadData(f"{file.size()} bytes, more than {MAX_LINES >> 20} MiB", where=file.url, fix=FIX)
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        where = f"{file.url} line {number}"
        if not line.strip():
            continue
        try:
            record = from_json(line)
        except ValueError as error:
            raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
        if not isinstance(record, dict):
            raise BadData("not a JSON object", where=where, fix=FIX)
        yield record, where


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """The texts of tasks by their number; none where the dataset has no such file. Raises BadData."""
    lines, file = (folder.files.get(f"{TASKS}.{ending}") for ending in ("jsonl", "parquet"))
    if lines is not None:
        records = (record for record, _ in _records(lines))
        return {one["task_index"]: str(one.get("task", "")) for one in records if type(one.get("task_index")) is int}
    found: dict[int, str] = {}
    for chunk in chunks([] if file is None else [file], Rejects()):
        texts = [one.name for one in chunk.table.schema if is_text(one.type)]
        named = [name for name in ("task", "__index_level_0__") if name in texts] or texts  # as pandas calls an index
        if not named or "task_index" not in chunk.table.column_names:
            raise BadData("no columns of tasks and their numbers", where=chunk.where(0), fix=FIX)
        pairs = zip(chunk.table["task_index"].to_pylist(), chunk.table[named[0]].to_pylist(), strict=True)
        found |= {number: str(text) for number, text in pairs if type(number) is int}
    return found
