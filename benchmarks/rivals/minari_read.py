"""Minari: every episode of a dataset on disk, as the arrays that its own reader gives."""

from __future__ import annotations

import os
from collections.abc import Callable

from serving import serve


def prepare(root: str, name: str) -> Callable[[], float]:
    os.environ["MINARI_DATASETS_PATH"] = root
    import minari

    def run() -> float:
        dataset = minari.load_dataset(name)
        return sum(len(episode.rewards) for episode in dataset.iterate_episodes())

    return run


if __name__ == "__main__":
    serve(prepare, "minari", "h5py")
