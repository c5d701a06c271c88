"""What `convert --to lerobot` writes: a dataset of layout v3.0, which LeRobot's own reader loads from its folder.

LeRobot has no place for the observation after an episode's last action: it is left out, and counted. Frames a second, kind of
robot, tasks and further plain values are read from the custom data of episodes (`fps`, `robot_type`, `task`), where reading a
LeRobot dataset puts them. Without `fps` a frame is a second, which is counted. What is written is no dataset before
`meta/info.json`, which is the last file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, OfflineCliError, OutputExists
from offline_cli.formats.left_out import count_finals, count_left_out
from offline_cli.formats.lerobot.features import FRAME
from offline_cli.formats.lerobot.layout import (
    Feature,
    arrow_column,
    check_spaces,
    features_of,
    huggingface_metadata,
    step_columns,
)
from offline_cli.formats.lerobot.metadata import EPS_ID
from offline_cli.formats.lerobot.paths import INFO
from offline_cli.formats.lerobot.statistics import NAMES, Totals, episode_statistics
from offline_cli.formats.lerobot.writing import CHUNKS, EpisodeFile, FrameFiles, write_tasks
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.tally import Reject

__all__ = ["LEROBOT"]

VERSION: Final = "v3.0"
SECOND: Final = 1  # frames of one, where nothing is said
FPS, ROBOT, TASK, TASKS = "fps", "robot_type", "task", "tasks"
OWN: Final = (FPS, ROBOT, TASK, TASKS, Columns.SOURCE_ID)
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX = FRAME
MIB: Final = 1 << 20


class _LeRobotSink:
    """See the module."""

    ids_written: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, target: Location, context: SinkContext) -> None:
        self._target, self._context = target, context
        self._features: dict[str, Feature] = {}
        self._tasks: dict[str, int] = {}
        self._totals = Totals()
        self._said: dict[str, Any] | None = None  # fps and robot of the first episode
        self._episodes = self._steps = 0
        compression = {"none": "NONE"}.get(context.compression, context.compression)
        self._frames = FrameFiles(target, compression, context.max_bytes_per_file, context.max_rows_per_file)
        self._records = EpisodeFile(target)
        self._is_whole = False

    def __enter__(self) -> Self:
        check_spaces(self._context.observation_space, self._context.action_space, f"--to {LEROBOT.name}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove what was written of a dataset that is not whole."""
        self._frames.discard()
        self._records.discard()
        if not self._is_whole:
            with suppress(OfflineCliError):  # the error that ends the writing is the one to report
                for file in (*self._frames.files, self._records.target):
                    file.remove()

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        columns = self._counted(batch)
        table = pa.table({name: arrow_column(values) for name, values in columns.items()})
        for at in range(len(batch)):
            first, stop = int(batch.starts[at]), int(batch.starts[at + 1])
            if stop > first:
                episode = {name: values[first:stop] for name, values in columns.items()}
                self._write(table.slice(first, stop - first), episode, batch, at)

    def _write(self, rows: pa.Table, columns: Mapping[str, NDArray[Any]], batch: EpisodeBatch, at: int) -> None:
        data = dict(batch.custom_data[at]) if batch.custom_data is not None else {}
        steps, number = rows.num_rows, self._episodes
        frame = np.arange(steps)
        tasks = self._tasks_of(data, batch, at, steps)
        own = {
            TIMESTAMP: (frame / self._fps(data, batch.ids[at])).astype(np.float32),
            FRAME_INDEX: frame,
            EPISODE_INDEX: np.full(steps, number),
            INDEX: np.arange(self._steps, self._steps + steps),
            TASK_INDEX: tasks,
        }
        for name, values in own.items():
            rows = rows.append_column(name, pa.array(values))
        file = self._frames.write(rows.replace_schema_metadata(huggingface_metadata(self._features)))
        texts = list(self._tasks)
        record: dict[str, Any] = {
            EPISODE_INDEX: number,
            "tasks": [texts[task] for task in dict.fromkeys(tasks.tolist())],
            "length": steps,
            "data/chunk_index": file // CHUNKS,
            "data/file_index": file % CHUNKS,
            "dataset_from_index": self._steps,
            "dataset_to_index": self._steps + steps,
        }
        for name, values in {**columns, **own}.items():
            found = episode_statistics(values)
            self._totals.add(name, found)
            record |= {f"stats/{name}/{kind}": found[kind].tolist() for kind in NAMES}
        record |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0, EPS_ID: batch.ids[at]}
        fields = {
            name: value for name, value in data.items() if name not in OWN and isinstance(value, str | bool | int | float)
        }
        if not self._records.write(record, fields):
            self._context.tally.assume("custom-data-not-kept")
        self._episodes, self._steps = number + 1, self._steps + steps

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        self._counted(batch)
        for at, data in enumerate(batch.custom_data or ()):
            self._fps(data, batch.ids[at])

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData: LeRobot has no place for rows."""
        if rejects:
            fix = "--on-error skip, or --to episodes"
            raise BadData("rows were set aside, and a LeRobot dataset has no place for them", where=self._target.url, fix=fix)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self._frames.close()
        size = self._frames.bytes + self._records.close() + write_tasks(self._target, self._tasks)
        for name, document in (("meta/stats.json", self._totals.as_json()), (INFO, self._info())):
            data = json.dumps(document, indent=4, ensure_ascii=False).encode()
            write_whole(self._target.join(name), data, folder=self._target)
            size += len(data)
        self._is_whole = True
        return Written(self._episodes, self._steps, len(self._frames.files), size)

    def _info(self) -> Mapping[str, Any]:
        said = self._said or {}
        template = "chunk-{chunk_index:03d}/file-{file_index:03d}"
        return {
            "codebase_version": VERSION,
            "robot_type": said.get(ROBOT),
            "total_episodes": self._episodes,
            "total_frames": self._steps,
            "total_tasks": len(self._tasks),
            "chunks_size": CHUNKS,
            "data_files_size_in_mb": max(1, self._context.max_bytes_per_file // MIB),
            "video_files_size_in_mb": 200,
            "fps": said.get(FPS, SECOND),
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": f"data/{template}.parquet",
            "video_path": None,
            "features": {name: feature.as_json() for name, feature in self._features.items()},
        }

    # ---- what is known of episodes ----

    def _counted(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """The columns of a batch, with the features of the first one. Raises BadEpisode for others."""
        plain = {
            name for data in batch.custom_data or () for name, one in data.items() if isinstance(one, str | bool | int | float)
        }
        count_left_out(batch, self._context.tally, kept={*OWN, *plain}, ids=True)
        count_finals(batch, self._context.tally)
        self._context.tally.assume("zero-length-episode", int((batch.lengths == 0).sum()))
        columns = step_columns(batch)
        features = features_of(columns, self._context.meanings)
        if not self._features:
            self._features = features
        elif self._features != features:
            odd = next(name for name in {**self._features, **features} if self._features.get(name) != features.get(name))
            what = f"the feature {odd!r} is of another form than before"
            raise BadEpisode(what, where=f"episode {batch.ids[0]}", fix="convert them into two datasets")
        return columns

    def _fps(self, data: Mapping[str, Any], name: str) -> float:
        """Frames a second. Raises BadData where episodes differ."""
        fps: Any = data.get(FPS)
        if not isinstance(fps, int | float) or not fps > 0:
            self._context.tally.assume("fps-assumed", int(self._said is None))
            fps = SECOND
        said = {FPS: fps, ROBOT: data.get(ROBOT)}
        if self._said is None:
            self._said = said
        elif self._said != said:
            odd = FPS if self._said[FPS] != fps else ROBOT
            what = f"{odd} is {said[odd]} here, and {self._said[odd]} before: one LeRobot dataset has one"
            raise BadData(what, where=f"episode {name}", fix="convert each kind into its own dataset")
        return float(fps)

    def _tasks_of(self, data: Mapping[str, Any], batch: EpisodeBatch, at: int, steps: int) -> NDArray[np.int64]:
        """(T,) number of the task of each step."""
        several, numbers = data.get(TASKS), batch.extra.get(TASK_INDEX)
        if isinstance(several, Mapping) and isinstance(numbers, np.ndarray) and numbers.ndim == 1:
            own = numbers[int(batch.starts[at]) : int(batch.starts[at + 1])]
            texts = [str(several.get(str(number), "")) for number in own.tolist()]
            return np.array([self._task(text) for text in texts], np.int64)
        text = data.get(TASK)
        return np.full(steps, self._task(text if isinstance(text, str) else ""), np.int64)

    def _task(self, text: str) -> int:
        return self._tasks.setdefault(text, len(self._tasks))


def _check(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`: files of others may lie in a LeRobot dataset, and none is removed."""
    if target.exists():
        raise OutputExists("something is here already", where=target.url, fix="remove it, or give another --out")


LEROBOT: Final = SinkKind(
    "lerobot",
    "a LeRobot dataset v3.0",
    _LeRobotSink,
    _check,
    {"compression", "max_bytes_per_file", "max_rows_per_file"},
    "steps, extra outputs, ids, plain custom data; not last observations, infos, clocks; images as arrays",
)
