"""What tests of operations look at in a dataset that an operation wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch


def read(folder: Path | str) -> EpisodeBatch:
    """All episodes of a dataset."""
    return EpisodeBatch.concat(list(Dataset.open(folder).batches()))


def numbers(folder: Path | str) -> list[int]:
    """The numbers of the episodes in a dataset, in order."""
    return [int(name.rpartition("-")[2]) for name in read(folder).ids]


def data_files(folder: Path) -> dict[str, bytes]:
    """What is in `data/`, by name."""
    return {file.name: file.read_bytes() for file in sorted((folder / "data").iterdir())}


def items(folder: Path) -> dict[str, bytes]:
    """The packed bytes of the episodes in a dataset, by id."""
    tables = [pq.read_table(file, columns=["eps_id", "item"]) for file in sorted((folder / "data").iterdir())]
    return {name: item for table in tables for name, item in zip(*(c.to_pylist() for c in table.columns), strict=True)}


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest, but for how the dataset came to be."""
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {name: value for name, value in document.items() if name != "provenance"}
