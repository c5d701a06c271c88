"""What lies in a folder, links too, to see that nothing has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def content(folder: Path) -> dict[str, Any]:
    """Every file, and every link with where it leads to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = f"-> {os.readlink(path)}" if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found
