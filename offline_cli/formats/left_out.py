"""What a foreign format has no place for, counted by its sink: nothing of an episode is left out in silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.tally import Tally
from offline_cli.trees import leaves

__all__ = ["count_finals", "count_left_out"]


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
        final, before = leaf[last], leaf[last - 1]
        same = final == before
        if leaf.dtype.kind == "f":
            same |= np.isnan(final) & np.isnan(before)
        differs |= ~same.reshape(len(last), -1).all(axis=1)
    tally.assume("final-observation-not-kept", int(differs.sum()))
