"""The same command records the same episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.nightly
def test_the_same_command_gives_the_same_dataset_with_an_own_vector_class(recorded: Record, read: Read, same: Same) -> None:
    for runners in (0, 2):
        options = {"vectorize": "vector_entry_point", "num_envs": 6, "num_env_runners": runners, "policy": "random"}
        same(*(read(recorded("CartPole-v1", **options)) for _ in range(2)))


def test_ids_with_an_own_vector_class_differ_where_the_episodes_do(recorded: Record, read: Read) -> None:
    options = {"vectorize": "vector_entry_point", "policy": "random"}
    ids = [name for slots in (2, 3) for name in read(recorded("CartPole-v1", num_envs=slots, **options)).ids]
    assert len(set(ids)) == 24
