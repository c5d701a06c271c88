"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of recordings made by RLlib and Minari themselves; skips where it is not beside the repository."""
    folder = Path(os.environ.get("OFFLINE_CLI_REAL_DATA", REPOSITORY.parent / "shared" / "real_data"))
    if not folder.is_dir():
        pytest.skip(f"recordings by RLlib and Minari are not at {folder}; set OFFLINE_CLI_REAL_DATA")
    return folder
