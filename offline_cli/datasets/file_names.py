"""Names of all files and folders that we write.

D/manifest.json                       the commit, written last
D/data/shard-<8 hex>-000000.parquet   complete shards only
D/README.md                           the card, for people (`card.py`)
D/_writing.json                       a writer is, or was, at work (`lock.py`)
D/_part-*                             a local file being written; never in data/
D/quarantine/rows-000000.rejects      rows set aside, as Parquet that no pattern *.parquet finds
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from offline_cli.storage.local_files import PART_PREFIX as PART_PREFIX

MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"
WRITING: Final = "_writing.json"
DATA: Final = "data"
QUARANTINE: Final = "quarantine"
UNFINISHED_WRITING: Final = "unfinished"  # provenance key: the note to resume from
RUN_CONFIG: Final = "config.toml"
RUN_POLICY: Final = "policy.json"

SHARD_PATH: Final = re.compile(r"data/shard-(?P<generation>[0-9a-f]{8})-(?P<number>[0-9]{6,12})\.parquet", re.ASCII)
QUARANTINE_PATH: Final = re.compile(r"quarantine/rows-(?P<number>[0-9]{6,12})\.rejects", re.ASCII)


def new_generation(options: Mapping[str, Any], taken: Collection[str], salt: str | None) -> str:
    """The unique part of a write's file names: 8 hex digits from its options, without the identity, so that equal content gets
    equal names wherever its source lies. `taken`: in the folder already; `salt`: unique to this write; None: the folder is new.
    """
    named = {name: value for name, value in options.items() if name != "identity"}
    salts = itertools.count() if salt is None else (f"{salt} {number}" for number in itertools.count())
    names = (hashlib.sha256(json.dumps([named, salt], sort_keys=True).encode()).hexdigest()[:8] for salt in salts)
    return next(name for name in names if name not in taken)


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
