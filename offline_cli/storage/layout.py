"""Names of a dataset folder's parts, once; refuses to open any of them.

D/manifest.json                       the commit, written last
D/data/shard-<8 hex>-000000.parquet   complete shards only
D/_writing.json                       a writer is, or was, at work
D/_part-*                             a local file being written; never in data/
D/quarantine/rows-000000.parquet      rows set aside
"""

from __future__ import annotations

import re
from typing import Final

from offline_cli.storage.locations import Location

__all__ = [
    "DATA",
    "MANIFEST",
    "PART_PREFIX",
    "QUARANTINE",
    "SHARD_PATH",
    "WRITING",
    "holds_dataset",
    "quarantine_name",
    "shard_name",
]

MANIFEST: Final = "manifest.json"
WRITING: Final = "_writing.json"
DATA: Final = "data"
QUARANTINE: Final = "quarantine"
PART_PREFIX: Final = "_part-"

SHARD_PATH: Final = re.compile(r"data/shard-(?P<generation>[0-9a-f]{8})-(?P<number>[0-9]{6,12})\.parquet", re.ASCII)
QUARANTINE_PATH: Final = re.compile(r"quarantine/rows-(?P<number>[0-9]{6,12})\.parquet", re.ASCII)


def shard_name(generation: str, number: int) -> str:
    """Path of a shard below the dataset folder."""
    return f"{DATA}/shard-{generation}-{number:06d}.parquet"


def quarantine_name(number: int) -> str:
    """Path of a file of rows set aside, below the dataset folder."""
    return f"{QUARANTINE}/rows-{number:06d}.parquet"


def holds_dataset(location: Location) -> bool:
    """Whether a dataset of ours is here, committed or not."""
    return location.join(MANIFEST).exists() or location.join(WRITING).exists()
