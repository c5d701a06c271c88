"""The public entry point to a dataset of ours; a foreign source raises, and `convert` makes it into one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from offline_cli.storage.dataset import Dataset
from offline_cli.storage.locations import Location

__all__ = ["open_dataset"]


def open_dataset(url: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset in folder `url`, its `manifest` read and its `batches()` not yet.

    Raises StorageNotFound, NoData where no dataset is there, Uncommitted, BadData for a broken manifest.
    """
    return Dataset.open(url, storage_options)
