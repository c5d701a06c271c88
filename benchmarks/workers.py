"""What do more processes bring on one machine? Recording by `processes` and `ray` beside one process, training by two ranks.

The cluster of `ray` runs already, and has one node. Recording counts whole commands, start to exit; training the steps of a
second of updates. Ranks and the single process of training have one thread each: two of them have twice the processors of one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Missing, Rate, Row, missing, paired_rates, versions
from benchmarks.operations import written
from benchmarks.targets import Target

EPISODES = 360_000  # of CartPole at random, some 22 steps each: a minute or two for two processes
PAIRS = 3
BATCH, UPDATES = 4096, 400
QUESTION = "record CartPole-v1 at random, {} episodes, --engine {} --workers 2"
RANKS = f"train, MLP 256x256, batch {BATCH}, two ranks of torchrun on the CPU"
CLOSE = Target(1 / 1.1, words="at most 10 % more time than processes")
WORTH = Target(1.6, words=">= 1.6x one process of one thread")


def rows() -> list[Row]:
    return [*recording(), training()]


def recording(episodes: int = EPISODES, pairs: int = PAIRS) -> list[Row]:
    fewer, processes = episodes // 2, ("--engine", "processes", "--workers", "2")
    counted: dict[str, Any] = {"unit": "episodes/s", "pairs": pairs, "warm_ups": 0}
    with tempfile.TemporaryDirectory() as folder:

        def rate(count: int, *engine: str) -> Rate:
            return lambda: count / seconds_of(folder, count, *engine)

        mine, theirs = rate(fewer, *processes), rate(fewer, "--engine", "local")
        question = QUESTION.format(f"{fewer:,}", "processes")
        found = [paired_rates(question, ours=mine, rival=theirs, rival_name="one process", **counted)]
        question, rival = QUESTION.format(f"{episodes:,}", "ray"), f"processes ({versions('ray')})"
        try:
            with cluster() as address:
                mine = rate(episodes, "--engine", "ray", "--engine-address", address, "--workers", "2")
                theirs = rate(episodes, *processes)
                found.append(paired_rates(question, ours=mine, rival=theirs, rival_name=rival, target=CLOSE, **counted))
        except Missing as error:
            found.append(missing(question, error, unit="episodes/s", target=CLOSE))
    return found


def seconds_of(folder: str, episodes: int, *engine: str) -> float:
    out = Path(folder, "D")
    command = [sys.executable, "-m", "offline_cli", "record", "CartPole-v1", "--policy", "random", "--vectorize", "sync"]
    command += ["--num-envs", "8", "--episodes", str(episodes), "--out", str(out), "--overwrite", "--quiet", *engine]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


@contextmanager
def cluster() -> Iterator[str]:
    """The address of one with a node of two processors. Raises Missing without Ray."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError as error:
        raise Missing("ray is not installed") from error
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def training(pairs: int = PAIRS, updates: int = UPDATES) -> Row:
    with written("episodes", 200) as folder:
        (folder / "config.toml").write_text("hidden = [256, 256]\nthreads = 1\n", encoding="utf-8")

        def samples_per_second(*start: str) -> float:
            command = [sys.executable, *start, "-m", "offline_cli", "train", str(folder / "D"), "--out", str(folder / "run")]
            command += ["--updates", str(updates), "--batch-size", str(BATCH), "--device", "cpu", "--config"]
            command += [str(folder / "config.toml"), "--overwrite", "--quiet", "--json"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
            return float(json.loads(done.stdout)["samples_per_second"])

        ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        return paired_rates(
            RANKS,
            unit="samples/s",
            ours=lambda: samples_per_second(*ranks),
            rival=samples_per_second,
            rival_name=f"one process of one thread ({versions('torch')})",
            target=WORTH,
            pairs=pairs,
            warm_ups=0,
        )
