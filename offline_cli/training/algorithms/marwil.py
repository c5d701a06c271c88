"""MARWIL, advantage-weighted behaviour cloning (Wang et al. 2018).

    policy: the mean of -exp(beta A / c) log pi(a | s), with A = R - V(s), and c^2 a moving average of the mean of A^2
    value:  the mean of A^2 / 2

GeneralAdvantageEstimation computes R (`value_targets`) over whole episodes: with lambda 1, the discounted rewards to the end of
the episode, plus the value of the last observation if it was truncated. Losses and options are those of MARWILTorchLearner of
RLlib 2.60. With beta 0 there is no value function, and this is behaviour cloning.

For recurrent policies, V of a step depends on its observation only, and R is computed before episodes are cut into sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.learner.added_columns import AddOneTsToEpisodesAndTruncate
from offline_cli.connectors.learner.returns import GeneralAdvantageEstimation
from offline_cli.engines.ranks import whole
from offline_cli.errors import BadConfig
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space
from offline_cli.training.algorithms.algorithm import (
    LOSS,
    POLICY,
    Algorithm,
    Batch,
    Group,
    Modules,
    StepValues,
    Task,
    cloning_scores,
    learned_steps,
    number,
    of_steps,
    step_rows,
)
from offline_cli.training.steps import WEIGHTS

__all__ = ["MARWIL", "Values"]

VALUE, VF = "value", "vf"  # the module, and its loss
TINY: Final = 1e-8  # added to the norm, as in RLlib
START, RATE = "moving_average_sqd_adv_norm_start", "moving_average_sqd_adv_norm_update_rate"


class Values(nn.Module):
    """V(s) and the moving average of squared advantages."""

    squared_norm: Tensor  # ()

    def __init__(self, critic: nn.Module, start: float) -> None:
        super().__init__()
        self.critic = critic
        self.register_buffer("squared_norm", torch.tensor(start, dtype=torch.float32))

    def forward(self, observations: Any) -> Tensor:
        """Values (B,) of observations (B, ...)."""
        return cast(Tensor, self.critic(observations)[:, 0])


class MARWIL(Algorithm):
    """MARWIL with a policy and a value function without shared weights, and one optimizer."""

    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "beta": number("Factor for advantages; 0 is behaviour cloning.", 1.0),
            "gamma": number("Discount factor.", 0.99, maximum=1),
            "lambda_": number("GAE's lambda.", 1.0, maximum=1),
            "vf_coeff": number("Weight of the value function's loss.", 1.0),
            "bc_logstd_coeff": number("Weight of the policy's mean log standard deviation; Box actions only.", 0.0),
            START: number("Initial value of the moving average of squared advantages.", 100.0),
            RATE: number("Update rate of that moving average.", 1e-8, maximum=1),
            "refresh_every": number(
                "Updates between two recomputations of value targets; 0: never; --streaming needs 0.", 500, type="integer"
            ),
        }
    }
    learns_sequences = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.clones = not self.options["beta"]
        self.needs_rewards = not self.clones
        if not self.clones:
            self.columns = (Columns.OBS, Columns.ACTIONS, Columns.VALUE_TARGETS)
            self.refresh_every = self.options["refresh_every"] or None

    def check(self, observation_space: Space, action_space: Space) -> None:
        """Raises BadConfig for `bc_logstd_coeff` unless actions are a Box."""
        if self.options["bc_logstd_coeff"] and not isinstance(action_space, spaces.Box):
            raise BadConfig(f"bc_logstd_coeff is for Box actions, not {action_space}", where="marwil", fix="leave it out")

    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        """As in RLlib: first add a step to the end of each episode; last compute value targets."""
        if not self.clones:
            pipeline.prepend(AddOneTsToEpisodesAndTruncate())
            gamma, lambda_ = self.options["gamma"], self.options["lambda_"]
            pipeline.append(GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_, standardize="none"))

    def modules(self, task: Task) -> dict[str, nn.Module]:
        policy = task.policy()
        return {POLICY: policy} if self.clones else {POLICY: policy, VALUE: Values(task.critic(), self.options[START])}

    def rl_module(self, modules: Modules) -> nn.Module:
        policy = cast(RLModule, modules[POLICY])
        return policy if self.clones else StepValues(policy, modules[VALUE])

    def groups(self, modules: Modules) -> Sequence[Group]:
        return [Group(tuple(modules), (POLICY,) if self.clones else (POLICY, VF), lambda batch: self._losses(modules, batch))]

    def _losses(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        policy, weights, options = cast(RLModule, modules[POLICY]), batch[WEIGHTS], self.options
        inputs, actions = of_steps(policy, batch)
        likely = policy.action_head.logp(inputs, actions)
        if options["bc_logstd_coeff"]:
            likely = likely + options["bc_logstd_coeff"] * inputs.chunk(2, -1)[1].mean(-1)
        if self.clones:
            return {POLICY: -torch.dot(likely, weights)}
        value = cast(Values, modules[VALUE])
        advantages = self._advantages(value, batch)
        squared = torch.dot(advantages.square(), weights)
        value.squared_norm.lerp_(whole(squared.detach()), options[RATE])  # in place: a buffer
        counts = self._counts(value, advantages.detach())
        return {POLICY: -torch.dot(likely * counts, weights), VF: options["vf_coeff"] * 0.5 * squared}

    @staticmethod
    def _advantages(value: Values, batch: Batch) -> Tensor:
        """Advantages (N,); sequences are flattened to steps."""
        return cast(Tensor, step_rows(batch, Columns.VALUE_TARGETS) - value(step_rows(batch, Columns.OBS)))

    def _counts(self, value: Values, advantages: Tensor) -> Tensor:
        """(B,) weights of the rows."""
        return torch.exp(self.options["beta"] * advantages / (value.squared_norm.sqrt() + TINY))

    def scores(self, modules: Modules, batch: Batch) -> dict[str, Tensor]:
        """`loss` weights held-out rows like the policy's loss."""
        found = cloning_scores(modules[POLICY], batch)
        if not self.clones:
            value = cast(Values, modules[VALUE])
            found[LOSS] = found[LOSS] * learned_steps(batch, self._counts(value, self._advantages(value, batch)))
        return found
