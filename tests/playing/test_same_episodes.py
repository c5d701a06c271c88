"""The same episodes, bit for bit, however many slots and runners play them, in turn or at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules.policy_modules import build_module
from offline_cli.playing.actors import Blocks
from offline_cli.policies import policy as policies
from offline_cli.policies.module_policy import ModulePolicy
from offline_cli.policies.policy import BLOCK_ROWS, Acted, block_rows

Record = Callable[..., Path]
Read = Callable[[Path], EpisodeBatch]
Same = Callable[[EpisodeBatch, EpisodeBatch], None]
MANNERS = [
    {"num_envs": 64},
    {"num_envs": 7, "format": "columns"},
    pytest.param({"num_envs": 3, "num_env_runners": 1}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 1, "num_env_runners": 2, "format": "columns"}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 40, "num_env_runners": 4}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 3, "vectorize": "async"}, marks=pytest.mark.nightly),
    pytest.param({"num_envs": 2, "num_env_runners": 2, "vectorize": "async"}, marks=pytest.mark.integration),
]


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: "-".join(map(str, manner.values())))
def test_slots_runners_and_formats_do_not_matter_to_a_policy_that_explores(
    manner: dict[str, Any], recorded: Record, read: Read, same: Same, run_folder: Callable[..., Path]
) -> None:
    run = str(run_folder("CartPole-v1"))
    one = recorded("CartPole-v1", policy=run, explore=True, num_envs=1)
    same(read(one), read(recorded("CartPole-v1", policy=run, explore=True, **manner)))


@pytest.mark.parametrize("policy", ["random", "python:recording_envs:by_chance", "python:recording_envs:Teacher"])
def test_slots_do_not_matter_to_other_policies_that_draw(policy: str, recorded: Record, read: Read, same: Same) -> None:
    few, many = (read(recorded(policy=policy, explore=True, num_envs=slots, episodes=20)) for slots in (1, 9))
    same(few, many)
    assert len(set(few.actions.tolist())) == 3


def test_steps_do_not_depend_on_slots(recorded: Record, read: Read, same: Same) -> None:
    one = read(recorded(steps=150, num_envs=1))
    same(one, read(recorded(steps=150, num_envs=16)))


def test_data_files_are_the_same_bytes(recorded: Record) -> None:
    shards = [next((recorded(num_envs=slots) / "data").iterdir()) for slots in (2, 11)]
    assert shards[0].name == shards[1].name
    assert shards[0].read_bytes() == shards[1].read_bytes()


OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)


def module_policy(hidden: tuple[int, ...], *, explore: bool = False) -> ModulePolicy:
    module = build_module(OBSERVATIONS, gym.spaces.Discrete(3), hidden=hidden, action_scale="env", seed=0)
    return ModulePolicy(module, explore=explore, device=torch.device("cpu"), fingerprint="")


@pytest.mark.parametrize("hidden", [(64, 64), (63, 65), (256,), (7,)])
@pytest.mark.parametrize("explore", [False, True])
def test_a_row_gives_the_same_bits_in_any_slot_of_any_number(hidden: tuple[int, ...], explore: bool) -> None:
    policy = module_policy(hidden, explore=explore)
    row = np.random.default_rng(0).normal(size=5).astype(np.float32)
    found = set()
    for slots in (1, 2, 31, 32, 33, 70, 200):
        asked = Blocks(policy, slots, rows=block_rows(policy, OBSERVATIONS, slots))
        observations = np.random.default_rng(slots).normal(size=(asked.padded, 5)).astype(np.float32)
        observations[slots - 1] = row
        acted = asked.act(observations, np.full((slots, policy.chance_size), 0.3))
        found.add(acted.extras["action_dist_inputs"][-1].tobytes() + acted.extras["action_logp"][-1].tobytes())
    assert len(found) == 1


class Fickle:
    """A policy whose results differ in the last digits, by the place of a row or by the number of rows."""

    fingerprint, action_scale, chance_size, rows_alike = "", "env", 0, False

    def __init__(self, *, by_place: bool, shows_numbers: bool = True) -> None:
        self.by_place, self.shows_numbers = by_place, shows_numbers

    def act(self, observations: Any, chance: Any) -> Acted:
        """The error of a row is its place, or the number of rows, in units in the last place."""
        count = len(observations)
        error = np.spacing(observations[:, :1]) * (np.arange(count)[:, None] if self.by_place else count)
        return Acted(np.zeros(count, int), np.zeros(count, int), {"logits": observations[:, :1] + error})


def test_a_policy_that_minds_the_place_of_a_row_sees_one_at_a_time() -> None:
    assert block_rows(Fickle(by_place=True), OBSERVATIONS, 64) == 1


def test_a_policy_that_minds_the_number_of_rows_always_sees_the_same() -> None:
    assert {block_rows(Fickle(by_place=False), OBSERVATIONS, slots) for slots in (1, 7, 32, 64, 300)} == {BLOCK_ROWS}


def test_a_policy_whose_numbers_cannot_be_seen_is_not_trusted_with_other_blocks() -> None:
    policy = module_policy((64, 64))
    policy.shows_numbers = False
    assert block_rows(policy, OBSERVATIONS, 64) == BLOCK_ROWS


@pytest.mark.parametrize(("slots", "sizes"), [(1, [8, 16, 32]), (20, [32]), (64, [64, 32]), (1000, [256, 128, 64, 32])])
def test_blocks_are_tried_from_the_one_that_holds_all_slots_to_the_usual_one(slots: int, sizes: list[int]) -> None:
    assert list(policies._candidates(slots, BLOCK_ROWS)) == sizes


@pytest.mark.nightly
def test_the_same_command_gives_the_same_dataset_with_an_own_vector_class(recorded: Record, read: Read, same: Same) -> None:
    for runners in (0, 2):
        options = {"vectorize": "vector_entry_point", "num_envs": 6, "num_env_runners": runners, "policy": "random"}
        same(*(read(recorded("CartPole-v1", **options)) for _ in range(2)))


def test_ids_with_an_own_vector_class_differ_where_the_episodes_do(recorded: Record, read: Read) -> None:
    options = {"vectorize": "vector_entry_point", "policy": "random"}
    ids = [name for slots in (2, 3) for name in read(recorded("CartPole-v1", num_envs=slots, **options)).ids]
    assert len(set(ids)) == 24
