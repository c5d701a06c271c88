"""The samples that versions of Ray wrote (tests/testdata/rllib_versions), unpacked."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parents[1] / "testdata" / "rllib_versions"
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in SAMPLES.glob("*.tar.xz"))
FIRST = "2.40.0"


def unpacked(version: str, folder: Path) -> Path:
    """The sample of a version in `folder`."""
    with tarfile.open(SAMPLES / f"{version}.tar.xz") as packed:
        packed.extractall(folder / version, filter="data")
    return folder / version


def counts(sample: Path) -> dict[str, Any]:
    """What that Ray counted."""
    found: dict[str, Any] = json.loads((sample / "counts.json").read_text(encoding="utf-8"))
    return found
