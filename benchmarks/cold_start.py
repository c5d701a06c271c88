"""How long from the start of the process to a return of 450? Rival: RLlib's documented behaviour cloning, measured once.

Both start from nothing, read the same recording by RLlib, train, and play in CartPole-v1. RLlib stops at a mean of 450 over 5
episodes; ours at that over 20, confirmed on 100 others.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.floors import Floor
from benchmarks.harness import Missing, Row, missing
from benchmarks.recordings import recording
from benchmarks.rival_environments import interpreter
from benchmarks.rival_process import SCRIPTS, clean_environment
from benchmarks.targets import Target

RUNS = 5
WANTED = 450.0
LIMIT = 600.0  # seconds that RLlib gets
QUESTION = "train-bc on 46,184 expert steps of CartPole, process start to a confirmed return of 450"
FIRST, THEN = Target(1 / 10, of="ours", words="<= 10 s"), Target(1 / 8, of="ours", words="then <= 8 s")


def rows() -> list[Row]:
    try:
        source = str(recording("rllib_episodes_cartpole_expert"))
    except Missing as error:
        return [missing(QUESTION, error, unit="runs/s", target=FIRST)]
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds(f"{folder}/{run}", source) for run in range(RUNS)]
    mine = statistics.median(times)
    theirs, name = rllib(source)
    at_best = imports()
    floor = Floor(f"imports of torch and gymnasium: {at_best:.1f} s", 1 / at_best)
    spread = None if theirs is None else (theirs / max(times), theirs / min(times))
    ratio, rate = (None, None) if theirs is None else (theirs / mine, 1 / theirs)
    return [
        Row(QUESTION, "runs/s", 1 / mine, rate, ratio, name, floor.words, RUNS, floor.rate, spread, target)
        for target in (FIRST, THEN)
    ]


def seconds(out: str, source: str, *, device: str = "cpu") -> float:
    command = [sys.executable, "-m", "offline_cli", "train-bc", source, "--env", "CartPole-v1", "--until-return", str(WANTED)]
    command += ["--device", device]
    start = time.perf_counter()
    subprocess.run([*command, "--out", out, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def rllib(source: str) -> tuple[float | None, str]:
    """Seconds of RLlib's run, or of the limit that it ran into; and what it was."""
    name = "RLlib's documented BC, once"
    arguments = json.dumps({"source": source, "wanted": WANTED, "limit": LIMIT})
    try:
        command = [interpreter("rllib"), str(SCRIPTS / "rllib_bc.py"), arguments]
        start = time.perf_counter()
        figures = answer(command)
    except Missing as error:
        return None, f"{name}: not measured: {error}"
    took = time.perf_counter() - start
    how = f"{figures['iterations']} iterations ({figures['versions']})"
    return took, f"{name}: {took:.0f} s, {how}" + ("" if figures["reached"] else f", still below {WANTED:.0f}: stopped")


def answer(command: list[str]) -> dict[str, Any]:
    """The last JSON object that the program prints, on a line of its own. Raises Missing with its last words."""
    try:
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT + 300)
    except subprocess.TimeoutExpired:
        raise Missing(f"no end within {LIMIT + 300:.0f} s") from None
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray prints what its workers say, too
    if done.returncode or not said:
        raise Missing((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    figures: dict[str, Any] = json.loads(said[-1])
    return figures


def imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, gymnasium"], check=True)
    return time.perf_counter() - start
