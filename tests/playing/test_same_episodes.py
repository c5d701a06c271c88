"""The same command records the same episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offline_cli.episodes.batch import EpisodeBatch

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]


def test_steps_do_not_depend_on_slots(recorded: Record, read: Read, same: Same) -> None:
    one = read(recorded(steps=150, num_envs=1))
    same(one, read(recorded(steps=150, num_envs=16)))


def test_data_files_are_the_same_bytes(recorded: Record) -> None:
    shards = [next((recorded(num_envs=slots) / "data").iterdir()) for slots in (2, 11)]
    assert shards[0].name == shards[1].name
    assert shards[0].read_bytes() == shards[1].read_bytes()
