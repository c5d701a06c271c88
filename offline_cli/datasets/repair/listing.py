"""What a manifest, even a broken one, says of each shard: entries that are as they should be count; refuses to guess others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offline_cli.datasets.repair.survey import Survey
from offline_cli.storage.layout import SHARD_PATH

__all__ = ["Said", "said_of_shards", "says_all"]

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Said:
    """What a shard must be; None where that cannot be read."""

    bytes: int | None
    sha256: str | None  # hex

    def refusal(self, size: int, sha256: str) -> str | None:
        """Why a shard of `size` bytes with this sha256 is another one; None where it may be the same."""
        if self.sha256 not in (None, sha256) or self.bytes not in (None, size):
            theirs = " ".join(
                part for part in (self.sha256 and f"{self.sha256[:12]}...", self.bytes and f"of {self.bytes:,} bytes") if part
            )
            return f"its sha256 is {sha256[:12]}..., of {size:,} bytes; the manifest says {theirs}"
        return None


def said_of_shards(found: Survey) -> Mapping[str, Said]:
    """By path below the dataset folder, in the order of the manifest; nothing of what cannot be read."""
    if found.manifest is not None:
        return {shard.path: Said(shard.bytes, shard.sha256) for shard in found.manifest.shards}
    return {node["path"]: _said(node) for node in _nodes(found) if _is_named(node)}


def says_all(found: Survey) -> bool:
    """Whether a manifest says of all of its shards what they must be."""
    said = said_of_shards(found)
    return bool(said) and len(said) == len(list(_nodes(found))) and all(one.sha256 is not None for one in said.values())


def _nodes(found: Survey) -> Iterable[Any]:
    nodes = found.left_of_manifest().get("shards")
    return nodes if isinstance(nodes, list) else []


def _is_named(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("path"), str) and SHARD_PATH.fullmatch(node["path"]) is not None


def _said(node: Mapping[str, Any]) -> Said:
    size, digest = node.get("bytes"), node.get("sha256")
    return Said(
        size if type(size) is int else None,
        digest if isinstance(digest, str) and _SHA256.fullmatch(digest) else None,
    )
