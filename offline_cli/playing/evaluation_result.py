"""What `evaluate` gives back; all of it has a form in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["EvaluateResult"]


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Whole episodes of one policy."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float  # half the width of the 95% confidence interval of the mean
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    explore: bool  # actions were drawn, not the likeliest
    seed: int
    checkpoint: int | None = None  # the run is not finished, and this update's policy played; None: it is

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
