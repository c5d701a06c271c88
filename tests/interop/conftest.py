"""One ray for all tests of this folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import offline_cli
from offline_cli.episodes.batch import EpisodeBatch


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A ray of two processors on this machine, started once."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., str]:
    """A function that writes a batch as a dataset in one of our formats and gives the folder of its shards."""

    def write(folder: Path, batch: EpisodeBatch, *, format: Any) -> str:
        offline_cli.write_dataset(batch, folder, format=format, action_scale="env")
        return str(folder / "data")

    return write
