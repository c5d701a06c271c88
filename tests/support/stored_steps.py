"""What stores of steps hold, as columns."""

from __future__ import annotations

from typing import Any

from offline_cli.training.steps import Steps

__all__ = ["columns_in"]


def columns_in(steps: Steps | None) -> dict[str, Any]:
    """By name, trees of tensors (N, ...), in the store's order."""
    assert steps is not None
    return steps.rows(slice(None))
