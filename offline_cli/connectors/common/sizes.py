"""How large an observation a piece may make; refuses what no space could bound, before any of it is made.

Options come from files: `num_frames = 2000000000` would take all memory there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_cli.spaces import bounds_too_large

if TYPE_CHECKING:
    from offline_cli.connectors.connector_v2 import ConnectorV2

__all__ = ["check_size"]


def check_size(piece: ConnectorV2, shape: Sequence[int], *, itemsize: int = 4) -> None:
    """Raise SpaceMismatch where the bounds of observations of `shape` would take over 64 MiB."""
    if bounds_too_large(shape, itemsize):
        raise piece.misfit(
            f"observations to make of shape {list(shape)}"[:200], "at most 64 MiB of bounds", fix="smaller options"
        )
