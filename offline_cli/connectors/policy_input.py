"""What comes out of an env-to-module pipeline, held against what a policy takes; refuses shapes that a network would trip over.

A piece may announce one space and give another, or give the parts of a Dict in another order, which networks go by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_cli.columns import Columns
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import leaf_spaces, tree_from_lists
from offline_cli.trees import flatten

__all__ = ["PolicyInput"]

PLACE = "env-to-module pipeline"


class PolicyInput:
    """The batches of one module."""

    def __init__(self, module: RLModule) -> None:
        self._space = module.observation_space
        self._shapes = {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(self._space).items()}
        self._axes = 2 if module.is_stateful() else 1  # rows, and steps

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with `obs` in the order of the module's space. Raises BadPiece for other parts and shapes."""
        if Columns.OBS not in batch:
            what = f"no {Columns.OBS!r} for the policy, but {sorted(map(str, batch))}"
            raise BadPiece(what, where=PLACE, fix="keep the default pieces (defaults = true)")
        observations = tree_from_lists(batch[Columns.OBS], self._space)
        found = {path: tuple(getattr(leaf, "shape", ()))[self._axes :] for path, leaf in flatten(observations)}
        if found != self._shapes:
            what = f"observations of {_told(found)} for the policy, which takes {_told(self._shapes)}"
            fix = "a piece that changes shapes says so in recompute_output_observation_space"
            raise BadPiece(what, where=PLACE, fix=fix)
        return {**batch, Columns.OBS: observations}


def _told(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{path} {shape}".strip() for path, shape in shapes.items())
