"""Fitted Q evaluation: what a policy that stays as it is is worth, from steps that another one played.

Each of a few critics, which leaves out a fold of the episodes, is fitted to reward + gamma V(s'), where V(s') is its slow
copy's mean over the policy's actions at s': over all of them where actions are at most 256 choices, else the value of one
action, drawn, or the likeliest. What the policy does at s' is a column of its own, computed once: so it may have connector
pieces and a memory, of which the critics see the observations alone. Source: Le et al. 2019 (arXiv 1903.08738); temporal
differences with slow copies in place of separate regressions, as in d3rlpy 2.8.1.

It is an `Algorithm` of `evaluate --offline` alone, and not one of `train --algorithm`: its columns NEXT_POLICY and FOLD come
from the policy of a run, and what it learns plays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.episodes.episode_spaces import category_bounds, space_tree
from offline_cli.errors import BadConfig
from offline_cli.modules.distributions import ActionHead, rows
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.stop_signals import check
from offline_cli.training.algorithms.algorithm import (
    POLICY,
    TD_COLUMNS,
    Algorithm,
    Batch,
    Group,
    Modules,
    Task,
    frozen_copy,
    move_towards,
    number,
)
from offline_cli.training.steps import WEIGHTS
from offline_cli.trees import Tree, leaves, map_leaves, unflatten_like

__all__ = [
    "CRITICS",
    "FOLD",
    "FQE",
    "NEXT_POLICY",
    "TARGETS",
    "Choices",
    "policy_column",
    "tables",
    "taken_values",
    "values_of",
]

CRITICS, TARGETS = "critics", "target_critics"  # modules
NEXT_POLICY: Final = "next_policy"  # see `policy_column`, at the observations that steps led to
FOLD: Final = "fold"  # (N,) the critic that does not learn from a step, by its number: what it says of it is no memory
MOST_CHOICES: Final = 256
SWEEPS: Final = 20_000  # of a table at most
SETTLED: Final = 1e-6  # change of a table from which on it stays
Q: Final = "q"


class Choices:
    """The A actions of a space without boxes, numbered: the last element of the last leaf counts fastest."""

    def __init__(self, space: Space) -> None:
        self._like, parts = space_tree(space), [*leaf_spaces(space).values()]
        self._shapes = [part.shape or () for part in parts]
        bounds = [[np.broadcast_to(end, part.shape or ()).ravel() for end in category_bounds(part)] for part in parts]
        lows, highs = (np.concatenate([one[end] for one in bounds]).astype(np.int64) for end in (0, 1))
        self._counts = [int(count) for count in highs - lows + 1]
        self.count = math.prod(self._counts)
        self._lows = torch.as_tensor(lows)
        self._factors = torch.as_tensor(np.cumprod([1, *self._counts[:0:-1]])[::-1].copy())

    @classmethod
    def of(cls, space: Space) -> Choices | None:
        """Those of `space`; None: it has boxes, or too many."""
        if any(isinstance(leaf, spaces.Box) for leaf in leaf_spaces(space).values()):
            return None
        found = cls(space)
        return found if found.count <= MOST_CHOICES else None

    def numbers(self, actions: Tree) -> Tensor:
        """(N,) int64 of actions (N, ...)."""
        chosen = torch.cat([rows(leaf).long() for leaf in leaves(map_leaves(lambda _, leaf: leaf, self._like, actions))], -1)
        return ((chosen - self._lows.to(chosen.device)) * self._factors.to(chosen.device)).sum(-1)

    def every(self) -> Tree:
        """All actions (A, ...)."""
        chosen = torch.cartesian_prod(*map(torch.arange, self._counts)).reshape(self.count, -1) + self._lows
        parts = torch.split(chosen, [math.prod(shape) for shape in self._shapes], -1)
        made = [part.reshape(self.count, *shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return unflatten_like(self._like, made)

    def probabilities(self, head: ActionHead, inputs: Tensor) -> Tensor:
        """(N, A) of each action, by inputs of its distribution (N, size)."""
        every = self.every()
        each = [
            map_leaves(lambda leaf, n=number: leaf[n].expand(len(inputs), *leaf.shape[1:]), every)
            for number in range(self.count)
        ]
        return torch.stack([head.logp(inputs, one) for one in each], -1).exp()


def policy_column(head: ActionHead, inputs: Tensor, choices: Choices | None, *, explore: bool) -> Tensor:
    """What the policy does, by inputs (N, size): (N, A) probabilities, of choices; else these inputs, (N, size).

    Without `explore` all is in the likeliest action.
    """
    if choices is None:
        return inputs
    if explore:
        return choices.probabilities(head, inputs)
    return nn.functional.one_hot(choices.numbers(head.greedy(inputs)), choices.count).to(inputs.dtype)


def values_of(
    critic: nn.Module, head: ActionHead, choices: Choices | None, observations: Tree, policy: Tensor, *, explore: bool
) -> Tensor:
    """(N,) V of observations (N, ...), where the policy does as its column says."""
    if choices is not None:
        found: Tensor = (critic(observations) * policy).sum(-1)
        return found
    return taken_values(critic, None, observations, head.sample(policy) if explore else head.greedy(policy))


def taken_values(critic: nn.Module, choices: Choices | None, observations: Tree, actions: Tree) -> Tensor:
    """(N,) Q of observations and actions (N, ...)."""
    if choices is None:
        found: Tensor = critic(observations, actions)[:, 0]
        return found
    values: Tensor = critic(observations)
    return values.gather(-1, choices.numbers(actions)[:, None])[:, 0]


class FQE(Algorithm):
    """Critics of a policy that is not learned, and their slow copies. NEXT_POLICY and FOLD are columns of no piece's."""

    schema: ClassVar[Mapping[str, Any]] = {
        "properties": {
            "gamma": number("Discount.", 1.0, maximum=1),
            "tau": number("Step of the target copies.", 0.005, maximum=1),
            "explore": {"description": "The policy draws its actions.", "type": "boolean", "default": False},
            "members": {
                "description": "Critics of the ensemble, each of which leaves out its fold.",
                "type": "integer",
                "minimum": 1,
                "default": 3,
            },
        }
    }
    columns = (*TD_COLUMNS, NEXT_POLICY, FOLD)

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {POLICY: task.policy(), **self.critics(task)}

    def critics(self, task: Task) -> dict[str, nn.Module]:
        """The modules beside the policy."""
        choices = Choices.of(task.action_space)
        form: dict[str, Any] = {"of_actions": True} if choices is None else {"outputs": choices.count}
        critics = nn.ModuleList([task.critic(**form) for _ in range(self.options["members"])])
        return {CRITICS: critics, TARGETS: frozen_copy(critics)}

    def groups(self, modules: Modules) -> Sequence[Group]:
        policy: Any = modules[POLICY]
        head, choices, explore = policy.action_head, Choices.of(policy.action_space), self.options["explore"]
        pairs = [*zip(modules[CRITICS].children(), modules[TARGETS].children(), strict=True)]

        def loss(batch: Batch) -> dict[str, Tensor]:
            observations, actions, goes_on = batch[Columns.OBS], batch[Columns.ACTIONS], 1 - batch[Columns.TERMINATEDS].float()
            errors = []
            for fold, (critic, target) in enumerate(pairs):
                with torch.no_grad():
                    after = values_of(target, head, choices, batch[Columns.NEXT_OBS], batch[NEXT_POLICY], explore=explore)
                    wanted = batch[Columns.REWARDS].float() + self.options["gamma"] * goes_on * after
                squared = (taken_values(critic, choices, observations, actions) - wanted).square()
                errors.append(squared * (batch[FOLD] != fold))
            return {Q: torch.dot(torch.stack(errors).sum(0), batch[WEIGHTS])}

        def follow() -> None:
            move_towards(modules[TARGETS], modules[CRITICS], self.options["tau"])

        return [Group((CRITICS,), (Q,), loss, then=follow)]


def tables(
    space: spaces.Discrete[Any], choices: Choices, columns: Batch, gamma: float, members: int
) -> list[Callable[[Tensor], Tensor]]:
    """The critics of numbered observations without a network: functions of observations (N,) that give Q (N, A).

    `columns`: those of FQE, all steps. Their regression is a mean: an action that was never taken in a state has the mean of
    those that were; a state without any that of all. Raises BadConfig where they do not settle.
    """
    pairs = (columns[Columns.OBS].long() - int(space.start)) * choices.count + choices.numbers(columns[Columns.ACTIONS])
    size, after, found = int(space.n) * choices.count, columns[Columns.NEXT_OBS].long() - int(space.start), list[Any]()
    gains, goes_on = columns[Columns.REWARDS].double(), gamma * (~columns[Columns.TERMINATEDS]).double()
    for fold in range(members):
        mine = columns[FOLD] != fold
        pair, rewards, to, more, chances = (one[mine] for one in (pairs, gains, after, goes_on, columns[NEXT_POLICY].double()))
        counts = pair.bincount(minlength=size).double().view(-1, choices.count)
        table = torch.zeros_like(counts)
        for _ in range(SWEEPS):
            check()
            wanted = rewards + more * (table[to] * chances).sum(-1)
            sums = pair.bincount(wanted, minlength=size).view_as(counts)
            of_state = sums.sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)  # NaN: it has none
            before, table = table, torch.where(counts > 0, sums / counts, of_state).nan_to_num(float(wanted.mean()))
            if float((table - before).abs().max()) < SETTLED:
                break
        else:
            what = f"Q does not settle in {SWEEPS:,} sweeps at gamma {gamma:g}: some steps go on for too long"
            raise BadConfig(what, where="--gamma", fix="a smaller --gamma, or an estimator of weights: is, wis, pdis, wpdis")
        found.append(lambda observations, table=table: table[observations.long() - int(space.start)])
    return found
