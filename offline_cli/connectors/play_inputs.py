"""What comes out of an env-to-module pipeline, held against what a policy takes; refuses shapes that a network would trip over.

A piece may announce one space and give another, or give the parts of a Dict in another order, which networks go by.

Actions as recordings have them, beside those that an environment takes; the two share no memory.

Boxes of floats are recorded as the module-to-env pipeline leaves them in `actions`, before they are fitted to the environment;
choices and integer boxes as the environment takes them.

How far pieces of our own look back on an episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.play_pipelines import PlayPipelines
from offline_cli.errors import BadConfig, BadPiece
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["PolicyInput", "RecordedActions", "check_lookback", "frames_looked_at", "steps_looked_at"]

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
            what = f"observations of {_in_words(found)} for the policy, which takes {_in_words(self._shapes)}"
            fix = "a piece that changes shapes says so in recompute_output_observation_space"
            raise BadPiece(what, where=PLACE, fix=fix)
        return {**batch, Columns.OBS: observations}


def _in_words(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{path} {shape}".strip() for path, shape in shapes.items())


Shapes = Mapping[str, tuple[int, ...]]


class RecordedActions:
    """Both forms of what comes out of a module-to-env pipeline, in the dtypes of an action space."""

    def __init__(self, space: Space) -> None:
        parts = leaf_spaces(space)
        self._shapes: Shapes = {path: part.shape or () for path, part in parts.items()}
        self._dtypes = {path: np.dtype(part.dtype) for path, part in parts.items()}
        self._raw = {path for path, part in parts.items() if isinstance(part, spaces.Box) and self._dtypes[path].kind == "f"}

    def __call__(self, actions: Tree, for_env: Tree) -> tuple[Tree, Tree]:
        """Recorded and taken, leaves (B, ...), of `actions` and `actions_for_env`. Raises BadPiece."""
        taken = dict(self._typed(for_env))
        recorded = {path: leaf if path in self._raw else taken[path] for path, leaf in self._typed(actions)}
        # Environments may write into what they are given.
        taken = {path: leaf.copy() if np.may_share_memory(leaf, recorded[path]) else leaf for path, leaf in taken.items()}
        return unflatten_like(actions, list(recorded.values())), unflatten_like(for_env, list(taken.values()))

    def _typed(self, actions: Tree) -> Iterator[tuple[str, Any]]:
        leaves = dict(flatten(actions))
        found = {path: leaf.shape[1:] for path, leaf in leaves.items()}
        if found != self._shapes:
            what = f"actions of the shapes {_in_words(found)}, and the environment takes {_in_words(self._shapes)}"
            raise BadPiece(
                what, where="module-to-env pipeline", fix="pieces that leave actions of the action space in the batch"
            )
        for path, leaf in leaves.items():
            yield path, leaf.astype(self._dtypes[path], copy=False)


PREVIOUS: Final = ("n_prev_actions", "n_prev_rewards")


def check_lookback(pipelines: PlayPipelines, lookback: int | None, *, where: str) -> None:
    """Raise BadConfig where pieces look back further than `lookback` steps; None: all steps are there."""
    if lookback is None:
        return
    named = [pair for pipeline in (pipelines.env_to_module, pipelines.module_to_env) for pair in pipeline.named()]
    wants = {name: _steps_back(piece) for name, piece in named}
    problems = [
        f"piece {name} looks back {steps} steps, and may only {lookback}" for name, steps in wants.items() if steps > lookback
    ]
    if problems:
        raise BadConfig.of(problems, where=where, fix=f"--lookback {max(wants.values())}, or none: the whole episode")


def frames_looked_at(pipelines: PlayPipelines) -> int:
    """How many observations our own pieces look at, the current one included."""
    return max([1, *(int(getattr(piece, "num_frames", 1)) for piece in pipelines.env_to_module.pieces())])


def steps_looked_at(pipelines: PlayPipelines) -> int:
    """How many actions and rewards before the current observation our own pieces look at."""
    pieces = list(pipelines.env_to_module.pieces())
    return max([0, *(int(getattr(piece, name, 0)) for piece in pieces for name in PREVIOUS)])


def _steps_back(piece: ConnectorV2) -> int:
    """How many steps before the current one a piece of our own looks at, by its options."""
    return max(int(getattr(piece, "num_frames", 1)) - 1, *(int(getattr(piece, name, 0)) for name in PREVIOUS))
