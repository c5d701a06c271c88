"""What does it cost to train from S3? Rivals: the same training from a local disk; a bare parallel download of the same bytes.

All are timed from the start of the process to its end, loading s3fs included; reading stops at batches of episodes. On loopback
a server and its reader share the processors, so reading is also measured behind a link of 20 MB/s. The server is a real one,
Ceph's radosgw, with `.ci/radosgw python -m benchmarks.run train_from_s3`; else moto.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.floors import Floor
from benchmarks.harness import Missing, Row, missing, paired_rates
from benchmarks.rival_process import SCRIPTS
from benchmarks.s3_server import Server, server, uploaded
from benchmarks.slow_link import slow_link
from benchmarks.targets import Target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location

STEPS, LENGTH, OBS = 400_000, 500, 64
EPOCHS, PAIRS = 20, 5
LINK = 20e6  # bytes a second
WARM = f"train-bc, {EPOCHS} epochs of {STEPS:,} steps of {OBS} float32, from S3 with a warm --cache"
COLD = f"read {STEPS:,} steps of {OBS} float32 from S3, no cache"
BEHIND = f"{COLD}, behind a link of {LINK / 1e6:.0f} MB/s"
LOCAL, BARE = "the same from a local disk", "a bare parallel download"
READ = "import sys, offline_cli; print(sum(batch.num_steps for batch in offline_cli.open_dataset(sys.argv[1]).batches()))"
WITHIN = Target(0.95, words="within 5 % of local")


def rows() -> list[Row]:
    try:
        with tempfile.TemporaryDirectory() as folder, server() as place:
            return measured(Path(folder), place)
    except Missing as error:
        return [
            missing(WARM, error, unit="runs/s", rival_name=LOCAL, target=WITHIN),
            *(missing(question, error, unit="MB/s", rival_name=BARE) for question in (COLD, BEHIND)),
        ]


def measured(folder: Path, place: Server, *, steps: int = STEPS, epochs: int = EPOCHS, pairs: int = PAIRS) -> list[Row]:
    local = folder / "D"
    write(local, steps)
    url = uploaded(local, place, f"bench-{uuid.uuid4().hex[:8]}")
    size = sum(path.stat().st_size for path in local.rglob("*") if path.is_file()) / 1e6
    trainings = Trainings(folder, place.environment, epochs)

    return [
        paired_rates(
            WARM,
            unit="runs/s",
            ours=lambda: 1 / trainings.seconds(url, cache=folder / "warm"),  # the warm-up fills it
            rival=lambda: 1 / trainings.seconds(str(local)),
            rival_name=f"{LOCAL} ({place.name} on loopback)",
            floor=Floor("the rival: no byte is fetched"),
            target=WITHIN,
            pairs=pairs,
        ),
        reading(COLD, url, size, place, pairs),
        behind_a_link(url, size, place, pairs),
    ]


def reading(question: str, url: str, size: float, place: Server, pairs: int) -> Row:
    download = str(SCRIPTS / "bare_download.py")
    return paired_rates(
        question,
        unit="MB/s",
        ours=lambda: size / seconds([sys.executable, "-c", READ, url], place.environment),
        rival=lambda: size / seconds([sys.executable, download, url], place.environment),
        rival_name=f"{BARE} of {size:.0f} MB ({place.name} on loopback)",
        floor=Floor("the rival: the server's throughput"),
        pairs=pairs,
    )


def behind_a_link(url: str, size: float, place: Server, pairs: int) -> Row:
    with slow_link(int(place.url.rpartition(":")[2]), LINK) as port:
        return reading(BEHIND, url, size, Server(place.name, f"http://127.0.0.1:{port}"), pairs)


@dataclass(slots=True)
class Trainings:
    """Runs of `train-bc` in processes of their own, each into a run folder that goes afterwards."""

    folder: Path
    environment: Mapping[str, str]
    epochs: int

    def seconds(self, source: str, *, cache: Path | None = None) -> float:
        """From the start of the process to its end."""
        out = self.folder / "run"
        command = [sys.executable, "-m", "offline_cli", "train-bc", source, "--out", str(out), "--epochs", str(self.epochs)]
        kept = [] if cache is None else ["--cache", str(cache)]
        taken = seconds([*command, *kept, "--device", "cpu", "--quiet"], self.environment)
        shutil.rmtree(out)
        return taken


def seconds(command: list[str], environment: Mapping[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def write(folder: Path, steps: int) -> None:
    """Noise, which does not compress."""
    rng, number = np.random.default_rng(0), steps // LENGTH
    batch = EpisodeBatch(
        ids=tuple(f"{i:032x}" for i in range(number)),
        starts=np.arange(number + 1) * LENGTH,
        obs=rng.normal(size=(steps + number, OBS)).astype(np.float32),
        actions=rng.integers(0, 4, steps),
        rewards=np.ones(steps),
        terminated=np.ones(number, bool),
        truncated=np.zeros(number, bool),
    )
    box = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    options: dict[str, Any] = {"observation_space": box, "action_space": spaces.Discrete(4), "action_scale": "env"}
    with DatasetWriter(open_location(str(folder)), format="episodes", **options) as writer:
        writer.write(batch)
        writer.commit()
