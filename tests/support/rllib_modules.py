"""Policies of a user's own, in RLlib's manner; named as `python:rllib_modules:...`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from offline_cli import Columns, RLModule


class Follows(RLModule):
    """One `_forward`: inputs of a distribution that fits the action space."""

    def __init__(self, *spaces: Any, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        width = self.model_config.get("hidden", 8)
        size = int(self.action_space.n)
        self.net = nn.Sequential(nn.Linear(self.observation_space.shape[0], width), nn.Tanh(), nn.Linear(width, size))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


class Explores(Follows):
    """Plays another way where it explores."""

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS]) * 0}


class Silent(RLModule):
    """Says nothing."""


class Wordless(RLModule):
    """Puts out something that is nothing to act on."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"thoughts": batch[Columns.OBS]}


class Wide(RLModule):
    """Puts out more numbers than the distribution of its actions takes."""

    def __init__(self, *spaces: Any, **kwargs: Any) -> None:
        super().__init__(*spaces, **kwargs)
        self.net = torch.nn.Linear(3, 7)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}
