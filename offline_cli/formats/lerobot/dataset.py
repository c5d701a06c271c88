"""What a LeRobot dataset says of itself: `meta/info.json`, its tasks, and a record for each episode.

v3.0 keeps tasks and episodes in Parquet, many episodes in one data file; v2.1 and v2.0 keep them in JSON lines, and have a data
file for each episode. Frames are in all Parquet files below `data/`, and say themselves which episode they are of: no path that
`info.json` names is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeGuard

import numpy as np
import pydantic

from offline_cli.errors import BadData, NoData
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.parquet_files import chunks, schema_of
from offline_cli.safe_json import from_json
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects

INFO: Final = "meta/info.json"
TASKS, EPISODES = "meta/tasks", "meta/episodes"
INDEX, LENGTH, OF_TASKS = "episode_index", "length", "tasks"
EPS_ID, CUSTOM_DATA = "eps_id", "custom_data"  # of episodes that we wrote: the id, and the rest as JSON
DERIVED: Final = ("stats/", "videos/", "data/", "meta/", "dataset_")  # records that follow from the frames
MAX_FILE: Final = 256 << 20  # bytes of a JSON file
LARGEST: Final = 1 << 53
FIX: Final = "write the dataset again with LeRobot, or copy it again"


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one dataset, by their path below its root."""

    root: str  # path or URL, for messages
    files: Mapping[str, Location]

    @classmethod
    def of(cls, files: Sequence[Location], location: str) -> Folder:
        """The dataset that `files` are of. Raises NoData where there is none, or several."""
        infos = [file for file in files if file.path.endswith(f"/{INFO}") or file.path == INFO]
        if len(infos) != 1:
            fix = f"name the folder of one dataset, which has {INFO}"
            raise NoData(f"{len(infos)} LeRobot datasets are here", where=location, fix=fix)
        root = infos[0].path.removesuffix(INFO)
        below = {file.path.removeprefix(root): file for file in files if file.path.startswith(root)}
        return cls(infos[0].url.removesuffix(INFO).rstrip("/") or ".", below)

    def place(self, path: str) -> str:
        """For messages."""
        return f"{self.root}/{path}"

    def parquet(self, folder: str) -> list[Location]:
        """The Parquet files below a folder, sorted by path. Raises BadData where there are none."""
        found = [path for path in sorted(self.files) if path.startswith(f"{folder}/") and path.endswith(".parquet")]
        if not found:
            fix = "download the whole dataset, and not only a part of it"
            raise BadData("no Parquet file is here", where=self.place(folder), fix=fix)
        return [self.files[path] for path in found]

    def json_lines(self, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Objects of a file of JSON lines, and the place of each. Raises BadData."""
        if path not in self.files:
            fix = "copy or download the dataset again"
            raise BadData("a file of the dataset is missing", where=self.place(path), fix=fix)
        for number, line in enumerate(_bytes(self.files[path]).splitlines(), 1):
            if line.strip():
                where = f"{self.place(path)} line {number}"
                yield _object(line, where), where


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


def read_info(folder: Folder) -> Info:
    """Raises BadData."""
    where = folder.place(INFO)
    try:
        return Info.model_validate(_object(_bytes(folder.files[INFO]), where))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, fix = ".".join(map(str, first["loc"])), FIX
        if place == "codebase_version":
            fix = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
        what = f"{place}: {first['msg']}, and not {str(first['input'])[:80]!r}; read are v3.0, v2.1 and v2.0"
        raise BadData(what, where=where, fix=fix) from error


def _object(data: bytes, where: str) -> dict[str, Any]:
    """Raises BadData."""
    try:
        found = from_json(data)
    except ValueError as error:
        raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error
    if not isinstance(found, dict):
        raise BadData("not a JSON object", where=where, fix=FIX)
    return found


def _bytes(file: Location) -> bytes:
    if file.size() > MAX_FILE:
        raise BadData(f"{file.size()} bytes, more than {MAX_FILE >> 20} MiB", where=file.url, fix=FIX)
    return file.read_bytes()


@dataclass(frozen=True, slots=True)
class Episode:
    """The record of one episode."""

    index: int
    length: int
    tasks: tuple[str, ...]
    eps_id: str | None  # of one that we wrote
    fields: Mapping[str, Any]  # further plain values by name


def read_episodes(folder: Folder, info: Info) -> list[Episode]:
    """By ascending index. Raises BadData where a record is missing, or no such record."""
    is_v3 = info.codebase_version.startswith("v3")
    found = [_episode(*one) for one in (_rows(folder) if is_v3 else folder.json_lines(f"{EPISODES}.jsonl"))]
    if not found:
        raise BadData("the dataset has no episodes", where=folder.place(EPISODES), fix="record some")
    ids = [one.eps_id for one in found if one.eps_id is not None]
    if len({one.index for one in found}) < len(found) or len(set(ids)) < len(ids):
        raise BadData(f"two episodes have one {INDEX}, or one {EPS_ID}", where=folder.place(EPISODES), fix=FIX)
    return sorted(found, key=lambda one: one.index)


def _rows(folder: Folder) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Records of v3.0."""
    for file in folder.parquet(EPISODES):
        names = [name for name in schema_of(file).names if not name.startswith(DERIVED)]
        for chunk in chunks([file], Rejects(), columns=names):
            yield from ((row, file.url) for row in chunk.table.to_pylist())


def _episode(record: Mapping[str, Any], where: str) -> Episode:
    index, length, tasks = record.get(INDEX), record.get(LENGTH), record.get(OF_TASKS) or []
    if not isinstance(tasks, list) or not all(isinstance(text, str) for text in tasks):
        raise BadData("tasks of an episode that are no texts", where=where, fix=FIX)
    if not _is_count(index) or not _is_count(length) or not length:
        raise BadData(f"no {INDEX} and {LENGTH}", where=where, fix=FIX)
    own, name, data = (INDEX, LENGTH, OF_TASKS, EPS_ID, CUSTOM_DATA), record.get(EPS_ID), record.get(CUSTOM_DATA)
    plain = {key: one for key, one in record.items() if key not in own and isinstance(one, str | int | float | bool)}
    ours = _object(data.encode(), where) if isinstance(data, str) else {}
    return Episode(index, length, tuple(tasks), name if isinstance(name, str) else None, plain | ours)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < LARGEST


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """The texts of tasks by their number; none where the dataset has no such file. Raises BadData."""
    rows: list[Mapping[str, Any]] = []
    if f"{TASKS}.jsonl" in folder.files:
        rows = [record for record, _ in folder.json_lines(f"{TASKS}.jsonl")]
    elif (file := folder.files.get(f"{TASKS}.parquet")) is not None:
        for chunk in chunks([file], Rejects()):
            texts = [one.name for one in chunk.table.schema if is_text(one.type)]
            named = [name for name in ("task", "__index_level_0__") if name in texts] or texts  # as pandas calls an index
            if not named or "task_index" not in chunk.table.column_names:
                raise BadData("no columns of tasks and their numbers", where=chunk.where(0), fix=FIX)
            rows += chunk.table.select(["task_index", named[0]]).rename_columns(["task_index", "task"]).to_pylist()
    return {row["task_index"]: str(row.get("task", "")) for row in rows if type(row.get("task_index")) is int}
