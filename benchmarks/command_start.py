"""How long do commands take that only look, process start to exit? Rival: the imports that such a command cannot do without.

In processor time, which is wall time on an idle machine, and does not count the waiting on a busy one. Each process finds its
bytecode, as that of an installed package does.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import offline_cli
from benchmarks.harness import Rate, Row, paired_rates, versions
from benchmarks.targets import Target

PAIRS: Final = 15
SHOWN: Final = Target(1 / 0.5, of="ours", words="<= 0.5 s")
VERSION: Final = Target(1 / 0.2, of="ours", words="<= 0.2 s")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        offline_cli.record("CartPole-v1", str(folder / "D"), policy="random", episodes=100)
        shown = ["-m", "offline_cli", "inspect", str(folder / "D"), "--quiet"]
        spaces = ["-c", "import gymnasium, rich.table, typer"]
        return [
            paired_rates(
                f"{question}, process start to exit",
                unit="runs/s",
                ours=ended(ours, folder),
                rival=ended(bare, folder),
                rival_name=f"python {bare[0]} '{bare[1]}' ({versions(*packages)})",
                target=target,
                pairs=PAIRS,
            )
            for question, ours, bare, packages, target in (
                ("inspect of a dataset of 100 episodes", shown, spaces, ("numpy", "gymnasium", "rich", "typer"), SHOWN),
                ("--version", ["-m", "offline_cli", "--version"], ["-c", "import typer"], ("typer",), VERSION),
            )
        ]


def ended(arguments: Sequence[str], folder: Path) -> Rate:
    """One Python process after the other; its bytecode is kept below `folder`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(offline_cli.__file__).parents[1])
    env |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": root}

    def rate() -> float:
        before = _processor_seconds()
        subprocess.run([sys.executable, *arguments], env=env, cwd=folder, check=True, capture_output=True)
        return 1 / (_processor_seconds() - before)

    return rate


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
