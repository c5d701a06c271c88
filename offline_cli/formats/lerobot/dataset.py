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
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeGuard

import numpy as np
import pydantic

from offline_cli.errors import BadData, NoData, UnsafeData
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.parquet_files import chunks, schema_of
from offline_cli.safe_json import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects

__all__ = [
    "EPS_ID",
    "INFO",
    "Episode",
    "Feature",
    "Folder",
    "Info",
    "check_template",
    "read_episodes",
    "read_info",
    "read_tasks",
]

INFO: Final = "meta/info.json"
TASKS, EPISODES = "meta/tasks", "meta/episodes"
INDEX, LENGTH, OF_TASKS, EPS_ID = "episode_index", "length", "tasks", "eps_id"
CHUNK, FILE = "data/chunk_index", "data/file_index"
DERIVED: Final = ("stats/", "videos/", "data/", "meta/")  # records that follow from the frames, or say where they are
OWN: Final = (INDEX, LENGTH, OF_TASKS, EPS_ID, CHUNK, FILE, "dataset_from_index", "dataset_to_index")
MAX_FILE: Final = 256 << 20  # bytes of a JSON file
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
            fix = f"name the folder of one dataset, which has {INFO}"
            raise NoData(f"{len(infos)} LeRobot datasets are here", where=location, fix=fix)
        root = infos[0].path.removesuffix(INFO)
        below = {file.path.removeprefix(root): file for file in files if file.path.startswith(root)}
        if infos[0].is_local:
            _refuse_links(root, below)
        return cls(infos[0].url.removesuffix(INFO).rstrip("/") or ".", below)

    def place(self, path: str) -> str:
        """For messages."""
        return f"{self.root}/{path}"

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


class Feature(pydantic.BaseModel):
    """One feature: numbers, or a video, pictures or texts."""

    dtype: str
    shape: tuple[Annotated[int, pydantic.Field(gt=0, le=1 << 20)], ...] = pydantic.Field(max_length=8)
    names: Any = None  # of its elements, in several forms

    @property
    def number(self) -> np.dtype[Any] | None:
        """The dtype of its numbers; None where it holds none."""
        try:
            found = np.dtype(self.dtype) if self.dtype.isalnum() else None
        except TypeError:
            return None
        return found if found is not None and found.kind in "biuf" else None

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one step; a whole number, or a flag, of shape [1] has none."""
        is_float = self.number is not None and self.number.kind == "f"
        return self.shape if is_float or self.shape != (1,) else ()


class Info(pydantic.BaseModel):
    """`meta/info.json`, as far as it is used."""

    codebase_version: str = pydantic.Field(pattern=r"^v[23]\.")  # of the layout: v3.0
    fps: pydantic.StrictInt | pydantic.StrictFloat = pydantic.Field(gt=0, lt=LARGEST)
    robot_type: Any = None
    features: dict[str, Feature] = pydantic.Field(min_length=1, max_length=4096)
    data_path: str  # with fields
    chunks_size: int = pydantic.Field(1000, gt=0, lt=LARGEST, strict=True)  # of v2: episodes in a folder

    @property
    def has_files_of_many(self) -> bool:
        """Whether a data file holds many episodes, as it does since v3.0."""
        return self.codebase_version.startswith("v3")

    def path(self, **values: int) -> str:
        """Of the data file with these numbers."""
        return FIELD.sub(lambda match: f"{values[match[1]]:0{match[2] or 0}d}", self.data_path)


def read_info(folder: Folder) -> Info:
    """Raises BadData; UnsafeData for paths that leave the folder."""
    where = folder.place(INFO)
    try:
        info = Info.model_validate(from_json(_bytes(folder.files[INFO])))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, fix = ".".join(map(str, first["loc"])), FIX
        if place == "codebase_version":
            fix = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
        what = f"{place or 'it'}: {first['msg']}, and not {str(first['input'])[:80]!r}; read are v3.0, v2.1 and v2.0"
        raise BadData(what, where=where, fix=fix) from error
    except ValueError as error:
        raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
    check_template(info.data_path, ("chunk_index", "file_index") if info.has_files_of_many else ("episode_chunk", INDEX), where)
    return info


def check_template(path: str, fields: Sequence[str], where: str) -> None:
    """Raise BadData for other fields in a path than numbers of these names, UnsafeData for one that leaves its folder."""
    plain = FIELD.sub(lambda match: "" if match[1] in fields else "{", path)
    if "{" in plain or "}" in plain or len(path) > 512:
        fix = f"write one such as data/chunk-{{{fields[0]}:03d}}/..., with the fields {', '.join(fields)}"
        raise BadData(f"data_path has other fields than {', '.join(fields)}: {path[:80]!r}", where=where, fix=fix)
    if path.startswith("/") or "\\" in path or "\0" in path or ":" in plain or ".." in path.split("/"):
        fix = "name a path below its folder"
        raise UnsafeData(f"data_path leads out of the dataset: {path[:80]!r}", where=where, fix=fix)


def _bytes(file: Location) -> bytes:
    if file.size() > MAX_FILE:
        raise BadData(f"{file.size()} bytes, more than {MAX_FILE >> 20} MiB", where=file.url, fix=FIX)
    return file.read_bytes()


# ---- episodes ----


@dataclass(frozen=True, slots=True)
class Episode:
    """The record of one episode."""

    index: int
    length: int
    tasks: tuple[str, ...]
    path: str  # of its data file
    eps_id: str | None  # of one that we wrote
    fields: Mapping[str, Any]  # further plain values by name


def read_episodes(folder: Folder, info: Info) -> list[Episode]:
    """By ascending index. Raises BadData where a record is missing, or no such record."""
    found: list[Episode] = []
    for record, where in _parquet_records(folder) if info.has_files_of_many else _json_records(folder, f"{EPISODES}.jsonl"):
        index, length, tasks = record.get(INDEX), record.get(LENGTH), record.get(OF_TASKS) or []
        if not isinstance(tasks, list) or not all(isinstance(text, str) for text in tasks):
            raise BadData("tasks of an episode that are no texts", where=where, fix=FIX)
        if not _is_count(index) or not _is_count(length) or not length:
            raise BadData(f"no {INDEX} and {LENGTH}", where=where, fix=FIX)
        chunk, file = (record.get(CHUNK), record.get(FILE)) if info.has_files_of_many else (index // info.chunks_size, 0)
        if not _is_count(chunk) or not _is_count(file):
            raise BadData(f"no {CHUNK} and {FILE}", where=where, fix=FIX)
        path = info.path(chunk_index=chunk, file_index=file, episode_chunk=chunk, episode_index=index)
        plain = {name: one for name, one in record.items() if name not in OWN and isinstance(one, str | int | float | bool)}
        name = record.get(EPS_ID)
        found.append(Episode(index, length, tuple(tasks), path, name if isinstance(name, str) else None, plain))
    if not found:
        raise BadData("the dataset has no episodes", where=folder.place(EPISODES), fix="record some")
    ids = [one.eps_id for one in found if one.eps_id is not None]
    if len({one.index for one in found}) < len(found) or len(set(ids)) < len(ids):
        raise BadData(f"two episodes have one {INDEX}, or one {EPS_ID}", where=folder.place(EPISODES), fix=FIX)
    return sorted(found, key=lambda one: one.index)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < LARGEST


def _parquet_records(folder: Folder) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Records of v3.0. Raises BadData where there are none."""
    files = folder.below(EPISODES)
    if not files:
        raise BadData("no Parquet file of episodes is here", where=folder.place(EPISODES), fix=FIX)
    for file in files:
        names = [name for name in schema_of(file).names if not name.startswith(DERIVED) or name in (CHUNK, FILE)]
        for chunk in chunks([file], Rejects(), columns=names):
            yield from ((row, file.url) for row in chunk.table.to_pylist())


def _json_records(folder: Folder, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Objects of a file of JSON lines. Raises BadData."""
    if path not in folder.files:
        raise BadData("a file of the dataset is missing", where=folder.place(path), fix="copy or download the dataset again")
    for number, line in enumerate(_bytes(folder.files[path]).splitlines(), 1):
        where = f"{folder.place(path)} line {number}"
        try:
            record = from_json(line) if line.strip() else {}
        except ValueError as error:
            raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
        if not isinstance(record, dict):
            raise BadData("not a JSON object", where=where, fix=FIX)
        if record:
            yield record, where


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """The texts of tasks by their number; none where the dataset has no such file. Raises BadData."""
    rows: list[Mapping[str, Any]] = []
    if f"{TASKS}.jsonl" in folder.files:
        rows = [record for record, _ in _json_records(folder, f"{TASKS}.jsonl")]
    elif (file := folder.files.get(f"{TASKS}.parquet")) is not None:
        for chunk in chunks([file], Rejects()):
            texts = [one.name for one in chunk.table.schema if is_text(one.type)]
            named = [name for name in ("task", "__index_level_0__") if name in texts] or texts  # as pandas calls an index
            if not named or "task_index" not in chunk.table.column_names:
                raise BadData("no columns of tasks and their numbers", where=chunk.where(0), fix=FIX)
            rows += chunk.table.select(["task_index", named[0]]).rename_columns(["task_index", "task"]).to_pylist()
    return {row["task_index"]: str(row.get("task", "")) for row in rows if type(row.get("task_index")) is int}
