"""Encoders and the feed-forward policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.errors import UnsupportedSpace
from offline_cli.modules.encoders import ObservationEncoder
from offline_cli.modules.policy_modules import build_module

CAMERA = spaces.Box(0, 255, (40, 48, 3), np.uint8)


def test_a_discrete_observation_is_one_hot_from_its_start() -> None:
    encoder = ObservationEncoder(spaces.Discrete(3, start=5))
    assert encoder(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_each_component_of_a_multi_discrete_observation_is_one_hot() -> None:
    encoder = ObservationEncoder(spaces.MultiDiscrete([2, 3], start=[0, 1]))
    assert encoder(torch.tensor([[1, 3], [0, 1]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_small_uint8_observations_are_divided_by_255() -> None:
    encoder = ObservationEncoder(spaces.Box(0, 255, (2,), np.uint8))
    assert encoder(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0.0, 1.0]]


def test_nested_observations_are_put_side_by_side_in_the_order_of_the_space() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2, 1)), "b": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)])})
    tree = {"a": torch.tensor([[[3.0], [4.0]]]), "b": (torch.tensor([1]), torch.tensor([[1]]))}
    assert ObservationEncoder(space)(tree).tolist() == [[3.0, 4.0, 0.0, 1.0, 1.0]]


def test_text_observations_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSpace, match="Text"):
        ObservationEncoder(spaces.Dict({"say": spaces.Text(4)}))


def test_all_three_forwards_give_the_inputs_of_the_action_head() -> None:
    module = build_module(spaces.Dict({"camera": CAMERA}), spaces.MultiDiscrete([2, 3]), hidden=[8])
    batch: dict[str, Any] = {Columns.OBS: {"camera": torch.zeros((4, 40, 48, 3), dtype=torch.uint8)}}
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        assert forward(batch)[Columns.ACTION_DIST_INPUTS].shape == (4, 5)


def test_weights_follow_from_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = (build_module(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    weights = [torch.cat([p.detach().ravel() for p in module.parameters()]) for module in (one, two, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
