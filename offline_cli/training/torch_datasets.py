"""StepDataset, a PyTorch dataset of steps for the user's own training loop; made by `Dataset.to_torch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.trees import flatten, leaves, map_leaves

__all__ = ["StepDataset"]

Step = dict[str, Any]
"""Trees of tensors by column; for B steps leaves (B, ...)."""


class StepDataset(Dataset[Step]):
    """N steps in memory. `dataset[i]` is one step: a dict of tensors; a slice or indices (B,) return leaves (B, ...)."""

    def __init__(self, source: Any, columns: Sequence[str] | None = None) -> None:
        """`source`: a `Dataset` of ours. `columns`: see `Dataset.to_torch`."""
        with source.batches() as batches:
            found = list(batches)
        self._columns = _columns(EpisodeBatch.concat(found) if found else source[0:0], columns)

    def __len__(self) -> int:
        return len(leaves(next(iter(self._columns.values())))[0])

    def __getitem__(self, which: Any) -> Step:
        if isinstance(which, (list, tuple, np.ndarray)):
            which = torch.as_tensor(which)
        if not isinstance(which, (slice, torch.Tensor)) and not -len(self) <= which < len(self):
            raise IndexError(f"step {which} of {len(self)}")
        return _at(self._columns, which)


def _columns(batch: EpisodeBatch, wanted: Sequence[str] | None) -> Step:
    """Tensors (N, ...) of the wanted columns (None: all). Raises BadConfig for unknown columns, and for strings."""
    made = {Columns.OBS: batch.acted_obs, Columns.NEXT_OBS: batch.next_obs, Columns.T: batch.timesteps}
    known = {**made, **batch.step_columns()}
    if wanted is not None and (isinstance(wanted, str) or not wanted or not set(wanted).issubset(known)):
        fix = f"pass a list of columns among {', '.join(known)}, or None for all"
        raise BadConfig(f"these episodes have no such columns: {wanted!r}", where="to_torch", fix=fix)
    found = {name: made[name]() if name in made else known[name] for name in (known if wanted is None else wanted)}
    if text := [f"{path} is {leaf.dtype}" for path, leaf in flatten(found) if leaf.dtype.kind not in "biufc"]:
        fix = "leave it out: to_torch(columns=...)"
        raise BadConfig(f"{', '.join(text)}, which no tensor can hold", where="to_torch", fix=fix)
    return {
        name: map_leaves(lambda leaf: torch.from_numpy(np.require(leaf, requirements="W")), one) for name, one in found.items()
    }


def _at(steps: Step, which: Any) -> Step:
    return {name: map_leaves(lambda leaf: leaf[which], tree) for name, tree in steps.items()}
