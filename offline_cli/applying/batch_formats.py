"""Train batches as files: Parquet with a column per column, safetensors with a tensor per leaf.

`columns`: one row of the table per row of the batch, types as in our `columns` datasets (`storage/arrow_trees.py`), with the
dtypes of the batch, which need not be those of the spaces; zstd. `safetensors`: tensors named `obs`, `obs.camera`, no text. The
same batch gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from offline_cli.applying.train_columns import TrainColumns
from offline_cli.errors import BadConfig, UnsupportedSpace
from offline_cli.spaces import Space
from offline_cli.storage.arrow_trees import to_arrow, tree_field
from offline_cli.storage.locations import Location
from offline_cli.storage.row_group_cuts import alone
from offline_cli.storage.shards import ShardWriter
from offline_cli.storage.staging import StagedFile
from offline_cli.trees import flatten, map_leaves

__all__ = ["COLUMNS", "SAFETENSORS", "BatchFormat", "Guard", "batch_format"]

COLUMNS: Final = "columns"
SAFETENSORS: Final = "safetensors"
COMPRESSION: Final = "zstd"
Guard = Callable[[], AbstractContextManager[None]]


class BatchFormat(Protocol):
    """One way to keep train batches."""

    @property
    def suffix(self) -> str:
        """Of file names, without the dot."""

    def prepared(self, batch: TrainColumns, *, where: str) -> Any:
        """What `store` takes. Raises BadConfig, naming column and remedy, for what this format cannot hold."""

    def store(self, prepared: Any, target: Location, *, folder: Location, guard: Guard) -> tuple[int, str]:
        """Write one file, which stands under its name only when whole; its bytes and sha256.

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
                tree = map_leaves(_as_array, column)
                fields.append(tree_field(name, tree, like=self._spaces.get(name)))
            except (UnsupportedSpace, TypeError) as err:
                told = err.what if isinstance(err, UnsupportedSpace) else str(err)
                what = f"no table has column {name!r} of piece {batch.added_by.get(name, '(unknown)')}: {told}"
                raise BadConfig(what, where=where, fix="--format safetensors, or leave the piece out") from err
            arrays.append(to_arrow(tree, fields[-1].type))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def store(self, prepared: Any, target: Location, *, folder: Location, guard: Guard) -> tuple[int, str]:
        """Row groups small enough to stream."""
        cuts = alone(prepared, COMPRESSION)
        writer = ShardWriter(target, prepared.schema, folder=folder, compression=COMPRESSION, is_plain=cuts.is_plain)
        try:
            writer.write(prepared, rows=cuts.rows)
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


def _as_array(leaf: Any) -> NDArray[Any]:
    array: NDArray[Any] = leaf.numpy() if isinstance(leaf, Tensor) else leaf
    return array
