"""What several tests of applying a pipeline use."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from safetensors.torch import load_file

from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.parquet.arrow_trees import from_arrow
from offline_cli.storage.locations import open_location

VECTOR = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
CHOICES = gym.spaces.Discrete(2)


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Callable[..., str]:
    """Writes a learner pipeline's file with these pieces (TOML) and gives its path."""

    def write(pieces: str = "", *, name: str = "pipeline.toml", head: str = 'kind = "learner"') -> str:
        path = tmp_path / name
        path.write_text(f"{head}\n{textwrap.dedent(pieces)}", encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[..., str]:
    """Writes a batch as a dataset of ours and gives its folder."""

    def write(batch: EpisodeBatch, *, name: str = "D", scale: str = "env", format: Any = "episodes") -> str:
        spaces: dict[str, Any] = {"observation_space": batch.observation_space, "action_space": batch.action_space}
        with DatasetWriter(open_location(tmp_path / name), format=format, action_scale=scale, **spaces) as writer:
            writer.write(batch)
            writer.commit()
        return str(tmp_path / name)

    return write


@pytest.fixture
def episodes(random_batch: Callable[..., EpisodeBatch]) -> EpisodeBatch:
    """Six episodes of 40 steps, of four numbers and two choices."""
    return random_batch(VECTOR, CHOICES, lengths=(5, 9, 1, 7, 12, 6))


@pytest.fixture
def stored() -> Callable[[str], list[dict[str, Any]]]:
    """What the train batches in a folder hold: trees of arrays by column, or arrays by tensor name, one dict per batch."""

    def read(out: str) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        listed = json.loads((Path(out) / "batches.json").read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = []
        for batch in listed["batches"]:
            place = Path(out) / batch["path"]
            if place.suffix == ".safetensors":
                found.append({name: tensor.numpy() for name, tensor in load_file(place).items()})
                continue
            table = pq.read_table(place).combine_chunks()
            numbers = [field for field in table.schema if field.type != "string"]
            found.append({field.name: from_arrow(table.column(field.name).chunk(0), field) for field in numbers})
        return found

    return read
