"""What a run has learned from, in figures small enough for a checkpoint, so that one that goes on can say what differs."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["SeenData", "data_difference"]

MASK: Final = (1 << 64) - 1


@dataclass(slots=True)
class SeenData:
    """Collects the figures, batch by batch."""

    episodes: int = 0
    steps: int = 0
    _in_order: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    _in_any_order: int = 0

    def see(self, ids: Sequence[str], steps: int) -> None:
        """Take more episodes into account."""
        encoded = [id_.encode("utf-8", "surrogatepass") + b"\n" for id_ in ids]
        self._in_order.update(b"".join(encoded))
        self._in_any_order = (self._in_any_order + sum(map(zlib.crc32, encoded))) & MASK
        self.episodes, self.steps = self.episodes + len(ids), self.steps + steps

    def figures(self, where: str, module: str | None) -> dict[str, Any]:
        """Plain values; `where`: the sources, `module`: the one that is learned, where that is known."""
        return {
            "sources": where,
            "module": module,
            "episodes": self.episodes,
            "steps": self.steps,
            "ids": self._in_order.hexdigest(),
            "ids_in_any_order": f"{self._in_any_order:016x}",
        }


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], *, same_pipeline: bool) -> str | None:
    """What differs of two data whose digests do, in words; None where the other pipeline alone may be the reason.

    Empty figures are those of a run that did not keep any.
    """
    if not stored or not wanted:
        return "other episodes, other values, or another order" if same_pipeline else None
    if stored["module"] != wanted["module"]:
        return f"the run learns module {stored['module']}, this call {wanted['module']}"
    if stored["ids"] == wanted["ids"] and stored["steps"] == wanted["steps"]:
        return "the episodes are the same ones, and their values are not" if same_pipeline else None
    counts = [f"{one['episodes']:,} episodes with {one['steps']:,} steps" for one in (stored, wanted)]
    if stored["ids_in_any_order"] == wanted["ids_in_any_order"] and counts[0] == counts[1]:
        return f"the same episodes in another order: the run has {stored['sources']}, this call {wanted['sources']}"
    return f"the run has {counts[0]} of {stored['sources']}, this call {counts[1]} of {wanted['sources']}"
