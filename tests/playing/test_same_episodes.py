"""The same command records the same episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Record = Callable[..., Path]


def test_data_files_are_the_same_bytes(recorded: Record) -> None:
    shards = [next((recorded(policy="random", num_envs=5) / "data").iterdir()) for _ in range(2)]
    assert shards[0].name == shards[1].name
    assert shards[0].read_bytes() == shards[1].read_bytes()
