"""`python -m benchmarks.simulations.shuffle`: how well streaming shuffles recordings that are sorted by episode.

The order is the one that `train --streaming` learns in: steps are written through the store on disk, in windows, and read in
pools. Its quality is the entropy of the differences of neighbours, in bins, as a share of that of a whole permutation: near 0
where neighbours stay neighbours, 1 where nothing of the order is left. The page gives it for memory of a share of the data.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.training.disk_store import UNITS_PER_POOL, DiskStore, ShuffledWriter, StoreForm
from offline_cli.training.loader import StepLoader
from offline_cli.training.metrics_file import RecordForm

__all__ = ["entropy", "main", "quality", "streamed"]

BINS = 512
CHUNK = 100_000


def streamed(steps: int, share: float, *, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    """The order (steps,) of an epoch where the window and each pool hold `share` of all steps."""
    unit = max(1, int(share * steps) // UNITS_PER_POOL)
    rows = max(1, int(share * steps) // unit) * unit
    first = {"obs": torch.zeros(1, 1), "actions": torch.zeros(1, dtype=torch.int64)}
    record = RecordForm.of(first)
    with closing(DiskStore(record, StoreForm(window=rows, pool=rows, unit=unit), None)) as store:
        writer = ShuffledWriter(store, seed=seed)
        for begin in range(0, steps, CHUNK):
            actions = torch.arange(begin, min(begin + CHUNK, steps))
            writer.add(record.packed({"obs": torch.zeros(len(actions), 1), "actions": actions}))
        writer.finish()
        loader = StepLoader(store, batch_size=min(4096, steps), seed=seed, device=torch.device("cpu"))
        found = []
        for update in range(epoch * loader.updates_per_epoch, (epoch + 1) * loader.updates_per_epoch):
            count = loader.fill(update)
            found.append(loader.batch["actions"][:count].numpy().copy())
    order: NDArray[np.int64] = np.concatenate(found)
    return order


def entropy(order: NDArray[np.int64]) -> float:
    """Of the differences of neighbours, in bits, in BINS bins of the range that they may have."""
    counts, _ = np.histogram(np.diff(order), bins=BINS, range=(-len(order), len(order)))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def quality(order: NDArray[np.int64]) -> float:
    """Entropy as a share of that of a permutation."""
    return entropy(order) / entropy(np.random.default_rng(0).permutation(len(order)))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Print the quality by share, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args(argv).steps
    shares = (0.25, 0.1, 0.05, 0.02, 0.01, 0.005)
    found = {"steps": steps, "quality": {str(share): round(quality(streamed(steps, share)), 4) for share in shares}}
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
