"""FunctionPolicy: a function of a batch of observations as a policy, whose answers have to fit the action space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.environments import Environment
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.episodes.value_fitting import category_check, fitted
from offline_cli.errors import SpaceMismatch
from offline_cli.policies.policy import Acted, Policy, State
from offline_cli.spaces import Space, describe, tree_from_lists
from offline_cli.trees import Tree, leaves, map_leaves

__all__ = ["FunctionPolicy"]


class FunctionPolicy(Policy):
    """A function of observations (B, ...), the state and `explore`. It gives actions (B, ...) in the environment's units, or a
    dict of these (`actions`) and of extra model outputs by name.
    """

    def __init__(
        self, function: Callable[[Tree, State, bool], Any], environment: Environment, fingerprint: str, name: str
    ) -> None:
        """`name`: for messages."""
        super().__init__(environment, fingerprint)
        self.function, self.where = function, f"--policy {name}"
        self._like, self._check = space_tree(self.spaces[1]), category_check(self.spaces[1], "the action")

    def act(self, observations: Tree, state: State, explore: bool) -> Acted:
        """See Policy. Raises SpaceMismatch for actions that are not the space's; what the function raises passes."""
        answer = self.function(map_leaves(np.array, observations), state, explore)  # copies: it may write into them
        count, extras = len(state.t), dict[str, Tree]()
        of_space = isinstance(self._like, dict) and Columns.ACTIONS in self._like
        if isinstance(answer, Mapping) and Columns.ACTIONS in answer and not of_space:
            extras = {str(key): map_leaves(np.asarray, value) for key, value in answer.items() if key != Columns.ACTIONS}
            answer = answer[Columns.ACTIONS]
        try:
            actions = map_leaves(
                lambda part, leaf: _typed(np.asarray(leaf), part, count), self._like, tree_from_lists(answer, self.spaces[1])
            )
            self._check(actions)
            if any(leaf.shape[:1] != (count,) for leaf in leaves(extras)):
                raise ValueError("extra model outputs of another length than its actions")
        except ValueError as err:
            what = f"the policy gives {err}, the environment takes {describe(self.spaces[1])}"
            fix = "a policy that gives actions of the environment's action space"
            raise SpaceMismatch(what, where=self.where, fix=fix) from err
        return Acted(actions, actions, extras)


def _typed(values: NDArray[Any], space: Space, count: int) -> NDArray[Any]:
    if values.shape != (count, *(space.shape or ())):
        raise ValueError(f"actions of shape {values.shape} for {count} observations")
    return fitted(values, space.dtype, "actions")
