"""JSON files, such as those of a run, changed on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def told_in(file: Path) -> dict[str, Any]:
    """What the file says."""
    told: dict[str, Any] = json.loads(file.read_text())
    return told


def tell(file: Path, told: dict[str, Any]) -> None:
    """Have the file say that."""
    file.write_text(json.dumps(told))
