"""Algorithm, what a run learns by: the columns it reads, the modules it makes, their losses, and what follows an update.

An algorithm knows no loop, file or device. Whatever an update changes is a parameter or a (persistent) buffer of its modules:
these are saved in checkpoints and moved to the device. Losses and what follows them never read a value back from the device,
nor branch on one, so that nothing waits for it, and all shapes are static, as torch.compile likes them.
"""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import CLONING, GaussianForm
from offline_cli.modules.network import Critic, Network
from offline_cli.modules.rl_module import RLModule
from offline_cli.plugins import ALGORITHMS, registered_class
from offline_cli.policies.policy import draw, for_torch
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["BC", "LOSS", "POLICY", "TD_COLUMNS", "TD_OPTIONS", "Algorithm", "Batch", "Group", "Modules", "StepValues", "Task"]
__all__ += ["algorithm_kind", "bootstraps", "cloning_scores", "each_value", "frozen_copy", "learned_steps", "move_towards"]
__all__ += ["number", "of_steps", "own_algorithms", "step_rows", "td_targets", "uses_rewards"]

AT_A_TIME: Final = 1 << 16  # observations whose values are computed together: each takes the widths of all layers
CRITIC_WEIGHTS = 15  # sets these seeds apart from others drawn from the same run seed

AnyModule = TypeVar("AnyModule", bound=nn.Module)

POLICY: Final = "policy"
LOSS: Final = "loss"
RESERVED: Final = frozenset(("", "val"))  # names that would give a column of metrics.jsonl a second meaning

Batch = Mapping[str, Any]
"""The algorithm's columns by name, each a tree of tensors (B, ...), and `weights` (B,) float32: sum 1, 0 in rows that pad.

Of a policy with memory they are sequences (B, T, ...), `weights` (B * T,), and `state_in` and `loss_mask` are there besides.
"""

Modules = Mapping[str, nn.Module]
"""Modules by name; the first is the policy, an RLModule."""

BC: Final = "bc"
OURS: Final = {
    BC: ("offline_cli.training.algorithms.bc", "BC"),
    "marwil": ("offline_cli.training.algorithms.marwil", "MARWIL"),
    "iql": ("offline_cli.training.algorithms.iql", "IQL"),
    "td3-bc": ("offline_cli.training.algorithms.td3_bc", "TD3BC"),
    "rebrac": ("offline_cli.training.algorithms.td3_bc", "ReBRAC"),
}


def number(description: str, default: float | None = None, **limits: Any) -> dict[str, Any]:
    """The schema of an option that is a number, from 0 on unless `limits` say otherwise."""
    low = {} if "exclusiveMinimum" in limits else {"minimum": 0}
    asked = {"description": description, "type": "number", **low, **limits}
    return asked if default is None else {**asked, "default": default}


TD_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
TD_OPTIONS: Final[Mapping[str, Any]] = {
    "gamma": number("Discount.", 0.99, maximum=1),
    "tau": number("Step of the target copies.", 0.005, maximum=1),
    "reward_scale": number("Factor of rewards.", 1.0, exclusiveMinimum=0),
    "reward_shift": {"description": "Added to rewards, once they are scaled.", "type": "number", "default": 0.0},
    "actor_lr": number("Learning rate of the policy. Default: the run's.", exclusiveMinimum=0),
    "critic_lr": number("Learning rate of the critics. Default: the run's.", exclusiveMinimum=0),
}
"""Options of algorithms that learn from TD_COLUMNS by temporal differences."""


@dataclass(slots=True, eq=False)
class Task:
    """Makes modules on the CPU; all weights follow from `seed`, and from the order in which modules are made."""

    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    network: Network
    seed: int = 0
    weights: Mapping[str, Tensor] | None = None  # that the policy begins with, and copies of it; None: fresh ones
    log_std: tuple[float | None, float | None] = (None, None)  # limits in place of the algorithm's; None: that stays
    made: RLModule | None = field(default=None, init=False)  # the policy, once it is there
    _critics: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.network.action_space = self.action_space

    def policy(self, gaussian: GaussianForm = CLONING) -> RLModule:
        """A policy over the spaces; `gaussian`: of Box actions. Raises UnsupportedSpace, and BadConfig for an unknown
        scale, and where `log_std` limits nothing.
        """
        gaussian = self._limited(gaussian)
        form = {} if gaussian == CLONING else {"gaussian": gaussian}  # networks of packages need not know of others
        with _seeded(self.seed):
            self.made = self.network.policy(
                self.observation_space,
                self.action_space,
                action_scale=self.action_scale,
                **form,
            )
        if self.weights is not None:
            self.made.load_state_dict(self.weights)
        return self.made

    def _limited(self, form: GaussianForm) -> GaussianForm:
        """`form` with the log standard deviation between `log_std`."""
        if self.log_std == (None, None):
            return form
        low, high = (own if asked is None else asked for asked, own in zip(self.log_std, form.log_std, strict=True))
        has_boxes = any(isinstance(leaf, spaces.Box) for leaf in leaf_spaces(self.action_space).values())
        if not has_boxes or form.log_std[0] == form.log_std[1] or low > high:
            what = f"log_std_min, log_std_max: actions are {describe(self.action_space)}"
            what += ", and the algorithm learns their log σ between {:g} and {:g}".format(*form.log_std) * has_boxes
            raise BadConfig(what, where="the policy", fix="leave them out, or change them")
        return replace(form, log_std=(low, high))

    def critic(self, *, of_actions: bool = False, outputs: int = 1, layer_norm: bool = False) -> Critic:
        """V(s), or Q(s, a) of actions in the units of networks: (B, outputs) float32. Each call gives other weights.

        `layer_norm`: whatever the network says; raises BadConfig for one without.
        """
        network = self.network.with_layer_norm() if layer_norm else self.network
        self._critics += 1
        with _seeded(draw(self.seed, CRITIC_WEIGHTS, self._critics)):
            actions = self.action_space if of_actions else None
            return network.critic(self.observation_space, actions, outputs=outputs)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(for_torch(seed))
        yield


def frozen_copy(module: AnyModule) -> AnyModule:
    """A copy with the same weights, without gradients."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, step: float) -> None:
    """Move each parameter of `target` by `step`, from 0 to 1, of the way to that of `source`; buffers are copied."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(theirs, step)
    for held, shown in zip(target.buffers(), source.buffers(), strict=True):
        held.copy_(shown)


def td_targets(batch: Batch, next_values: Tensor, options: Mapping[str, Any]) -> Tensor:
    """(B,) what Q(s, a) is fitted to: the reward, plus gamma times `next_values` (B,) of `new_obs`.

    Only a terminated step has no value after it: after a truncated one the episode would have gone on.
    """
    rewards = batch[Columns.REWARDS].float() * options["reward_scale"] + options["reward_shift"]
    goes_on = 1.0 - batch[Columns.TERMINATEDS].float()
    targets: Tensor = rewards + options["gamma"] * goes_on * next_values
    return targets


def each_value(critics: nn.Module, observations: Any, actions: Any) -> list[Tensor]:
    """(B,) of each critic in a ModuleList."""
    return [critic(observations, actions)[:, 0] for critic in critics.children()]


@dataclass(frozen=True, slots=True)
class Group:
    """Modules whose parameters are stepped together, by one Adam; groups are stepped one after the other, in their order."""

    modules: tuple[str, ...]
    losses: tuple[str, ...]  # the names of what `loss` gives; metrics.jsonl has each as `NAME_loss` where there are several
    loss: Callable[[Batch], Mapping[str, Tensor]]  # () each; their sum is minimised
    every: int = 1  # stepped in each `every`-th update: 2 in updates 2, 4, 6, ...
    lr: float | None = None  # None: the run's
    then: Callable[[], None] | None = None  # follows each step, without gradients: moves target copies, for example

    def __post_init__(self) -> None:
        wrong = [name for name in self.losses if name in RESERVED]
        if wrong or not (self.modules and self.losses and self.every > 0):
            raise ValueError(f"a group of modules {self.modules}, with losses {self.losses}, every {self.every} updates")


class Algorithm(ABC):
    """One way of learning. An object holds the run's options; modules come from `modules` and are passed back in."""

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}  # a JSON Schema; `properties` are the options of the table

    settings: ClassVar[Mapping[str, Any]] = {}  # keys of the configuration that it sets, where nothing else says them
    columns: tuple[str, ...] = (Columns.OBS, Columns.ACTIONS)  # that it learns from, of those the learner pipeline gives
    refresh_every: int | None = None  # updates after which the pipeline computes all columns anew; None: they stay
    needs_rewards: bool = False  # whether it learns from rewards, in whatever column; so it does if `columns` has them
    learns_sequences: bool = False  # whether its losses take a policy with memory, whose columns are (B, T, ...)

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: checked by the schema, its defaults filled in."""
        self.options = dict(options)

    def check(self, observation_space: Space, action_space: Space) -> None:  # noqa: B027  most algorithms learn in any
        """Raise BadConfig for spaces that the algorithm cannot learn in; called before any data is read."""

    def extend(self, pipeline: ConnectorPipelineV2) -> None:  # noqa: B027  the default pieces do for many
        """Add the connector pieces that make `columns` to the learner pipeline, which has the user's and the default pieces."""

    @abstractmethod
    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Fresh modules; the first is "policy", from `task.policy()`."""

    @abstractmethod
    def groups(self, modules: Modules) -> Sequence[Group]:
        """How the modules are fitted; a module in no group changes in a `then` alone."""

    def rl_module(self, modules: Modules) -> nn.Module:
        """What connector pieces get as `rl_module`: the policy, or a module that has `compute_values(batch)` for
        GeneralAdvantageEstimation.
        """
        return modules[POLICY]

    def scores(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        """How good the policy is on held-out rows, a tensor of any shape for each score; a check takes means over all rows.

        `loss` is what checks compare by: lower is better. Here it is the negative log-likelihood of the recorded actions, in
        nats; beside it `accuracy` or `mse` of greedy actions. Rows here do not pad, and there are no `weights`. `hits` (N, E),
        which of E discrete components were guessed right, is no score: a check makes the recall of each action of it.
        """
        return cloning_scores(modules[POLICY], batch)


class StepValues(nn.Module):
    """What GeneralAdvantageEstimation asks for values of single observations, beside a policy with or without a memory."""

    def __init__(self, policy: RLModule, value: nn.Module) -> None:
        """`value`: (N,) of observations (N, ...)."""
        super().__init__()
        self.policy, self.value, self.model_config = policy, value, policy.model_config

    def is_stateful(self) -> bool:
        """Whether episodes are cut into sequences, as the policy wants them."""
        return self.policy.is_stateful()

    def get_initial_state(self) -> dict[str, Any]:
        """The policy's."""
        return self.policy.get_initial_state()

    def compute_values(self, batch: Batch) -> Tensor:
        """(N,) of `batch["obs"]`, or (B, T) of sequences."""
        observations, shape = batch[Columns.OBS], None
        if self.is_stateful():
            shape = leaves(observations)[0].shape[:2]
            observations = map_leaves(lambda leaf: leaf.flatten(0, 1), observations)
        starts = range(0, len(leaves(observations)[0]), AT_A_TIME)
        parts = [self.value(map_leaves(lambda leaf, s=start: leaf[s : s + AT_A_TIME], observations)) for start in starts]
        found = torch.cat(parts)
        return found if shape is None else found.view(shape)


def bootstraps(algorithm: Algorithm) -> bool:
    """Whether it learns from values of the observations that steps led to."""
    made_of_values = (Columns.NEXT_OBS, Columns.VALUE_TARGETS, Columns.ADVANTAGES, Columns.VALUES_BOOTSTRAPPED)
    return not set(algorithm.columns).isdisjoint(made_of_values)


def uses_rewards(algorithm: Algorithm) -> bool:
    """Whether it learns from rewards, so that data without them is refused."""
    return algorithm.needs_rewards or Columns.REWARDS in algorithm.columns


def of_steps(policy: RLModule, batch: Batch) -> tuple[Tensor, Tree]:
    """Inputs of the action distribution (N, size) and recorded actions (N, ...), a row for each step of sequences as well."""
    inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    return inputs if Columns.STATE_IN not in batch else inputs.flatten(0, 1), step_rows(batch, Columns.ACTIONS)


def step_rows(batch: Batch, column: str) -> Tree:
    """A column (N, ...), a row for each step of sequences as well."""
    if Columns.STATE_IN not in batch:
        return batch[column]
    return map_leaves(lambda leaf: leaf.flatten(0, 1), batch[column])


def learned_steps(batch: Batch, values: Tensor) -> Tensor:
    """Of `values` (N,), a row for each step of sequences as well, those of the steps that are learned from."""
    return values if Columns.STATE_IN not in batch else values[batch[Columns.LOSS_MASK].flatten()]


def cloning_scores(policy: Any, batch: Batch) -> dict[str, Tensor]:
    """(N,) `loss`, the negative log-likelihood of the recorded actions in nats, and `accuracy` with `hits`, or `mse`, of greedy
    ones.

    Of sequences for the steps that are learned from.
    """
    assert isinstance(policy, RLModule)
    inputs, actions = of_steps(policy, batch)
    found = {LOSS: -policy.action_head.logp(inputs, actions), **policy.action_head.scores(inputs, actions)}
    return {name: learned_steps(batch, values) for name, values in found.items()}


def algorithm_kind(name: str, *, named: Collection[str] | None = None) -> type[Algorithm]:
    """The class of that name. `named`, and what is raised: see `registered_class`."""
    if name in OURS:
        return own_algorithms(name)[name]
    return registered_class(ALGORITHMS, name, Algorithm, ours=OURS, named=named)  # type: ignore[type-abstract]


def own_algorithms(*names: str) -> dict[str, type[Algorithm]]:
    """Ours, by name; without `names` all of them."""
    return {name: getattr(importlib.import_module(OURS[name][0]), OURS[name][1]) for name in names or OURS}
