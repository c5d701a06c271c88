"""Actions from the parameters of their distribution; refuses nothing: outputs that hold actions already stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_forms import module_parts
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.modules.distributions import ActionHead
from offline_cli.modules.drawing import drawn_actions
from offline_cli.trees import Tree, map_leaves

__all__ = ["GetActions"]


class GetActions(ConnectorV2):
    """`actions` (B, ...) from `action_dist_inputs` (B, n), and `action_logp` (B,) where the module did not put it out.

    Drawn where `explore`, else the likeliest, whose `action_logp` is 0: they are certain. Axes between the first and the last
    of the inputs (time) are kept. What draws: `chance`, uniform numbers (B, k) per row, or `generator`, else torch's own.
    """

    whole_arrays = True
    slots_too = True

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: Batch,
        episodes: Episodes,
        explore: bool | None = None,
        chance: Tensor | None = None,
        generator: torch.Generator | None = None,
        **_: Any,
    ) -> Batch:
        """The batch with actions. `chance` is for the rows of a single module."""
        for _module_id, module, part in module_parts(batch, rl_module, episodes):
            if Columns.ACTIONS not in part and Columns.ACTION_DIST_INPUTS in part:
                inputs = part[Columns.ACTION_DIST_INPUTS]
                head = getattr(module, "action_head", None)
                if isinstance(head, ActionHead):
                    found = _from_head(head, inputs, explore=bool(explore), chance=chance, generator=generator)
                else:
                    found = _from_distribution(module, inputs, explore=bool(explore))
                part[Columns.ACTIONS] = found[0]
                part.setdefault(Columns.ACTION_LOGP, found[1])
        return batch


def _from_head(
    head: ActionHead, inputs: Tensor, *, explore: bool, chance: Tensor | None, generator: torch.Generator | None
) -> tuple[Tree, Tensor]:
    """Actions and their likelihood, by one of our action heads."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    if not explore:
        actions, logp = head.greedy(rows), torch.zeros(len(rows), device=rows.device)
    else:
        actions = head.sample(rows, generator) if chance is None else drawn_actions(head, rows, chance)
        logp = head.logp(rows, actions)
    axes = inputs.shape[:-1]
    return map_leaves(lambda leaf: leaf.reshape(*axes, *leaf.shape[1:]), actions), logp.reshape(axes)


def _from_distribution(module: Any, inputs: Tensor, *, explore: bool) -> tuple[Tree, Any]:
    """The same by the distribution class that an RLModule in RLlib's manner names."""
    named = module.get_exploration_action_dist_cls() if explore else module.get_inference_action_dist_cls()
    distribution = named.from_logits(inputs)
    if not explore:
        return distribution.to_deterministic().sample(), torch.zeros(inputs.shape[:-1], device=inputs.device)
    actions = distribution.sample()
    return actions, distribution.logp(actions)
