"""How far a run is: everything of a checkpoint that is not a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["Best", "TrainState"]


@dataclass(frozen=True, slots=True)
class Best:
    """The check at which the policy was best so far."""

    score: float  # higher is better: a mean return, or minus a held-out loss
    update: int
    figures: Mapping[str, float]  # that check's


@dataclass(slots=True)
class TrainState:
    """Counters of one run; `update` is also the position in the data."""

    update: int = 0  # updates made
    settled: int = 0  # the update number up to which rows are written and checks are made
    summed: int = 0  # updates in the loss sum since the last row
    samples: int = 0  # steps learned from, padding not counted
    train_seconds: float = 0.0  # in updates alone
    seconds: float = 0.0  # checks and checkpoints included
    loss: float | None = None  # the sum of all losses, as means over the updates of the last row; of cloning nats per action
    losses: dict[str, float] = field(default_factory=dict)  # each by its name; empty in checkpoints of version 1
    figures: dict[str, float] = field(default_factory=dict)  # of the last check
    best: Best | None = None
    best_val_loss: float | None = None
    stale_checks: int = 0  # checks since the held-out loss was last better
    stopped_by: str | None = None  # "target", "patience", "bound"; None: still training
    metrics_bytes: int = 0  # length of metrics.jsonl that belongs to this state
    # What a resumed run must share with this one, besides its configuration.
    data: str = ""  # TrainingData.digest
    seen: Mapping[str, Any] = field(default_factory=dict)  # TrainingData.seen; empty: it was not kept
    threads: int = 1
    device: str = "cpu"
    pipeline: str = ""  # what was given for it, by name; empty: the default pipeline

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """The state that `as_dict` gave. Raises TypeError for unknown names, and for values of the wrong kind."""
        plain = dict(values)
        if plain.get("best") is not None:
            plain["best"] = Best(**plain["best"])
        state = cls(**plain)
        wrong = [name for name, is_right in _KINDS.items() if not is_right(getattr(state, name))]
        if state.best is not None and not (_is_number(state.best.score) and _is_count(state.best.update)):
            wrong.append("best")
        if wrong:
            raise TypeError(f"values of the wrong kind: {', '.join(wrong)}")
        return state


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("update", "settled", "summed", "samples", "stale_checks", "metrics_bytes"), _is_count),
    "threads": lambda value: _is_count(value) and value > 0,
    **dict.fromkeys(("train_seconds", "seconds"), _is_number),
    **dict.fromkeys(("loss", "best_val_loss"), lambda value: value is None or _is_number(value)),
    **dict.fromkeys(("data", "device", "pipeline"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("figures", "losses"), _is_figures),
    "best": lambda value: value is None or _is_figures(value.figures),
    "stopped_by": lambda value: value is None or isinstance(value, str),
}
