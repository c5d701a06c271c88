"""Train batches as files hold them: Parquet with a column per column, safetensors with a tensor per leaf.

A train batch is one call of the pipeline on whole, consecutive episodes, until `steps_per_batch` is reached. All batches have
the columns, dtypes and row shapes of the first. Infos are JSON text, one per row, null where one is empty.

Tables have the types of our `columns` datasets (`parquet/arrow_trees.py`) in the dtypes of the batch; tensors are named `obs`,
`obs.camera`, and hold no text. The same batch gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from torch import Tensor

from offline_cli.applying.learner_batches import check_announced, grouped, playing, through
from offline_cli.applying.pipeline_run import PipelineRun
from offline_cli.applying.pipeline_view import column_views
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.datasets.step_rows import info_to_text
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, UnsupportedSpace
from offline_cli.modules.rl_module import is_stateful
from offline_cli.parquet.arrow_trees import to_arrow, tree_field
from offline_cli.parquet.writing import BLOCK_BYTES
from offline_cli.spaces import tree_from_lists
from offline_cli.stop_signals import check
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["SUFFIXES", "TrainBatch", "train_batches"]

SUFFIXES: Final = {"columns": "parquet", "safetensors": "safetensors"}  # of files, by format
Columns = dict[str, Tree | list[str | None]]  # leaves (rows, ...), arrays or tensors on the CPU; or texts, one per row
Kinds = list[dict[str, Any]]  # name, dtype and shape of one row of every leaf


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """One train batch."""

    content: bytes  # of its file
    kinds: Kinds  # of its columns, in order
    names: tuple[str, ...]  # of its columns
    counts: Mapping[str, int]  # its rows, episodes and steps


def train_batches(
    run: PipelineRun, episodes: Iterable[EpisodeBatch], *, format: str, steps_per_batch: int, tally: Tally
) -> Iterator[TrainBatch]:
    """The batches of prepared `episodes`.

    Raises what reading raises; BadPiece, naming piece and first episode, for pieces that raise, or give no batch that files can
    hold; BadConfig for what this format cannot hold, and for other shapes than the pipeline announces.
    """
    first: Kinds = []
    for group in grouped(episodes, steps_per_batch):
        check()
        where = f"train batch from episode {group.ids[0]} of {run.where}"
        with playing(run.module) as module:
            batch, _ = through(run.pipeline, group, where=run.where, rl_module=module)
        columns, kinds, rows = _columns(batch, where, tally)
        if first:
            _check_same(first, kinds, where)
        else:
            _check_announced(columns, run)
        first = first or kinds
        content = _table(columns, run, where) if format == "columns" else _tensors(columns, where)
        counts = {"rows": rows, "episodes": len(group), "steps": group.num_steps}
        yield TrainBatch(content, kinds, tuple(columns), counts)


def _columns(batch: Batch, where: str, tally: Tally) -> tuple[Columns, Kinds, int]:
    """The columns of `batch`, what each leaf is, and how many rows they have."""
    columns, kinds, lengths = Columns(), Kinds(), dict[str, int | None]()
    for name, held in batch.items():
        is_text = isinstance(held, list) and all(isinstance(one, str) for one in held)
        if not _is_column(held):
            kind = "items by episode that are not stacked" if is_filed(held) else f"a {type(held).__name__} of other things"
            fix = "arrays or tensors of numbers, or lists of texts or dicts; batch_individual_items stacks items by episode"
            raise BadPiece(f"column {name!r} holds {kind}", where=where, fix=fix)
        for view in column_views(name, held):
            dtype = view.dtype if not isinstance(held, list) else "text" if is_text else "json"
            kinds.append({"name": view.name, "dtype": dtype, "shape": list(view.shape)})
            lengths[view.name] = view.rows
        if isinstance(held, list):
            columns[name] = held if is_text else [info_to_text(info, tally=tally, where=f"{name}, {where}") for info in held]
        else:
            columns[name] = map_leaves(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, held)
    rows = next(iter(lengths.values()), None)
    if rows is None or set(lengths.values()) != {rows}:
        what = f"the batch has no columns, or columns of different lengths: {lengths}"
        raise BadPiece(
            what, where=where, fix="columns with one row for each row of the batch; defaults = true adds the recorded"
        )
    return columns, kinds, rows


def _is_column(held: Any) -> bool:
    if isinstance(held, list):
        return all(isinstance(one, str) for one in held) or all(isinstance(one, Mapping) for one in held)
    return all(
        leaf.dtype.kind in "biuf" if isinstance(leaf, np.ndarray) else isinstance(leaf, Tensor) and not leaf.is_complex()
        for leaf in leaves(held)
    )


def _check_announced(columns: Columns, run: PipelineRun) -> None:
    """Raise BadConfig for a column whose rows have other shapes than the pipeline says, as in training."""
    for name, space in run.announced.items():
        if space is not None and name in columns and not isinstance(columns[name], list):
            tree = tree_from_lists(columns[name], space)
            check_announced(tree, name, space, axes=2 if is_stateful(run.module) else 1)


def _check_same(first: Kinds, kinds: Kinds, where: str) -> None:
    before, now = ({kind["name"]: f"{kind['dtype']} {kind['shape']}" for kind in found} for found in (first, kinds))
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            told = f"{before.get(name, 'absent')} in the first batch, and {now.get(name, 'absent')} here"
            fix = "the same columns, dtypes and shapes in every batch"
            raise BadPiece(f"column {name!r} is {told}", where=where, fix=fix)


def _table(columns: Columns, run: PipelineRun, where: str) -> bytes:
    """A Parquet file. Raises BadConfig, naming column and remedy, for dtypes and shapes that Arrow does not have."""
    spaces = {} if is_stateful(run.module) else run.announced
    fields, arrays = [], []
    for name, column in columns.items():
        if isinstance(column, list):
            fields.append(pa.field(name, pa.string()))
            arrays.append(pa.array(column, pa.string()))
            continue
        try:
            tree = map_leaves(lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, column)
            fields.append(tree_field(name, tree, like=spaces.get(name)))
        except (UnsupportedSpace, TypeError) as err:
            fix = "--format safetensors, or leave the piece out"
            raise BadConfig(f"no table has column {name!r}: {err}", where=where, fix=fix) from err
        arrays.append(to_arrow(tree, fields[-1].type))
    table, sink = pa.Table.from_arrays(arrays, schema=pa.schema(fields)), pa.BufferOutputStream()
    per_group = max(1, int(len(table) * BLOCK_BYTES / max(1, table.nbytes)))
    pq.write_table(table, sink, row_group_size=per_group, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def _tensors(columns: Columns, where: str) -> bytes:
    """A safetensors file. Raises BadConfig for texts."""
    texts = [name for name, column in columns.items() if isinstance(column, list)]
    if texts:
        what = f"safetensors hold numbers only, and of the columns {texts} are text"
        raise BadConfig(what, where=where, fix="--format columns, or leave the piece out")
    tensors = {
        path: torch.as_tensor(np.ascontiguousarray(leaf)) if isinstance(leaf, np.ndarray) else leaf
        for path, leaf in flatten(columns)
    }
    return bytes(
        save({path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in tensors.items()})
    )  # none shares
