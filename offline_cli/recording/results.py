"""What `record` gives back; refuses to hold anything that JSON cannot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RecordResult"]


@dataclass(frozen=True, slots=True)
class RecordResult:
    """A recording. Counts and returns are of the whole dataset, what an earlier, interrupted call had written included."""

    out: str
    episodes: int
    steps: int
    shards: int
    return_mean: float | None  # undiscounted, in the environment's units; None: nothing was recorded
    return_std: float | None  # of the population
    length_mean: float | None  # steps
    seconds: float  # of this call, from opening the environment to the commit
    steps_per_second: float  # recorded by this call
    complete: bool  # whether all that was asked for is in the dataset
    format: str  # "episodes" | "columns"
    environment: str
    policy: str
    vectorize: str  # "sync" | "async" | "vector_entry_point"
    action_scale: str  # "env" | "normalized"
    explore: bool
    seed: int
    dry_run: bool  # everything was checked, nothing was written

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return asdict(self)
