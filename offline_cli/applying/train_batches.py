"""Train batches as files: Parquet with one column per batch column, or safetensors with one tensor per leaf.

A train batch is one pipeline call on whole, consecutive episodes of at least `steps_per_batch` steps. All batches have the
columns, dtypes and row shapes of the first. Infos are JSON strings, one per row, null if empty.

    D/batches.json                 the commit, written last (schemas/batches.v1.json)
    D/data/batch-000000.parquet    or .safetensors; complete files only
    D/connectors.msgpack           learned state of the pieces, if any

An error or Ctrl-C removes all new files: a write cannot be resumed. A killed process leaves no `batches.json`; `--overwrite`
starts again. It removes the earlier batches before the first new one is written.

Tables use the types of our `columns` datasets (`parquet/arrow_trees.py`) with the batch's dtypes; tensors are named `obs`,
`obs.camera`, and cannot hold strings. Equal batches give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save
from torch import Tensor

from offline_cli.applying.learner_batches import check_announced, grouped, through
from offline_cli.applying.pipeline_run import PipelineRun
from offline_cli.connectors.batch_items import is_filed
from offline_cli.datasets.file_names import DATA
from offline_cli.datasets.ownership import is_link, is_own_part
from offline_cli.datasets.step_rows import info_to_text
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, Interrupted, OutputExists, StorageError, UnsupportedSpace
from offline_cli.parquet.arrow_trees import to_arrow, tree_field
from offline_cli.parquet.writing import BLOCK_BYTES
from offline_cli.spaces import tree_from_lists
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["BatchFolder", "TrainBatch", "batch_folder", "check_batch_folder", "train_batches"]

BATCHES, STATE = "batches.json", "connectors.msgpack"
BATCH: Final = re.compile(rf"{DATA}/batch-[0-9]{{6,12}}\.(parquet|safetensors)", re.ASCII)
Columns = dict[str, Tree | list[str | None]]  # leaves (rows, ...), arrays; or texts, one per row


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """One train batch."""

    content: bytes  # of its file
    kinds: list[dict[str, Any]]  # name, dtype and row shape of every leaf, in order
    names: tuple[str, ...]  # column names
    counts: Mapping[str, int]  # rows, episodes and steps


def train_batches(
    run: PipelineRun, episodes: Iterable[EpisodeBatch], *, format: str, steps_per_batch: int, tally: Tally
) -> Iterator[TrainBatch]:
    """The batches of prepared `episodes`.

    Raises what reading raises; BadPiece, naming piece and first episode, for pieces that raise, or return a batch that no file
    can hold; BadConfig for values that this format cannot hold, and for shapes that the pipeline did not declare.
    """
    first: list[dict[str, Any]] | None = None
    for group in grouped(episodes, steps_per_batch):
        check()
        where = f"train batch from episode {group.ids[0]} of {run.where}"
        batch = through(run.pipeline, group, where=run.where)
        columns = {name: _column(name, held, where, tally) for name, held in batch.items()}
        kinds, rows = _kinds(columns, batch, where)
        if first is None:
            first = kinds
            for name, space in run.announced.items():
                if space is not None and not isinstance(columns.get(name, []), list):
                    check_announced(tree_from_lists(columns[name], space), name, space)
        if kinds != first:
            one, other = next(pair for pair in zip([*first, None], [*kinds, None], strict=False) if pair[0] != pair[1])
            fix = "return the same columns, dtypes and shapes in every batch"
            raise BadPiece(f"a column is {other} in this batch, but {one} in the first", where=where, fix=fix)
        content = _table(columns, run, where) if format == "columns" else _tensors(columns, where)
        yield TrainBatch(content, kinds, tuple(columns), {"rows": rows, "episodes": len(group), "steps": group.num_steps})


def _column(name: str, held: Any, where: str, tally: Tally) -> Any:
    """A column as arrays or strings. Raises BadPiece for anything else."""
    if isinstance(held, list) and all(isinstance(one, str) for one in held):
        return held
    if isinstance(held, list) and all(isinstance(one, Mapping) for one in held):
        return [info_to_text(one, tally=tally, where=f"{name}, {where}") for one in held]
    if not isinstance(held, list) and not is_filed(held):
        with suppress(TypeError):  # numpy lacks some dtypes of torch, such as bfloat16
            tree = map_leaves(lambda leaf: np.asarray(leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf), held)
            if all(leaf.dtype.kind in "biuf" for leaf in leaves(tree)):
                return tree
    kind = "unstacked items" if is_filed(held) else f"a {type(held).__name__} of unsupported values"
    fix = "use numeric arrays or tensors, or lists of strings or dicts; batch_individual_items stacks items"
    raise BadPiece(f"column {name!r} holds {kind}", where=where, fix=fix)


def _kinds(columns: Columns, batch: Mapping[str, Any], where: str) -> tuple[list[dict[str, Any]], int]:
    """Name, dtype and shape of each leaf, and the common number of rows. Raises BadPiece if lengths differ."""
    kinds, lengths = list[dict[str, Any]](), dict[str, int]()
    for name, column in columns.items():
        if isinstance(column, list):
            dtype = "text" if all(isinstance(one, str) for one in batch[name]) else "json"
            kinds.append({"name": name, "dtype": dtype, "shape": []})
            lengths[name] = len(column)
            continue
        for path, leaf in flatten(column, name):
            kinds.append({"name": path, "dtype": str(leaf.dtype), "shape": list(leaf.shape[1:])})
            lengths[path] = len(leaf) if leaf.ndim else -1
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        what = f"the batch has no columns, or columns of different lengths: {lengths}"
        fix = "add columns with one row per row of the batch; defaults = true adds the recorded columns"
        raise BadPiece(what, where=where, fix=fix)
    return kinds, next(iter(lengths.values()))


def _table(columns: Columns, run: PipelineRun, where: str) -> bytes:
    """The content of a Parquet file. Raises BadConfig, naming the column, for dtypes and shapes that Arrow lacks."""
    fields, arrays = [], []
    for name, column in columns.items():
        try:
            is_text = isinstance(column, list)
            fields.append(pa.field(name, pa.string()) if is_text else tree_field(name, column, like=run.announced.get(name)))
        except (UnsupportedSpace, TypeError) as err:
            fix = "use --format safetensors, or leave the piece out"
            raise BadConfig(f"a table cannot hold column {name!r}: {err}", where=where, fix=fix) from err
        arrays.append(pa.array(column, pa.string()) if is_text else to_arrow(column, fields[-1].type))
    table, sink = pa.Table.from_arrays(arrays, schema=pa.schema(fields)), pa.BufferOutputStream()
    per_group = max(1, int(len(table) * BLOCK_BYTES / max(1, table.nbytes)))
    pq.write_table(table, sink, row_group_size=per_group, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def _tensors(columns: Columns, where: str) -> bytes:
    """The content of a safetensors file. Raises BadConfig for strings."""
    if texts := [name for name, column in columns.items() if isinstance(column, list)]:
        what = f"safetensors hold numbers only, but the columns {texts} are strings"
        raise BadConfig(what, where=where, fix="use --format columns, or leave the piece out")
    return bytes(save({path: np.ascontiguousarray(leaf) for path, leaf in flatten(columns)}))


# ---- the folder ----


def check_batch_folder(folder: Location, *, overwrite: bool) -> list[Location]:
    """The files of earlier train batches in `folder`, for `overwrite` to replace.

    Raises OutputExists for a folder with other files, or with any unless `overwrite`; StorageError if it is not writable.
    """
    if folder.is_file():
        raise OutputExists("this is a file; train batches are a folder", where=folder.url, fix="give another --out")
    files = folder.files() if folder.exists() else []
    if files and not overwrite:
        raise OutputExists(
            "the folder is not empty", where=folder.url, fix="--overwrite to replace train batches, or another --out"
        )
    start = len(folder.path.rstrip("/")) + 1
    for file in files:
        is_ours = BATCH.fullmatch(file.path[start:]) or file.path[start:] in (BATCHES, STATE) or is_own_part(file)
        if not is_ours or is_link(file) or (file.name == BATCHES and b'"train-batches"' not in (whole_file(file) or b"")):
            what = f"{file.path[start:]} is no file of train batches; --overwrite replaces nothing else"
            raise OutputExists(what, where=folder.url, fix="give another --out")
    folder.check_writable()
    return files


@contextmanager
def batch_folder(location: Location, *, overwrite: bool) -> Iterator[BatchFolder]:
    """Context manager for one write: everything is removed at the end unless committed.

    Raises as `check_batch_folder` does; StorageError; Interrupted for Ctrl-C.
    """
    earlier, folder = check_batch_folder(location, overwrite=overwrite), BatchFolder(location)
    for file in sorted(earlier, key=lambda file: file.name != BATCHES):  # first what lists the others
        file.remove()
    made = location.make_folder() + location.join(DATA).make_folder()
    try:
        yield folder
    except KeyboardInterrupt as err:
        if folder.committed:
            raise
        raise Interrupted("interrupted; no train batch was kept", where=location.url, fix="run the command again") from err
    finally:
        if not folder.committed:
            with suppress(StorageError):
                for file in folder.files:
                    file.remove()
                for one in reversed(made):
                    one.remove_empty_folder()


@dataclass(slots=True, eq=False)
class BatchFolder:
    """The files of one write; see `batch_folder`."""

    location: Location
    batches: list[dict[str, Any]] = field(default_factory=list)
    files: list[Location] = field(default_factory=list)
    committed: bool = False

    def write(self, batch: TrainBatch, suffix: str) -> int:
        """Write a batch; return its size in bytes."""
        path = f"{DATA}/batch-{len(self.batches):06d}.{suffix}"
        self.batches.append({"path": path, **batch.counts, **self._write(path, batch.content)})
        return len(batch.content)

    def commit(self, document: Mapping[str, Any], *, state: bytes) -> str | None:
        """Write the learned state (`state`; empty: none) and `batches.json`; return the path of the state.

        `document`: `batches.json` without batches and state.
        """
        kept = self._write(STATE, state) if state else None
        whole = json.dumps({**document, "batches": self.batches, "state": kept}, default=str)  # TOML has dates
        text = json.dumps(json.loads(whole, parse_constant=str), indent=1, ensure_ascii=False)  # and infinity
        self.committed = True  # from here on the listed files must stay
        write_whole(self.location.join(BATCHES), text.encode() + b"\n", folder=self.location)
        return STATE if state else None

    def _write(self, path: str, content: bytes) -> dict[str, Any]:
        """Write a file; return its entry in `batches.json`."""
        self.files.append(self.location.join(path))
        write_whole(self.files[-1], content, folder=self.location)
        return {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
