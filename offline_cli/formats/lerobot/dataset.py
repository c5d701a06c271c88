"""What a LeRobot dataset says of itself: `meta/info.json`, its tasks, and a record for each episode.

v3.0 keeps tasks and episodes in Parquet, many episodes in one data file; v2.1 and v2.0 keep them in JSON lines, and have a data
file for each episode. Frames are in all Parquet files below `data/`, and say themselves which episode they are of: no path that
`info.json` names is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

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
EPS_ID, CUSTOM_DATA = "eps_id", "offline_cli"  # in records that we wrote: the id, and the custom data as JSON
DERIVED: Final = ("stats/", "videos/", "data/", "meta/", "dataset_")  # records that follow from the frames
MAX_FILE: Final = 256 << 20  # bytes of a JSON file
LARGEST: Final = 1 << 53
FIX: Final = "write the dataset again with LeRobot, or copy it again"
OLD: Final = "convert it to v3.0 with LeRobot's own scripts (convert_dataset_v21_to_v30 and those before it)"
Model = TypeVar("Model", bound=pydantic.BaseModel)


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


class Episode(pydantic.BaseModel, extra="allow"):
    """The record of one episode; `model_extra` has further fields."""

    episode_index: int = pydantic.Field(ge=0, lt=LARGEST)
    length: int = pydantic.Field(gt=0, lt=LARGEST)
    tasks: list[str] | None = None
    eps_id: str | None = None
    custom_data: pydantic.Json[dict[str, Any]] | None = pydantic.Field(None, alias="offline_cli")


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

    def documents(self, path: str) -> Iterator[tuple[Any, str]]:
        """The JSON values of a file: of JSON lines one each, with its place. Raises BadData."""
        if path not in self.files or self.files[path].size() > MAX_FILE:
            what = f"a file of the dataset is missing, or has more than {MAX_FILE >> 20} MiB"
            raise BadData(what, where=self.place(path), fix="copy or download the dataset again")
        data = self.files[path].read_bytes()
        for number, text in enumerate(data.splitlines() if path.endswith(".jsonl") else [data], 1):
            where = f"{self.place(path)} line {number}" if path.endswith(".jsonl") else self.place(path)
            try:
                if text.strip():
                    yield from_json(text), where
            except ValueError as error:
                raise BadData(f"not JSON: {error}", where=where, fix=FIX) from error


def _checked(kind: type[Model], document: Any, where: str) -> Model:
    """Raises BadData, naming the field."""
    try:
        return kind.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        what = f"{place}: {first['msg']}, and not {str(first['input'])[:80]!r}"
        raise BadData(what, where=where, fix=OLD if place == "codebase_version" else FIX) from error


def read_info(folder: Folder) -> Info:
    """Raises BadData."""
    return next((_checked(Info, *one) for one in folder.documents(INFO)), None) or _checked(Info, None, folder.place(INFO))


def read_episodes(folder: Folder, info: Info) -> dict[int, Episode]:
    """By ascending index. Raises BadData where a record is missing, or no such record."""
    is_v3 = info.codebase_version.startswith("v3")
    found = [_checked(Episode, *one) for one in (_rows(folder) if is_v3 else folder.documents(f"{EPISODES}.jsonl"))]
    ids = [one.eps_id for one in found if one.eps_id is not None]
    by_index = {one.episode_index: one for one in sorted(found, key=lambda one: one.episode_index)}
    if not found or len(by_index) < len(found) or len(set(ids)) < len(ids):
        raise BadData(f"no episodes, or two of one episode_index or {EPS_ID}", where=folder.place(EPISODES), fix=FIX)
    return by_index


def _rows(folder: Folder) -> Iterator[tuple[Any, str]]:
    """Records of v3.0."""
    for file in folder.parquet(EPISODES):
        names = [name for name in schema_of(file).names if not name.startswith(DERIVED)]
        for chunk in chunks([file], Rejects(), columns=names):
            yield from ((row, file.url) for row in chunk.table.to_pylist())


def read_tasks(folder: Folder) -> Mapping[int, str]:
    """The texts of tasks by their number; none where the dataset has no such file. Raises BadData."""
    rows: list[Any] = []
    if f"{TASKS}.jsonl" in folder.files:
        rows = [record for record, _ in folder.documents(f"{TASKS}.jsonl") if isinstance(record, dict)]
    elif (file := folder.files.get(f"{TASKS}.parquet")) is not None:
        for chunk in chunks([file], Rejects()):
            texts = [one.name for one in chunk.table.schema if is_text(one.type)]
            named = [name for name in ("task", "__index_level_0__") if name in texts] or texts  # as pandas calls an index
            if not named or "task_index" not in chunk.table.column_names:
                raise BadData("no columns of tasks and their numbers", where=chunk.where(0), fix=FIX)
            rows += chunk.table.select(["task_index", named[0]]).rename_columns(["task_index", "task"]).to_pylist()
    return {row["task_index"]: str(row.get("task", "")) for row in rows if type(row.get("task_index")) is int}
