"""The data and weights that several rivals work on; numpy and torch alone, so that every environment has what it takes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

__all__ = ["cartpole_steps", "make_it_balance"]

DIRECTION = (0.02, 0.2, 1.0, 0.5)  # CartPole's place, speed, angle and its speed: the same as in record.py


def cartpole_steps(number: int) -> dict[str, NDArray[np.generic]]:
    """Observations and actions of `number` steps like CartPole's."""
    rng = np.random.default_rng(0)
    return {"obs": rng.normal(size=(number, 4)).astype(np.float32), "actions": rng.integers(0, 2, number)}


def make_it_balance(layers: list[nn.Linear]) -> None:
    """Set three layers (4 to wide to wide to 2) so that the pole stays up for 500 steps."""
    first, second, last = layers
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.mul_(1e-3)
        for unit, sign in ((0, 1.0), (1, -1.0)):
            first.weight[unit] = sign * torch.tensor(DIRECTION)
            second.weight[unit, unit] = 1.0
        last.weight[1, 0] = last.weight[0, 1] = 1.0
