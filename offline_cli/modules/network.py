"""Networks by their name in the `[network]` table: built-in, from other packages (`offline_cli.networks`), or the user's code,
`python:package.module:build`.

A network builds the policy of a run (`FeaturePolicy`), and the value functions of its algorithm (`Critic`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from offline_cli.choices import ACTIVATION, HIDDEN, Activation
from offline_cli.columns import Columns
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import CLONING, ActionHead, GaussianForm, build_head, network_space
from offline_cli.modules.encoders import NATURE, ObservationEncoder, after_layer, mlp
from offline_cli.modules.policy_modules import build_module, build_recurrent_module
from offline_cli.modules.python_network import OwnPolicy, made_by
from offline_cli.modules.rl_module import RLModule
from offline_cli.plugins import NETWORKS, PYTHON, named_code, network_of_run, package_of, registered_class, the_class
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves

__all__ = ["LAYERS", "MLP", "OURS", "Critic", "Mlp", "Network", "PythonNetwork", "network_kind", "network_package"]

MLP: Final = "mlp"


class Network(ABC):
    """A kind of network. Subclasses define `features`, and `schema` if they have options.

    Modules are built on the CPU from torch's random generator, which the caller seeds.
    """

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}  # a JSON Schema; `properties` are the options of the table
    action_space: Space | None = None  # of the run; set before modules are built

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: validated by the schema, defaults filled in."""
        self.options = dict(options)

    @abstractmethod
    def features(self, observation_space: Space) -> Any:
        """Build a module from observations (B, ...) to features (B, `size`). `ObservationEncoder` encodes any space."""

    def policy(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        action_scale: str,
        gaussian: GaussianForm = CLONING,
    ) -> RLModule:
        """Build a policy for these spaces; `gaussian` applies to Box actions.

        Raises UnsupportedSpace; BadConfig for Box actions of unknown scale, and for an invalid `features` module.
        """
        head = build_head(action_space, action_scale=action_scale, form=gaussian)
        return FeaturePolicy(observation_space, action_space, head, self._sized(self.features(observation_space)))

    def critic(self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1) -> Critic:
        """Build a value function of observations and, with an `action_space`, of actions. Raises like `policy`."""
        features = self._sized(self.features(observation_space))

        def trunk(width: int) -> nn.Module:
            last = nn.Linear(features.size, outputs)
            return last if action_space is None else nn.Sequential(nn.Linear(width, features.size), nn.ReLU(), last)

        return Critic(features, action_space, trunk)

    def with_layer_norm(self) -> Network:
        """The same network with layer norm after its hidden layers. Raises BadConfig if the network does not support it."""
        fix = f"use the network {MLP!r}, or leave that option out"
        raise BadConfig(f"the network {type(self).__name__} does not support layer norm", where="[network]", fix=fix)

    def _sized(self, found: Any) -> Any:
        """Check that features are a module with a `size`. Raises BadConfig, naming the network."""
        size = getattr(found, "size", None)
        if isinstance(found, nn.Module) and isinstance(size, (int, np.integer)) and size > 0:
            return found
        what = f"network {type(self).__name__}: features() returns a {type(found).__name__} of size {size!r}"
        fix = "return an nn.Module with size, its number of features"
        raise BadConfig(what, where=f"network {type(self).__name__}", fix=fix)


def _features(features: Any, observations: Tree) -> Tensor:
    """(B, size). Raises BadConfig if the module returns anything else."""
    found = features(observations)
    if isinstance(found, Tensor) and found.shape[1:] == (features.size,):
        return found
    wanted = (len(leaves(observations)[0]), features.size)
    name = f"{type(features).__module__}.{type(features).__qualname__}"
    shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    what = f"the network's features {name} return {shown}; their size requires shape {wanted}"
    raise BadConfig(what, where=f"network of {name}", fix="set self.size to the number of features that forward returns")


class FeaturePolicy(RLModule):
    """Features and one linear layer to the action head's inputs."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, features: Any) -> None:
        super().__init__(observation_space, action_space, head)
        self.features = features
        self.last = nn.Linear(features.size, head.size)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.last(_features(self.features, batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


class Critic(nn.Module):
    """V(s) or Q(s, a): (B, outputs) float32 from observations (B, ...) and actions (B, ...) in network units."""

    def __init__(self, features: Any, action_space: Space | None, trunk: Callable[[int], nn.Module]) -> None:
        """`trunk`: builds the layers from the concatenated features and encoded actions, of the given width, to the outputs."""
        super().__init__()
        self.features = features
        self.actions = None if action_space is None else ObservationEncoder(network_space(action_space))
        self.trunk = trunk(features.size + (0 if self.actions is None else self.actions.size))

    def forward(self, observations: Tree, actions: Tree | None = None) -> Tensor:
        """`actions`: required if the critic has an action space, else None."""
        found = _features(self.features, observations)
        if self.actions is not None:
            assert actions is not None, "this critic needs actions"
            found = torch.cat([found, self.actions(actions)], -1)
        values: Tensor = self.trunk(found)
        return values.float()


def _count(description: str, **more: Any) -> dict[str, Any]:
    return {"description": description, "type": "integer", "minimum": 1, **more}


LAYERS: Final[dict[str, Any]] = {
    "hidden": {
        "description": "Widths of the hidden layers.",
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "default": [*HIDDEN],
    },
    "dropout": {
        "description": "Dropout probability after each hidden layer. Default: none.",
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
    },
    "layer_norm": {"description": "Layer norm after each hidden layer. Default: off.", "type": "boolean"},
    "activation": {
        "description": "Activation between hidden layers; linear, as in RLlib, is none.",
        "enum": [*get_args(Activation)],
        "default": ACTIVATION,
    },
}
"""Options of the network mlp that are top-level keys of the config file too."""
ENCODER: Final[dict[str, Any]] = {
    "encoder": {
        "description": "Image encoder: nature, or one from a package. Default: nature.",
        "type": "string",
        "minLength": 1,
    },
}
MEMORY: Final[dict[str, Any]] = {
    "memory": {"description": "Recurrent cell after the hidden layers, trained on sequences.", "enum": ["lstm", "gru"]},
    "memory_size": _count("Size of a recurrent layer's state.", default=256),
    "memory_layers": _count("Recurrent layers.", default=1),
    "max_seq_len": _count("Steps per sequence of backpropagation through time.", default=20),
}


class Mlp(Network):
    """Encoded observations through hidden layers: the network of behaviour cloning.

    With `memory` the policy has recurrent cells after the hidden layers; critics have none.
    """

    schema: ClassVar[Mapping[str, Any]] = {
        "properties": LAYERS | ENCODER | MEMORY,
        "dependentRequired": {name: ["memory"] for name in MEMORY if name != "memory"},
    }

    def features(self, observation_space: Space) -> Any:
        return _Hidden(self._encoder(observation_space), self.options["hidden"], self._between())

    def _encoder(self, observation_space: Space) -> ObservationEncoder:
        return ObservationEncoder(observation_space, encoder=self.options.get("encoder", NATURE))

    def _between(self) -> dict[str, Any]:
        """Keyword arguments of `mlp`: activation, dropout, layer norm."""
        return {name: self.options[name] for name in ("activation", "dropout", "layer_norm") if name in self.options}

    def with_layer_norm(self) -> Network:
        return Mlp({**self.options, "layer_norm": True})

    def policy(self, observation_space: Space, action_space: Space, **form: Any) -> RLModule:
        build = build_recurrent_module if "memory" in self.options else build_module
        return build(observation_space, action_space, seed=None, **self.options, **form)

    def critic(self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1) -> Critic:
        encoder = self._encoder(observation_space)
        hidden, between = self.options["hidden"], self._between()
        return Critic(encoder, action_space, lambda width: mlp([width, *hidden, outputs], **between))


class _Hidden(nn.Module):
    def __init__(self, encoder: ObservationEncoder, hidden: Sequence[int], between: Mapping[str, Any]) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = mlp([self.encoder.size, *hidden], **between)
        self.size = hidden[-1] if hidden else self.encoder.size
        if hidden:
            self.network.append(after_layer(self.size, **between))

    def forward(self, observations: Tree) -> Tensor:
        found: Tensor = self.network(self.encoder(observations))
        return found


class PythonNetwork(Network):
    """A network from the user's `build` object, named `name`: a policy (`python_network.py`), or features with a `size`."""

    name: ClassVar[str]
    build: ClassVar[tuple[Any]]  # the object, in a tuple: a function would become a method
    schema: ClassVar[Mapping[str, Any]] = {"properties": {}, "additionalProperties": True}

    def features(self, observation_space: Space) -> Any:
        made = made_by(self.build[0], self.name, observation_space, self.action_space, self.options)
        if hasattr(made, "size") and not isinstance(made, RLModule):
            return made
        what = f"the module of {self.name} is a policy, but the algorithm also needs value functions"
        fix = (
            "use train-bc, a module of features with their number as `size`, or a class of offline_cli.modules.network.Network"
        )
        raise BadConfig(what, where=f"--network {self.name}", fix=fix)

    def policy(
        self, observation_space: Space, action_space: Space, *, action_scale: str, gaussian: GaussianForm = CLONING
    ) -> RLModule:
        """See Network."""
        self.action_space = action_space
        head = build_head(action_space, action_scale=action_scale, form=gaussian)
        made = made_by(self.build[0], self.name, observation_space, action_space, self.options)
        if not hasattr(made, "size") and not any(one.requires_grad for one in made.parameters()):
            what = f"the network of {self.name} has no trainable parameters"
            raise BadConfig(what, where=f"--network {self.name}", fix="build its layers in __init__")
        if isinstance(made, RLModule):
            made.action_head = head
            return made
        if hasattr(made, "size"):
            return FeaturePolicy(observation_space, action_space, head, self._sized(made))
        return OwnPolicy(observation_space, action_space, head, made)


OURS: Final[dict[str, type[Network]]] = {MLP: Mlp}


def network_kind(name: str, *, named: Collection[str] | None = None) -> type[Network]:
    """The network class called `name`. `named`: packages and `python:` names that may be imported; None: any.

    Raises as `registered_class` does, and BadConfig for code that is not in `named`.
    """
    if name in OURS:
        return OURS[name]
    if not name.startswith(PYTHON):
        return registered_class(NETWORKS, name, Network, ours=OURS, named=named)  # type: ignore[type-abstract]
    path = name if named is None else network_of_run(name, named)
    found = named_code(path, option="--network", kind="build")
    if isinstance(found, type) and issubclass(found, Network):
        return the_class(found, Network, path, where=f"--network {path}")  # type: ignore[type-abstract]
    return type("PythonNetwork", (PythonNetwork,), {"name": path, "build": (found,)})


def network_package(name: str) -> str | None:
    """The package that registered the network; None for built-in and unknown networks."""
    return None if name in OURS else package_of(NETWORKS, name)
