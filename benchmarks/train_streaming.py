"""What does training cost whose steps take ten times the memory limit? Rival: the same updates, a tenth of the steps in memory.

Both are `train_bc` in processes of their own, on one thread; the rates are of updates, batch and all. The peak is that of the
process that streams.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.harness import HERE, Floor, Row, paired
from offline_cli import write_dataset
from offline_cli.episodes.batch import EpisodeBatch

OBS, BATCH, LENGTH = 64, 1024, 200
ROW = OBS * 4 + 8  # bytes of a step
SPEED, MEMORY = Floor(0.7, words=">= 0.7 of in-memory speed"), Floor(1.0, words="peak RSS within the limit")
STATUS = Path("/proc/self/status")


def rows(small: bool = False) -> list[Row]:
    limit, updates = 512 << 20, 20 if small else 2000
    steps = 10_000 if small else 10 * limit // ROW
    amount = f"{steps / 1e6:.0f} M steps, {steps * ROW / 1e9:.1f} GB, limit {limit >> 20} MiB"
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c.toml").write_text("hidden = [256, 256]\nthreads = 1\n", encoding="utf-8")
        for name, count in (("whole", steps), ("tenth", steps // 10)):
            write_dataset(made(count), f"{folder}/{name}", action_scale="env")

        def rate(name: str, **options: Any) -> float:
            options |= {"updates": updates, "batch_size": BATCH, "device": "cpu", "overwrite": True}
            options |= {"config": f"{folder}/c.toml", "temp_dir": folder}
            call = [
                sys.executable,
                "-m",
                "benchmarks.train_streaming",
                f"{folder}/{name}",
                f"{folder}/run",
                json.dumps(options),
            ]
            told = json.loads(subprocess.run(call, stdout=subprocess.PIPE, check=True, text=True, cwd=HERE.parent).stdout)
            peaks.extend([told["peak"]] if name == "whole" else [])
            return float(told["samples_per_second"])

        speed = paired(
            f"updates of MLP 256x256, batch {BATCH}, 1 thread, from a stream ({amount})",
            lambda: rate("whole", streaming=True, memory_limit=limit),
            lambda: rate("tenth"),
            unit="samples/s",
            rival_name="the same, all steps in memory",
            floor=SPEED,
            pairs=1 if small else 3,
        )
    peak, question = max(peaks), f"peak memory of train-bc --streaming ({amount})"
    memory = Row(question, "MiB", peak / 2**20, limit / 2**20, limit / peak, "the limit", len(peaks), floor=MEMORY)
    return [speed, memory]


def made(steps: int) -> Iterator[EpisodeBatch]:
    """Noise, cut from one stretch of it at many places: much in memory, little on disk."""
    pattern, at_once = np.random.default_rng(0).standard_normal(1 << 18, np.float32), min(250, steps // LENGTH)
    for first in range(0, steps // LENGTH, at_once):
        places = np.arange(first * (LENGTH + 1), (first + at_once) * (LENGTH + 1)) * 8191 % (len(pattern) - OBS)
        yield EpisodeBatch(
            ids=tuple(f"episode-{first + i}" for i in range(at_once)),
            starts=np.arange(at_once + 1) * LENGTH,
            obs=pattern[places[:, None] + np.arange(OBS)],
            actions=np.arange(at_once * LENGTH) % 4,
            rewards=np.ones(at_once * LENGTH),
            terminated=np.ones(at_once, np.bool_),
            truncated=np.zeros(at_once, np.bool_),
            observation_space=spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
            action_space=spaces.Discrete(4),
        )


def main(source: str, run: str, options: str) -> None:
    """In a process of its own: train, and print the rate and the most memory that this process has had, in bytes."""
    import resource

    from offline_cli import train_bc

    told = train_bc(source, run, **json.loads(options))
    if STATUS.is_file():  # Linux: of the program alone, not of what started it
        peak = next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:")) * 1024
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"peak": peak, "samples_per_second": told.samples_per_second}))


if __name__ == "__main__":
    main(*sys.argv[1:])
