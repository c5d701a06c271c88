"""SHA-256 of shards, as their manifest has it: `validate` and `repair` compare it, reading does not.

While a shard is read its page checksums are verified; they do not tell two whole shards apart that changed places.
"""

from __future__ import annotations

import hashlib
import shlex
from typing import Final

from offline_cli.files.failures import storage_failures
from offline_cli.files.locations import Location

__all__ = ["OTHER_SHARD", "dropping", "fingerprint"]

OTHER_SHARD: Final = "shard-hash"  # the code of the problem
CHUNK: Final = 4 << 20  # bytes


def dropping(shard: Location) -> str:
    """The command that leaves out the broken shards of the dataset that `shard` is one of."""
    folder = shard.url.rpartition("/data/")[0]
    return f"offline-cli repair {shlex.quote(folder) if folder else 'D'} --drop-broken"


def fingerprint(location: Location) -> tuple[int, str]:
    """Bytes and sha256 (hex) of a file, as its storage has them, past any cache. Raises StorageNotFound, StorageError."""
    digest, size = hashlib.sha256(), 0
    with location.without_cache.open() as file, storage_failures(location.url, "reading it"):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
