"""What a foreign format has no place for, counted by its sink."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.tally import Tally


def count_left_out(
    batch: EpisodeBatch,
    tally: Tally,
    *,
    kept: Collection[str] | None = (),
    ids: bool = False,
    infos: bool = False,
    agents: bool = False,
    extra: bool = True,
) -> None:
    """Count, and name, what the episodes have and the format does not keep, which the flags say.

    `kept`: keys of custom data that it keeps; None: it counts these itself.
    """
    if not ids:
        tally.assume("eps-id-not-kept", len(batch))
    if not infos and batch.infos is not None and any(batch.infos):
        tally.drop_column(Columns.INFOS, "the format has no place for infos")
    for name in () if extra else batch.extra:
        tally.drop_column(name, "the format has no place for extra model outputs")
    if kept is not None and batch.custom_data is not None:
        known = {Columns.SOURCE_ID, Columns.FINAL_OBS_ASSUMED, *kept}
        tally.assume("custom-data-not-kept", sum(not set(data) <= known for data in batch.custom_data))
    if batch.clock is not None:
        tally.assume("clock-not-kept", int((~np.isnan(batch.clock).all(axis=1)).sum()))
    lost = [batch.multi_agent_ids, *(() if agents else (batch.agent_ids, batch.module_ids))]
    has_name = [np.array([name is not None for name in names]) for names in lost if names is not None]
    if has_name:
        tally.assume("agent-not-kept", int(np.any(has_name, axis=0).sum()))


def count_finals(batch: EpisodeBatch, tally: Tally) -> None:
    """Count the final observations that are left out, but for those that nobody recorded."""
    tally.assume("final-observation-not-kept", int((~batch.final_obs_assumed & (batch.lengths > 0)).sum()))
