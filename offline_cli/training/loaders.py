"""The loader for what a run learns from, in memory or streamed; refuses nothing."""

from __future__ import annotations

import torch

from offline_cli.training.batches import StepLoader
from offline_cli.training.step_store import StepStore
from offline_cli.training.stream_loader import StreamLoader
from offline_cli.training.training_data import Steps

__all__ = ["Loader", "open_loader"]

Loader = StepLoader | StreamLoader


def open_loader(steps: Steps, *, batch_size: int, seed: int, device: torch.device) -> Loader:
    """Batches of `steps`, on `device`."""
    if isinstance(steps, StepStore):
        return StreamLoader(steps, batch_size=batch_size, seed=seed, device=device)
    return StepLoader(steps, batch_size=batch_size, seed=seed, device=device)
