"""One ray for all tests of this folder, and the spaces that they go through."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location
from offline_cli.spaces import Space
from offline_cli.tally import Tally

VECTOR = spaces.Box(-1, 1, (4,), np.float32)

OBSERVATION_SPACES: dict[str, Space] = {
    "box": VECTOR,
    "float image": spaces.Box(0, 1, (64, 64, 3), np.float32),
    "uint8 image": spaces.Box(0, 255, (64, 64, 3), np.uint8),
    "int box": spaces.Box(0, 9, (4,), np.int64),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(6),
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([VECTOR, spaces.Discrete(3)]),
}
ACTION_SPACES: dict[str, Space] = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
}


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A ray of two processors on this machine, started once."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., str]:
    """A function that writes a batch as a dataset in one of our formats and gives the folder of its shards."""

    def write(folder: Path, batch: EpisodeBatch, *, format: str) -> str:
        with DatasetWriter(
            open_location(str(folder)),
            format=format,
            observation_space=batch.observation_space,
            action_space=batch.action_space,
            action_scale="env",
            provenance={},
            tally=Tally(),
        ) as writer:
            writer.write(batch)
            writer.commit()
        return str(folder / "data")

    return write


@pytest.fixture(params=OBSERVATION_SPACES)
def observation_space(request: pytest.FixtureRequest) -> Space:
    return OBSERVATION_SPACES[request.param]


@pytest.fixture(params=ACTION_SPACES)
def action_space(request: pytest.FixtureRequest) -> Space:
    return ACTION_SPACES[request.param]
