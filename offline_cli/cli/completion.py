"""What a shell completes: sources, run folders, presets of mappings, formats, algorithms. Imports nothing heavy."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

__all__ = ["algorithms", "formats", "mappings", "policies", "runs", "sources"]

PRESETS = ("rllib", "gym-legacy", "d4rl-table")
FORMATS = (
    *("auto", "episodes", "columns", "sample-batch", "minari", "d4rl", "robomimic", "d3rlpy"),
    *("table", "npz", "ogbench", "imitation", "lerobot"),
)
ALGORITHMS = ("bc", "marwil", "iql", "td3-bc", "rebrac")
DATA = ("parquet", "csv", "json", "jsonl", "gz", "zip", "arrow", "feather", "npz", "hdf5", "h5")


def sources(incomplete: str) -> list[str]:
    """Folders, and files that may hold recordings."""
    return [path for path in _paths(incomplete) if path.endswith("/") or path.rpartition(".")[2].lower() in DATA]


def runs(incomplete: str) -> list[str]:
    """Run folders; folders of folders, where there is none."""
    folders = [path for path in _paths(incomplete) if path.endswith("/")]
    return [path.rstrip("/") for path in folders if os.path.exists(f"{path}policy.json")] or folders


def policies(incomplete: str) -> list[str]:
    """Run folders, and the prefixes of other policies."""
    return [*_starting(("random", "onnx:", "sb3:", "rllib:", "python:"), incomplete), *runs(incomplete)]


def mappings(incomplete: str) -> list[str]:
    """Presets, and TOML files."""
    files = [path for path in _paths(incomplete) if path.endswith((".toml", "/"))]
    return [*_starting(PRESETS, incomplete), *files]


def formats(incomplete: str) -> list[str]:
    """Formats that this package reads."""
    return _starting(FORMATS, incomplete)


def algorithms(incomplete: str) -> list[str]:
    """Algorithms of this package."""
    return _starting(ALGORITHMS, incomplete)


def _starting(words: tuple[str, ...], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _paths(incomplete: str) -> Iterator[str]:
    """Paths that begin so, folders with a slash."""
    for path in sorted(glob.glob(f"{glob.escape(incomplete)}*")):
        yield f"{path}/" if os.path.isdir(path) else path
