"""What stores of steps hold, as columns."""

from __future__ import annotations

from typing import Any

import torch

from offline_cli.applying.frame_stacks import expanded
from offline_cli.training.disk_store import DiskStore
from offline_cli.training.loader import Store
from offline_cli.training.memory_store import MemoryStore

__all__ = ["columns_in"]


def columns_in(store: Store | None) -> dict[str, Any]:
    """By name, trees of tensors (N, ...), in the store's order."""
    if isinstance(store, MemoryStore):
        return expanded(store.columns, slice(None))
    assert isinstance(store, DiskStore)
    records = torch.empty((store.steps, store.record.words), dtype=torch.int64)
    store.read(0, records)
    columns = store.record.empty(store.steps, torch.device("cpu"))
    store.record.unpack(records, columns)
    return columns
