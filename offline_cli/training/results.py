"""What `train_bc` and `evaluate` give back; refuses to hold anything that JSON cannot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["EvaluateResult", "TrainResult"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run. Figures are of the policy that the run holds; None: not measured."""

    run: str
    updates: int  # made in all
    epochs: float  # passes over the data
    seconds: float  # checks included, reading not
    samples_per_second: float  # steps per second spent in updates
    loss: float | None  # nats per action, mean over the last updates
    val_loss: float | None  # nats per action, on the held-out episodes
    eval_return_mean: float | None  # greedy; the confirmation's where --until-return was met
    eval_return_ci95: float | None
    eval_episodes: int | None
    val_accuracy: float | None  # share of actions guessed right
    val_mse: float | None  # continuous actions, in the data's units
    policy_update: int  # the update that the policy is from
    stopped_by: str  # "target", "patience", or the bound, "updates" or "epochs"; "dry-run": nothing was written
    episodes: int  # in the data, held-out ones included
    steps: int
    device: str
    threads: int
    notes: list[str] = field(default_factory=list)  # what the policy does without: the layout of images, for one
    rewards_not_finite: dict[str, int] = field(default_factory=dict)  # "nan-in-rewards", "infinite-in-rewards": how many

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Whole episodes of one policy."""

    episodes: int
    return_mean: float
    return_std: float  # sample standard deviation
    return_ci95: float  # half the width of the 95% confidence interval of the mean
    return_min: float
    return_max: float
    length_mean: float  # steps
    environment: str
    explore: bool  # actions were drawn, not the likeliest
    seed: int
    checkpoint: int | None = None  # the run is not finished, and this update's policy played; None: it is

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
