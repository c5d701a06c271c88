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
from offline_cli.errors import BadConfig, BadData
from offline_cli.modules.devices import autocast
from offline_cli.modules.distributions import HITS
from offline_cli.modules.rl_module import evaluating
from offline_cli.playing.returns import Played, play
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.policy import Policy
from offline_cli.policies.seeds import Purpose
from offline_cli.spaces import describe
from offline_cli.stop_signals import StopRequested
from offline_cli.training.action_recall import MAJORITY, RECALL, ActionRecall
from offline_cli.training.algorithms.algorithm import Batch
from offline_cli.training.config_model import GATES, BCConfig
from offline_cli.training.learner import Learner
from offline_cli.training.result import TrainResult
from offline_cli.training.run_state import Best, TrainState
from offline_cli.training.steps import Batches

__all__ = ["CONFIRMED", "check_gates", "decide", "measure", "missed_gates", "notes_on_accuracy", "score"]

CONFIRMED = "confirm_return_mean"


def measure(
    learner: Learner,
    config: BCConfig,
    val: Batches | None,
    environment: Environment | None,
    others: Mapping[str, Policy],
    pieces: PlaySpec | None,
    update: int,
    ranks: Ranks,
    recall: ActionRecall | None = None,
) -> dict[str, Any]:
    """Figures by name: `val_*` of `val`, whose actions `recall` counts; `eval_return_*`, `confirm_return_*` of playing in
    `environment` between `pieces`, in a game beside `others`, by agent: then they are those of the agent that learns. All are
    numbers but `val_recall`, numbers by action.

    Raises StopRequested, BadData from the environment.
    """

    def returns(name: str, episodes: int, purpose: Purpose, where: Environment) -> dict[str, float]:
        played = _played(
            learner, where, episodes, ranks, seed=config.seed, purpose=purpose, round_=update, pieces=pieces, **beside
        )
        values = {"return_mean": played.mean, "return_std": played.std, "return_ci95": played.ci95}
        return {f"{name}_{key}": value for key, value in (values | {"length_mean": float(played.lengths.mean())}).items()}

    beside: dict[str, Any] = {"agent": config.agent, "others": others}
    figures: dict[str, Any] = {}
    if val is not None:
        figures |= {f"val_{name}": value for name, value in score(learner, val, config.precision, ranks, recall).items()}
    if environment is not None:
        figures |= returns("eval", config.eval_episodes, Purpose.CHECK, environment)
        if config.until_return is not None and figures["eval_return_mean"] >= config.until_return:
            figures |= returns("confirm", config.confirm_episodes, Purpose.CONFIRM, environment)
    return figures


def _played(learner: Learner, environment: Environment, episodes: int, ranks: Ranks, **how: Any) -> Played:
    try:
        played = play(learner.policy, environment, episodes, **how, ranks=ranks)
    except RankFailed as err:
        if not err.said:
            raise StopRequested from err
        fix = "see the message of that process"
        raise BadData("; ".join(err.said), where=f"--env {environment.name}", fix=fix) from err
    if environment.agents is None:
        return played
    own = played.of_agent(how["agent"])
    if not len(own.returns):
        what = f"agent {how['agent']} took part in none of {episodes} games"
        raise BadData(what, where=f"--env {environment.name}", fix="more --eval-episodes, or learn another --agent")
    return own


def decide(state: TrainState, config: BCConfig, figures: Mapping[str, Any], bound: int) -> bool:
    """Update `state` by the figures of a check, and end the run where they say so; returns whether this policy is the best."""
    state.figures = dict(figures)
    loss, score = figures.get("val_loss"), None  # the score that policies are compared by; None: the last one is kept
    if loss is not None:
        if state.best_val_loss is None or loss < state.best_val_loss:
            state.best_val_loss, state.stale_checks = loss, 0
        else:
            state.stale_checks += 1
        score = -loss
    if config.until_return is not None:
        score = figures.get(CONFIRMED, figures["eval_return_mean"])  # of two estimates the one from more episodes
    better = score is not None and (state.best is None or score > state.best.score)
    if score is not None and better:
        state.best = Best(score, state.update, dict(figures))
    if config.until_return is not None and figures.get(CONFIRMED, float("-inf")) >= config.until_return:
        state.stopped_by = "target"
    elif config.patience is not None and state.stale_checks >= config.patience:
        state.stopped_by = "patience"
    elif state.update >= bound:
        state.stopped_by = "bound"
    return better


def score(
    learner: Learner, batches: Batches, precision: str, ranks: Ranks = ALONE, recall: ActionRecall | None = None
) -> dict[str, Any]:
    """The algorithm's scores, as means over all that `batches` hold, shared out among `ranks`: of cloning `loss`, and
    `accuracy` or `mse`. Beside `accuracy`, with `recall`, `accuracy_majority` and the `recall` of each action."""
    totals: dict[str, Any] = {}
    by_choice = torch.zeros(2, 0 if recall is None else recall.count, dtype=torch.long)
    counts: Counter[str] = Counter()
    device = next(learner.policy.parameters()).device
    with evaluating(learner.whole), torch.inference_mode(), autocast(device, precision):
        for batch, _ in batches.in_order():
            found = dict(learner.algorithm.scores(learner.modules, batch))
            hits = found.pop(HITS, None)
            if hits is not None and recall is not None:
                found[MAJORITY], compared = recall.compared(batch, hits)
                by_choice = by_choice + compared.cpu()
            for name, values in found.items():
                totals[name] = totals.get(name, 0) + values.double().sum()
                counts[name] += values.numel()
    names = sorted({*filter(None, "\n".join(ranks.texts("\n".join(totals))).split("\n"))})  # a rank may have had no batch
    sums = ranks.summed(
        [*(float(totals.get(name, 0)) for name in names), *(counts[name] for name in names), *by_choice.flatten().tolist()]
    )
    scores: dict[str, Any] = {name: sums[number] / sums[len(names) + number] for number, name in enumerate(names)}
    if recall is not None and MAJORITY in scores:
        guessed, recorded = sums[2 * len(names) : -recall.count], sums[-recall.count :]
        scores[RECALL] = recall.recall(guessed, recorded)
    return scores


def notes_on_accuracy(figures: Mapping[str, Any]) -> list[str]:
    """A note where a held-out accuracy is no better than that of one action."""
    accuracy, majority = figures.get("val_accuracy"), figures.get(f"val_{MAJORITY}")
    if accuracy is None or majority is None or accuracy > majority:
        return []
    return [
        f"the held-out accuracy {accuracy:.4g} is not above {majority:.4g}, that of always playing the most frequent action"
    ]


# ---- gates without a simulator ----


def check_gates(learner: Learner, batch: Batch, config: BCConfig) -> None:
    """Raise BadConfig for a gate on a score that the algorithm does not give of these actions; `batch`: of any steps."""
    asked = {option: name for option, name in GATES.items() if getattr(config, option) is not None}
    if not asked:
        return
    with evaluating(learner.whole), torch.inference_mode():
        known = [name for name in learner.algorithm.scores(learner.modules, batch) if name != HITS]
    for option, name in asked.items():
        if name not in known:
            actions, flag = describe(learner.policy.action_space), f"--{option.replace('_', '-')}"
            what = f"{config.algorithm['name']} has no held-out {name} of actions {actions}, only {', '.join(known) or 'none'}"
            others = [f"--{one.replace('_', '-')}" for one, its in GATES.items() if its in known]
            raise BadConfig(what, where=flag, fix=" or ".join(["leave it out", *others]))


def missed_gates(result: TrainResult, config: BCConfig) -> list[str]:
    """Each held-out figure of the kept policy that is beyond its bound, in words."""
    found, loss, accuracy = list[str](), result.val_loss, result.val_accuracy
    if config.max_val_loss is not None and (loss is None or not loss <= config.max_val_loss):  # nor NaN
        found.append(f"val_loss is {_shown(loss)}, above --max-val-loss {config.max_val_loss:g}")
    if config.min_accuracy is not None and (accuracy is None or not accuracy >= config.min_accuracy):
        found.append(f"val_accuracy is {_shown(accuracy)}, below --min-accuracy {config.min_accuracy:g}")
    return found


def _shown(figure: float | None) -> str:
    return "not known" if figure is None else f"{figure:.6g}"
