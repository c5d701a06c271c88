"""Networks by kind: what a `[network]` table names makes the policy of a run, and the value functions of its algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.networks import ACTIVATIONS, BY_BOUNDS, ObservationEncoder, mlp
from offline_cli.modules.policy import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.options.cloning import MlpKeys
from offline_cli.options.schema import schema_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["Critic", "FeaturePolicy", "Features", "Mlp", "Network"]


class Features(Protocol):
    """A module that maps a tree of observations, leaves (B, ...), to features (B, size)."""

    size: int

    def __call__(self, observations: Tree, /) -> Tensor: ...


class Network(ABC):
    """A kind of network. Subclasses define `features`, and `schema` where they have options.

    Everything is made on the CPU from torch's random generator, which the caller has seeded.
    """

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}  # a JSON Schema; `properties` are the options of the table

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: checked by the schema, its defaults filled in."""
        self.options = dict(options)

    @abstractmethod
    def features(self, observation_space: Space, *, uint8_scaling: str = BY_BOUNDS) -> Any:
        """A fresh module: see `Features`. `uint8_scaling`: see `ObservationEncoder`, which encodes any space."""

    def policy(
        self, observation_space: Space, action_space: Space, *, action_scale: str, uint8_scaling: str = BY_BOUNDS
    ) -> RLModule:
        """A fresh policy over these spaces. Raises UnsupportedSpace, and BadConfig for Box actions of unknown scale."""
        head = build_head(action_space, action_scale=action_scale)
        features = self.features(observation_space, uint8_scaling=uint8_scaling)
        return FeaturePolicy(observation_space, action_space, head, features)

    def critic(
        self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1, uint8_scaling: str = BY_BOUNDS
    ) -> Critic:
        """A fresh value function of observations, or of both where `action_space` is given."""
        features = self.features(observation_space, uint8_scaling=uint8_scaling)

        def trunk(width: int) -> nn.Module:
            last = nn.Linear(features.size, outputs)
            return last if action_space is None else nn.Sequential(nn.Linear(width, features.size), nn.ReLU(), last)

        return Critic(features, action_space, trunk)


class FeaturePolicy(RLModule):
    """Features, and one linear layer to the action head's inputs."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, features: Any) -> None:
        super().__init__(observation_space, action_space, head)
        self.features = features
        self.last = nn.Linear(features.size, head.size)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.last(self.features(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


class Critic(nn.Module):
    """V(s) or Q(s, a): (B, outputs) float32 of observations (B, ...), and of actions (B, ...) in the units of networks."""

    def __init__(self, features: Any, action_space: Space | None, trunk: Callable[[int], nn.Module]) -> None:
        """`trunk`: makes the layers after the features and encoded actions, of that width side by side, to the outputs."""
        super().__init__()
        self.features = features
        self.actions = None if action_space is None else ObservationEncoder(action_space)
        self.trunk = trunk(features.size + (0 if self.actions is None else self.actions.size))

    def forward(self, observations: Tree, actions: Tree | None = None) -> Tensor:
        """`actions`: given where the critic was made for an action space, and only there."""
        found = self.features(observations)
        if self.actions is not None:
            assert actions is not None, "a critic of actions is asked about actions"
            found = torch.cat([found, self.actions(actions)], -1)
        values: Tensor = self.trunk(found)
        return values.float()


class Mlp(Network):
    """Encoded observations through hidden layers of given widths: the network of behaviour cloning."""

    schema: ClassVar[Mapping[str, Any]] = {"properties": schema_of(MlpKeys)}

    def features(self, observation_space: Space, *, uint8_scaling: str = BY_BOUNDS) -> Any:
        return _Hidden(observation_space, self.options["hidden"], self.options["activation"], uint8_scaling)

    def policy(
        self, observation_space: Space, action_space: Space, *, action_scale: str, uint8_scaling: str = BY_BOUNDS
    ) -> RLModule:
        return build_module(
            observation_space,
            action_space,
            hidden=self.options["hidden"],
            activation=self.options["activation"],
            action_scale=action_scale,
            uint8_scaling=uint8_scaling,
            seed=None,
        )

    def critic(
        self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1, uint8_scaling: str = BY_BOUNDS
    ) -> Critic:
        encoder = ObservationEncoder(observation_space, uint8_scaling=uint8_scaling)
        hidden, activation = self.options["hidden"], self.options["activation"]
        return Critic(encoder, action_space, lambda width: mlp([width, *hidden, outputs], activation))


class _Hidden(nn.Module):
    def __init__(self, space: Space, hidden: Sequence[int], activation: str, uint8_scaling: str) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(space, uint8_scaling=uint8_scaling)
        self.network = mlp([self.encoder.size, *hidden], activation)
        self.size = hidden[-1] if hidden else self.encoder.size
        if hidden:
            self.network.append(ACTIVATIONS[activation]())

    def forward(self, observations: Tree) -> Tensor:
        found: Tensor = self.network(self.encoder(observations))
        return found
