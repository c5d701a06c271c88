"""Kinds of networks by the name that a `[network]` table gives: ours, those of other packages (`offline_cli.networks`), and the
user's own code, `python:package.module:build`.

What the table names makes the policy of a run (`FeaturePolicy`), and the value functions of its algorithm (`Critic`).
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
from offline_cli.modules.encoders import AUTO, NATURE, ImageForm, ObservationEncoder, after_layer, mlp
from offline_cli.modules.policy_modules import build_module, build_recurrent_module
from offline_cli.modules.python_network import check_policy, made_by, own_policy
from offline_cli.modules.rl_module import RLModule
from offline_cli.plugins import NETWORKS, PYTHON, named_code, network_of_run, package_of, registered_class, the_class
from offline_cli.spaces import Space
from offline_cli.trees import Tree, leaves

__all__ = ["LAYERS", "MLP", "OURS", "Critic", "Mlp", "Network", "PythonNetwork", "network_kind", "network_package"]

MLP: Final = "mlp"


class Network(ABC):
    """A kind of network. Subclasses define `features`, and `schema` where they have options.

    Everything is made on the CPU from torch's random generator, which the caller has seeded.
    """

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}  # a JSON Schema; `properties` are the options of the table
    action_space: Space | None = None  # of the run, once modules are made for one

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: checked by the schema, its defaults filled in."""
        self.options = dict(options)

    @abstractmethod
    def features(self, observation_space: Space) -> Any:
        """A fresh module from observations (B, ...) to features (B, `size`). `ObservationEncoder` encodes any space."""

    def policy(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        action_scale: str,
        gaussian: GaussianForm = CLONING,
    ) -> RLModule:
        """A fresh policy over these spaces; `gaussian`: of Box actions.

        Raises UnsupportedSpace; BadConfig for Box actions of unknown scale, and for
        `features` that are none.
        """
        head = build_head(action_space, action_scale=action_scale, form=gaussian)
        return FeaturePolicy(observation_space, action_space, head, self._sized(self.features(observation_space)))

    def critic(self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1) -> Critic:
        """A fresh value function of observations, or of both where `action_space` is given. Raises as `policy` does."""
        features = self._sized(self.features(observation_space))

        def trunk(width: int) -> nn.Module:
            last = nn.Linear(features.size, outputs)
            return last if action_space is None else nn.Sequential(nn.Linear(width, features.size), nn.ReLU(), last)

        return Critic(features, action_space, trunk)

    def with_layer_norm(self) -> Network:
        """The same network with layer norm after its hidden layers. Raises BadConfig for networks that have none."""
        fix = f"the network {MLP!r}, or leave that option out"
        raise BadConfig(f"the network {type(self).__name__} has no layer norm to add", where="[network]", fix=fix)

    def _sized(self, found: Any) -> Any:
        """Features, once they are seen to be a module with a `size`. Raises BadConfig, naming the network."""
        size = getattr(found, "size", None)
        if isinstance(found, nn.Module) and isinstance(size, (int, np.integer)) and size > 0:
            return found
        what = f"network {type(self).__name__}: features gives a {type(found).__name__} of size {size!r}"
        fix = "return an nn.Module with size, the number of features that it makes"
        raise BadConfig(what, where=f"network {type(self).__name__}", fix=fix)


def _features(features: Any, observations: Tree) -> Tensor:
    """(B, size). Raises BadConfig where the module gives something else."""
    found = features(observations)
    if isinstance(found, Tensor) and found.shape[1:] == (features.size,):
        return found
    wanted = (len(leaves(observations)[0]), features.size)
    name = f"{type(features).__module__}.{type(features).__qualname__}"
    shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    what = f"the network's features {name} give {shown}; by their size they must be of shape {wanted}"
    raise BadConfig(what, where=f"network of {name}", fix="set self.size to the number of features that forward gives")


class FeaturePolicy(RLModule):
    """Features, and one linear layer to the action head's inputs."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, features: Any) -> None:
        super().__init__(observation_space, action_space, head)
        self.features = features
        self.last = nn.Linear(features.size, head.size)

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs: Tensor = self.last(_features(self.features, batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: outputs.float()}


class Critic(nn.Module):
    """V(s) or Q(s, a): (B, outputs) float32 of observations (B, ...), and of actions (B, ...) in the units of networks."""

    def __init__(self, features: Any, action_space: Space | None, trunk: Callable[[int], nn.Module]) -> None:
        """`trunk`: makes the layers after the features and encoded actions, of that width side by side, to the outputs."""
        super().__init__()
        self.features = features
        self.actions = None if action_space is None else ObservationEncoder(network_space(action_space))
        self.trunk = trunk(features.size + (0 if self.actions is None else self.actions.size))

    def forward(self, observations: Tree, actions: Tree | None = None) -> Tensor:
        """`actions`: given where the critic was made for an action space, and only there."""
        found = _features(self.features, observations)
        if self.actions is not None:
            assert actions is not None, "a critic of actions is asked about actions"
            found = torch.cat([found, self.actions(actions)], -1)
        values: Tensor = self.trunk(found)
        return values.float()


def _count(description: str, minimum: int = 1, **more: Any) -> dict[str, Any]:
    return {"description": description, "type": "integer", "minimum": minimum, **more}


LAYERS: Final[dict[str, Any]] = {
    "hidden": {
        "description": "Widths of the hidden layers.",
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "default": [*HIDDEN],
    },
    "dropout": {
        "description": "Share of each hidden layer's outputs that an update leaves out. Default: none.",
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
    },
    "layer_norm": {"description": "Normalise the outputs of each hidden layer. Default: off.", "type": "boolean"},
    "activation": {
        "description": "Activation between hidden layers; linear, as in RLlib, is none.",
        "enum": [*get_args(Activation)],
        "default": ACTIVATION,
    },
}
"""Options of the network mlp that are keys of the config file as well."""
IMAGES: Final[dict[str, Any]] = {
    "encoder": {
        "description": "Encoder of images: nature, impala, or one that a package registers. Default: nature.",
        "type": "string",
        "minLength": 1,
    },
    "images": {
        "description": "Axes of images: height, width and channels in this order; none: there are no images. "
        "Default: auto, by their shape.",
        "enum": ["auto", "hw", "hwc", "chw", "none"],
    },
}
MEMORY: Final[dict[str, Any]] = {
    "memory": {"description": "Recurrent cells after the hidden layers, trained on sequences.", "enum": ["lstm", "gru"]},
    "memory_size": _count("Size of a recurrent layer's state.", default=256),
    "memory_layers": _count("Recurrent layers.", default=1),
    "max_seq_len": _count("Steps of a sequence, over which gradients go back.", default=20),
    "burn_in": _count("Steps before a sequence that the memory sees and the loss does not.", 0, default=0),
}


class Mlp(Network):
    """Encoded observations through hidden layers of given widths: the network of behaviour cloning.

    With `memory` the policy has cells after these that remember; critics have none.
    """

    schema: ClassVar[Mapping[str, Any]] = {
        "properties": LAYERS | IMAGES | MEMORY,
        "dependentRequired": {name: ["memory"] for name in MEMORY if name != "memory"},
    }

    def features(self, observation_space: Space) -> Any:
        encoder = ObservationEncoder(observation_space, images=self.images)
        return _Hidden(encoder, self.options["hidden"], self._between())

    @property
    def images(self) -> ImageForm:
        """What its options say of images."""
        return ImageForm(self.options.get("images", AUTO), self.options.get("encoder", NATURE))

    def _between(self) -> dict[str, Any]:
        """How `mlp` makes what is between its layers."""
        return {name: self.options[name] for name in ("activation", "dropout", "layer_norm") if name in self.options}

    def with_layer_norm(self) -> Network:
        return Mlp({**self.options, "layer_norm": True})

    def policy(self, observation_space: Space, action_space: Space, **form: Any) -> RLModule:
        build = build_recurrent_module if "memory" in self.options else build_module
        options = {name: value for name, value in self.options.items() if name not in IMAGES}
        return build(observation_space, action_space, seed=None, images=self.images, **options, **form)

    def critic(self, observation_space: Space, action_space: Space | None = None, *, outputs: int = 1) -> Critic:
        encoder = ObservationEncoder(observation_space, images=self.images)
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
    """What `build`, an object called `name`, makes: a policy (`python_network.py`), or, of a module with `size`, features."""

    name: ClassVar[str]
    build: ClassVar[tuple[Any]]  # the object, in a tuple: a function would become a method
    schema: ClassVar[Mapping[str, Any]] = {"properties": {}, "additionalProperties": True}

    def features(self, observation_space: Space) -> Any:
        made = made_by(self.build[0], self.name, observation_space, self.action_space, self.options)
        if hasattr(made, "size") and not isinstance(made, RLModule):
            return made
        what = f"the module of {self.name} is a policy, and the algorithm needs values besides"
        fix = (
            "train-bc; or a module of features, with their number as `size`; or a class of offline_cli.modules.network.Network"
        )
        raise BadConfig(what, where=f"--network {self.name}", fix=fix)

    def policy(
        self, observation_space: Space, action_space: Space, *, action_scale: str, gaussian: GaussianForm = CLONING
    ) -> RLModule:
        """See Network; raises BadConfig for whatever the module does not keep of its contract."""
        self.action_space = action_space
        head = build_head(action_space, action_scale=action_scale, form=gaussian)
        made = made_by(self.build[0], self.name, observation_space, action_space, self.options)
        if isinstance(made, RLModule) or not hasattr(made, "size"):
            return check_policy(own_policy(made, self.name, observation_space, action_space, head), self.name)
        return check_policy(FeaturePolicy(observation_space, action_space, head, self._sized(made)), self.name)


OURS: Final[dict[str, type[Network]]] = {MLP: Mlp}


def network_kind(name: str, *, named: Collection[str] | None = None) -> type[Network]:
    """The kind of that name. `named`: packages, and `python:` names, whose code may be imported; None: any, the user named it.

    Raises what `registered_class` raises, and BadConfig for code that is not `named`, with the option to give.
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
    """The package that registered the network; None: it is ours, or unknown."""
    return None if name in OURS else package_of(NETWORKS, name)
