"""Learner, an algorithm with its modules, and Update: losses, gradients and an Adam step for each group.

An update never synchronizes with the device. Therefore the moving average of weights is our own `lerp_`:
`swa_utils.AveragedModel` reads its counter from the GPU in each step. The learning rate depends on the update number, while
`LambdaLR` would count its own steps.
"""

from __future__ import annotations

import inspect
import itertools
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import gymnasium as gym
import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError, UsageError
from offline_cli.meanings import Meanings, joined
from offline_cli.modules.network import Network, network_kind
from offline_cli.modules.python_network import autocast
from offline_cli.modules.rl_module import RLModule, initial_state
from offline_cli.plugins import PYTHON, plugin_behind
from offline_cli.policies.run_policy import (
    MEANINGS,
    MODULES,
    NETWORK,
    OF_POLICY,
    STEPPED,
    LoadedPolicy,
    copy_into,
    load_policy,
    part,
    prefixed,
)
from offline_cli.spaces import Space, same_space
from offline_cli.storage.locations import Location
from offline_cli.training.algorithms.algorithm import BC, POLICY, Algorithm, Group, Task, algorithm_kind, own_algorithms
from offline_cli.training.config import BCConfig

__all__ = ["Learner", "Setup", "Start", "Update", "cloning_learner", "rate_factor"]

ASIDE: Final = ("dropout", "max_seq_len")  # network options that do not affect weights
BETAS: Final = (0.9, 0.999)
UNWRAPPED_STEP: Final = inspect.unwrap(torch.optim.AdamW.step)  # the wrapper imports torch's compiler: 60 MB and one second
LIKE_EAGER: Final[dict[str, Any]] = {"fallback_random": True}  # use torch's generators, which checkpoints store
NO_COMPILER: Final = ("InvalidCxxCompiler", "TritonMissing", "No working C++ compiler")
SHORTAGE: Final = ("allocat", "out of memory")  # words in errors about memory


# ---- an algorithm and its modules ----


@dataclass(frozen=True, slots=True, eq=False)
class Learner:
    """An algorithm with its modules and groups."""

    algorithm: Algorithm
    modules: Mapping[str, nn.Module]
    groups: Sequence[Group]
    policy: RLModule  # the first module
    is_stateful: bool  # the policy is recurrent

    @classmethod
    def of(cls, algorithm: Algorithm, task: Task) -> Self:
        """Build the modules and groups. Raises BadConfig if they do not fit together, which is a bug in the algorithm."""
        modules = algorithm.modules(task)
        kind = type(algorithm).__name__
        if next(iter(modules), None) != POLICY or modules[POLICY] is not task.made:
            fix = f"return {{{POLICY!r}: task.policy(), ...}}: run folders save this module"
            what = f"the first module of {kind}.modules is not {POLICY!r}, made by task.policy()"
            raise BadConfig(what, where=f"algorithm {kind}", fix=fix)
        if task.made.is_stateful() and not algorithm.learns_sequences:
            fix = "leave out memory, or use the algorithm bc"
            raise BadConfig(f"{kind} does not support recurrent networks", where="[network]", fix=fix)
        learner = cls(algorithm, modules, list(algorithm.groups(modules)), task.made, task.made.is_stateful())
        grouped = [name for group in learner.groups for name in group.modules]
        stepped = [] if {*grouped} - {*modules} else [[*learner.parameters_of(group)] for group in learner.groups]
        counts = Counter([*grouped, *(("loss", name) for name in learner.losses), *map(id, itertools.chain(*stepped))])
        if not stepped or not all(stepped) or max(counts.values()) > 1:
            what = f"{kind}.groups returns invalid groups: modules {grouped}, losses {learner.losses}"
            fix = f"use modules among {', '.join(modules)}, each module, parameter and loss in one group at most"
            raise BadConfig(what, where=f"algorithm {kind}", fix=f"{fix}, and trainable parameters in each group")
        return learner

    def before_sequences(self) -> dict[str, Any]:
        """`state_in` of a recurrent policy, leaves (...) for one row; empty for others.

        Each sequence starts with the initial state, because recorded states belong to the network that played.
        """
        return {Columns.STATE_IN: initial_state(self.policy)} if self.is_stateful else {}

    @property
    def losses(self) -> list[str]:
        """Names of all losses."""
        return [name for group in self.groups for name in group.losses]

    @property
    def whole(self) -> nn.Module:
        """All modules in one container, to count or move weights."""
        return nn.ModuleList(self.modules.values())

    def parameters_of(self, group: Group) -> dict[nn.Parameter, str]:
        """The group's trainable parameters with their names in checkpoints."""
        return {
            parameter: f"{module}.{name}" if len(self.modules) > 1 else name
            for module in group.modules
            for name, parameter in self.modules[module].named_parameters()
            if parameter.requires_grad
        }

    def state(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers of all modules, by `module.name`, not copied: restore with `copy_`."""
        states = {module: part.state_dict() for module, part in self.modules.items()}
        return {f"{module}.{name}": tensor for module, state in states.items() for name, tensor in state.items()}

    def others(self) -> dict[str, Tensor]:
        """The entries of `state` that no optimizer changes: target networks and buffers."""
        stepped = {parameter.data_ptr() for group in self.groups for parameter in self.parameters_of(group)}
        return {name: tensor for name, tensor in self.state().items() if tensor.data_ptr() not in stepped}


def cloning_learner(policy: RLModule) -> Learner:
    """A Learner for behaviour cloning with an existing policy."""
    algorithm = own_algorithms(BC)[BC]({})
    modules = {POLICY: policy}
    return Learner(algorithm, modules, algorithm.groups(modules), policy, policy.is_stateful())


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """Algorithm, network and initial weights of a run, determined before any data is read."""

    algorithm: Algorithm
    network: Network
    seed: int = 0
    start: Start | None = None  # None: random weights
    learned: Mapping[str, Any] | None = None  # fixed state of connector pieces, by name; None: learn it from the data
    log_std: tuple[float | None, float | None] = (None, None)  # see Task

    @classmethod
    def of(cls, config: BCConfig) -> Self:
        """From a resolved configuration. Raises BadConfig for streaming with an algorithm that recomputes columns."""
        options = {**config.algorithm}
        algorithm = algorithm_kind(options.pop("name"))(options)
        if config.streaming and algorithm.refresh_every is not None:
            what = f"{config.algorithm['name']} recomputes its columns from episodes in memory"
            fix = "leave out --streaming, or compute columns once: --set refresh_every=0"
            raise BadConfig(what, where="--streaming", fix=fix)
        network = network_kind(config.network["name"])(config.network_options)
        return cls(algorithm, network, config.seed, log_std=(config.log_std_min, config.log_std_max))

    def learner(self, observation_space: Space, action_space: Space, action_scale: str, pieces: str = "") -> Learner:
        """Build the modules for these spaces, with weights from the seed, or from `start`. `pieces`: name of the policy's
        pipeline.

        Raises BadConfig, listing all differences from `start`; UnsupportedSpace.
        """
        self.algorithm.check(observation_space, action_space)
        task = Task(observation_space, action_space, action_scale, self.network, self.seed, log_std=self.log_std)
        learner = Learner.of(self.algorithm, task)
        if self.start is None:
            return learner
        self.start.check(task, learner, pieces)
        learner = Learner.of(self.algorithm, replace(task, weights=self.start.loaded.module.state_dict()))
        for name, tensors in self.start.shared(learner).items():
            copy_into(learner.modules[name].state_dict(), tensors)
        return learner


# ---- modules of another run ----


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The run of `--init-from`: its policy, and other modules of its last checkpoint if the algorithm is the same.

    The state of its connector pieces is kept and frozen: with other statistics the policy would see other inputs than in
    training.
    """

    url: str
    loaded: LoadedPolicy
    others: Mapping[str, Tensor]  # by `module.name`; empty for another algorithm
    network: Mapping[str, Any]  # network of the new run

    @classmethod
    def of(
        cls,
        place: Location,
        config: BCConfig,
        theirs: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        *,
        plugins: Sequence[str],
        out: str,
    ) -> Self:
        """Load the policy of the run in `place`, which has the configuration `theirs` and the `tensors` in its checkpoint.

        `out`: URL of the new run. Raises like `load_policy`, UsageError if it is `out` itself.
        """
        if place.url == out:
            fix = "use another --out, or --resume to train that run for longer"
            raise UsageError("a run cannot start from the run that it replaces", where=f"--init-from {place.url}", fix=fix)
        name = config.network["name"]  # code that the user named for this run may also serve that one
        loaded = load_policy(place, plugins=plugins, network=name if name.startswith(PYTHON) else None)
        is_same = theirs.get("algorithm", {}).get("name", BC) == config.algorithm["name"]
        others = part(tensors, MODULES) if is_same else {}
        return cls(place.url, loaded, others, {"name": name, **config.network_options})

    def check(self, task: Task, learner: Learner, pieces: str) -> None:
        """Raise BadConfig, listing all differences, if the run's policy does not fit this run."""
        theirs, described, trained = self.loaded.module, self.loaded.description, self.loaded.trained
        pairs: dict[str, tuple[Any, Any]] = {
            "observations": (theirs.observation_space, task.observation_space),
            "actions": (theirs.action_space, task.action_space),
            "action scale": (described["action_scale"], task.action_scale),
            "form of Box actions": (theirs.action_head.forms(), learner.policy.action_head.forms()),
            "learner pipeline": ("none" if trained is None else trained.in_words, pieces or "none"),
        }
        options = dict.fromkeys((*described[NETWORK], *self.network))
        pairs |= {f"network {one}": (described[NETWORK].get(one), self.network.get(one)) for one in options if one not in ASIDE}
        wrong = [
            f"{name}: the run has {one}, this one {other}"
            for name, (one, other) in pairs.items()
            if not (same_space(one, other) if isinstance(one, gym.Space) else one == other)
        ]
        if wrong:
            fix = "train with the data, network and pipeline of that run, or leave out --init-from"
            raise BadConfig.of(wrong, where=f"--init-from {self.url}", fix=fix)

    def check_meanings(self, meanings: Meanings, where: str) -> None:
        """Raise BadConfig, naming both sides and the first difference, if the meanings of observations or actions differ from
        those of the run. Rewards may differ.
        """
        both = ((self.url, Meanings.of(self.loaded.description.get(MEANINGS, {}), self.url)), (where, meanings))
        joined([(place, one.of_columns(Columns.OBS, Columns.ACTIONS)) for place, one in both])

    def shared(self, learner: Learner) -> dict[str, dict[str, Tensor]]:
        """By module: the run's tensors that have the same shape and dtype here."""
        held = {name: part(self.others, f"{name}.") for name in learner.modules if name != POLICY}
        return {name: one for name, one in held.items() if _forms(one) == _forms(learner.modules[name].state_dict())}

    def told(self, learner: Learner) -> dict[str, Any]:
        """JSON values: the run, and which modules come from it."""
        taken = [POLICY, *self.shared(learner)]
        fresh = [name for name in learner.modules if name not in taken]
        return {"run": self.url, "sha256": self.loaded.sha256, "modules": taken, "fresh": fresh}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


# ---- an update ----


class GroupState:
    """State of a group besides its parameters: Adam's state, allocated at the start so that it can be saved and restored in
    place; moving averages of the policy's weights; and `sums` of its losses, () each.
    """

    def __init__(self, learner: Learner, group: Group, *, lr: float, weight_decay: float, ema: float | None) -> None:
        self.group, self.ema = group, ema
        named = learner.parameters_of(group)
        self.parameters, device = list(named), next(iter(named)).device
        self.rate = lr if group.lr is None else group.lr
        self.lr = torch.tensor(float(self.rate), device=device)
        without = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
        if without is not None:  # mark it here, else torch imports its compiler to do so
            vars(without).setdefault("__dynamo_disable", without)
        how: dict[str, Any] = {"betas": BETAS, "weight_decay": weight_decay, "fused": True}
        self.adam = torch.optim.AdamW(self.parameters, lr=self.lr, **how)
        self.tensors: dict[str, Tensor] = {}  # Adam's state, by `parameter.name`
        for parameter, name in named.items():
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            self.adam.state[parameter] = {"step": torch.zeros((), device=device), **moments}
            self.tensors |= prefixed(f"{name}.", self.adam.state[parameter])
        of_policy = {id(parameter): name for name, parameter in learner.policy.named_parameters()}
        averaged = [one for one in self.parameters if id(one) in of_policy and ema is not None]
        self.averages = {of_policy[id(one)]: (one.detach().clone(), one) for one in averaged}  # (average, parameter) by name
        self.sums = {name: torch.zeros((), device=device) for name in group.losses}
        self.inputs = None if len(learner.modules) == 1 else self.parameters  # compute gradients of the group only

    def follow(self) -> None:
        """Update the moving averages after step n with decay min(ema, (1 + n) / (10 + n)), so that initial weights fade fast.
        Source: tf.train.ExponentialMovingAverage with `num_updates`.
        """
        if self.averages:
            steps = self.adam.state[self.parameters[0]]["step"]
            share = 1 - ((1 + steps) / (10 + steps)).clamp(max=self.ema)
            for average, parameter in self.averages.values():
                average.lerp_(parameter, share.to(parameter.dtype))


class Update:
    """Calling it trains the learner's modules on the current content of `batch`."""

    def __init__(
        self,
        learner: Learner,
        batch: Mapping[str, Any],
        *,
        lr: float,
        precision: str = "fp32",
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        ema: float | None = None,
        compile: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """`clip_norm`: maximum gradient norm over all parameters of a group. `ema`: decay of a moving average of the policy's
        weights; None: no average. `compile`: compile the losses with torch.compile.
        """
        self.learner, self.batch, self.precision, self.clip_norm, self.ranks = learner, batch, precision, clip_norm, ranks
        self.steps = [GroupState(learner, group, lr=lr, weight_decay=weight_decay, ema=ema) for group in learner.groups]
        self.device = self.steps[0].parameters[0].device
        self._compiled = {id(one): torch.compile(one.group.loss, options=LIKE_EAGER) for one in (self.steps if compile else ())}

    def __call__(self, number: int = 0) -> None:
        """Run update `number` (0-based): each group that is due takes a step.

        Raises BadConfig for losses that cannot be minimised; MissingPackage if `compile` finds no compiler. Exceptions of other
        packages' code pass through.
        """
        for one in self.steps:
            if (number + 1) % one.group.every == 0:
                try:
                    self._step(one)
                except OfflineCliError:  # as of a lost rank
                    raise
                except Exception as err:
                    trace = "".join(traceback.format_exception(err))
                    if plugin_behind(err) is not None or any(word in trace.lower() for word in SHORTAGE):
                        raise
                    kind = type(self.learner.algorithm).__name__
                    what = f"algorithm {kind}: the losses {list(one.sums)} cannot be minimised: {err}"
                    if any(name in trace for name in NO_COMPILER):
                        fix = "leave out --compile, or install g++ or clang++ (or set CXX), on a GPU triton"
                        raise MissingPackage(what, where="--compile", fix=fix) from err
                    fix = "check the layers of your network, and that losses are scalars with a gradient, by name"
                    raise BadConfig(what, where=f"algorithm {kind}", fix=fix) from err

    def _step(self, one: GroupState) -> None:
        """One step of a group: losses, gradients, all-reduce over ranks, Adam, averages and the `then` callback."""
        losses = self._losses(one, self._compiled.get(id(one), one.group.loss))
        self._backward(one, losses)
        for parameter in one.parameters:
            if parameter.grad is None:  # the loss does not depend on it in this step
                parameter.grad = torch.zeros_like(parameter)
        if self.ranks.count > 1:
            losses = self._exchanged(one, losses)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(one.parameters, self.clip_norm)
        with torch.no_grad():
            UNWRAPPED_STEP(one.adam)
            one.follow()
            for name, loss in losses.items():
                one.sums[name] += loss
            if one.group.then is not None:
                one.group.then()

    def _losses(self, one: GroupState, function: Callable[[Mapping[str, Any]], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        with autocast(self.device, self.precision):
            return function(self.batch)

    def _backward(self, one: GroupState, losses: Mapping[str, Tensor]) -> None:
        """Compute gradients of the summed losses."""
        for parameter in one.parameters:
            parameter.grad = None
        first, *others = losses.values()
        sum(others, start=first).backward(inputs=one.inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _exchanged(self, one: GroupState, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All-reduce gradients and losses over ranks; return the losses of the whole batch."""
        gradients = [parameter.grad for parameter in one.parameters if parameter.grad is not None]
        stacked = torch.stack([losses[name].detach() for name in one.sums]).to(gradients[0].dtype)
        together = self.ranks.sum_(torch.cat([*(gradient.reshape(-1) for gradient in gradients), stacked]))
        *parts, stacked = torch.split(together, [*(gradient.numel() for gradient in gradients), len(stacked)])
        for owner, part_ in zip(one.parameters, parts, strict=True):
            owner.grad = part_.view_as(owner)
        return dict(zip(one.sums, stacked.unbind(), strict=True))

    def scale_rates(self, factor: float) -> None:
        """Set learning rates to their base value times `factor`."""
        for step in self.steps:
            step.lr.fill_(step.rate * factor)

    # ---- the policy that is kept ----

    def _averages(self) -> dict[str, Tensor]:
        return {name: average for step in self.steps for name, (average, _) in step.averages.items()}

    def policy_state(self) -> dict[str, Tensor]:
        """Tensors of the policy that is checked and kept: parameters or their moving averages, and buffers; not copied."""
        return {**self.learner.policy.state_dict(), **self._averages()}

    @contextmanager
    def kept_policy(self) -> Iterator[None]:
        """Context manager: the learner's policy has the kept weights (moving averages)."""
        stepped, averages = self.learner.policy.state_dict(), self._averages()
        own = {name: stepped[name] for name in averages}
        with unchanged(list(own.values())):
            copy_into(own, averages)
            yield

    # ---- figures and checkpoint tensors ----

    def means(self, number: int, since: int) -> dict[str, float]:
        """Mean of each loss over the steps in the last `since` of `number` updates, without groups that took no step.

        Synchronizes with the device.
        """
        counts = [(step, number // step.group.every - (number - since) // step.group.every) for step in self.steps]
        return {name: float(total) / count for step, count in counts if count for name, total in step.sums.items()}

    def forget_losses(self) -> None:
        """Reset the sums of losses."""
        for step in self.steps:
            for total in step.sums.values():
                total.zero_()

    def is_finite(self) -> bool:
        """Whether all weights are finite; synchronizes with the device."""
        return all(bool(torch.isfinite(parameter).all()) for step in self.steps for parameter in step.parameters)

    def changing(self) -> dict[str, Tensor]:
        """All tensors that an update changes, by name, to save, and restore in place with `copy_`.

        With a moving average the policy's usual names refer to the average, so that playing a checkpoint plays the kept policy;
        the optimizer's weights have other names.
        """
        stepped, averages = self.learner.policy.state_dict(), self._averages()
        found = prefixed(MODULES, self.learner.state() | prefixed(OF_POLICY, averages))
        for number, step in enumerate(self.steps):
            found |= prefixed(f"adam.{number}.", step.tensors) | prefixed("sum.", step.sums)
        return found | prefixed(STEPPED, {name: stepped[name] for name in averages})


def rate_factor(number: int, *, schedule: str, warmup: int, bound: int) -> float:
    """Factor of the learning rate in update `number` (0-based) of `bound`: warm-up times `schedule`."""
    rising = min(1.0, (number + 1) / warmup) if warmup else 1.0
    passed = min(1.0, max(0, number - warmup) / max(1, bound - warmup))
    falling = {"constant": 1.0, "linear": 1.0 - passed, "cosine": 0.5 + 0.5 * math.cos(math.pi * passed)}
    return rising * falling[schedule]


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Context manager: restore the values of `tensors` in place."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
