"""What a run learns from, however it is held; refuses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.spaces import Space
from offline_cli.training.play_pieces import PlayPieces
from offline_cli.training.reward_faults import RewardFaults
from offline_cli.training.step_store import StepStore
from offline_cli.trees import Tree

__all__ = ["Steps", "TrainingData"]

Steps = Mapping[str, Tree] | StepStore
"""Columns `obs` and `actions` as trees of tensors (N, ...) on the CPU; or, streaming, records of both on disk."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """What behaviour cloning learns from."""

    train: Steps
    val: Steps | None  # None: nothing was held out
    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    episodes: int  # held-out ones included
    steps: int
    digest: str  # hex; the same for the same episodes in the same order
    seen: Mapping[str, Any] = field(default_factory=dict)  # `SeenData.figures`: what a digest that differs is explained by
    pipeline: str = ""  # the learner pipeline's name; empty: the default one
    trained: TrainedPipeline | None = None  # what playing the policy takes, with its state; None: no pieces
    pieces: PlayPieces | None = None  # what it plays between in `environment`; None: no pieces
    rewards: RewardFaults = field(default_factory=RewardFaults)

    def close(self) -> None:
        """Give back what it holds on disk."""
        for part in (self.train, self.val):
            if isinstance(part, StepStore):
                part.close()
