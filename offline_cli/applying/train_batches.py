"""Train batches as files hold them: Parquet with a column per column, safetensors with a tensor per leaf.

A train batch is one call of the pipeline on whole, consecutive episodes, until `steps_per_batch` is reached. All batches have
the columns, dtypes and row shapes of the first. Infos are JSON text, one per row, null where one is empty.

    D/batches.json                 the commit, written last (schemas/batches.v1.json)
    D/data/batch-000000.parquet    or .safetensors; complete files only
    D/connectors.msgpack           what the pieces learned, if any did
    D/_writing.json                a writer is, or was, at work; it is the lock that keeps a second one out

An error, or a Ctrl-C, removes all that was written: a write cannot be resumed in the middle. What a killed process leaves has
no new `batches.json`; `--overwrite` begins again. Over older batches the new ones stand beside them, with `-1` in their names,
until the new `batches.json` is there.

Tables have the types of our `columns` datasets (`parquet/arrow_trees.py`) in the dtypes of the batch; tensors are named `obs`,
`obs.camera`, and hold no text. The same batch gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from torch import Tensor

from offline_cli.applying.learner_batches import check_announced, grouped, through
from offline_cli.applying.pipeline_run import PipelineRun
from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch
from offline_cli.datasets.file_names import BATCHES, TRAIN_BATCHES, batch_name, connector_state_name
from offline_cli.datasets.ownership import is_regular
from offline_cli.datasets.step_rows import info_to_text
from offline_cli.datasets.target_folder import TargetFolder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, Interrupted, StorageError, StorageNotFound, UnsupportedSpace
from offline_cli.modules.rl_module import is_stateful
from offline_cli.parquet.arrow_trees import to_arrow, tree_field
from offline_cli.parquet.writing import BLOCK_BYTES
from offline_cli.spaces import tree_from_lists
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole
from offline_cli.tally import Tally
from offline_cli.trees import Tree, flatten, leaves, map_leaves

__all__ = ["BatchFolder", "TrainBatch", "train_batches"]

SUFFIXES: Final = {"columns": "parquet", "safetensors": "safetensors"}  # of files, by format
STATE: Final = re.compile(r"connectors(-[0-9]{1,12})?\.msgpack", re.ASCII)
Columns = dict[str, Tree | list[str | None]]  # leaves (rows, ...), tensors on the CPU; or texts, one per row


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """One train batch."""

    content: bytes  # of its file
    kinds: list[dict[str, Any]]  # name, dtype and shape of one row of every leaf of its columns, in order
    names: tuple[str, ...]  # of its columns
    counts: Mapping[str, int]  # its rows, episodes and steps


def train_batches(
    run: PipelineRun, episodes: Iterable[EpisodeBatch], *, format: str, steps_per_batch: int, tally: Tally
) -> Iterator[TrainBatch]:
    """The batches of prepared `episodes`.

    Raises what reading raises; BadPiece, naming piece and first episode, for pieces that raise, or give no batch that files can
    hold; BadConfig for what this format cannot hold, and for other shapes than the pipeline announces.
    """
    first: dict[str, str] | None = None
    for group in grouped(episodes, steps_per_batch):
        check()
        where = f"train batch from episode {group.ids[0]} of {run.where}"
        columns, kinds, rows = _columns(through(run.pipeline, group, where=run.where, rl_module=run.module), where, tally)
        now = {kind["name"]: f"{kind['dtype']} {kind['shape']}" for kind in kinds}
        if first is None:
            first = now
            for name, space in run.announced.items():
                if space is not None and not isinstance(columns.get(name, []), list):
                    tree = tree_from_lists(columns[name], space)
                    check_announced(tree, name, space, axes=2 if is_stateful(run.module) else 1)
        if now != first:
            name = next(name for name in {**first, **now} if first.get(name) != now.get(name))
            told = f"{first.get(name, 'absent')} in the first batch, and {now.get(name, 'absent')} here"
            fix = "the same columns, dtypes and shapes in every batch"
            raise BadPiece(f"column {name!r} is {told}", where=where, fix=fix)
        content = _table(columns, run, where) if format == "columns" else _tensors(columns, where)
        yield TrainBatch(content, kinds, tuple(columns), {"rows": rows, "episodes": len(group), "steps": group.num_steps})


def _columns(batch: Batch, where: str, tally: Tally) -> tuple[Columns, list[dict[str, Any]], int]:
    """The columns of `batch`, what each leaf is, and how many rows they have. Raises BadPiece for what is no column."""
    columns, kinds, lengths = Columns(), list[dict[str, Any]](), dict[str, int]()
    for name, held in batch.items():
        if isinstance(held, list) and (
            all(isinstance(one, str) for one in held) or all(isinstance(one, Mapping) for one in held)
        ):
            is_text = all(isinstance(one, str) for one in held)
            kinds.append({"name": name, "dtype": "text" if is_text else "json", "shape": []})
            lengths[name] = len(held)
            columns[name] = held if is_text else [info_to_text(one, tally=tally, where=f"{name}, {where}") for one in held]
            continue
        if isinstance(held, list) or is_filed(held) or not all(map(_is_numeric, leaves(held))):
            kind = "items by episode that are not stacked" if is_filed(held) else f"a {type(held).__name__} of other things"
            fix = "arrays or tensors of numbers, or lists of texts or dicts; batch_individual_items stacks items by episode"
            raise BadPiece(f"column {name!r} holds {kind}", where=where, fix=fix)
        tree = map_leaves(
            lambda leaf: torch.as_tensor(leaf if isinstance(leaf, Tensor) else np.array(leaf)).detach().cpu(), held
        )
        columns[name] = tree
        for path, leaf in flatten(tree, name):
            kinds.append({"name": path, "dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape[1:])})
            lengths[path] = len(leaf) if leaf.ndim else -1
    rows = next(iter(lengths.values()), -1)
    if rows < 0 or set(lengths.values()) != {rows}:
        what = f"the batch has no columns, or columns of different lengths: {lengths}"
        fix = "columns with one row for each row of the batch; defaults = true adds the recorded"
        raise BadPiece(what, where=where, fix=fix)
    return columns, kinds, rows


def _is_numeric(leaf: Any) -> bool:
    return leaf.dtype.kind in "biuf" if isinstance(leaf, np.ndarray) else isinstance(leaf, Tensor) and not leaf.is_complex()


def _table(columns: Columns, run: PipelineRun, where: str) -> bytes:
    """A Parquet file. Raises BadConfig, naming column and remedy, for dtypes and shapes that Arrow does not have."""
    spaces = {} if is_stateful(run.module) else run.announced
    fields, arrays = [], []
    for name, column in columns.items():
        try:
            is_text = isinstance(column, list)
            tree = column if is_text else map_leaves(lambda leaf: leaf.numpy(), column)
            fields.append(pa.field(name, pa.string()) if is_text else tree_field(name, tree, like=spaces.get(name)))
        except (UnsupportedSpace, TypeError) as err:
            fix = "--format safetensors, or leave the piece out"
            raise BadConfig(f"no table has column {name!r}: {err}", where=where, fix=fix) from err
        arrays.append(pa.array(tree, pa.string()) if is_text else to_arrow(tree, fields[-1].type))
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
    made = {path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in flatten(columns)}  # none shares
    return bytes(save(made))


# ---- the folder ----


class BatchFolder:
    """One write, within a `with`: the note comes first; without `commit` everything is removed at the end.

    Raises StorageError throughout, TakenOver where another writer has taken over, Interrupted for a signal.
    """

    def __init__(self, location: Location, *, options: Mapping[str, Any], overwrite: bool, command: str) -> None:
        """`options`, `command`: for the note; plain JSON values with the `format`, and what writes, without secrets."""
        self._location, self._options, self._overwrite = location, options, overwrite
        self._target = TargetFolder(location, command, TRAIN_BATCHES)
        self._batches: list[dict[str, Any]] = []
        self._files: list[Location] = []  # of this write
        self._committed = False

    def __enter__(self) -> BatchFolder:
        """Write the note. Raises OutputExists, Locked where another writer is at work."""
        self._target.begin(self._options, overwrite=self._overwrite, resume=False)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._target.is_held and not self._committed:
                with self._target.guard():
                    for file in self._files:
                        with suppress(StorageNotFound):
                            file.remove()
                    self._target.leave_no_trace()
        except StorageError as failed:
            if error is None:
                raise
            error.add_note(f"cleaning up failed too: {failed}")
        finally:
            self._target.leave()
        if isinstance(error, KeyboardInterrupt) and not self._committed:
            what = "interrupted; no train batch was kept, and what was there before is untouched"
            raise Interrupted(what, where=self._location.url, fix="run the command again") from error

    def write(self, batch: TrainBatch) -> dict[str, Any]:
        """Write a batch; gives its path below the folder, rows, episodes, steps, bytes and sha256."""
        path = batch_name(self._target.generation, len(self._batches), SUFFIXES[self._options["format"]])
        self._batches.append({"path": path, **batch.counts, **self._write(path, batch.content)})
        return self._batches[-1]

    def commit(self, document: Mapping[str, Any], *, state: bytes) -> str | None:
        """Write what the pieces learned (`state`; empty: nothing) and `batches.json`, and remove what they replace.

        `document`: all of `batches.json` but batches and state. Gives the path of the state.
        """
        path = connector_state_name(self._target.generation) if state else None
        kept = path and self._write(path, state)
        whole = json.dumps({**document, "batches": self._batches, "state": kept}, default=str)  # TOML has dates
        text = json.dumps(json.loads(whole, parse_constant=str), indent=1, ensure_ascii=False)  # and infinity
        with self._target.guard():
            self._committed = True  # whatever comes now, the files that the commit lists stay
            write_whole(self._location.join(BATCHES), text.encode() + b"\n", folder=self._location)
        names = [file.name for file in self._files]
        others = [child for child in self._location.children() if child.name not in names and STATE.fullmatch(child.name)]
        replaced = [state for state in others if is_regular(state)]  # a link is nobody's of ours
        with self._target.guard():
            for file in replaced:
                file.remove()
            self._target.finish()
        return path

    def _write(self, path: str, content: bytes) -> dict[str, Any]:
        """Write a file, and give what `batches.json` says of it."""
        self._files.append(self._location.join(path))
        with self._target.guard():
            write_whole(self._files[-1], content, folder=self._location)
        return {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
