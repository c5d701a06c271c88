"""Policies as they are written for RLlib, with nothing but the import line changed; named as `python:rllib_modules:...`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from offline_cli import Columns, RLModule


class Follows(RLModule):
    """Networks in `setup`, one `_forward`: inputs of a distribution that fits the action space."""

    def setup(self) -> None:
        width = self.model_config.get("hidden", 8)
        size = int(self.action_space.n)
        self.net = nn.Sequential(nn.Linear(self.observation_space.shape[0], width), nn.Tanh(), nn.Linear(width, size))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


class Explores(Follows):
    """Plays another way where it explores, and takes whatever RLlib gives to a constructor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS]) * 0}


class Acts(RLModule):
    """Puts out actions itself."""

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: torch.full((len(batch[Columns.OBS]),), 2)}


class Last:
    """A distribution in RLlib's manner: the last choice, whatever the inputs say."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    @classmethod
    def from_logits(cls, logits: torch.Tensor, **_: Any) -> Last:
        return cls(logits)

    def to_deterministic(self) -> Last:
        return self

    def sample(self) -> torch.Tensor:
        return torch.full(self.inputs.shape[:-1], self.inputs.shape[-1] - 1)


class NamesDistribution(Follows):
    def get_inference_action_dist_cls(self) -> Any:
        return Last


class SetsDistribution(Follows):
    def setup(self) -> None:
        super().setup()
        self.action_dist_cls = Last


class Silent(RLModule):
    """Says nothing."""


class Wordless(RLModule):
    """Puts out something that is nothing to act on."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"thoughts": batch[Columns.OBS]}


class Wide(RLModule):
    """Puts out more numbers than the distribution of its actions takes."""

    def setup(self) -> None:
        self.net = torch.nn.Linear(3, 7)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


class WantsCatalog(RLModule):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(catalog_class=dict, **kwargs)


class TakesName(Follows):
    """Calls a network as the distribution is called here."""

    def setup(self) -> None:
        super().setup()
        self.action_head = torch.nn.Linear(3, 3)  # type: ignore[assignment]
