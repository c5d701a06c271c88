"""Policies to record, as networks whose weights are set by hand: good ones without training, the same on every machine."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import nn

from offline_cli.modules.policy_modules import FeedForwardPolicy, build_module
from offline_cli.modules.rl_module import RLModule

__all__ = ["BALANCING", "SWINGING", "UNTRAINED"]


def _module(env: str) -> RLModule:
    with gym.make(env) as made:
        return build_module(made.observation_space, made.action_space, hidden=(64, 64), action_scale="env", seed=0)


def _with_direction(module: RLModule, direction: list[float], *, left: int, right: int) -> RLModule:
    """Choose `right` where observation @ direction is above 0, `left` where it is below; the other weights do little."""
    assert isinstance(module, FeedForwardPolicy)
    first, second, last = (layer for layer in module.network if isinstance(layer, nn.Linear))
    with torch.no_grad():
        for parameter in module.network.parameters():
            parameter.mul_(1e-3)
        for unit, sign in ((0, 1.0), (1, -1.0)):
            first.weight[unit] = sign * torch.tensor(direction)
            second.weight[unit, unit] = 1.0
        last.weight[right, 0] = last.weight[left, 1] = 1.0
    return module


UNTRAINED = _module("CartPole-v1")  # weights as they are drawn: episodes of some ten steps
BALANCING = _with_direction(
    _module("CartPole-v1"), [0.02, 0.2, 1.0, 0.5], left=0, right=1
)  # 500 steps: place, speed, angle, its speed
SWINGING = _with_direction(
    _module("Acrobot-v1"), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0], left=2, right=0
)  # pushes as the first joint swings
