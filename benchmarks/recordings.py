"""Where RLlib's own recordings lie, if they do: the folder real_data beside the repository, or OFFLINE_CLI_REAL_DATA."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.harness import Missing

__all__ = ["recording"]

REPOSITORY = Path(__file__).resolve().parent.parent


def recording(name: str) -> Path:
    """The folder of that recording. Raises Missing where it is not on this machine."""
    folder = Path(os.environ.get("OFFLINE_CLI_REAL_DATA", REPOSITORY.parent / "shared" / "real_data")) / name
    if not folder.is_dir():
        raise Missing(f"the recording {name} is not on this machine (OFFLINE_CLI_REAL_DATA says where)")
    return folder
