"""Whether a shard of a manifest has the form that schemas/manifest.v2.json asks for; refuses nothing, the schema says why.

A manifest has as many of them as a dataset has files, and a JSON Schema takes 0.1 ms for each.
"""

from __future__ import annotations

import re
from typing import Any, Final

from offline_cli.storage.layout import SHARD_PATH

__all__ = ["is_shard"]

KEYS: Final = frozenset({"path", "sha256", "episodes", "rows", "steps", "bytes"})
INTEGERS: Final = [int] * 4
SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_COUNT: Final = 2**63 - 1


def is_shard(value: Any) -> bool:
    """False for some that the schema accepts (3.0 for a count), never true for one that it refuses."""
    if type(value) is not dict or value.keys() != KEYS:
        return False
    path, sha256 = value["path"], value["sha256"]
    counts = value["episodes"], value["rows"], value["steps"], value["bytes"]
    return (
        type(path) is str
        and type(sha256) is str
        and SHARD_PATH.fullmatch(path) is not None
        and SHA256.fullmatch(sha256) is not None
        and [*map(type, counts)] == INTEGERS
        and 0 <= min(counts) <= max(counts) <= MAX_COUNT
    )
