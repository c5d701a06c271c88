"""A network outside of offline_cli: one residual block over encoded observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offline_cli.modules.encoders import ObservationEncoder
from offline_cli.modules.network import Network
from offline_cli.spaces import Space


class Residual(Network):
    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {"width": {"description": "Features.", "type": "integer", "minimum": 1, "default": 16}}
    }

    def features(self, observation_space: Space) -> nn.Module:
        return Block(ObservationEncoder(observation_space), self.options["width"])


class Block(nn.Module):
    def __init__(self, encoder: ObservationEncoder, width: int) -> None:
        super().__init__()
        self.encoder, self.size = encoder, width
        self.first, self.second = nn.Linear(encoder.size, width), nn.Linear(width, width)

    def forward(self, observations: Any) -> Tensor:
        found = torch.relu(self.first(self.encoder(observations)))
        return found + torch.relu(self.second(found))
