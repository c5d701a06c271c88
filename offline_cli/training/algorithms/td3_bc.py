"""TD3+BC: a deterministic policy that seeks high Q and stays near the recorded actions; ReBRAC's changes to it are options.

Two critics are fitted to the smaller of their slow copies' values of the slow policy's action, with clipped noise added to it;
the policy and all slow copies move in every second update. Sources: Fujimoto and Gu 2021 (arXiv 2106.06860), section 5; TD3,
Fujimoto et al. 2018 (arXiv 1802.09477), algorithm 1; ReBRAC, Tarasov et al. 2023 (arXiv 2305.09836), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors import AddNextObservationsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.added_columns import IS_FOLLOWED, NEXT_ACTIONS, AddNextActionsFromEpisodesToTrainBatch
from offline_cli.engines.ranks import whole
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import GaussianForm, rows, span_of
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, describe, leaf_spaces
from offline_cli.training.algorithms.algorithm import (
    POLICY,
    TD_COLUMNS,
    TD_OPTIONS,
    Algorithm,
    Batch,
    Group,
    Modules,
    Task,
    each_value,
    frozen_copy,
    move_towards,
    number,
    own_algorithms,
    td_targets,
)
from offline_cli.training.steps import WEIGHTS
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["TD3BC", "ReBRAC"]

CRITICS, TARGET_POLICY, TARGET_CRITICS = "critics", "target_policy", "target_critics"
Q, CLONING = "q", "cloning"
EXPLORING: Final = math.log(0.1)  # the spread that TD3 explores with, of bounds that are 2 apart
COUNT: Final = {"type": "integer", "minimum": 1}


def distances(actions: Tree, others: Tree, over: str) -> Tensor:
    """(B,) the `mean` or `sum` over all dimensions of the squared difference of Box actions (B, ...)."""
    apart = [rows(one) - rows(other) for one, other in zip(leaves(actions), leaves(others), strict=True)]
    squared = torch.cat(apart, -1).square()
    return squared.sum(-1) if over == "sum" else squared.mean(-1)


class TD3BC(Algorithm):
    """A policy, two Q(s, a), and slow copies of all three, for Box actions with bounds."""

    name: ClassVar[str] = "td3-bc"
    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "alpha": number("How much Q counts beside cloning.", 2.5),
            "normalize_q": {"description": "Divide alpha by the mean of |Q|.", "type": "boolean", "default": True},
            "policy_q": {"description": "Which critic the policy follows.", "enum": ["first", "min"], "default": "first"},
            "actor_bc": number("How much cloning counts in the policy's loss.", 1.0),
            "critic_bc": number("How much targets lose by distance from the next action.", 0.0),
            "distance": {
                "description": "Over the dimensions of an action, squared distances are averaged or added up.",
                "enum": ["mean", "sum"],
                "default": "mean",
            },
            "policy_noise": number("Spread of the noise on actions of targets.", 0.2),
            "noise_clip": number("The most that this noise may be.", 0.5),
            "policy_every": {"description": "Each of how many updates steps it.", **COUNT, "default": 2},
            "critic_layer_norm": {"description": "Layer norm in the critics. Default: as the network.", "type": "boolean"},
            **TD_OPTIONS,
        }
    }

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.columns = (*TD_COLUMNS, NEXT_ACTIONS, IS_FOLLOWED) if options["critic_bc"] else TD_COLUMNS

    def check(self, observation_space: Space, action_space: Space) -> None:
        parts = leaf_spaces(action_space, "actions").items()
        others = {path: leaf for path, leaf in parts if not isinstance(leaf, spaces.Box) or span_of(leaf) is None}
        if others:
            named = ", ".join(f"{path} are {describe(leaf)}" for path, leaf in others.items())
            fitting = ", ".join(name for name, kind in own_algorithms().items() if not issubclass(kind, TD3BC))
            unbounded = any(isinstance(leaf, spaces.Box) for leaf in others.values())
            fix = (
                "--env ENV, whose spaces have the bounds of actions; or " * unbounded
                + f"an algorithm for every space: {fitting}"
            )
            raise BadConfig(f"TD3+BC learns Box actions with bounds; {named}", where=f"algorithm {self.name}", fix=fix)

    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())
        if self.options["critic_bc"]:
            pipeline.insert_after(AddNextObservationsFromEpisodesToTrainBatch, AddNextActionsFromEpisodesToTrainBatch())

    def modules(self, task: Task) -> dict[str, nn.Module]:
        policy = task.policy(GaussianForm("tanh", (EXPLORING, EXPLORING)))
        normed = self.options.get("critic_layer_norm", False)
        made = {POLICY: policy, CRITICS: nn.ModuleList(task.critic(of_actions=True, layer_norm=normed) for _ in range(2))}
        return {**made, TARGET_POLICY: frozen_copy(policy), TARGET_CRITICS: frozen_copy(made[CRITICS])}

    def targets(self, modules: Modules, batch: Batch) -> Tensor:
        """(B,) what both critics are fitted to; draws the noise."""

        def smoothed(action: Tensor) -> Tensor:
            noise: Tensor = torch.randn_like(action) * self.options["policy_noise"]
            return (action + noise.clamp(-self.options["noise_clip"], self.options["noise_clip"])).clamp(-1, 1)

        with torch.no_grad():
            actions = map_leaves(smoothed, acted(modules[TARGET_POLICY], batch[Columns.NEXT_OBS]))
            values = torch.minimum(*each_value(modules[TARGET_CRITICS], batch[Columns.NEXT_OBS], actions))
            if self.options["critic_bc"]:
                values -= self.options["critic_bc"] * batch[IS_FOLLOWED] * self._distances(actions, batch[NEXT_ACTIONS])
            return td_targets(batch, values, self.options)

    def _distances(self, actions: Tree, others: Tree) -> Tensor:
        return distances(actions, others, self.options["distance"])

    def groups(self, modules: Modules) -> Sequence[Group]:
        def critic_loss(batch: Batch) -> dict[str, Tensor]:
            wanted = self.targets(modules, batch)
            first, second = each_value(modules[CRITICS], batch[Columns.OBS], batch[Columns.ACTIONS])
            return {Q: torch.dot((first - wanted).square() + (second - wanted).square(), batch[WEIGHTS])}

        def policy_losses(batch: Batch) -> dict[str, Tensor]:
            actions = acted(modules[POLICY], batch[Columns.OBS])
            if self.options["policy_q"] == "min":
                found = torch.minimum(*each_value(modules[CRITICS], batch[Columns.OBS], actions))
            else:
                found = next(modules[CRITICS].children())(batch[Columns.OBS], actions)[:, 0]
            size = whole(torch.dot(found.detach().abs(), batch[WEIGHTS])) if self.options["normalize_q"] else 1.0
            near = torch.dot(self._distances(actions, batch[Columns.ACTIONS]), batch[WEIGHTS])
            seeking = -self.options["alpha"] / size * torch.dot(found, batch[WEIGHTS])
            return {POLICY: seeking, CLONING: self.options["actor_bc"] * near}

        def follow() -> None:
            move_towards(modules[TARGET_CRITICS], modules[CRITICS], self.options["tau"])
            move_towards(modules[TARGET_POLICY], modules[POLICY], self.options["tau"])

        every, lr = self.options["policy_every"], self.options.get("actor_lr")
        last = Group((POLICY,), (POLICY, CLONING), policy_losses, every=every, lr=lr, then=follow)
        return [Group((CRITICS,), (Q,), critic_loss, lr=self.options.get("critic_lr")), last]


class ReBRAC(TD3BC):
    """`td3-bc` with the defaults of Tarasov et al. 2023 for D4RL's halfcheetah-medium-v2; `actor_bc` and `critic_bc` they tuned
    for each dataset. docs/algorithms.md lists what differs.
    """

    name = "rebrac"
    settings: ClassVar[Mapping[str, Any]] = {"hidden": [256, 256, 256], "activation": "relu", "batch_size": 1024, "lr": 1e-3}
    published: ClassVar[Mapping[str, Any]] = {
        "alpha": 1.0,
        "policy_q": "min",
        "actor_bc": 0.001,
        "critic_bc": 0.01,
        "distance": "sum",
        "critic_layer_norm": True,
    }
    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            **TD3BC.schema["properties"],
            **{option: {**TD3BC.schema["properties"][option], "default": value} for option, value in published.items()},
        }
    }


def acted(policy: nn.Module, observations: Tree) -> Tree:
    """The policy's greedy actions (B, ...), with gradients."""
    assert isinstance(policy, RLModule)
    inputs = policy.forward_train({Columns.OBS: observations})[Columns.ACTION_DIST_INPUTS]
    return policy.action_head.greedy(inputs)
