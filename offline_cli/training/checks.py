"""What is measured at a check, and what follows from it: held-out loss, played returns, best policy, the end of training.

Measuring changes nothing, so that a signal may cut it short and a resumed run measures again. Checks belong to update numbers,
never to wall time. Which policy a run keeps:

* with `until_return` the confirmed one, or, where none was confirmed, the one of the check with the highest return;
* else with `val_fraction` the one of the check with the lowest held-out loss;
* else the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from offline_cli.engines.ranks import ALONE, RankFailed, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadData
from offline_cli.modules.devices import autocast
from offline_cli.modules.rl_module import evaluating
from offline_cli.playing.returns import Played, play
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.seeds import Purpose
from offline_cli.stop_signals import StopRequested
from offline_cli.training.config_model import BCConfig
from offline_cli.training.learner import Learner
from offline_cli.training.run_state import Best, TrainState
from offline_cli.training.steps import Batches

__all__ = ["CONFIRMED", "Checks", "returns_of", "score"]

CONFIRMED = "confirm_return_mean"


class Checks:
    """Measures the policy of a learner; `val` and `environment` are None where there is no validation data or environment."""

    def __init__(
        self,
        learner: Learner,
        config: BCConfig,
        val: Batches | None,
        environment: Environment | None,
        pieces: PlaySpec | None,
        *,
        updates_per_epoch: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._learner, self._config, self._val = learner, config, val
        self._environment, self._pieces = environment, pieces
        self.bound = config.bound(updates_per_epoch)
        self.every, self._per_epoch = config.check_every(updates_per_epoch), updates_per_epoch

    def due(self, update: int) -> bool:
        """Whether there is a check after that many updates."""
        return update > 0 and (update % self.every == 0 or update == self.bound)

    def least_bound(self, updates: int) -> str:
        """The option, with its least value, that allows for so many updates: `--epochs 12`."""
        name = self._config.bound_name
        return f"--{name} {updates if name == 'updates' else -(-updates // self._per_epoch)}"

    def measure(self, update: int) -> dict[str, float]:
        """Figures by name: `val_*`, `eval_return_*`, `confirm_return_*`. Raises StopRequested, BadData from the environment."""
        figures: dict[str, float] = {}
        if self._val is not None:
            scores = score(self._learner, self._val, self._config.precision, self._ranks)
            figures |= {f"val_{name}": value for name, value in scores.items()}
        if self._environment is not None:
            checked = self._play(self._config.eval_episodes, Purpose.CHECK, update)
            figures |= returns_of("eval", checked)
            if self._config.until_return is not None and checked.mean >= self._config.until_return:
                figures |= returns_of("confirm", self._play(self._config.confirm_episodes, Purpose.CONFIRM, update))
        return figures

    def _play(self, episodes: int, purpose: Purpose, update: int) -> Played:
        assert self._environment is not None
        how: dict[str, Any] = {"seed": self._config.seed, "purpose": purpose, "round_": update, "pieces": self._pieces}
        try:
            return play(self._learner.policy, self._environment, episodes, **how, ranks=self._ranks)
        except RankFailed as err:
            if not err.said:
                raise StopRequested from err
            fix = "see the message of that process"
            raise BadData("; ".join(err.said), where=f"--env {self._environment.name}", fix=fix) from err

    def decide(self, state: TrainState, figures: Mapping[str, float]) -> bool:
        """Update `state` by `figures`, and end the run where they say so; returns whether this policy is the best so far."""
        state.figures = dict(figures)
        self._count_stale(state, figures)
        value = self._score_of(figures)
        better = value is not None and (state.best is None or value > state.best.score)
        if value is not None and better:
            state.best = Best(value, state.update, dict(figures))
        target, patience = self._config.until_return, self._config.patience
        if target is not None and figures.get(CONFIRMED, float("-inf")) >= target:
            state.stopped_by = "target"
        elif patience is not None and state.stale_checks >= patience:
            state.stopped_by = "patience"
        elif state.update >= self.bound:
            state.stopped_by = "bound"
        return better

    def _count_stale(self, state: TrainState, figures: Mapping[str, float]) -> None:
        loss = figures.get("val_loss")
        if loss is None:
            return
        if state.best_val_loss is None or loss < state.best_val_loss:
            state.best_val_loss, state.stale_checks = loss, 0
        else:
            state.stale_checks += 1

    def _score_of(self, figures: Mapping[str, float]) -> float | None:
        """The score that policies are compared by; None: the last one is kept."""
        if self._config.until_return is not None:
            return figures.get(CONFIRMED, figures["eval_return_mean"])  # of two estimates the one from more episodes
        return -figures["val_loss"] if "val_loss" in figures else None


def returns_of(name: str, played: Played) -> dict[str, float]:
    """The figures of played episodes, whose names begin with `name`."""
    values = {"return_mean": played.mean, "return_std": played.std, "return_ci95": played.ci95}
    return {f"{name}_{key}": value for key, value in (values | {"length_mean": float(played.lengths.mean())}).items()}


def score(learner: Learner, batches: Batches, precision: str, ranks: Ranks = ALONE) -> dict[str, float]:
    """The algorithm's scores, as means over all that `batches` hold, shared out among `ranks`: of cloning `loss`, and
    `accuracy` or `mse`."""
    totals: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    device = next(learner.policy.parameters()).device
    with evaluating(learner.whole), torch.inference_mode(), autocast(device, precision):
        for batch, _ in batches.in_order():
            for name, values in learner.algorithm.scores(learner.modules, batch).items():
                totals[name] = totals.get(name, 0) + values.double().sum()
                counts[name] += values.numel()
    if ranks.count == 1:
        return {name: float(total) / counts[name] for name, total in totals.items()}
    names = sorted({*filter(None, "\n".join(ranks.texts("\n".join(totals))).split("\n"))})  # a rank may have had no batch
    sums = ranks.summed([float(totals.get(name, 0)) for name in names] + [counts[name] for name in names])
    return {name: sums[number] / sums[len(names) + number] for number, name in enumerate(names)}
