"""The figures of a run: its metrics.jsonl, one row a line, and its result; and steps as records of a fixed size.

`MetricsFile` does not make training wait for storage at each row. A local file is appended to. What cannot be appended to is
rewritten whole by `flush`: before each checkpoint and at the end, and in between at most every `EVERY` seconds, and so seldom
that it takes no more than a twentieth of the time. Rows that are not written yet when a process is killed are newer than its
last checkpoint: a resumed run makes them again. A checkpoint that counts these bytes needs `flush`: after it they survive a
power cut. Rows are reported and plotted; nothing that is learned depends on them. So a row that cannot be read costs that row
alone.

`TrainResult` is the result of `train_bc`; all of it has a form in JSON.

`RecordForm`: all columns of a step side by side in a record of whole 8-byte words, so that any number of records is one tensor
(N, words) that can be gathered, written and read as it is, and each leaf of it a strided view: one look-up in memory per step,
however many columns there are.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.datasets.ownership import keep_bytes, keep_names
from offline_cli.json_documents import from_json
from offline_cli.policies.run_files import METRICS
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.training.pace import Pace
from offline_cli.trees import Tree, flatten, map_leaves, unflatten_like

__all__ = ["MetricsFile", "RecordForm", "TrainResult"]

EVERY: Final = 10.0  # seconds

_log = logging.getLogger(__name__)

WORD: Final = 8  # bytes


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run. Figures are of the policy that the run holds; None: not measured."""

    run: str
    updates: int  # made in all
    epochs: float  # passes over the data
    seconds: float  # checks included, reading not
    samples_per_second: float  # steps per second spent in updates
    loss: float | None  # mean over the last updates; of several losses their sum; of cloning nats per action
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; the confirmation's where --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions guessed right
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # the update that the policy is from
    stopped_by: str  # "target", "patience", or the bound, "updates" or "epochs"; "dry-run": nothing was written
    episodes: int  # in the data, held-out ones included
    steps: int
    device: str
    threads: int
    steps_left_out: int = 0  # last ones, whose next observation was not recorded
    notes: list[str] = field(default_factory=list)  # what the policy does without: the layout of images, for one
    losses: dict[str, float] = field(default_factory=dict)  # each loss of the algorithm by its name, as `loss`
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": how many

    chosen: dict[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: dict[str, Any] = field(default_factory=dict)  # by source: its weight, steps, and steps of it in an epoch
    init_from: dict[str, Any] = field(default_factory=dict)  # run, sha256 of its weights, and which modules are from there

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what was not asked for is left out."""
        asked = ("chosen", "weights", "init_from")
        return {name: value for name, value in asdict(self).items() if value or name not in asked}


class MetricsFile:
    """The rows of the run in `folder`. Every method raises StorageError."""

    def __init__(self, folder: Location) -> None:
        self._folder, self._place = folder, folder.join(METRICS)
        self._content: bytearray | None = None  # what the file is to be, where it cannot be appended to; None: not read yet
        self._is_stored = True
        self._pace = Pace(EVERY)

    def rows(self) -> list[dict[str, Any]]:
        """All rows that can be read, oldest first; a warning says how many cannot."""
        content = whole_file(self._place) or b"" if self._place.is_local else bytes(self._known())
        lines = content.split(b"\n")
        found = [row for line in lines if (row := _row(line)) is not None]
        lost = sum(1 for line in lines if line.strip()) - len(found)
        if lost:
            _log.warning("warning: %d rows of %s cannot be read, and are left out", lost, self._place.url)
        return found

    def append(self, row: Mapping[str, Any]) -> int:
        """Add one row; gives the length of all of them in bytes."""
        line = (json.dumps(row) + "\n").encode()
        if self._place.is_local:
            self._is_stored = False
            return self._place.ask("writing", lambda: _append(self._place.path, line))
        content = self._known()
        content += line
        self._is_stored = False
        return len(content)

    @property
    def flush_is_due(self) -> bool:
        """Whether rows have waited for long enough."""
        return not (self._is_stored or self._place.is_local) and self._pace.is_due

    def flush(self) -> None:
        """Make sure that every row is in the file, and survives a crash of the machine."""
        if self._is_stored:
            return
        if self._place.is_local:
            keep_bytes(self._place)
            keep_names(self._folder)
        else:
            with self._pace.timed():
                write_whole(self._place, bytes(self._known()), folder=self._folder)
        self._is_stored = True

    def cut(self, length: int) -> None:
        """Keep the whole rows of the first `length` bytes; there may be fewer bytes, and half a row, after a power cut."""
        content = whole_file(self._place) or b"" if self._place.is_local else bytes(self._known())
        kept = content[:length].rfind(b"\n") + 1
        if kept == len(content):
            return
        self._is_stored = False
        if self._place.is_local:
            self._place.ask("writing", lambda: os.truncate(self._place.path, kept))
        else:
            del self._known()[kept:]
        self.flush()

    def begin(self) -> None:
        """Begin without a file."""
        self._content, self._is_stored = bytearray(), True

    def _known(self) -> bytearray:
        if self._content is None:
            self._content = bytearray(whole_file(self._place) or b"")
        return self._content


def _row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None where there is none: numbers by name, an `update` among them."""
    try:
        row = from_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("update"), (int, float)):
        return None
    return row if all(value is None or isinstance(value, (int, float)) for value in row.values()) else None


def _append(path: str, line: bytes) -> int:
    with open(path, "ab") as file:
        file.write(line)
        return file.tell()


@dataclass(frozen=True, slots=True)
class _Field:
    """One leaf in every record."""

    path: str
    offset: int  # bytes from the record's start, a multiple of the item size
    dtype: torch.dtype
    shape: tuple[int, ...]  # of one step

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class RecordForm:
    """How a step's leaves lie in its record; columns are trees of tensors (N, ...) by name."""

    fields: tuple[_Field, ...]
    columns: Mapping[str, Tree]  # the structure; its leaves are empty
    words: int

    @classmethod
    def of(cls, columns: Mapping[str, Tree]) -> RecordForm:
        """The form for columns like these."""
        fields, end = [], 0
        for path, leaf in flatten(dict(columns)):
            end = -(-end // leaf.dtype.itemsize) * leaf.dtype.itemsize
            fields.append(_Field(path, end, leaf.dtype, tuple(leaf.shape[1:])))
            end += fields[-1].nbytes
        empty = {name: map_leaves(lambda leaf: leaf[:0], tree) for name, tree in columns.items()}
        return cls(tuple(fields), empty, -(-end // WORD))

    @property
    def nbytes(self) -> int:
        """Of one record."""
        return self.words * WORD

    @property
    def name(self) -> str:
        """Text that identifies the form."""
        return "; ".join(f"{field.path} {field.dtype} {field.shape} at {field.offset}" for field in self.fields)

    def packed(self, columns: Mapping[str, Tree]) -> Tensor:
        """(N, words) int64. Raises ValueError for columns of another form."""
        if RecordForm.of(columns).name != self.name:
            raise ValueError(f"columns {RecordForm.of(columns).name}, not {self.name}")
        parts = [leaf for _, leaf in flatten(dict(columns))]
        records = torch.zeros((len(parts[0]), self.words), dtype=torch.int64)
        for view, leaf in zip(self.views(records), parts, strict=True):
            view.copy_(leaf.reshape(len(leaf), math.prod(leaf.shape[1:])))
        return records

    def views(self, records: Tensor) -> list[Tensor]:
        """The leaves of `records` (N, words) in place, each as (N, numbers of one step)."""
        plain = records.view(torch.uint8)
        return [plain[:, field.offset : field.offset + field.nbytes].view(field.dtype) for field in self.fields]

    def empty(self, rows: int, device: torch.device) -> dict[str, Tree]:
        """Columns for so many steps, on `device`, not filled."""
        made = [torch.empty((rows, *field.shape), dtype=field.dtype, device=device) for field in self.fields]
        return dict(unflatten_like(dict(self.columns), made))

    def unpack(self, records: Tensor, columns: Mapping[str, Tree]) -> None:
        """Copy `records` (B, words) into `columns` of as many steps, on the same device."""
        for view, leaf in self.pairs(records, columns):
            leaf.copy_(view)

    def pairs(self, records: Tensor, columns: Mapping[str, Tree]) -> list[tuple[Tensor, Tensor]]:
        """The leaves of `records` in place, each with that of `columns` it belongs in; for copying the same ones repeatedly."""
        leaves = [leaf.view(len(leaf), math.prod(leaf.shape[1:])) for _, leaf in flatten(dict(columns))]
        return list(zip(self.views(records), leaves, strict=True))
