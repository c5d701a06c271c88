"""The straight forward pass gives what the module gives, bit for bit, and stands aside where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli.modules.distributions import LOG_STD_RANGE
from offline_cli.modules.drawing import straight_forward
from offline_cli.modules.encoders import ACTIVATIONS
from offline_cli.modules.policy_modules import build_module
from offline_cli.modules.rl_module import RLModule

VECTOR = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)


def module(space: Any = VECTOR, hidden: Sequence[int] = (64, 64), activation: str = "relu") -> RLModule:
    return build_module(space, gym.spaces.Discrete(3), hidden=hidden, activation=activation, action_scale="env").eval()


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("hidden", [(), (7,), (64, 64), (63, 65, 4)])
def test_it_gives_what_the_module_gives(activation: str, hidden: tuple[int, ...]) -> None:
    net = module(hidden=hidden, activation=activation)
    straight = straight_forward(net)
    assert straight is not None
    observations = torch.randn(33, 5)
    before = observations.clone()
    with torch.no_grad():
        wanted = net.forward_inference({"obs": observations})["action_dist_inputs"]
    assert torch.equal(straight(observations), wanted)
    assert torch.equal(observations, before)


def test_it_keeps_the_limits_of_box_actions() -> None:
    net = build_module(VECTOR, gym.spaces.Box(-1, 1, (1,)), hidden=(8,), action_scale="env").eval()
    straight = straight_forward(net)
    assert straight is not None
    observations = 100 * torch.randn(33, 5)
    with torch.no_grad():
        wanted = net.forward_inference({"obs": observations})["action_dist_inputs"]
    assert torch.equal(straight(observations), wanted)
    assert wanted[:, 1].aminmax() == LOG_STD_RANGE
