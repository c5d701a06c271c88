"""Implicit Q-learning: learns what recorded actions are worth, and clones the better ones, without asking about others.

V is an upper expectile of the slow critics' smaller Q, so that it leans to the better of the recorded actions; two critics are
fitted to reward + gamma V(s'); the policy is fitted to the recorded actions, weighted by exp(temperature * (Q - V)). Source:
Kostrikov et al. 2021 (arXiv 2110.06169), equations 5 to 7; the order of steps, and what is summed, as in d3rlpy 2.8.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors import AddNextObservationsFromEpisodesToTrainBatch, AddObservationsFromEpisodesToBatch
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.modules.distributions import CLONING, GaussianForm, span_of
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces
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
    td_targets,
)
from offline_cli.training.steps import WEIGHTS

__all__ = ["IQL", "expectile_errors", "gaussian_form"]

VALUE, CRITICS, TARGETS = "value", "critics", "target_critics"  # modules
Q: Final = "q"
LOG_STD: Final = (-5.0, 2.0)


def expectile_errors(differences: Tensor, expectile: float) -> Tensor:
    """(B,) |expectile - 1(u < 0)| u^2 for differences u (B,): least for the `expectile` of what is compared (equation 3)."""
    return torch.where(differences < 0, 1 - expectile, expectile) * differences.square()


def gaussian_form(space: Space) -> GaussianForm:
    """How Box actions of `space` are drawn: around a tanh where all have bounds; a Box without knows no limit to go to."""
    boxes = [leaf for leaf in leaf_spaces(space).values() if isinstance(leaf, spaces.Box)]
    if not boxes:
        return CLONING
    return GaussianForm("linear" if None in map(span_of, boxes) else "tanh", LOG_STD)


class IQL(Algorithm):
    """A policy, V(s), two Q(s, a) and slow copies of these, in all action spaces."""

    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "expectile": number(
                "Which expectile of Q is V: the higher, the more the best recorded actions count.",
                0.7,
                exclusiveMinimum=0,
                exclusiveMaximum=1,
            ),
            "temperature": number("Factor of advantages in the policy's weights (beta); 0 clones.", 3.0),
            "max_weight": number("The largest weight.", 100.0, exclusiveMinimum=0),
            **TD_OPTIONS,
        }
    }
    columns = TD_COLUMNS

    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())

    def modules(self, task: Task) -> dict[str, nn.Module]:
        critics = nn.ModuleList([task.critic(of_actions=True) for _ in range(2)])
        policy = task.policy(gaussian_form(task.action_space))
        return {POLICY: policy, VALUE: task.critic(), CRITICS: critics, TARGETS: frozen_copy(critics)}

    def targets(self, modules: Modules, batch: Batch) -> Tensor:
        """(B,) what both critics are fitted to."""
        with torch.no_grad():
            return td_targets(batch, modules[VALUE](batch[Columns.NEXT_OBS])[:, 0], self.options)

    def groups(self, modules: Modules) -> Sequence[Group]:
        policy = cast(RLModule, modules[POLICY])
        value, critics, targets = (modules[name] for name in (VALUE, CRITICS, TARGETS))
        worth: list[Tensor] = [torch.empty(0)]  # (B,) of the recorded actions in this update: the targets move at its end

        def critic_losses(batch: Batch) -> dict[str, Tensor]:
            observations, actions, weights = batch[Columns.OBS], batch[Columns.ACTIONS], batch[WEIGHTS]
            wanted = self.targets(modules, batch)
            with torch.no_grad():
                worth[0] = torch.minimum(*each_value(targets, observations, actions))
            above = worth[0] - value(observations)[:, 0]
            first, second = ((found - wanted).square() for found in each_value(critics, observations, actions))
            return {
                VALUE: torch.dot(expectile_errors(above, self.options["expectile"]), weights),
                Q: torch.dot(first + second, weights),
            }

        def policy_loss(batch: Batch) -> dict[str, Tensor]:
            with torch.no_grad():
                advantages = worth[0] - value(batch[Columns.OBS])[:, 0]
                counts = torch.exp(self.options["temperature"] * advantages).clamp(max=self.options["max_weight"])
            inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
            likelihood = policy.action_head.logp(inputs, batch[Columns.ACTIONS])
            return {POLICY: -torch.dot(likelihood, counts * batch[WEIGHTS])}

        def follow() -> None:
            move_towards(targets, critics, self.options["tau"])

        return [
            Group((VALUE, CRITICS), (VALUE, Q), critic_losses, lr=self.options.get("critic_lr")),
            Group((POLICY,), (POLICY,), policy_loss, lr=self.options.get("actor_lr"), then=follow),
        ]
