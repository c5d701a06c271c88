"""What a repair found and did, or would do; refuses to hold anything that JSON cannot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RepairResult"]


@dataclass(frozen=True, slots=True)
class RepairResult:
    """A dataset after its repair; of a dry run: as it would be. None: not known, because the note alone was taken away."""

    out: str
    format: str | None  # "episodes" | "columns"
    episodes: int | None
    steps: int | None
    shards: int | None
    adopted: int  # shards that no manifest listed before
    dropped: int  # half-written files, uploads and shards that are not part of it: the lists below together
    changed: bool  # False: nothing was wrong
    complete: bool | None  # whether all that was once asked for is in it
    resumable: bool | None  # whether --resume goes on from here
    broken: tuple[dict[str, str], ...]  # shards left out: path, why
    removed: tuple[str, ...]  # half-written files and uploads, which nobody can read
    set_aside: tuple[str, ...]  # files moved to quarantine/, by their paths before
    based_on: str | None  # where format, spaces and all that shards do not say came from: "note", "manifest", "shards"
    dry_run: bool  # nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        told = asdict(self)
        return {**told, "broken": list(told["broken"]), "removed": list(told["removed"]), "set_aside": list(told["set_aside"])}

    def refused(self, otherwise: str | None = None) -> dict[str, Any]:
        """What is told beside an error: nothing was changed. `otherwise`: the key of what could be done."""
        told = self.as_dict()
        kept = {name: told.pop(name) for name in ("out", "format", "broken", "dry_run", "seconds")}
        return {**kept, "changed": False, **({otherwise: told} if otherwise else {})}
