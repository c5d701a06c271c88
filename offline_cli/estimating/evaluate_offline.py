"""`evaluate RUN --offline D`: how good a run's policy is, from recorded episodes alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import Behaviour, Device, Estimator, Positive, Share, Whole
from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, TargetNotMet, UsageError
from offline_cli.estimating.estimators import (
    ALL,
    MOST,
    OF_VALUES,
    OF_WEIGHTS,
    Episodes,
    Values,
    distribution_free,
    estimates,
)
from offline_cli.estimating.figure import draw_estimates
from offline_cli.estimating.fitting import cloned_logp, fitted_values
from offline_cli.estimating.intervals import Array, Estimate, as_json, bootstrapped
from offline_cli.estimating.likelihood import likelihood
from offline_cli.estimating.recorded import Recorded, recorded_for
from offline_cli.modules.distributions import ACCURACY, build_head, span_of
from offline_cli.modules.python_network import choose_device
from offline_cli.policies.by_name import is_named
from offline_cli.policies.run_policy import load_policy
from offline_cli.progress import OnProgress, no_progress
from offline_cli.spaces import leaf_spaces
from offline_cli.storage.locations import Location, Sources, open_location
from offline_cli.training.run_folder import RunFolder
from offline_cli.trees import map_leaves

__all__ = ["OfflineResult", "evaluate_offline"]

LEAST: Final = 50  # effective episodes
LEAST_SHARE: Final = 0.01  # of the episodes, unless they are
ENOUGH: Final = 1000
UNCORRECTED: Final = ("is", "pdis", "wpdis")  # estimates that weights of the wrong sum shift
FAR: Final = 0.25  # of the sum of weights from 1, for estimates that divide by it
BEYOND: Final = 0.05  # share of the policy's actions that the behaviour never takes


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """Figures of a policy on recorded episodes."""

    run: str
    episodes: int
    steps: int
    held_out: bool | None  # whether the run held these episodes out; None: it learned from other data
    explore: bool
    log_likelihood: float  # mean over steps, in nats
    calibration_error: float
    by_action: Mapping[str, Any]  # figures of each choice, or of each element of an action
    accuracy: float | None = None
    mse: float | None = None  # in the units of networks: the bounds are 2 apart
    behaviour: str | None = None  # where its probabilities are from; None: they are not known
    gamma: float | None = None
    recorded: Mapping[str, float] = field(default_factory=dict)  # mean return of the recorded episodes, with its interval
    estimates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by column: steps, episodes that are no numbers
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; figures that these actions do not have are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None or name in ("held_out", "behaviour")}


@checked
def evaluate_offline(
    run: str | os.PathLike[str] | Location,
    offline: Sources,
    *,
    estimators: Sequence[Estimator] | None = None,
    behaviour: Behaviour = "recorded",
    gamma: Share = 1.0,
    clip: Positive | None = None,
    min_value: float | None = None,
    plot: str | None = None,
    explore: bool = False,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    module_id: str | None = None,
    seed: Whole = 0,
    plugins: Sequence[str] = (),
    network: str | None = None,
    device: Device = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> OfflineResult:
    """Measure the policy of a run on the recordings `offline`: how likely recorded actions are, and what the policy is worth.

    The policy acts greedily, as in `evaluate`, or draws its actions with `explore`. Where the run learned from the same
    recordings and held episodes out, these alone are taken. `estimators`: see `estimators.py`; by default those of weights, or
    `dm` where there are none: a policy of continuous actions that acts greedily, or has no spread that was learned (td3-bc,
    rebrac). `behaviour`: what played: "recorded" in `action_logp` or `action_dist_inputs`, a clone that is fitted here ("fit"),
    or "uniform". `clip`: the largest weight of an episode. `mapping`: what columns of a table mean. `module_id`: whose
    episodes, of several modules; default: the run's. `plot`: a PNG file.

    An estimate that may mislead says `reliable: false` and why. `dm` always does: a reliable estimate is one whose
    interval holds the value, and the error of Q is not in that of `dm`.

    Raises UsageError for a policy that is no run, what `load_policy` and `recorded_for` raise, BadConfig for estimators without
    what they need; TargetNotMet unless some estimate is reliable, and the low end of each that is reaches `min_value`.
    """
    name = run.url if isinstance(run, Location) else os.fspath(run)
    if is_named(name):
        what = f"{name} gives actions, and not how likely recorded ones are"
        raise UsageError(what, where="--offline", fix="name a run folder of train")
    place, where_to_learn = open_location(run, storage_options), choose_device(device)
    loaded = load_policy(place, storage_options, plugins=plugins, network=network)
    folder = RunFolder(place)
    how: dict[str, Any] = {"storage_options": storage_options, "on_progress": on_progress, "device": where_to_learn}
    how |= {"behaviour": behaviour, "explore": explore, "mapping": mapping, "module_id": module_id}
    recorded = recorded_for(loaded, folder, offline, run=name, **how)
    steps, count = recorded.episodes.num_steps, len(recorded.episodes)
    notes, found = [*recorded.notes], likelihood(recorded)
    described = loaded.description["network"]
    fitting: dict[str, Any] = {"seed": seed, "device": where_to_learn, "on_progress": on_progress}

    # ---- what the policy is worth ----
    target, played, source = _target(recorded, explore), None, None
    if target is not None and recorded.has_rewards:
        played, source = (None, "fit") if behaviour == "fit" else _behaviour(recorded, behaviour)
    asked = _asked(estimators, target, source, recorded, notes)
    doubts = [one for one in (recorded.doubt,) if one]
    complete, left_out = _complete(recorded, played, source)
    if left_out:
        named = ", ".join(f"{name} at {one['steps']:,} steps of {one['episodes']:,} episodes" for name, one in left_out.items())
        doubts.append(f"numbers are missing: {named}")
        notes.append(
            f"NaN or infinite: {named}; estimates leave these episodes out, which shifts them if that hangs on outcomes"
        )
        of_steps = np.repeat(complete, recorded.episodes.lengths)
        target, played = (None if one is None else one[of_steps] for one in (target, played))
        recorded = recorded.only(complete) if complete.any() else recorded
    if not complete.any():
        asked = ()
    if asked and source == "fit":
        played = cloned_logp(recorded, described, **fitting)
    batch, values = recorded.episodes, None
    episodes = Episodes(batch.lengths, batch.rewards, target, played, gamma, clip)
    if set(asked) & set(OF_VALUES):
        values = fitted_values(recorded, described, gamma=gamma, explore=explore, **fitting)
    has_value = recorded.has_rewards and complete.any()
    told, returns = _estimated(episodes, asked, values, seed, doubts) if has_value else ({}, {})
    if told and (cut := int(np.count_nonzero(batch.truncated & ~batch.terminated))):
        notes.append(f"{cut:,} of {len(batch):,} episodes were cut: weights count rewards up to there, dm, dr and wdr go on")
    result = OfflineResult(
        run=name,
        episodes=count,
        steps=steps,
        held_out=recorded.held_out,
        explore=explore,
        behaviour=source,
        gamma=gamma if told else None,
        recorded=returns,
        estimates=told,
        left_out=left_out,
        notes=notes,
        **found,
    )
    if plot is not None:
        weights = episodes.whole if asked and played is not None else None
        draw_estimates(told, returns, weights, open_location(plot, storage_options))
    _check_gate(result, min_value)
    return result


# ---- probabilities ----


def _target(recorded: Recorded, explore: bool) -> Array | None:
    """(N,) log-probability of each recorded action by the policy; None: it acts on boxes without a spread that was learned."""
    head, inputs = recorded.module.action_head, recorded.inputs[recorded.acted]
    if any(not explore or form.log_std[0] == form.log_std[1] for form in head.forms()):
        return None
    with torch.inference_mode():
        if explore:
            return head.logp(inputs, recorded.actions).double().numpy()
        return np.where(head.scores(inputs, recorded.actions)[ACCURACY].numpy() > 0, 0.0, -np.inf)


def _behaviour(recorded: Recorded, behaviour: str) -> tuple[Array | None, str | None]:
    """(N,) log-probability of each recorded action by what played, in the units of networks, and what says so."""
    parts, extra, count = leaf_spaces(recorded.space), recorded.episodes.extra, recorded.episodes.num_steps
    if behaviour == "uniform":
        return np.full(count, -_log_volume(recorded)), "uniform"
    logp = extra.get(Columns.ACTION_LOGP)
    if isinstance(logp, np.ndarray) and logp.size == count:
        spans = [span_of(leaf) for leaf in parts.values() if isinstance(leaf, spaces.Box) and np.dtype(leaf.dtype).kind == "f"]
        widths = [np.log(one.width.astype(np.float64) / 2).sum() for one in spans if one is not None]
        shift = sum(widths) if recorded.action_scale == "env" else 0.0  # a density of other units
        return logp.reshape(count).astype(np.float64) + shift, Columns.ACTION_LOGP
    inputs = extra.get(Columns.ACTION_DIST_INPUTS)
    if isinstance(inputs, np.ndarray):
        head = build_head(recorded.space, action_scale=recorded.action_scale)
        actions = map_leaves(torch.as_tensor, recorded.episodes.actions)
        if inputs.shape == (count, head.size):
            found = head.logp(torch.as_tensor(inputs, dtype=torch.float64), actions)
            return found.numpy().astype(np.float64), Columns.ACTION_DIST_INPUTS
    return None, None


def _complete(
    recorded: Recorded, played: Array | None, source: str | None
) -> tuple[NDArray[np.bool_], dict[str, dict[str, int]]]:
    """(E,) whether all numbers of an episode that estimates need are there; steps and episodes without, by column."""
    starts, complete, left_out = recorded.episodes.starts[:-1], np.ones(len(recorded.episodes), np.bool_), {}
    wrong = {Columns.REWARDS: ~np.isfinite(recorded.episodes.rewards)} if recorded.has_rewards else {}
    if played is not None and source is not None:
        wrong[source] = np.isnan(played) | np.isposinf(played)
    for column, steps in wrong.items():
        if steps.any():
            episodes = np.logical_or.reduceat(steps, starts)
            left_out[column] = {"steps": int(steps.sum()), "episodes": int(episodes.sum())}
            complete &= ~episodes
    return complete, left_out


def _log_volume(recorded: Recorded) -> float:
    """Log of how many actions there are, of boxes between -1 and 1. Raises BadConfig for boxes without bounds."""
    total = 0.0
    for path, leaf in leaf_spaces(recorded.space, Columns.ACTIONS).items():
        if isinstance(leaf, spaces.Box):
            if span_of(leaf) is None:
                raise BadConfig(f"{path} has no bounds", where="--behaviour uniform", fix="--behaviour fit")
            total += math.prod(leaf.shape or ()) * math.log(2)
        elif isinstance(leaf, spaces.MultiDiscrete):
            total += float(np.log(leaf.nvec).sum())
        else:
            total += math.log(leaf.n) if isinstance(leaf, spaces.Discrete) else math.prod(leaf.shape or ()) * math.log(2)
    return total


def _asked(
    given: Sequence[str] | None, target: Array | None, source: str | None, recorded: Recorded, notes: list[str]
) -> tuple[str, ...]:
    """The estimators. Raises BadConfig for those that need weights where there are none."""
    asked = tuple(one for one in ALL if one in (given or ()))
    if not recorded.has_rewards:
        notes.append("the recording has no rewards: nothing says what the policy is worth")
        return ()
    if target is not None and source is not None:
        return asked or OF_WEIGHTS
    what = "the policy acts on boxes without a spread that was learned, which gives recorded actions no probability"
    fix = "--estimators dm; or --explore, for a policy that learned a spread (not td3-bc, rebrac)"
    if target is not None:
        what, fix = "the recording has neither action_logp nor action_dist_inputs", "--behaviour fit or uniform"
    if set(asked) - {"dm"}:
        raise BadConfig(f"{what}, so there are no weights", where=f"--estimators {','.join(asked)}", fix=fix)
    notes.append(f"{what}: there are no weights, and dm alone can be asked for; or {fix}")
    return asked or (("dm",) if target is None else ())


# ---- estimates ----


def _estimated(
    episodes: Episodes, asked: Sequence[str], values: Values | None, seed: int, doubts: Sequence[str]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Each estimate with its interval and whether it can be relied on; the mean return of the recorded episodes likewise."""
    made = estimates(episodes, asked, values)
    own = Estimate(episodes.returns[:, None], lambda means: means[..., 0])
    members = (
        []
        if values is None or "dm" not in asked
        else [Estimate(one[:, None], lambda means: means[..., 0]) for one in values.first]
    )
    limits = bootstrapped([own, *made.values(), *members], seed)
    returns = {"value": own.value, **as_json(limits[0])}
    told = dict[str, Any]()
    for (name, one), interval in zip(made.items(), limits[1:], strict=False):
        if name == "dm":  # members may disagree by more than episodes do
            each = [interval, *limits[1 + len(made) :]]
            interval = min(low for low, _ in each), max(high for _, high in each)
        support = _support(episodes, name)
        told[name] = {"value": one.value, **as_json(interval), **support}
        if support["effective_samples"] == 0:  # no weight is left to average by
            told[name] |= {"value": math.nan, **as_json((math.nan, math.nan))}
        if name in ("is", "pdis"):
            limits_of_any = distribution_free(episodes, name) if len(episodes.lengths) > 1 else (math.nan, math.nan)
            told[name]["distribution_free"] = as_json(limits_of_any)
        why = [*doubts, *_doubts(episodes, name, one.value)]
        told[name] |= {"reliable": not why, "reason": "; ".join(why) or None}
    return told, returns


def _support(episodes: Episodes, name: str) -> dict[str, Any]:
    if episodes.behaviour is None or episodes.target is None or name == "dm":
        return {"effective_samples": None, "without_support": None}
    never = episodes.summed(np.isneginf(episodes.target)) > 0
    return {"effective_samples": episodes.effective_samples, "without_support": float(never.mean())}


def _doubts(episodes: Episodes, name: str, value: float) -> list[str]:
    """Why the estimate may mislead."""
    if name == "dm":  # of 10 intervals of a table's dm none held the value of ICU-Sepsis, where those of dr all did
        return ["its interval does not hold the error of Q; dr and wdr correct it by weights"]
    found, count = list[str](), len(episodes.lengths)
    if not math.isfinite(value):
        found.append("it is no finite number")
    if name in OF_VALUES and not episodes.returns.min() <= value <= episodes.returns.max():
        found.append("it lies beyond all recorded returns")
    assert episodes.behaviour is not None, "there are weights"
    if np.isneginf(episodes.behaviour).any():
        found.append("the behaviour gives recorded actions the probability 0")
    ratios = np.exp(np.minimum(episodes.ratios, MOST))
    sums = episodes.summed(ratios - 1)
    mass, spread = 1 + float(sums.sum()) / len(ratios), float(sums.std()) * count**0.5 / len(ratios)
    if mass < 1 - BEYOND - 3 * spread:
        found.append(f"the behaviour never takes {1 - mass:.0%} of the policy's actions")
    elif mass > 1 + BEYOND + 3 * spread:
        found.append(f"weights of steps are {mass:.3g} on average, and not 1: what played gives other probabilities")
    last = episodes.whole
    allowed = BEYOND if name in UNCORRECTED else FAR
    if abs(float(last.mean()) - 1) > allowed + 3 * float(last.std()) / count**0.5:
        found.append(
            f"weights of episodes are {last.mean():.3g} on average, and not 1: rare ones that hold the rest are missing"
        )
    effective = episodes.effective_samples
    if count < LEAST:
        found.append(f"only {count:,} episodes, and estimates need {LEAST} or more")
    elif effective < max(LEAST, min(LEAST_SHARE * count, ENOUGH)):
        found.append(f"{count:,} episodes count as {effective:.3g}: the policy does other things than what played")
    return found


def _check_gate(result: OfflineResult, min_value: float | None) -> None:
    """Raise TargetNotMet unless the policy is surely worth `min_value`."""
    if min_value is None:
        return
    reliable = {name: one["low"] for name, one in result.estimates.items() if one["reliable"]}
    below = [f"{name} may be as low as {low:.5g}" for name, low in reliable.items() if not low >= min_value]
    if reliable and not below:
        return
    reasons = dict.fromkeys(one["reason"] for one in result.estimates.values() if not one["reliable"])
    why = "; ".join(below) or f"no estimate is reliable: {'; '.join(reasons) or '; '.join(result.notes)}"
    fix = "more episodes, or a policy closer to what played" if not below else "a better policy, or more episodes"
    raise TargetNotMet(f"{why}; {min_value:g} wanted", where=result.run, fix=fix, details=result.as_dict())
