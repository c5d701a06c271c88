"""Readers of recordings that share no code with offline_cli: msgpack-numpy, pyarrow, json, h5py, lz4 and pickle, step by step.

The recordings are trusted here: these readers unpickle. Episodes are dicts of `id`, `obs` (T+1 rows, T where the recording has
no last one), `actions`, `rewards`, `terminated`, `truncated`; observations of Dict spaces are dicts of rows.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import msgpack
import msgpack_numpy
import numpy as np
import pyarrow.parquet as pq

Episode = dict[str, Any]
PACKED = "BCJNGGhA"  # base64 of lz4's magic bytes


def episodes_of(folder: Path) -> list[Episode]:
    """The distinct episodes of a recording, in the order of their first row."""
    name = folder.name
    if (folder / "data" / "metadata.json").exists():
        found = _minari_hdf5(folder) if (folder / "data" / "main_data.hdf5").exists() else _minari_arrow(folder)
    elif name.startswith("sample_batch"):
        found = _from_rows(_sample_batch_rows(folder), ordered=True)
    elif name.startswith("rllib_columns"):
        found = _from_rows(_column_rows(folder), ordered=False)
    else:
        found = _rllib_episodes(folder)
    return list(found)


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def _rllib_episodes(folder: Path) -> Iterator[Episode]:
    for file in _files(folder, "*.parquet"):
        for item in pq.read_table(file).column("item").to_pylist():
            state = msgpack.unpackb(item, object_hook=msgpack_numpy.decode, strict_map_key=False)
            yield {
                "id": state["id_"],
                "obs": np.stack(state["observations"]["data"]),
                "actions": np.stack(state["actions"]["data"]),
                "rewards": np.array(state["rewards"]["data"], np.float64),
                "terminated": bool(state["is_terminated"]),
                "truncated": bool(state["is_truncated"]),
            }


def _column_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for file in _files(folder, "*.parquet"):
        table = pq.read_table(file)
        columns = {name: _cells(table.column(name)) for name in ("eps_id", "obs", "new_obs", "actions", "rewards")}
        columns |= {name: table.column(name).to_pylist() for name in ("terminateds", "truncateds")}
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))


def _cells(column: Any) -> list[Any]:
    return [_unpacked(cell) if isinstance(cell, str) and cell.startswith(PACKED) else cell for cell in column.to_pylist()]


def _unpacked(cell: str) -> Any:
    return pickle.loads(lz4.frame.decompress(base64.b64decode(cell)))


def _sample_batch_rows(folder: Path) -> Iterator[dict[str, Any]]:
    names = ("eps_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds")
    for file in _files(folder, "*.json"):
        for line in file.read_text(encoding="utf-8").splitlines():
            for batch in json.loads(line)["policy_batches"].values():
                columns = [_unpacked(batch[name]) if isinstance(batch[name], str) else batch[name] for name in names]
                for row in zip(*columns, strict=True):
                    yield dict(zip(names, row, strict=True))


def _from_rows(rows: Iterator[dict[str, Any]], *, ordered: bool) -> Iterator[Episode]:
    """Episodes of rows: by `t` where they have it; else as they follow each other, up to the first end."""
    by_id: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        steps = by_id.setdefault(row["eps_id"], [])
        if ordered or not steps or not (steps[-1]["terminateds"] or steps[-1]["truncateds"]):
            steps.append(row)
    for name, steps in by_id.items():
        if ordered:
            steps.sort(key=lambda row: row["t"])
        last = steps[-1]
        yield {
            "id": str(name),
            "obs": np.stack([np.asarray(row["obs"]) for row in steps] + [np.asarray(last["new_obs"])]),
            "actions": np.stack([np.asarray(row["actions"]) for row in steps]),
            "rewards": np.array([row["rewards"] for row in steps], np.float64),
            "terminated": bool(last["terminateds"]),
            "truncated": bool(last["truncateds"]) or not last["terminateds"],  # an unfinished one counts as truncated
        }


def _minari_hdf5(folder: Path) -> Iterator[Episode]:
    import h5py

    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        for name in sorted(file, key=lambda key: int(key.rpartition("_")[2])):
            group = file[name]
            yield _minari(name.rpartition("_")[2], {key: group[key][()] for key in group if key != "infos"})


def _minari_arrow(folder: Path) -> Iterator[Episode]:
    import pyarrow.dataset as ds

    for path in sorted((one for one in (folder / "data").iterdir() if one.is_dir()), key=lambda one: int(one.name)):
        files = [str(file) for file in path.rglob("*") if file.suffix in (".arrow", ".parquet")]
        table = ds.dataset(files, format="arrow" if files[0].endswith(".arrow") else "parquet").to_table()
        columns = {name: np.array(table.column(name).to_pylist()) for name in table.column_names if name != "infos"}
        steps = len(columns["observations"]) - 1
        yield _minari(path.name, {name: rows if name == "observations" else rows[:steps] for name, rows in columns.items()})


def _minari(name: str, columns: dict[str, Any]) -> Episode:
    return {
        "id": name,
        "obs": columns["observations"],
        "actions": columns["actions"],
        "rewards": columns["rewards"].astype(np.float64),
        "terminated": bool(columns["terminations"][-1]),
        "truncated": bool(columns["truncations"][-1]),
    }
