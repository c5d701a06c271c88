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

import offline_cli
from benchmarks.harness import Floor, Rate, Row, paired

HELP, INSPECT = Floor(1 / 0.5, of="ours", words="<= 0.5 s"), Floor(1 / 0.8, of="ours", words="<= 0.8 s")


def rows(small: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        offline_cli.record("CartPole-v1", str(folder / "D"), policy="random", episodes=2 if small else 100)
        return [
            paired(
                f"{question}, process start to exit",
                ended(["-m", "offline_cli", *words], folder),
                ended(["-c", bare], folder),
                unit="runs/s",
                rival_name=f"python -c '{bare}'",
                floor=floor,
                pairs=1 if small else 15,
            )
            for question, words, bare, floor in (
                ("--help", ["--help"], "import typer", HELP),
                (
                    "inspect of a dataset of 100 episodes",
                    ["inspect", str(folder / "D"), "--quiet"],
                    "import gymnasium, rich.table, typer",
                    INSPECT,
                ),
            )
        ]


def ended(arguments: Sequence[str], folder: Path) -> Rate:
    """One Python process after the other; its bytecode is kept below `folder`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    root = str(Path(offline_cli.__file__).parents[1])
    env |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": root}

    def rate() -> float:
        before = processor_seconds()
        subprocess.run([sys.executable, *arguments], env=env, cwd=folder, check=True, capture_output=True)
        return 1 / (processor_seconds() - before)

    return rate


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
