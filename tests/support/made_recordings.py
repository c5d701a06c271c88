"""The same episodes in every format that is read, made on whole arrays: any number of rows takes seconds at most.

An observation is one of `KINDS_OF_OBS`, and its first number says which: so its text, or its packed cell, is made once.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import lz4.frame
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli import write_dataset
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.codec import encode_batch
from offline_cli.formats.tables import TableOptions
from offline_cli.tally import Tally

KINDS_OF_OBS = 512
OURS = ("episodes", "columns")
TABLES = ("csv", "jsonl", "arrow", "parquet")
FOREIGN = (*TABLES, "rllib-columns", "rllib-packed", "rllib-episodes", "sample-batch", "sample-batch-packed")
READERS = (*FOREIGN, *OURS)


def made(
    episodes: int,
    length: int = 2,
    *,
    dims: int = 2,
    first: int = 0,
    dtype: Any = np.float32,
    extra: Sequence[str] = (),
    continuous: bool = False,
) -> EpisodeBatch:
    """Episodes called `first`, `first + 1`, ... of `length` steps each; the last step of each ends it.

    `continuous`: actions are vectors of floats, whose space does not follow from their values.
    """
    codes = (np.arange(first * (length + 1), (first + episodes) * (length + 1)) * 37) % KINDS_OF_OBS
    acted = codes.reshape(episodes, length + 1)[:, :length].ravel()
    return EpisodeBatch(
        ids=tuple(map(str, range(first, first + episodes))),
        starts=np.arange(episodes + 1) * length,
        obs=kinds_of_obs(dims, np.dtype(dtype))[codes],
        actions=(acted[:, None] % 4 / 4).astype(dtype) if continuous else acted % 2,
        rewards=(acted % 8) / 4,
        terminated=np.ones(episodes, np.bool_),
        truncated=np.zeros(episodes, np.bool_),
        extra={name: (acted % 16 / 16).astype(dtype) for name in extra},
        observation_space=spaces.Box(-np.inf, np.inf, (dims,), np.dtype(dtype).type),
        action_space=spaces.Box(-1.0, 1.0, (1,), np.dtype(dtype).type) if continuous else spaces.Discrete(2),
    )


@lru_cache(8)
def kinds_of_obs(dims: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """(KINDS_OF_OBS, dims): the first number is the row's own, the others are small; float64 ones are no float32."""
    kinds = np.arange(KINDS_OF_OBS)[:, None] * 7 + np.arange(dims) * 3
    values = (kinds % 64 / 8 + (1 / 3 if dtype == np.float64 else 0)).astype(dtype)
    values[:, 0] = np.arange(KINDS_OF_OBS)
    values.setflags(write=False)
    return values


def packed(value: Any) -> str:
    """A cell as RLlib writes it."""
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value))).decode()


@lru_cache(8)
def _cells(dims: int, dtype: np.dtype[Any], cell: Callable[[Any], str]) -> pa.Array:
    return pa.array([cell(row) for row in kinds_of_obs(dims, dtype)], pa.large_string())


def _as_json(row: NDArray[Any]) -> str:
    return json.dumps(row.tolist())


def _texts(obs: NDArray[Any], cell: Callable[[Any], str]) -> pa.Array:
    return _cells(obs.shape[1], obs.dtype, cell).take(pa.array(obs[:, 0].astype(np.int64)))


def _lists(obs: NDArray[Any]) -> pa.Array:
    offsets = pa.array(np.arange(len(obs) + 1) * obs.shape[1], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(obs).ravel()))


def rows_of(batch: EpisodeBatch, cell: Callable[[NDArray[Any]], pa.Array] = _lists) -> pa.Table:
    """A row a step, by RLlib's names; `cell` makes the column of observations."""
    terminateds, truncateds = batch.step_flags()
    return pa.table(
        {
            "eps_id": pa.array(batch.ids).take(pa.array(np.repeat(np.arange(len(batch)), batch.lengths))),
            "t": batch.timesteps(),
            "obs": cell(cast("NDArray[Any]", batch.acted_obs())),
            "new_obs": cell(cast("NDArray[Any]", batch.next_obs())),
            "actions": batch.actions if np.ndim(batch.actions) == 1 else _lists(cast("NDArray[Any]", batch.actions)),
            "rewards": batch.rewards,
            "terminateds": terminateds,
            "truncateds": truncateds,
            **batch.extra,
        }
    )


# ---- files ----


@dataclass(frozen=True, slots=True)
class Written:
    """Episodes in one format: where, and what was written, in order."""

    kind: str
    path: Path
    batch: EpisodeBatch

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of a command that reads it."""
        return (str(self.path), *(("--from", "table") if self.kind == "parquet" else ()))


def write(kind: str, folder: Path, batch: EpisodeBatch, *, files: int = 1, block_rows: int | None = None) -> Written:
    """`batch` under `folder`, in files that follow each other; `block_rows`: of a row group, a record batch or a line.

    Files of rows may end within an episode; so may our own shards not.
    """
    if kind in OURS:
        _write_ours(kind, folder, batch, files)
        return Written(kind, folder, batch)
    folder.mkdir(parents=True)
    if kind == "rllib-episodes":
        items = encode_batch(batch, where="made", tally=Tally())
        _write_parts(folder, "parquet", pa.table({"item": pa.array(items, pa.binary())}), files, block_rows)
        return Written(kind, folder, batch)
    cell = {"csv": _as_json, "rllib-packed": packed}.get(kind)
    rows = rows_of(batch, _lists if cell is None else lambda obs: _texts(obs, cell))
    if kind.startswith("sample-batch"):
        _write_lines(folder, rows, batch, files, block_rows or 200, is_packed=kind.endswith("packed"))
    else:
        _write_parts(folder, {"csv": "csv", "jsonl": "jsonl", "arrow": "arrow"}.get(kind, "parquet"), rows, files, block_rows)
    return Written(kind, folder, batch)


def _write_parts(folder: Path, suffix: str, rows: pa.Table, files: int, block_rows: int | None) -> None:
    for number, (first, stop) in enumerate(_parts(rows.num_rows, files)):
        write_table(folder / f"part-{number:05}.{suffix}", rows.slice(first, stop - first), block_rows)


def write_table(path: Path, rows: pa.Table, block_rows: int | None = None) -> Path:
    """One file, of the format that its suffix says."""
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(rows, path)
    elif path.suffix == ".jsonl":
        cast(pl.DataFrame, pl.from_arrow(rows)).write_ndjson(path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows.combine_chunks(), max_chunksize=block_rows)
    else:
        pq.write_table(rows, path, row_group_size=block_rows)
    return path


def _parts(count: int, files: int) -> Iterator[tuple[int, int]]:
    ends = [count * number // files for number in range(files + 1)]
    return pairwise(ends)


def _write_lines(folder: Path, rows: pa.Table, batch: EpisodeBatch, files: int, per_line: int, *, is_packed: bool) -> None:
    """SampleBatch lines of `per_line` rows; text of observations is put together from their kinds."""
    obs, new_obs = (_texts(part, _as_json).to_pylist() for part in (batch.acted_obs(), batch.next_obs()))
    arrays = {"obs": batch.acted_obs(), "new_obs": batch.next_obs()}
    names = [name for name in rows.column_names if name not in arrays]
    lines = []
    for first in range(0, rows.num_rows, per_line):
        part = rows.slice(first, per_line).select(names).to_pydict()
        part["eps_id"] = list(map(int, part["eps_id"]))
        if is_packed:
            cells = {name: json.dumps(packed(leaf[first : first + per_line])) for name, leaf in arrays.items()}
            part = {name: packed(np.asarray(value)) for name, value in part.items()}
        else:
            texts = (("obs", obs), ("new_obs", new_obs))
            cells = {name: f"[{', '.join(cell[first : first + per_line])}]" for name, cell in texts}
        columns = [f'"{name}": {cell}' for name, cell in cells.items()]
        lines.append(f'{{"type": "SampleBatch", {", ".join(columns)}, {json.dumps(part)[1:]}\n')
    for number, (first, stop) in enumerate(_parts(len(lines), files)):
        (folder / f"output-{number:05}.json").write_text("".join(lines[first:stop]), encoding="utf-8")


def _write_ours(kind: Any, folder: Path, batch: EpisodeBatch, files: int) -> None:
    per_file = -(-(batch.num_steps if kind == "columns" else len(batch)) // files)
    write_dataset(batch, folder, format=kind, action_scale="env", max_rows_per_file=per_file)


# ---- what was read ----


@dataclass(frozen=True, slots=True)
class Counts:
    """What a reading counted."""

    episodes: int
    steps: int
    rows_in: int
    duplicates: int
    stitched: int
    set_aside: int
    assumptions: Mapping[str, int]

    def __add__(self, other: Counts) -> Counts:
        kinds = self.assumptions.keys() | other.assumptions.keys()
        assumptions = {kind: self.assumptions.get(kind, 0) + other.assumptions.get(kind, 0) for kind in kinds}
        numbers = (getattr(self, name) + getattr(other, name) for name in self.__slots__ if name != "assumptions")
        return Counts(*numbers, assumptions=assumptions)


def read(*sources: Written | Path, **said: Any) -> tuple[EpisodeBatch | None, Counts, EpisodeStream]:
    """All episodes of the sources together, None for `keep=False`; what was counted; the stream, read to its end."""
    keep, memory_limit = said.pop("keep", True), said.pop("memory_limit", None)
    places = [str(source.path if isinstance(source, Written) else source) for source in sources]
    if any(isinstance(source, Written) and source.kind == "parquet" for source in sources):
        said.setdefault("from_", "table")
    tables = TableOptions(said.pop("mapping", None), **({} if memory_limit is None else {"memory_limit": memory_limit}))
    stream = read_episodes(places, tables=tables, **said)
    episodes = steps = 0
    batches = []
    for batch in stream:
        episodes, steps = episodes + len(batch), steps + batch.num_steps
        if keep:
            batches.append(batch)
    tally = stream.tally
    counts = Counts(
        episodes, steps, tally.rows_in, tally.duplicates_dropped, tally.fragments_stitched, stream.rejects.count,
        dict(tally.assumptions),
    )  # fmt: skip
    return EpisodeBatch.concat(batches) if batches else None, counts, stream


def assert_same_episodes(found: EpisodeBatch | None, wanted: EpisodeBatch) -> None:
    """Value for value, whatever order they came in; the hash of a table is taken off the ids."""
    assert found is not None
    ids = [name.rpartition("-")[2] for name in found.ids]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(wanted.ids)
    order = {name: number for number, name in enumerate(ids)}
    if ids != list(wanted.ids):
        found = found.select([order[name] for name in wanted.ids])
    np.testing.assert_array_equal(found.starts, wanted.starts)
    np.testing.assert_array_equal(found.obs, wanted.obs)
    np.testing.assert_array_equal(found.actions, wanted.actions)
    np.testing.assert_array_equal(found.rewards, wanted.rewards)
    np.testing.assert_array_equal(found.terminated, wanted.terminated)
    np.testing.assert_array_equal(found.truncated, wanted.truncated)
    assert found.extra.keys() == wanted.extra.keys()
    for name, leaf in wanted.extra.items():
        np.testing.assert_array_equal(found.extra[name], leaf)


def without(batch: EpisodeBatch, lost: Sequence[int] | set[int]) -> EpisodeBatch:
    """The other episodes, by number."""
    return batch.select(np.setdiff1d(np.arange(len(batch)), list(lost)))
