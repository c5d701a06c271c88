"""Names of all files and folders that we write.

    D/manifest.json                       the commit, written last
    D/data/shard-<8 hex>-000000.parquet   complete shards only
    D/README.md                           the card, for people (`card.py`)
    D/_writing.json                       a writer is, or was, at work (`lock.py`)
    D/_part-*                             a local file being written; never in data/
    D/quarantine/rows-000000.rejects      rows set aside, as Parquet that no pattern *.parquet finds

A folder of train batches is written in the same way: `batches.json` is its commit, and `data/batch-000000.parquet` (or
`.safetensors`) its files. Their names carry no generation unless they replace others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.storage.local_files import PART_PREFIX as PART_PREFIX

MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"
BATCHES: Final = "batches.json"
WRITING: Final = "_writing.json"
DATA: Final = "data"
QUARANTINE: Final = "quarantine"
UNFINISHED_WRITING: Final = "unfinished"  # provenance key: the note to resume from
RUN_CONFIG: Final = "config.toml"
RUN_POLICY: Final = "policy.json"

SHARD_PATH: Final = re.compile(r"data/shard-(?P<generation>[0-9a-f]{8})-(?P<number>[0-9]{6,12})\.parquet", re.ASCII)
BATCH_PATH: Final = re.compile(
    r"data/batch-(?P<number>[0-9]{6,12})(?P<generation>(?:-[0-9]{1,12})?)\.(?:parquet|safetensors)", re.ASCII
)
QUARANTINE_PATH: Final = re.compile(r"quarantine/rows-(?P<number>[0-9]{6,12})\.rejects", re.ASCII)


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder that we write."""

    noun: str  # in messages: "a dataset exists here already"
    commit: str  # the file that is written last
    data_path: re.Pattern[str]  # of its files in data/; groups `generation` and `number`
    generation: Callable[[Mapping[str, Any], Collection[str], str | None], str]
    """Makes the unique part of a write's file names from its options, the generations already in the folder, and a salt unique
    to this write (None: the folder is new)."""


def _hashed(options: Mapping[str, Any], taken: Collection[str], salt: str | None) -> str:
    """8 hex digits from the options, without the identity: equal content gets equal names wherever its source lies."""
    named = {name: value for name, value in options.items() if name != "identity"}
    salts = itertools.count() if salt is None else (f"{salt} {number}" for number in itertools.count())
    names = (hashlib.sha256(json.dumps([named, salt], sort_keys=True).encode()).hexdigest()[:8] for salt in salts)
    return next(name for name in names if name not in taken)


def _counted(_: Mapping[str, Any], taken: Collection[str], salt: str | None) -> str:
    """An empty generation for a new folder, then `-1`, `-2`, ..., one more than the highest in the folder."""
    return "" if salt is None else f"-{max((int(name[1:] or 0) for name in taken), default=0) + 1}"


DATASET: Final = FolderKind("dataset", MANIFEST, SHARD_PATH, generation=_hashed)
TRAIN_BATCHES: Final = FolderKind("set of train batches", BATCHES, BATCH_PATH, generation=_counted)


def batch_name(generation: str, number: int, suffix: str) -> str:
    """Path of a batch file, relative to its folder; `suffix`: `parquet` or `safetensors`."""
    return f"{DATA}/batch-{number:06d}{generation}.{suffix}"


def connector_state_name(generation: str) -> str:
    """Path of the learned state of connector pieces, relative to the folder of train batches."""
    return f"connectors{generation}.msgpack"


def shard_name(generation: str, number: int) -> str:
    """Path of a shard, relative to the dataset folder."""
    return f"{DATA}/shard-{generation}-{number:06d}.parquet"


def generation_of(path: str) -> str:
    """The generation in a shard's path; "" if it is no shard name of ours."""
    match = SHARD_PATH.fullmatch(path)
    return match["generation"] if match else ""


def quarantine_name(number: int) -> str:
    """Path of a file of rejected rows, relative to the dataset folder."""
    return f"{QUARANTINE}/rows-{number:06d}.rejects"
