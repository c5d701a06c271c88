"""The columns of a step by what they mean; all others are extra model outputs. Refuses to hold anything but names."""

from __future__ import annotations

from typing import Final

from offline_cli.columns import Columns
from offline_cli.formats.end_flags import END_FLAGS

__all__ = ["INFOS", "KEYS", "NEEDED", "SCALARS", "TREES", "VALUES"]

NEEDED: Final = (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
KEYS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID)
TREES: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
SCALARS: Final = (Columns.REWARDS, *END_FLAGS)
VALUES: Final = (*TREES, *SCALARS, Columns.T)
"""Columns that hold a value for every row, where they are there at all."""
INFOS: Final = (Columns.INFOS, Columns.RESET_INFOS)
