"""One linear layer and a tanh; the policy and value functions are built on its features."""

from torch import nn

from offline_cli.modules.encoders import ObservationEncoder
from offline_cli.modules.network import Network


class OneLayer(Network):
    schema = {"properties": {"width": {"description": "Features.", "type": "integer", "minimum": 1, "default": 32}}}

    def features(self, observation_space):
        encoder = ObservationEncoder(observation_space)  # any space as one row
        layers = nn.Sequential(encoder, nn.Linear(encoder.size, self.options["width"]), nn.Tanh())
        layers.size = self.options["width"]
        return layers
