"""How often: CI has minutes, `make test-long` takes as long as it takes."""

from __future__ import annotations

import os

__all__ = ["often"]


def often(whole: int, *, ci: int) -> int:
    """`whole` in `make test-long`, which sets OFFLINE_CLI_THOROUGH, and else `ci`."""
    return whole if os.environ.get("OFFLINE_CLI_THOROUGH") else ci
