"""`evaluate RUN --offline D`: how good a run's policy is, from recorded episodes alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.checked_keywords import checked
from offline_cli.choices import Behaviour, Device, Estimator, Positive, Share, Whole
from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, TargetNotMet, UsageError
from offline_cli.estimating.estimators import ALL, OF_VALUES, OF_WEIGHTS, Episodes, estimated
from offline_cli.estimating.fitting import Fitting
from offline_cli.estimating.intervals import Array
from offline_cli.estimating.likelihood import likelihood
from offline_cli.estimating.recorded import Recorded, recorded_for
from offline_cli.modules.distributions import ACCURACY, build_head, span_of
from offline_cli.modules.python_network import choose_device
from offline_cli.policies.by_name import is_named
from offline_cli.policies.policy_in_use import discrete_elements
from offline_cli.policies.run_policy import load_policy
from offline_cli.progress import OnProgress, no_progress
from offline_cli.reporting.intervals import draw_estimates
from offline_cli.spaces import leaf_spaces
from offline_cli.storage.locations import Location, Sources, open_location
from offline_cli.training.chosen_episodes import place_named
from offline_cli.training.run_folder import RunFolder
from offline_cli.trees import map_leaves

__all__ = ["OfflineResult", "evaluate_offline"]


class _Lack(NamedTuple):
    """Why episodes have no weights, and the remedy."""

    what: str
    fix: str


NO_SPREAD: Final = _Lack(
    "the policy acts on boxes without a spread that was learned, which gives recorded actions no probability",
    "--explore, for a policy that learned a spread (not td3-bc, rebrac)",
)
NOT_RECORDED: Final = _Lack("the recording has neither action_logp nor action_dist_inputs", "--behaviour fit or uniform")


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
    recordings and held episodes out, these alone are taken. `estimators`: see `estimators.py`; by default those of weights, but
    `dm` for policies without weights: they give continuous actions and act greedily, or never learned a spread (td3-bc,
    rebrac). `behaviour`: probabilities of recorded actions: "recorded" (`action_logp`, `action_dist_inputs`), of a clone fitted
    here ("fit"), or "uniform". `clip`: the largest weight of an episode. `mapping`: what columns of a table mean. `module_id`:
    the module, of several; default: the run's. `plot`: a PNG file.

    An estimate that may mislead says `reliable: false` and why. `dm` always does: its interval leaves out the error of Q.

    Raises UsageError for a policy that is no run, what `load_policy` and `recorded_for` raise, BadConfig for estimators without
    what they need; TargetNotMet unless some estimate is reliable, and the low end of each that is reaches `min_value`.
    """
    name, place, learner = place_named(run), open_location(run, storage_options), choose_device(device)
    if is_named(name):
        what = f"{name} gives actions, and not how likely recorded ones are"
        raise UsageError(what, where="--offline", fix="name a run folder of train")
    loaded = load_policy(place, storage_options, plugins=plugins, network=network)
    how: dict[str, Any] = {"behaviour": behaviour, "explore": explore, "mapping": mapping, "module_id": module_id}
    how |= {"device": learner, "storage_options": storage_options, "on_progress": on_progress}
    recorded = recorded_for(loaded, RunFolder(place), offline, **how)
    batch, facts, target, played = recorded.episodes, dict(recorded.facts), None, None
    lack: _Lack | None = None
    if recorded.has_rewards:
        fitting = Fitting(recorded, loaded, seed, learner, on_progress)
        if (target := _target(recorded, explore)) is not None:
            played, facts["behaviour"] = _behaviour(recorded, behaviour, fitting)
        if played is None:
            lack = NO_SPREAD if target is None else NOT_RECORDED
            facts["notes"].append(f"{lack.what}, so there are no weights, and no estimates but dm; remedy: {lack.fix}")
        asked = _asked(estimators, target, lack)
        values = fitting.values(gamma=gamma, explore=explore) if {*asked} & {*OF_VALUES} else None
        episodes = Episodes(batch.lengths, batch.rewards, target, played, gamma, clip)
        facts["recorded"], facts["estimates"] = estimated(episodes, asked, values, seed, recorded.doubts)
        facts |= {"gamma": gamma} if asked else {}
        if asked and (cut := np.count_nonzero(batch.truncated & ~batch.terminated)):
            what = f"{cut:,} of {len(batch):,} episodes were cut"
            facts["notes"].append(f"{what}: weights count rewards up to there, dm, dr and wdr go on")
    facts |= likelihood(recorded)
    result = OfflineResult(run=name, episodes=len(batch), steps=batch.num_steps, explore=explore, **facts)
    if plot is not None:
        draw_estimates(result.as_dict(), None if played is None else episodes.whole, open_location(plot, storage_options))
    reliable = {one: figures["low"] for one, figures in result.estimates.items() if figures["reliable"]}
    if min_value is not None and not (reliable and min(reliable.values()) >= min_value):
        reasons = dict.fromkeys(figures["reason"] for figures in result.estimates.values())
        causes = [*([] if lack is None else [lack.what]), *reasons] or result.notes
        why = "; ".join(f"{one} may be as low as {low:.5g}" for one, low in reliable.items() if low < min_value)
        why = why or f"no estimate is reliable: {'; '.join(causes)}"
        fix = "more episodes, a better policy, or one closer to the recorded policy" if lack is None else lack.fix
        raise TargetNotMet(f"{why}; {min_value:g} wanted", where=name, fix=fix, details=result.as_dict())
    return result


# ---- probabilities ----


def _target(recorded: Recorded, explore: bool) -> Array | None:
    """(N,) log-probability of each recorded action by the policy; None: it acts on boxes without a spread that was learned."""
    head, inputs = recorded.module.action_head, recorded.inputs[recorded.acted]
    if any(not explore or form.log_std[0] == form.log_std[1] for form in head.forms()):
        return None
    if explore:
        return np.asarray(head.logp(inputs, recorded.actions).double())
    return np.where(head.scores(inputs, recorded.actions)[ACCURACY] > 0, 0.0, -np.inf)


def _behaviour(recorded: Recorded, behaviour: str, fitting: Fitting) -> tuple[Array | None, str | None]:
    """(N,) log-probability of each recorded action by the recorded policy, in network units, and their source."""
    episodes, parts = recorded.episodes, leaf_spaces(recorded.space, Columns.ACTIONS)
    boxes = {path: leaf for path, leaf in parts.items() if isinstance(leaf, spaces.Box)}
    if behaviour == "fit":
        return fitting.cloned_logp(), behaviour
    if behaviour == "uniform":
        if unbounded := [path for path, leaf in boxes.items() if span_of(leaf) is None]:
            raise BadConfig(f"{unbounded[0]} has no bounds", where="--behaviour uniform", fix="--behaviour fit")
        discrete = discrete_elements(recorded.space, recorded.meanings).values()
        counts = [2] * sum(math.prod(leaf.shape) for leaf in boxes.values())  # their width
        counts += [element.count for each in discrete for element in each]
        return np.full(episodes.num_steps, -np.log(counts).sum()), behaviour
    logp, inputs = (episodes.extra.get(name) for name in (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS))
    if isinstance(logp, np.ndarray) and logp.size == episodes.num_steps:
        spans = [span_of(leaf) for leaf in boxes.values() if np.dtype(leaf.dtype).kind == "f"]
        widths = [np.log(one.width.astype(np.float64) / 2).sum() for one in spans if one is not None]
        shift = sum(widths) if recorded.action_scale == "env" else 0.0  # densities of other units
        return logp.reshape(-1).astype(np.float64) + shift, Columns.ACTION_LOGP
    head = build_head(recorded.space, action_scale=recorded.action_scale)
    if isinstance(inputs, np.ndarray) and inputs.shape == (episodes.num_steps, head.size):
        actions = map_leaves(torch.as_tensor, episodes.actions)
        return np.asarray(head.logp(torch.as_tensor(inputs, dtype=torch.float64), actions)), Columns.ACTION_DIST_INPUTS
    return None, None


def _asked(given: Sequence[str] | None, target: Array | None, lack: _Lack | None) -> tuple[str, ...]:
    """The chosen estimators. Raises BadConfig if one needs weights and there are none."""
    asked = tuple(one for one in ALL if one in (given or ()))
    if lack is None:
        return asked or OF_WEIGHTS
    if {*asked} - {"dm"}:
        fix = f"{lack.fix}; or --estimators dm"
        raise BadConfig(f"{lack.what}, so there are no weights", where=f"--estimators {','.join(asked)}", fix=fix)
    return asked or (("dm",) if target is None else ())
