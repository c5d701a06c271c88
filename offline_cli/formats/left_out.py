"""What is left out: what a foreign format has no place for, counted by its sink; and why an array of a file is no column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.step_rows import equal_rows
from offline_cli.tally import Tally
from offline_cli.trees import leaves

__all__ = ["count_finals", "count_left_out", "why_no_column"]


def why_no_column(kind: str, shape: Sequence[int], rows: int) -> str:
    """Why an array that a file has is no column of `rows` rows: for its shape, or else for what it holds."""
    if tuple(shape[:1]) != (rows,):
        return f"of shape {list(shape)}, and not one value for each of {rows:,} rows"
    return f"{kind} of shape {list(shape)}, and not a number, or an array of numbers, a row"


def count_left_out(batch: EpisodeBatch, tally: Tally, *, kept: Collection[str], ids: bool) -> None:
    """Count infos, clocks, agents, and custom data but for `kept`, that the episodes have; `ids`: whether these are kept."""
    if not ids:
        tally.assume("eps-id-not-kept", len(batch))
    if batch.infos is not None and any(batch.infos):
        tally.drop_column(Columns.INFOS, "the format has no place for infos")
    if batch.custom_data is not None:
        tally.assume("custom-data-not-kept", sum(_is_lost(data, kept) for data in batch.custom_data))
    if batch.clock is not None:
        tally.assume("clock-not-kept", int((~np.isnan(batch.clock).all(axis=1)).sum()))
    agents = [batch.agent_ids, batch.module_ids, batch.multi_agent_ids]
    named = [
        any(name is not None for name in of_one)
        for of_one in zip(*(one or (None,) * len(batch) for one in agents), strict=True)
    ]
    tally.assume("agent-not-kept", sum(named))


def _is_lost(data: Mapping[str, Any], kept: Collection[str]) -> bool:
    return not set(data) <= {Columns.SOURCE_ID, *kept}


def count_finals(batch: EpisodeBatch, tally: Tally) -> None:
    """Count the final observations that are left out; one that repeats the observation before it was not known anyway."""
    last = batch.obs_starts[1:] - 1
    last = last[batch.lengths > 0]
    differs = np.zeros(len(last), np.bool_)
    for leaf in leaves(batch.obs):
        differs |= ~equal_rows(leaf[last], leaf[last - 1])
    tally.assume("final-observation-not-kept", int(differs.sum()))
