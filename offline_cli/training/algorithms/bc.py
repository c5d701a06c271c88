"""Behaviour cloning: maximise the likelihood of the recorded actions (Pomerleau 1991)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from offline_cli.modules.rl_module import RLModule
from offline_cli.training.algorithms.algorithm import POLICY, Algorithm, Batch, Group, Modules, Task, of_steps
from offline_cli.training.steps import WEIGHTS

__all__ = ["BC", "bc_loss"]

NLL = "nll"


def bc_loss(policy: RLModule, batch: Batch) -> Tensor:
    """(): weighted mean negative log-likelihood of the recorded actions, in nats."""
    return -torch.dot(policy.action_head.logp(*of_steps(policy, batch)), batch[WEIGHTS])


class BC(Algorithm):
    """Behaviour cloning with one module and one loss."""

    learns_sequences = True

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {POLICY: task.policy()}

    def groups(self, modules: Modules) -> Sequence[Group]:
        policy = cast(RLModule, modules[POLICY])
        return [Group((POLICY,), (NLL,), lambda batch: {NLL: bc_loss(policy, batch)})]
