"""Whether connector pieces learned the same as when a run began: a run that is resumed has to have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.errors import BadConfig

__all__ = ["check_same_learned"]

TOLERANCE: Final = 1e-9  # relative: sums of the same numbers differ in the last digits from one processor to the next


def check_same_learned(stored: Mapping[str, Any] | None, trained: TrainedPipeline | None, *, where: str) -> None:
    """Raise BadConfig, naming the pieces, unless they learned what is `stored`; None: the policy plays without pieces."""
    before, now = stored or {}, trained.state if trained is not None else {}
    problems = [
        f"piece {name} of the learner pipeline learned something else than when the run began"
        for name in dict.fromkeys((*before, *now))
        if name not in before or name not in now or not _agree(before[name], now[name])
    ]
    if problems:
        fix = "resume with the pipeline that the run was started with, or train anew with --overwrite"
        raise BadConfig.of(problems, where=where, fix=fix)


def _agree(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_agree(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(_agree, one, two))
    first, second = np.asarray(one), np.asarray(two)
    if first.shape != second.shape or "f" not in (first.dtype.kind, second.dtype.kind):
        return bool(np.array_equal(first, second))
    return bool(np.allclose(first, second, rtol=TOLERANCE, atol=0.0, equal_nan=True))
