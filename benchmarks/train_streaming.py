"""What does training cost whose steps take ten times the memory limit? Rival: the same updates with all steps in memory.

The rates are of updates, batch and all, on one thread; what reading the next pool of steps takes from them is in ours. The
rival has a tenth of the steps, which already is more than any cache holds. The peak is that of a whole process, `train-bc
--streaming` on a dataset of as many steps.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from benchmarks.floors import measured_floor
from benchmarks.harness import Row, paired_rates, timed
from benchmarks.measured_call import measured
from benchmarks.targets import Target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location
from offline_cli.modules.policy_modules import build_module
from offline_cli.training.disk_store import DiskStore, StoreForm
from offline_cli.training.learner import cloning_learner
from offline_cli.training.loader import StepLoader, Store
from offline_cli.training.memory_store import MemoryStore, Shares
from offline_cli.training.metrics_file import RecordForm
from offline_cli.training.updates import Update

__all__ = ["rows"]

LIMIT, TIMES, OBS, BATCH, LENGTH = 512 << 20, 10, 64, 1024, 200
ROW = OBS * 4 + 8  # bytes of a step
STEPS = TIMES * LIMIT // ROW
NETWORKS = {"MLP 256x256": (256, 256), "MLP 32": (32,)}
SPEED = Target(0.8, words=">= 0.8 of in-memory speed")
MEMORY = Target(1.0, words="peak RSS within the limit")
DATA = f"{STEPS / 1e6:.0f} M steps, {STEPS * ROW / 1e9:.1f} GB, limit 512 MiB"


def rows() -> list[Row]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return [*speeds(folder), memory(Path(folder))]


def columns(steps: int) -> dict[str, Any]:
    return {"obs": torch.randn(steps, OBS), "actions": torch.randint(0, 4, (steps,))}


def speeds(folder: str) -> list[Row]:
    """A store as a run would make it, but of steps that need no shuffling."""
    shares, part = Shares.of(LIMIT, "cpu"), columns(STEPS // 100)
    record = RecordForm.of(part)
    with closing(DiskStore(record, StoreForm.within(shares.window, shares.pool, record), folder)) as store:
        for _ in range(100):
            store.append(record.packed(part))
        return [speed(name, hidden, store, columns(STEPS // TIMES)) for name, hidden in NETWORKS.items()]


def speed(name: str, hidden: tuple[int, ...], store: DiskStore, in_memory: dict[str, Any]) -> Row:
    per_turn = 2 * store.form.pool // BATCH  # two pools are read meanwhile
    ours, rival = updates(hidden, store, per_turn), updates(hidden, MemoryStore(in_memory), per_turn)
    part, target = in_memory["obs"], torch.empty(BATCH, OBS)
    order = torch.randint(0, len(part), (BATCH,))
    floor = measured_floor("gathering the rows of a batch", lambda: torch.index_select(part, 0, order, out=target), BATCH)
    return paired_rates(
        f"updates of {name}, batch {BATCH}, 1 thread, from a stream ({DATA})",
        unit="samples/s",
        ours=timed(ours, per_turn * BATCH),
        rival=timed(rival, per_turn * BATCH),
        rival_name="the same, all steps in memory",
        floor=floor,
        target=SPEED,
        pairs=9,
    )


def updates(hidden: tuple[int, ...], store: Store, count: int) -> Callable[[], None]:
    """So many more updates at every call."""
    loader = StepLoader(store, batch_size=BATCH, seed=0, device=torch.device("cpu"))
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    module = build_module(space, spaces.Discrete(4), hidden=hidden, action_scale="env", seed=0)
    update = Update(cloning_learner(module), loader.batch, lr=1e-3)
    numbers = itertools.count()

    def go_on() -> None:
        for number in itertools.islice(numbers, count):
            loader.fill(number)
            update()

    return go_on


def memory(folder: Path) -> Row:
    """The limit over the peak of a run; the median of three."""
    write(folder / "data")
    (folder / "c.toml").write_text("hidden = [32]\nthreads = 1\n", encoding="utf-8")
    options = {"updates": 2000, "device": "cpu", "overwrite": True, "config": str(folder / "c.toml"), "temp_dir": str(folder)}
    peaks = [
        measured("train_bc", str(folder / "data"), str(folder / "run"), streaming=True, memory_limit=LIMIT, **options)["peak"]
        for _ in range(3)
    ]
    peak, question = statistics.median(peaks), f"peak memory of train-bc --streaming ({DATA})"
    return Row(question, "MiB", peak / 2**20, LIMIT / 2**20, LIMIT / peak, "the limit", "", len(peaks), target=MEMORY)


def write(folder: Path) -> None:
    """Noise, cut from one stretch of it at many places: much in memory, little on disk."""
    pattern, at_once = np.random.default_rng(0).standard_normal(1 << 18, np.float32), 250
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    spaces_: dict[str, Any] = {"observation_space": space, "action_space": spaces.Discrete(4)}
    with DatasetWriter(open_location(str(folder)), format="episodes", action_scale="env", **spaces_) as writer:
        for first in range(0, STEPS // LENGTH, at_once):
            steps = at_once * LENGTH
            places = np.arange(first * (LENGTH + 1), first * (LENGTH + 1) + steps + at_once) * 8191 % (len(pattern) - OBS)
            writer.write(
                EpisodeBatch(
                    ids=tuple(f"episode-{first + i}" for i in range(at_once)),
                    starts=np.arange(at_once + 1) * LENGTH,
                    obs=pattern[places[:, None] + np.arange(OBS)],
                    actions=np.arange(steps) % 4,
                    rewards=np.ones(steps),
                    terminated=np.ones(at_once, np.bool_),
                    truncated=np.zeros(at_once, np.bool_),
                    **spaces_,
                )
            )
        writer.commit()
