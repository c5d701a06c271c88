"""Algorithm, the base class of learning algorithms: its columns, modules, losses, and callbacks after a step.

An algorithm knows no loop, file or device. Everything that an update changes must be a parameter or a persistent buffer of its
modules, which are saved in checkpoints and moved to the device. Losses and callbacks must not read values back from the device
or branch on them, which would synchronize, and shapes must be static, for torch.compile.
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

AT_A_TIME: Final = 1 << 16  # observations per forward pass of the value function, which bounds memory
CRITIC_WEIGHTS = 15  # distinguishes these seeds from others of the same run seed

AnyModule = TypeVar("AnyModule", bound=nn.Module)

POLICY: Final = "policy"
LOSS: Final = "loss"
RESERVED: Final = frozenset(("", "val"))  # `loss` and `val_loss` are columns of metrics.jsonl

Batch = Mapping[str, Any]
"""The algorithm's columns by name, each a tree of tensors (B, ...), and `weights` (B,) float32: sum 1, and 0 for padding.

For a recurrent policy they are sequences (B, T, ...), `weights` is (B * T,), and there are also `state_in` and `loss_mask`.
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
    """The JSON Schema of a numeric option, at least 0 unless `limits` say otherwise."""
    low = {} if "exclusiveMinimum" in limits else {"minimum": 0}
    asked = {"description": description, "type": "number", **low, **limits}
    return asked if default is None else {**asked, "default": default}


TD_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
TD_OPTIONS: Final[Mapping[str, Any]] = {
    "gamma": number("Discount factor.", 0.99, maximum=1),
    "tau": number("Step size of the target networks.", 0.005, maximum=1),
    "reward_scale": number("Factor for rewards.", 1.0, exclusiveMinimum=0),
    "reward_shift": {"description": "Added to rewards after scaling.", "type": "number", "default": 0.0},
    "actor_lr": number("Learning rate of the policy. Default: the run's.", exclusiveMinimum=0),
    "critic_lr": number("Learning rate of the critics. Default: the run's.", exclusiveMinimum=0),
}
"""Options of temporal-difference algorithms, which learn from TD_COLUMNS."""


@dataclass(slots=True, eq=False)
class Task:
    """Builds modules on the CPU; initial weights depend on `seed` and the order of calls only."""

    observation_space: Space  # after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    network: Network
    seed: int = 0
    weights: Mapping[str, Tensor] | None = None  # the policy's initial weights; None: random
    log_std: tuple[float | None, float | None] = (None, None)  # overrides the algorithm's bounds of log σ
    made: RLModule | None = field(default=None, init=False)  # the policy, once built
    _critics: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.network.action_space = self.action_space

    def policy(self, gaussian: GaussianForm = CLONING) -> RLModule:
        """Build the policy; `gaussian`: form of Box actions. Raises UnsupportedSpace, and BadConfig for an unknown scale, and
        if `log_std` has no effect.
        """
        gaussian = self._limited(gaussian)
        form = {} if gaussian == CLONING else {"gaussian": gaussian}  # other packages' networks need not support it
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
        """`form` with the bounds `log_std`."""
        if self.log_std == (None, None):
            return form
        low, high = (own if asked is None else asked for asked, own in zip(self.log_std, form.log_std, strict=True))
        has_boxes = any(isinstance(leaf, spaces.Box) for leaf in leaf_spaces(self.action_space).values())
        if not has_boxes or form.log_std[0] == form.log_std[1] or low > high:
            what = f"log_std_min and log_std_max do not apply: actions are {describe(self.action_space)}"
            what += ", and the algorithm's bounds on log σ are {:g} and {:g}".format(*form.log_std) * has_boxes
            raise BadConfig(what, where="the policy", fix="leave them out, or change them")
        return replace(form, log_std=(low, high))

    def critic(self, *, of_actions: bool = False, outputs: int = 1, layer_norm: bool = False) -> Critic:
        """Build V(s), or Q(s, a) for actions in network units: (B, outputs) float32. Each call has other initial weights.

        `layer_norm`: add layer norm; raises BadConfig if the network does not support it.
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
    """Polyak update: target += step * (source - target) for each parameter; buffers are copied."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(theirs, step)
    for held, shown in zip(target.buffers(), source.buffers(), strict=True):
        held.copy_(shown)


def td_targets(batch: Batch, next_values: Tensor, options: Mapping[str, Any]) -> Tensor:
    """(B,) targets of Q(s, a): reward plus gamma times `next_values` (B,) of `new_obs`.

    Terminated steps do not bootstrap; truncated steps do.
    """
    rewards = batch[Columns.REWARDS].float() * options["reward_scale"] + options["reward_shift"]
    goes_on = 1.0 - batch[Columns.TERMINATEDS].float()
    targets: Tensor = rewards + options["gamma"] * goes_on * next_values
    return targets


def each_value(critics: nn.Module, observations: Any, actions: Any) -> list[Tensor]:
    """The value (B,) of each critic in a ModuleList."""
    return [critic(observations, actions)[:, 0] for critic in critics.children()]


@dataclass(frozen=True, slots=True)
class Group:
    """Modules trained by one Adam optimizer; groups step in order."""

    modules: tuple[str, ...]
    losses: tuple[str, ...]  # names of the losses; with several, metrics.jsonl has each as `NAME_loss`
    loss: Callable[[Batch], Mapping[str, Tensor]]  # () each; their sum is minimised
    every: int = 1  # step in each `every`-th update: 2 for updates 2, 4, 6, ...
    lr: float | None = None  # None: the run's
    then: Callable[[], None] | None = None  # callback after each step, without gradients, such as target updates

    def __post_init__(self) -> None:
        wrong = [name for name in self.losses if name in RESERVED]
        if wrong or not (self.modules and self.losses and self.every > 0):
            raise ValueError(f"invalid group: modules {self.modules}, losses {self.losses}, every {self.every}")


class Algorithm(ABC):
    """A learning algorithm. It holds the run's options; `modules` builds its modules, which are passed to the other methods."""

    schema: ClassVar[Mapping[str, Any]] = {"properties": {}}  # a JSON Schema; `properties` are the options of the table

    settings: ClassVar[Mapping[str, Any]] = {}  # its defaults for keys of the configuration
    columns: tuple[str, ...] = (Columns.OBS, Columns.ACTIONS)  # columns of the learner pipeline that it learns from
    refresh_every: int | None = None  # updates between two recomputations of all columns; None: never
    needs_rewards: bool = False  # rewards are required, also without a column for them
    learns_sequences: bool = False  # supports recurrent policies, with columns (B, T, ...)

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options`: validated by the schema, defaults filled in."""
        self.options = dict(options)

    def check(self, observation_space: Space, action_space: Space) -> None:  # noqa: B027  most algorithms support all spaces
        """Raise BadConfig for spaces that the algorithm does not support; called before any data is read."""

    def extend(self, pipeline: ConnectorPipelineV2) -> None:  # noqa: B027  the default pieces suffice for many
        """Add connector pieces that make `columns` to the learner pipeline of user and default pieces."""

    @abstractmethod
    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Build the modules; the first is "policy", from `task.policy()`."""

    @abstractmethod
    def groups(self, modules: Modules) -> Sequence[Group]:
        """The groups of modules to train; modules in no group change only in `then` callbacks."""

    def rl_module(self, modules: Modules) -> nn.Module:
        """The `rl_module` for connector pieces: the policy, or a module with `compute_values(batch)` for
        GeneralAdvantageEstimation.
        """
        return modules[POLICY]

    def scores(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        """Scores of the policy on held-out rows, a tensor of any shape each; checks average over all rows.

        Checks compare `loss`: lower is better. By default it is the negative log-likelihood of the recorded actions in nats,
        with `accuracy` or `mse` of greedy actions. The rows have no padding and no `weights`. `hits` (N, E), whether each of E
        discrete components is right, is not a score: checks compute the recall of each action from it.
        """
        return cloning_scores(modules[POLICY], batch)


class StepValues(nn.Module):
    """Module with `compute_values` for GeneralAdvantageEstimation: a value function next to a policy, recurrent or not."""

    def __init__(self, policy: RLModule, value: nn.Module) -> None:
        """`value`: maps observations (N, ...) to (N,)."""
        super().__init__()
        self.policy, self.value, self.model_config = policy, value, policy.model_config

    def is_stateful(self) -> bool:
        """Whether the policy is recurrent, so that episodes are cut into sequences."""
        return self.policy.is_stateful()

    def get_initial_state(self) -> dict[str, Any]:
        """The policy's initial state."""
        return self.policy.get_initial_state()

    def compute_values(self, batch: Batch) -> Tensor:
        """Values (N,) of `batch["obs"]`, or (B, T) for sequences."""
        observations, shape = batch[Columns.OBS], None
        if self.is_stateful():
            shape = leaves(observations)[0].shape[:2]
            observations = map_leaves(lambda leaf: leaf.flatten(0, 1), observations)
        starts = range(0, len(leaves(observations)[0]), AT_A_TIME)
        parts = [self.value(map_leaves(lambda leaf, s=start: leaf[s : s + AT_A_TIME], observations)) for start in starts]
        values = torch.cat(parts)
        return values if shape is None else values.view(shape)


def bootstraps(algorithm: Algorithm) -> bool:
    """Whether the algorithm uses next observations or their values."""
    made_of_values = (Columns.NEXT_OBS, Columns.VALUE_TARGETS, Columns.ADVANTAGES, Columns.VALUES_BOOTSTRAPPED)
    return not set(algorithm.columns).isdisjoint(made_of_values)


def uses_rewards(algorithm: Algorithm) -> bool:
    """Whether the algorithm needs rewards, so that data without them is refused."""
    return algorithm.needs_rewards or Columns.REWARDS in algorithm.columns


def of_steps(policy: RLModule, batch: Batch) -> tuple[Tensor, Tree]:
    """Inputs of the action distribution (N, size) and recorded actions (N, ...); sequences are flattened to steps."""
    inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    return inputs if Columns.STATE_IN not in batch else inputs.flatten(0, 1), step_rows(batch, Columns.ACTIONS)


def step_rows(batch: Batch, column: str) -> Tree:
    """A column (N, ...); sequences are flattened to steps."""
    if Columns.STATE_IN not in batch:
        return batch[column]
    return map_leaves(lambda leaf: leaf.flatten(0, 1), batch[column])


def learned_steps(batch: Batch, values: Tensor) -> Tensor:
    """Drop masked steps from `values` (N,) of flattened sequences; other values stay unchanged."""
    return values if Columns.STATE_IN not in batch else values[batch[Columns.LOSS_MASK].flatten()]


def cloning_scores(policy: Any, batch: Batch) -> dict[str, Tensor]:
    """(N,) `loss`, the negative log-likelihood of the recorded actions in nats, and `accuracy` with `hits`, or `mse`, of greedy
    actions. Masked steps of sequences are left out.
    """
    assert isinstance(policy, RLModule)
    inputs, actions = of_steps(policy, batch)
    scores = {LOSS: -policy.action_head.logp(inputs, actions), **policy.action_head.scores(inputs, actions)}
    return {name: learned_steps(batch, values) for name, values in scores.items()}


def algorithm_kind(name: str, *, named: Collection[str] | None = None) -> type[Algorithm]:
    """The algorithm class called `name`. `named` and errors: see `registered_class`."""
    if name in OURS:
        return own_algorithms(name)[name]
    return registered_class(ALGORITHMS, name, Algorithm, ours=OURS, named=named)  # type: ignore[type-abstract]


def own_algorithms(*names: str) -> dict[str, type[Algorithm]]:
    """Built-in algorithms by name; all without `names`."""
    return {name: getattr(importlib.import_module(OURS[name][0]), OURS[name][1]) for name in names or OURS}
