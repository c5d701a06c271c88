"""`TrainResult`: what `train_bc` gives, prints as JSON, and keeps as result.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["TrainResult"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run. Figures are of the policy that the run holds; None: not measured."""

    run: str
    updates: int  # made in all
    epochs: float  # passes over the data
    seconds: float  # checks included, reading not
    samples_per_second: float  # steps per second spent in updates
    loss: float | None  # mean over the last updates; of several losses their sum; of cloning nats per action
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; the confirmation's where --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions guessed right
    val_accuracy_majority: float | None  # the same of always playing the most frequent action of the training steps
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # the update that the policy is from
    stopped_by: str  # "target", "patience", or the bound, "updates" or "epochs"; "dry-run": nothing was written
    episodes: int  # in the data, held-out ones included
    steps: int
    device: str
    threads: int
    steps_left_out: int = 0  # last ones, whose next observation was not recorded
    notes: list[str] = field(default_factory=list)  # what the policy does without: the layout of images, for one
    losses: dict[str, float] = field(default_factory=dict)  # each loss of the algorithm by its name, as `loss`
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": how many
    chosen: dict[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: dict[str, Any] = field(default_factory=dict)  # by source: its weight, steps, and steps of it in an epoch
    val_recall: dict[str, Any] = field(default_factory=dict)  # by action: share of its held-out steps guessed right, or None
    init_from: dict[str, Any] = field(default_factory=dict)  # run, sha256 of its weights, and which modules are from there

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what was not asked for is left out."""
        asked = ("chosen", "weights", "val_recall", "init_from")
        return {name: value for name, value in asdict(self).items() if value or name not in asked}
