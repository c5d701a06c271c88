"""Where RLlib's own recordings lie, if they do: the folder real_data beside the repository, or OFFLINE_CLI_REAL_DATA."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["recording"]

REPOSITORY = Path(__file__).resolve().parent.parent


def recording(name: str) -> Path | None:
    """The folder of that recording; None where it is not on this machine."""
    folder = Path(os.environ.get("OFFLINE_CLI_REAL_DATA", REPOSITORY.parent / "shared" / "real_data")) / name
    return folder if folder.is_dir() else None
