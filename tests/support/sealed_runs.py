"""The JSON files of a run changed on purpose: sealed again, as whoever means harm would do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_cli.policies.run_files import json_bytes


def told_in(file: Path) -> dict[str, Any]:
    """What the file says, without its seal."""
    told: dict[str, Any] = json.loads(file.read_text())
    told.pop("sha256", None)
    return told


def tell(file: Path, told: dict[str, Any]) -> None:
    """Have the file say that, with a seal that fits."""
    file.write_bytes(json_bytes(told))
