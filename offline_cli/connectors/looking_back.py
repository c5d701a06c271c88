"""How far pieces of our own look back on an episode."""

from __future__ import annotations

from typing import Final

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.play_pipelines import PlayPipelines
from offline_cli.errors import BadConfig

__all__ = ["check_lookback", "frames_looked_at", "steps_looked_at"]

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
