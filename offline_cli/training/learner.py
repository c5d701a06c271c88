"""An algorithm with its modules, for one run: made from configuration and spaces, moved, saved and restored as a whole.

`check_losses` and `differentiating` report mistakes of an algorithm's author by name: whether the losses of a group can be
minimised.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from offline_cli.errors import BadConfig
from offline_cli.modules.encoders import BY_BOUNDS
from offline_cli.modules.network import Network, network_kind
from offline_cli.modules.rl_module import RLModule
from offline_cli.plugins import plugin_behind
from offline_cli.spaces import Space
from offline_cli.training.algorithms.algorithm import BC, POLICY, Algorithm, Group, Task, algorithm_kind, own_algorithms
from offline_cli.training.config import BCConfig

__all__ = ["Learner", "Setup", "check_losses", "cloning_learner", "differentiating", "misnamed"]

SHORTAGE: Final = ("allocat", "out of memory")  # words of errors that are of the machine
WANTED = "it must be a scalar tensor with a gradient"


def check_losses(losses: Any, names: Collection[str], kind: str) -> None:
    """Raise BadConfig unless `losses`, of a group that announces `names`, are scalar tensors by these names, one of them with a
    gradient. `kind`: the algorithm's class.
    """
    if not isinstance(losses, Mapping):
        announced = ", ".join(map(repr, names))
        what = f"the loss of a group gives {_said(losses)}; it must be a dict with the losses {announced}"
        raise _wrong(kind, what, 'return {"name": loss} with a name for each loss')
    if losses.keys() != set(names):
        raise misnamed(losses, names, kind)
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            fix = "return it as torch made it, without float() or .item()"
            raise _wrong(kind, f"loss {name!r} is {_said(loss)}; {WANTED}", fix)
        if loss.shape != ():
            what = f"loss {name!r} has shape {tuple(loss.shape)}; {WANTED}"
            raise _wrong(kind, what, 'sum it over rows, weighted: torch.dot(rows, batch["weights"])')
    if not any(loss.requires_grad for loss in losses.values()):
        fix = "make it of what the group's modules give, without detach() or torch.no_grad()"
        raise _wrong(kind, f"loss {next(iter(losses))!r} has no gradient; {WANTED}", fix)


@contextmanager
def differentiating(kind: str) -> Iterator[None]:
    """Within it the gradients of an algorithm's losses are computed; BadConfig is raised where torch cannot.

    An error that code of a package raises on the way stays what it is: it names the package and the line.
    """
    try:
        yield
    except RuntimeError as err:
        if plugin_behind(err) is not None or any(word in str(err).lower() for word in SHORTAGE):
            raise
        fix = "leave tensors that a gradient needs as they are: no in-place operation on them, in the loss or in a network"
        raise _wrong(kind, f"its losses have no gradient that can be computed: {err}", fix) from err


def misnamed(losses: Mapping[str, Any], names: Collection[str], kind: str) -> BadConfig:
    """The error for losses under other names than a group announces."""
    what = f"{kind} announces the losses {list(names)} of a group, and gives {list(losses)}"
    return BadConfig(what, where=f"algorithm {kind}", fix="give each loss under the name that its Group has for it")


def _wrong(kind: str, what: str, fix: str) -> BadConfig:
    return BadConfig(f"algorithm {kind}: {what}", where=f"algorithm {kind}", fix=fix)


def _said(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What a run learns by, known before any data."""

    algorithm: Algorithm
    network: Network
    seed: int = 0
    uint8_scaling: str = BY_BOUNDS
    log_std: tuple[float | None, float | None] = (None, None)  # see Task

    @classmethod
    def of(cls, config: BCConfig) -> Self:
        """What a resolved configuration names."""
        options = {name: value for name, value in config.algorithm.items() if name != "name"}
        algorithm = algorithm_kind(config.algorithm["name"])(options)
        network = network_kind(config.network["name"])(config.network_options)
        return cls(algorithm, network, config.seed, log_std=(config.log_std_min, config.log_std_max))

    def learner(self, observation_space: Space, action_space: Space, action_scale: str) -> Learner:
        """Fresh modules for these spaces, which follow from the seed. Raises BadConfig, UnsupportedSpace."""
        self.algorithm.check(observation_space, action_space)
        made_by = self.network, self.seed, self.uint8_scaling, self.log_std
        task = Task(observation_space, action_space, action_scale, *made_by)
        return Learner.of(self.algorithm, task)


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """An algorithm and the modules it has made."""

    algorithm: Algorithm
    modules: Mapping[str, nn.Module]
    groups: Sequence[Group]

    @classmethod
    def of(cls, algorithm: Algorithm, task: Task) -> Self:
        """Raises BadConfig for an algorithm whose modules and groups do not fit together, which is its author's mistake."""
        modules = algorithm.modules(task)
        kind = type(algorithm).__name__
        where = f"algorithm {kind}"
        if next(iter(modules), None) != POLICY or modules[POLICY] is not task.made:
            fix = f"return {{{POLICY!r}: task.policy(), ...}}: run folders keep what is made there"
            raise BadConfig(f"{kind}.modules gives no {POLICY!r} first, made by task.policy()", where=where, fix=fix)
        groups = list(algorithm.groups(modules))
        unknown = [name for group in groups for name in group.modules if name not in modules]
        if unknown or not groups:
            fix = f"one of {', '.join(modules)}"
            raise BadConfig(f"{kind}.groups names the module {unknown[0] if unknown else None!r}", where=where, fix=fix)
        grouped = [name for group in groups for name in group.modules]
        losses = [name for group in groups for name in group.losses]
        twice = [name for name in (*grouped, *losses) if grouped.count(name) > 1 or losses.count(name) > 1]
        if twice:
            fix = "one group for each module, and another name for each loss"
            raise BadConfig(f"{kind}.groups names {twice[0]!r} twice", where=where, fix=fix)
        learner = cls(algorithm, modules, groups)
        stepped = [(id(parameter), name) for group in groups for name, parameter in learner.parameters_of(group)]
        counts = Counter(number for number, _ in stepped)
        shared = [name for number, name in stepped if counts[number] > 1]
        if shared:
            fix = "modules that share parameters belong in one group"
            raise BadConfig(f"{kind} has {shared[0]} stepped by two groups", where=where, fix=fix)
        return learner

    @property
    def policy(self) -> RLModule:
        policy = self.modules[POLICY]
        assert isinstance(policy, RLModule), "made by task.policy()"
        return policy

    @property
    def losses(self) -> list[str]:
        """The names of all losses."""
        return [name for group in self.groups for name in group.losses]

    @property
    def whole(self) -> nn.Module:
        """All modules as one, to count or move their weights."""
        return nn.ModuleList(self.modules.values())

    def rl_module(self) -> nn.Module:
        """What connector pieces get, on the CPU, as their columns are: a copy where the modules are elsewhere."""
        module = self.algorithm.rl_module(self.modules)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        return module if is_on_cpu else copy.deepcopy(module).cpu()

    def to(self, device: torch.device) -> None:
        """Move every module there, ready to train."""
        self.whole.to(device).train()

    def parameters_of(self, group: Group) -> list[tuple[str, nn.Parameter]]:
        """Each parameter that requires a gradient, once, with a name for errors. Raises BadConfig for none."""
        prefixed = len(self.modules) > 1
        named = [
            (f"{module}.{name}" if prefixed else name, parameter)
            for module in group.modules
            for name, parameter in self.modules[module].named_parameters()
            if parameter.requires_grad
        ]
        if not named:
            what = f"the group of {', '.join(group.modules)} has no parameter to train"
            raise BadConfig(what, where=f"algorithm {type(self.algorithm).__name__}", fix="leave that group out")
        return list({id(parameter): (name, parameter) for name, parameter in named}.values())

    def state(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers of all modules, by `module.name`, in place: `copy_` into them."""
        states = {module: part.state_dict() for module, part in self.modules.items()}
        return {f"{module}.{name}": tensor for module, state in states.items() for name, tensor in state.items()}

    def others(self) -> dict[str, Tensor]:
        """Of `state` what belongs to no group: target copies and buffers."""
        stepped = {parameter.data_ptr() for group in self.groups for _, parameter in self.parameters_of(group)}
        return {name: tensor for name, tensor in self.state().items() if tensor.data_ptr() not in stepped}


def cloning_learner(policy: RLModule) -> Learner:
    """Behaviour cloning of an existing policy."""
    algorithm = own_algorithms(BC)[BC]({})
    modules = {POLICY: policy}
    return Learner(algorithm, modules, algorithm.groups(modules))
