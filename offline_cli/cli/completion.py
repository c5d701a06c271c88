"""Shell completion of sources, run folders, mapping presets, formats and algorithms. Imports nothing heavy."""

from __future__ import annotations

import glob
import os

__all__ = ["algorithms", "formats", "mappings", "policies", "runs", "sources"]

DATA = (".parquet", ".csv", ".json", ".jsonl", ".gz", ".zip", ".arrow", ".feather", ".npz", ".hdf5", ".h5")
FORMATS = (
    *("auto", "episodes", "columns", "sample-batch", "minari", "d4rl", "robomimic", "d3rlpy"),
    *("table", "npz", "ogbench", "imitation", "lerobot"),
)
POLICIES = ("random", "onnx:", "sb3:", "rllib:", "python:")
PRESETS = ("rllib", "gym-legacy", "d4rl-table")


def sources(incomplete: str) -> list[str]:
    """Folders and data files."""
    return [path for path in _paths(incomplete) if path.lower().endswith(("/", *DATA))]


def runs(incomplete: str) -> list[str]:
    """Run folders; all folders if there are none."""
    folders = [path for path in _paths(incomplete) if path.endswith("/")]
    return [path.rstrip("/") for path in folders if os.path.exists(f"{path}policy.json")] or folders


def policies(incomplete: str) -> list[str]:
    """Policy prefixes and run folders."""
    return [*POLICIES, *runs(incomplete)]


def mappings(incomplete: str) -> list[str]:
    """Presets and TOML files."""
    return [*PRESETS, *(path for path in _paths(incomplete) if path.endswith((".toml", "/")))]


def formats() -> list[str]:
    """Built-in formats."""
    return [*FORMATS]


def algorithms() -> list[str]:
    """Built-in algorithms."""
    return ["bc", "marwil", "iql", "td3-bc", "rebrac"]


def _paths(incomplete: str) -> list[str]:
    """Paths with this prefix; folders end with a slash."""
    return [f"{path}/" if os.path.isdir(path) else path for path in sorted(glob.glob(f"{glob.escape(incomplete)}*"))]
