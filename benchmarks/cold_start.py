"""How long from the start of the process to a confirmed return of 450? No rival in the run: RLlib needs minutes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import Row
from benchmarks.recordings import recording

RUNS = 5


def rows() -> list[Row]:
    source = recording("rllib_episodes_cartpole_expert")
    if source is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds(f"{folder}/{run}", str(source)) for run in range(RUNS)]
    typical = statistics.median(times)
    question = "train-bc on 46,184 expert steps of CartPole, process start to a confirmed return of 450"
    floor = f"imports of torch and gymnasium: {imports():.1f} s"
    return [
        Row(
            question, "runs/s", 1 / typical, 1 / 228, 228 / typical, "RLlib 2.60: 221 s + 7 s start, measured once", floor, RUNS
        )
    ]


def seconds(out: str, source: str) -> float:
    command = [sys.executable, "-m", "offline_cli", "train-bc", source, "--env", "CartPole-v1", "--until-return", "450"]
    start = time.perf_counter()
    subprocess.run([*command, "--out", out, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, gymnasium"], check=True)
    return time.perf_counter() - start
