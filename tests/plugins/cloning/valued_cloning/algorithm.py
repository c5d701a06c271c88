"""Cloning that counts a step by how much better than expected it went.

V is learned by TD(0) against a slow copy of it, and the policy is fitted to the recorded actions, weighted by exp(advantage).
After Wang et al. 2018 and Lillicrap et al. 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offline_cli import ConnectorPipelineV2
from offline_cli.connectors import AddNextObservationsFromEpisodesToTrainBatch
from offline_cli.training.algorithms import Algorithm, Batch, Group, Modules, Task, frozen_copy, move_towards


class ValuedCloning(Algorithm):
    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "gamma": {"description": "Discount.", "type": "number", "minimum": 0, "maximum": 1, "default": 0.9},
            "tau": {"description": "Step of the target copy.", "type": "number", "minimum": 0, "maximum": 1, "default": 0.05},
            "beta": {"description": "How much advantages count.", "type": "number", "minimum": 0, "default": 1.0},
            "noise": {"description": "Spread added to targets.", "type": "number", "minimum": 0, "default": 0.1},
            "every": {"description": "Updates between two of the policy.", "type": "integer", "minimum": 1, "default": 2},
        }
    }
    columns = ("obs", "actions", "rewards", "terminateds", "new_obs")

    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        pipeline.insert_after("AddObservationsFromEpisodesToBatch", AddNextObservationsFromEpisodesToTrainBatch())

    def modules(self, task: Task) -> dict[str, nn.Module]:
        value = task.critic()
        return {"policy": task.policy(), "value": value, "slow_value": frozen_copy(value)}

    def groups(self, modules: Modules) -> Sequence[Group]:
        policy: Any = modules["policy"]
        value, slow = modules["value"], modules["slow_value"]

        def returns(batch: Batch) -> Tensor:
            with torch.no_grad():
                goes_on = 1.0 - batch["terminateds"].float()
                targets: Tensor = batch["rewards"] + self.options["gamma"] * goes_on * slow(batch["new_obs"])[:, 0]
                return targets + self.options["noise"] * torch.randn_like(targets)

        def value_loss(batch: Batch) -> dict[str, Tensor]:
            error = (value(batch["obs"])[:, 0] - returns(batch)).square()
            return {"value": torch.dot(error, batch["weights"])}

        def policy_loss(batch: Batch) -> dict[str, Tensor]:
            with torch.no_grad():
                advantages = returns(batch) - value(batch["obs"])[:, 0]
                counts = torch.exp(self.options["beta"] * advantages).clamp(max=20.0) * batch["weights"]
            inputs = policy.forward_train(batch)["action_dist_inputs"]
            head = policy.action_head
            entropy = torch.dot(head.entropy(inputs), batch["weights"])
            return {"cloning": -torch.dot(head.logp(inputs, batch["actions"]), counts), "entropy": -0.001 * entropy}

        def follow() -> None:
            move_towards(slow, value, self.options["tau"])

        return [
            Group(("value",), ("value",), value_loss, then=follow),
            Group(("policy",), ("cloning", "entropy"), policy_loss, every=self.options["every"]),
        ]
