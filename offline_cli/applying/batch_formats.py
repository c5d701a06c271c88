"""Train batches as files: Parquet with a column per column, safetensors with a tensor per leaf.

`TrainColumns`: a train batch as columns that files can hold: stacked, without objects, one row for each row of the batch. Infos
are JSON text, one per row, null where one is empty.

`columns`: one row of the table per row of the batch, types as in our `columns` datasets (`parquet/arrow_trees.py`), with the
dtypes of the batch, which need not be those of the spaces; zstd. `safetensors`: tensors named `obs`, `obs.camera`, no text. The
same batch gives the same bytes.

`TrainBatches`: those of a stream of episodes, each checked and ready to be stored: all have the columns of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from offline_cli.applying.learned_pieces import Unchanged
from offline_cli.applying.learner_batches import check_announced, grouped, playing, through
from offline_cli.applying.recordings import Ready, dtype_name
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.datasets.step_tables import info_to_text
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, UnsupportedSpace
from offline_cli.parquet.arrow_trees import to_arrow, tree_field
from offline_cli.parquet.shard_writing import ShardWriter
from offline_cli.spaces import Space, tree_from_lists
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = [
    "COLUMNS",
    "JSON",
    "TEXT",
    "BatchFormat",
    "ColumnKind",
    "TrainBatch",
    "TrainBatches",
    "TrainColumns",
    "batch_format",
    "train_columns",
]

JSON: Final = "json"  # JSON text
TEXT: Final = "text"

COLUMNS: Final = "columns"
SAFETENSORS: Final = "safetensors"
COMPRESSION: Final = "zstd"
Guard = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What every file has under one name."""

    name: str  # `obs`, `obs.camera`
    dtype: str  # `float32`, `json`, `text`
    shape: tuple[int, ...]  # of one row

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.shape else self.dtype


@dataclass(frozen=True, slots=True, eq=False)
class TrainColumns:
    """The columns of one batch, in its order."""

    columns: Mapping[str, Tree | list[str | None]]  # leaves (rows, ...), arrays or tensors on the CPU; or texts, one per row
    kinds: tuple[ColumnKind, ...]
    rows: int
    added_by: Mapping[str, str]  # the piece that put each column in

    def texts(self) -> list[str]:
        """Names of the columns that are not numbers."""
        return [name for name, column in self.columns.items() if isinstance(column, list)]


def train_columns(batch: Batch, added_by: Mapping[str, str], *, where: str, tally: Tally) -> TrainColumns:
    """The columns of `batch`. Raises BadPiece, naming column and piece; BadData for infos that have no text."""
    if not batch:
        fix = "leave defaults = true, or list pieces that add columns"
        raise BadPiece("the batch is empty: no piece has put a column in", where=where, fix=fix)
    columns = {name: _column(name, held, _by(name, added_by), where, tally) for name, held in batch.items()}
    kinds, counts = [], {}
    for name, column in columns.items():
        if isinstance(column, list):
            kinds.append(ColumnKind(name, TEXT if _is_text(batch[name]) else JSON, ()))
            counts[name] = len(column)
        for path, leaf in flatten(column, name) if not isinstance(column, list) else ():
            kinds.append(ColumnKind(path, dtype_name(leaf), tuple(leaf.shape[1:])))
            counts[path] = len(leaf)
    _check_names(kinds, where)
    if len(set(counts.values())) > 1:
        fix = "one row for each row of the batch, in every column that a piece adds"
        raise BadPiece(f"columns of different lengths: {counts}", where=where, fix=fix)
    return TrainColumns(columns, tuple(kinds), next(iter(counts.values()), 0), added_by)


def _check_names(kinds: list[ColumnKind], where: str) -> None:
    twice = next((kind.name for i, kind in enumerate(kinds) if kind.name in [other.name for other in kinds[:i]]), None)
    if twice is not None:
        fix = "another name for one of them, without a dot"
        raise BadPiece(f"two columns, one of them nested, are both called {twice!r}", where=where, fix=fix)


def _by(name: str, added_by: Mapping[str, str]) -> str:
    return f"column {name!r}, which piece {added_by[name]} put into the batch," if name in added_by else f"column {name!r}"


def _column(name: str, held: Any, called: str, where: str, tally: Tally) -> Tree | list[str | None]:
    if is_filed(held):
        fix = "end the pipeline with batch_individual_items, or leave defaults = true"
        raise BadPiece(f"{called} holds items by episode that are not stacked", where=where, fix=fix)
    if _is_text(held):
        return list(held) if isinstance(held, list) else held.tolist()
    if isinstance(held, list):
        return _infos(name, held, called, where, tally)
    return map_leaves(lambda leaf: _numbers(leaf, called, where), held)


def _is_text(held: Any) -> bool:
    if isinstance(held, list):
        return bool(held) and all(isinstance(value, str) for value in held)
    return isinstance(held, np.ndarray) and held.dtype.kind == "U" and held.ndim == 1


def _infos(name: str, held: list[Any], called: str, where: str, tally: Tally) -> list[str | None]:
    if not all(isinstance(info, Mapping) for info in held):
        fix = "arrays or tensors with one row for each row of the batch; a list may hold dicts, or texts"
        raise BadPiece(f"{called} is a list of {type(held[0]).__name__}", where=where, fix=fix)
    return [info_to_text(info, tally=tally, where=f"row {row} of {name}, {where}") for row, info in enumerate(held)]


def _numbers(leaf: Any, called: str, where: str) -> Any:
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu()
    if not _counts(leaf):
        kind = f"of {dtype_name(leaf)}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
        raise BadPiece(f"{called} is {kind}", where=where, fix="arrays or tensors of numbers or bools")
    if not leaf.ndim:
        raise BadPiece(f"{called} is a single number", where=where, fix="one row for each row of the batch")
    return leaf


def _counts(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "biuf"
    return isinstance(leaf, Tensor) and not leaf.is_complex()


class BatchFormat(Protocol):
    """One way to keep train batches."""

    @property
    def suffix(self) -> str:
        """Of file names, without the dot."""

    def prepared(self, batch: TrainColumns, *, where: str) -> Any:
        """What `store` takes. Raises BadConfig, naming column and remedy, for what this format cannot hold."""

    def store(self, prepared: Any, target: Location, *, folder: Location, guard: Guard) -> tuple[int, str]:
        """Write one file, which gets its name only when whole; its bytes and sha256.

        `guard`: around the moment in which it gets its name; may refuse. Raises StorageError, and what `guard` raises.
        """


def batch_format(name: str, spaces: Mapping[str, Space | None]) -> BatchFormat:
    """The format of that name, `COLUMNS` or `SAFETENSORS`; `spaces`: those of columns, as far as they are known."""
    return Tables(spaces) if name == COLUMNS else Tensors()


class Tables:
    """Parquet."""

    suffix = "parquet"

    def __init__(self, spaces: Mapping[str, Space | None]) -> None:
        self._spaces = spaces

    def prepared(self, batch: TrainColumns, *, where: str) -> Any:
        """A pa.Table."""
        fields, arrays = [], []
        for name, column in batch.columns.items():
            if isinstance(column, list):
                fields.append(pa.field(name, pa.string()))
                arrays.append(pa.array(column, pa.string()))
                continue
            try:
                tree = map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, column)
                fields.append(tree_field(name, tree, like=self._spaces.get(name)))
            except (UnsupportedSpace, TypeError) as err:
                told = err.what if isinstance(err, UnsupportedSpace) else str(err)
                what = f"no table has column {name!r} of piece {batch.added_by.get(name, '(unknown)')}: {told}"
                raise BadConfig(what, where=where, fix="--format safetensors, or leave the piece out") from err
            arrays.append(to_arrow(tree, fields[-1].type))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def store(self, prepared: Any, target: Location, *, folder: Location, guard: Guard) -> tuple[int, str]:
        """Row groups small enough to stream."""
        writer = ShardWriter(target, prepared.schema, folder=folder, compression=COMPRESSION)
        try:
            writer.write(prepared)
            writer.settle()
            with guard():
                return writer.commit()
        except BaseException:
            writer.discard()
            raise


class Tensors:
    """safetensors."""

    suffix = "safetensors"

    def prepared(self, batch: TrainColumns, *, where: str) -> dict[str, Tensor]:
        """Tensors by name, none sharing memory with another: safetensors refuses that."""
        texts = batch.texts()
        if texts:
            pieces = " and ".join(f"{name!r} of piece {batch.added_by.get(name, '(unknown)')}" for name in texts)
            what = f"safetensors hold numbers only, and column {pieces} is text"
            raise BadConfig(what, where=where, fix="--format columns, or leave the piece out")
        tensors: dict[str, Tensor] = {}
        taken: set[int] = set()
        for path, leaf in flatten(dict(batch.columns)):
            tensor = leaf.contiguous() if isinstance(leaf, Tensor) else torch.from_numpy(_native(leaf))
            memory = tensor.untyped_storage().data_ptr()
            tensors[path] = tensor.clone() if memory in taken else tensor
            taken.add(memory)
        return tensors

    def store(self, prepared: Any, target: Location, *, folder: Location, guard: Guard) -> tuple[int, str]:
        """One file, written at once."""
        file = StagedFile(target, folder=folder)
        try:
            file.write(save(prepared))
            with guard():
                file.commit()
        except BaseException:
            file.discard()
            raise
        return file.bytes, file.sha256


def _native(leaf: NDArray[Any]) -> NDArray[Any]:
    """A copy that may be written to, in this machine's byte order: torch takes no other."""
    return np.array(leaf, leaf.dtype.newbyteorder("="), order="C")


# ---- of a stream of episodes ----


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """One train batch, ready to be stored."""

    prepared: Any  # what `BatchFormat.store` takes
    columns: TrainColumns
    episodes: int
    steps: int


class TrainBatches:
    """The train batches of `ready`, to be iterated over once; what it counts is complete when they end."""

    def __init__(self, ready: Ready, stored_as: BatchFormat, *, steps_per_batch: int) -> None:
        """`steps_per_batch`: a batch closes with the episode that brings it to so many steps."""
        self._ready, self._stored_as, self._steps_per_batch = ready, stored_as, steps_per_batch
        self.batches = self.rows = self.episodes = self.steps = self.steps_left_out = 0
        self.kinds: tuple[ColumnKind, ...] = ()  # those of the first batch
        self.names: tuple[str, ...] = ()  # of its columns

    def __iter__(self) -> Iterator[TrainBatch]:
        """Raises what reading raises; BadPiece for pieces that raise or return no batch; BadConfig for the format, and for
        shapes that the pipeline does not announce."""
        unchanged = Unchanged(self._ready.pipeline.pieces())
        for episodes in grouped(self._ready.episodes(self._leave_out), self._steps_per_batch):
            made = self._made(episodes)
            self._count(made)
            if self.batches == 1:
                unchanged.check()
            yield made
        unchanged.check()

    def _leave_out(self, steps: int) -> None:
        self.steps_left_out += steps

    def _made(self, episodes: EpisodeBatch) -> TrainBatch:
        ready, where = self._ready, f"train batch from episode {episodes.ids[0]} of {self._ready.where}"
        with playing(ready.network.module) as module:
            batch, added = through(ready.pipeline, episodes, where=ready.where, rl_module=module)
        columns = train_columns(batch, added, where=where, tally=ready.stream.tally)
        if self.kinds:
            _check_same(self.kinds, columns, where)
        else:
            _check_announced(columns, ready.spaces_of_columns(), ready.network.axes)
        prepared = self._stored_as.prepared(columns, where=where)
        return TrainBatch(prepared, columns, len(episodes), episodes.num_steps)

    def _count(self, made: TrainBatch) -> None:
        self.kinds, self.names = self.kinds or made.columns.kinds, self.names or tuple(made.columns.columns)
        self.batches, self.rows = self.batches + 1, self.rows + made.columns.rows
        self.episodes, self.steps = self.episodes + made.episodes, self.steps + made.steps

    def counts(self) -> dict[str, int]:
        """Batches, rows, episodes and steps so far."""
        return {"batches": self.batches, "rows": self.rows, "episodes": self.episodes, "steps": self.steps}


def _check_announced(columns: TrainColumns, announced: Mapping[str, Space | None], axes: int) -> None:
    """Raise BadConfig for a column of numbers whose rows have other shapes than the pipeline says, as in training. `axes`: 2
    for sequences.
    """
    for name, space in announced.items():
        column = columns.columns.get(name)
        if space is not None and column is not None and not isinstance(column, list):
            check_announced(tree_from_lists(column, space), name, space, axes=axes)


def _check_same(kinds: tuple[ColumnKind, ...], columns: TrainColumns, where: str) -> None:
    before, after = ({kind.name: kind for kind in found} for found in (kinds, columns.kinds))
    different = next((name for name in {**before, **after} if before.get(name) != after.get(name)), None)
    if different is not None:
        piece = columns.added_by.get(different.partition(".")[0], "(none)")
        one, other = before.get(different, "absent"), after.get(different, "absent")
        what = f"column {different!r} of piece {piece} is {one} in the first batch and {other} in this one"
        raise BadPiece(what, where=where, fix="the same columns, dtypes and shapes in every batch")
