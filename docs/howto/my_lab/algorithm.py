"""Behaviour cloning that counts a step by its reward."""

import torch

from offline_cli.training.algorithms import Algorithm, Group


class RewardCloning(Algorithm):
    schema = {"properties": {"power": {"description": "Of the reward.", "type": "number", "minimum": 0, "default": 1.0}}}
    columns = ("obs", "actions", "rewards")

    def modules(self, task):
        return {"policy": task.policy()}

    def groups(self, modules):
        policy = modules["policy"]

        def loss(batch):
            inputs = policy.forward_train(batch)["action_dist_inputs"]
            counts = batch["rewards"].clamp(min=0) ** self.options["power"] * batch["weights"]
            return {"cloning": -torch.dot(policy.action_head.logp(inputs, batch["actions"]), counts)}

        return [Group(("policy",), ("cloning",), loss)]
