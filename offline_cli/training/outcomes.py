"""How a run ends: its result, what it leaves out or missed, and an interruption."""

from __future__ import annotations

import math
import signal
from typing import Final

from offline_cli.columns import Columns
from offline_cli.errors import Interrupted, TargetNotMet
from offline_cli.modules.images import BY_SHAPE, flattened_images, image_notes
from offline_cli.stop_signals import exit_code_of
from offline_cli.training.algorithms.algorithm import uses_rewards
from offline_cli.training.checkpoints import TrainState
from offline_cli.training.config_model import BCConfig
from offline_cli.training.metrics_file import TrainResult
from offline_cli.training.session import Session
from offline_cli.training.training_data import TrainingData

__all__ = ["finished", "interrupted", "notes_on", "result_of", "unless_missed"]

FAR: Final = 100.0  # times what advantages are divided by


def notes_on(data: TrainingData, config: BCConfig, state: TrainState) -> list[str]:
    """What is worth knowing of the data and of how the run begins, as text."""
    form = getattr(getattr(data.learner.policy, "encoder", None), "images", BY_SHAPE)
    seen, needed = (data.observation_space, "observations", form), uses_rewards(data.learner.algorithm)
    images = flattened_images(*seen) + image_notes(*seen)
    clones = {Columns.OBS, Columns.ACTIONS}.issuperset(data.learner.algorithm.columns) and not needed
    of_rewards = data.rewards.notes(config.algorithm["name"] if clones else None)
    fresh, run = ", ".join(state.init_from.get("fresh", [])), state.init_from.get("run")
    begun = [f"{fresh} of the algorithm begin anew: {run} has none of this form"] if fresh else []
    zeros = data.rewards.note_on_zeros() if needed else ()
    scale = _note_on_scale(data) if needed else ()
    changed = [f"resumed although {change}" for change in state.changes]
    notes = [
        *changed,
        *data.environment_notes,
        *data.source_notes,
        *images,
        *data.selection.notes,
        *begun,
        *_note_on_ends(data, config),
    ]
    return [*notes, *of_rewards, *zeros, *scale]


def _note_on_ends(data: TrainingData, config: BCConfig) -> list[str]:
    """Where the algorithm bootstraps, and episodes do not end at an observation that was recorded."""
    name = config.algorithm["name"]
    left_out = f"the last step of each is left out, as {name} bootstraps; --keep-invented takes them"
    how = f"{name} bootstraps from copies of the ones before" if config.keep_invented else left_out
    return [f"{data.invented:,} truncated episodes have no recorded last observation: {how}"] if data.invented else []


def _note_on_scale(data: TrainingData) -> list[str]:
    """Where the first updates may weigh steps by exponentials that are no float32."""
    (lowest, highest), option = data.rewards.returns, data.learner.algorithm.scaled_by
    spread, value = highest - lowest, data.learner.algorithm.options.get(option, math.inf)
    if not spread > FAR * math.sqrt(value):
        return []
    small = f"returns spread over {spread:.3g}, and {option} = {value:g} is for advantages of some {math.sqrt(value):.3g}"
    return [f"{small}: try {option} = {spread**2:.0e}, or rewards of a smaller scale"]


def finished(session: Session) -> TrainResult:
    """Write policy, curve and result of a session that has ended."""
    kept = session.keep_best()
    result = result_of(session, kept)
    session.folder.finish(session.learner.policy.state_dict(), result.as_dict())
    return result


def result_of(session: Session, kept: int) -> TrainResult:
    """The result of a session whose policy is that of update `kept`."""
    state, config, data = session.state, session.config, session.data
    figures = state.best.figures if state.best is not None and state.best.update == kept else state.figures
    played = "confirm" if "confirm_return_mean" in figures else "eval"
    counts = {"confirm": config.confirm_episodes, "eval": config.eval_episodes}
    return TrainResult(
        run=session.folder.url,
        updates=state.update,
        epochs=round(session.epochs, 6),
        seconds=round(state.seconds, 3),
        samples_per_second=round(session.samples_per_second, 1),
        loss=state.loss,
        losses=dict(state.losses),
        val_loss=figures.get("val_loss"),
        eval_return_mean=figures.get(f"{played}_return_mean"),
        eval_return_ci95=figures.get(f"{played}_return_ci95"),
        eval_episodes=counts[played] if f"{played}_return_mean" in figures else None,
        val_accuracy=figures.get("val_accuracy"),
        val_mse=figures.get("val_mse"),
        policy_update=kept,
        stopped_by=config.bound_name if state.stopped_by in (None, "bound") else state.stopped_by,
        episodes=data.episodes,
        steps=data.steps,
        steps_left_out=0 if config.keep_invented else data.invented,
        device=state.device,
        threads=state.threads,
        notes=notes_on(data, config, state),
        rewards_not_finite=data.rewards.counts(),
        chosen=data.selection.told,
        weights=dict(data.seen.get("weights", {})),
        init_from=dict(state.init_from),
    )


def unless_missed(result: TrainResult, config: BCConfig) -> TrainResult:
    """`result`, or TargetNotMet where a target return was given and not confirmed."""
    if config.until_return is None or result.stopped_by == "target":
        return result
    best = "none" if result.eval_return_mean is None else f"{result.eval_return_mean:.2f}"
    what = f"no policy was confirmed at a return of {config.until_return:g} in {result.updates} updates; best: {best}"
    fix = f"--resume with more --{config.bound_name}, more or better data, or another --lr; the run keeps its best policy"
    raise TargetNotMet(what, where=result.run, fix=fix, details=result.as_dict())


def interrupted(session: Session, number: int) -> Interrupted:
    """The error of a session that is saved, and was stopped by the signal of this number."""
    update, where, name = session.state.update, session.folder.url, signal.Signals(number).name
    what = f"stopped by {name} after {update} updates; all of them are saved, and the policy of this last checkpoint "
    what += "can be played until the run is resumed"
    details = {"exit_code": exit_code_of(number), "updates": update, "policy_update": update, "run": where}
    return Interrupted(what, where=where, fix="the same command with --resume continues from there", details=details)
