"""One training run, from top to bottom: configuration, data, modules, updates with checks and checkpoints, result.

Checkpoints are taken between two updates, and resuming is exact bit for bit (on the CPU, with the checkpoint's number of
threads). A checkpoint is saved before the metrics row, check and stop decision of its update number, so that resuming with
another bound equals a run with that bound from the start.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from offline_cli.choices import byte_size
from offline_cli.engines.ranks import Ranks, is_first, joined
from offline_cli.environments import open_environment
from offline_cli.errors import (
    BadConfig,
    BadData,
    ClusterLost,
    Interrupted,
    StorageError,
    TargetNotMet,
    TrainingDiverged,
)
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.opening import infos_of_manifests
from offline_cli.formats.tables import TableOptions
from offline_cli.import_path import code_of
from offline_cli.modules.encoders import NATURE, flattened_images
from offline_cli.modules.python_network import choose_device, choose_threads, use_threads
from offline_cli.plugins import check_plugins, network_named
from offline_cli.policies.policy import draw
from offline_cli.policies.run_policy import BEST, REFRESHED, copy_into, part, prefixed
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import StopRequested, exit_code_of, requested, signals_noted
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.training import checks
from offline_cli.training.algorithms.algorithm import uses_rewards
from offline_cli.training.chosen_episodes import Weights
from offline_cli.training.config import (
    BCConfig,
    check_named_again,
    differences,
    flat,
    read_config,
    resolve_config,
    stored_config,
)
from offline_cli.training.learner import Setup, Start, Update, rate_factor
from offline_cli.training.run_folder import Best, RunFolder, TrainResult, TrainState, check_same_run, describe_policy
from offline_cli.training.steps import Batches
from offline_cli.training.trackers import check_trackers, tracking
from offline_cli.training.training_data import TrainingData, load_data

__all__ = ["learn"]

CHANCE: Final = 16  # distinguishes the seed of random losses from others of the same run seed
LOOK: Final = 10  # updates between two checks for stop signals across GPU ranks

_log = logging.getLogger(__name__)


def learn(sources: Sources, out: Any, options: Mapping[str, Any], on_progress: OnProgress) -> TrainResult:  # noqa: C901
    """The whole run, from top to bottom. Options and errors: see `train`."""
    sources = [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    storage_options, resume, plugins = options["storage_options"], options["resume"], options["plugins"]
    with ExitStack() as held:
        # ---- configuration and run folder ----
        written = {} if options["config"] is None else read_config(options["config"])  # once: it may be a pipe
        weights = Weights.of(options["weight"], sources, storage_options) if options["weight"] else None
        folder = RunFolder(open_location(out, storage_options), writes=is_first())
        folder.claim(resume=resume, overwrite=options["overwrite"])
        tables = TableOptions.of({name: value for name, value in options.items() if name not in BCConfig.model_fields})
        check_plugins(plugins)
        config = _resolved(options, folder, written)
        check_trackers(config.track or (), folder)
        asked = AskedEnvironment.of({name: getattr(config, name) for name in ("env", "env_kwargs", "wrappers")})
        setup, device = Setup.of(config), choose_device(config.device)
        if not options["dry_run"]:
            held.enter_context(folder.locked())
        checkpoint, ancestors = folder.load() if resume else None, list[list[list[int]]]()
        if checkpoint is not None:  # pieces keep their state
            setup = replace(setup, learned=folder.learned())
        elif config.init_from is not None:
            place = open_location(config.init_from, storage_options)
            started_from = RunFolder(place)
            parent, tensors = started_from.load() or (TrainState(), {})
            start = Start.of(place, config, started_from.config() or {}, tensors, plugins=plugins, out=folder.url)
            ancestors = [*parent.ancestors, parent.remembered]
            setup = replace(setup, start=start, learned=None if start.loaded.trained is None else start.loaded.trained.state)

        # ---- data ----
        ranks = held.enter_context(joined(lambda: device.type))
        places = expand(sources, storage_options)
        environment, played_in, notes = None, None, list[str]()
        if asked is not None:
            played_in, notes = asked.chosen((info.location, info.environment) for info in infos_of_manifests(places))
            environment = held.enter_context(open_environment(played_in.id, played_in.kwargs, played_in.wrappers))
        others = {} if environment is None else checks.open_others(config, environment, plugins, storage_options)
        data = load_data(
            places,
            config,
            setup,
            environment=None if environment is None else checks.seen_by(config.agent, environment),
            tables=tables,
            weights=weights,
            on_progress=on_progress,
            **{name: options[name] for name in ("module_id", "pipeline", "env_to_module", "from_", "storage_options")},
        )
        held.callback(data.close)

        # ---- modules, and checks of a resumed run ----
        learner = data.learner
        own_code = [config.env or "", *(config.wrappers or ()), config.network["name"], config.algorithm["name"]]
        own_code += [text.partition("=")[2] for text in config.policy or ()]
        state = TrainState(
            data=data.facts.digest,
            seen=data.facts.figures(),
            remembered=data.facts.remembered.tolist(),
            ancestors=ancestors,
            device=device.type,
            pipeline=data.pipeline,
            init_from={} if setup.start is None else setup.start.told(learner),
            opponents={agent: policy.fingerprint for agent, policy in others.items()},
            code=code_of(*(environment.singles(1) if environment else ()), *own_code, setup.algorithm, *data.code),
            threads=config.threads or choose_threads(learner.whole, config.batch_size),
        )
        described = describe_policy(data, config, played_in)
        notes += _notes(data, config, state if checkpoint is None else checkpoint[0])
        if checkpoint is not None:
            wanted, state = state, checkpoint[0]
            check_same_run(state, wanted, options["allow_changes"], where=folder.url)
            notes += [f"resumed although {change}" for change in state.changes]
        elif resume:
            _log.warning("note: %s has no checkpoint yet, so --resume starts a new run", folder.url)  # true of this call alone
        for note in notes:
            _log.warning("note: %s", note)
        learner.whole.to(device).train()
        stored: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "device": device, "ranks": ranks}
        batches, *checked = (
            Batches(steps, **stored, before=learner.before_sequences()) for steps in (data.train, data.val) if steps is not None
        )
        held_out = checked[0] if checked else None
        recall = None if held_out is None else checks.ActionRecall(data.action_space, data.meanings, data.train)
        stepping = {name: getattr(config, name) for name in ("lr", "precision", "weight_decay", "clip_norm", "ema", "compile")}
        update = Update(learner, batches.batch, ranks=ranks, **stepping)
        per_epoch = batches.updates_per_epoch
        bound = config.bound(per_epoch)  # maximum number of updates
        held.enter_context(use_threads(state.threads))
        held.enter_context(signals_noted())
        with _own_chance(state):  # before anything is written: refused gates leave no run folder
            if ranks.count > 1:
                _check_rows_apart(learner.whole)
            batches.fill(state.update)
            checks.check_gates(learner, batches.batch, config)
        if options["dry_run"]:
            return replace(_result(folder, config, state, data, per_epoch, notes, None), stopped_by="dry-run")

        # ---- start, or restore the checkpoint ----
        held.enter_context(_telling_how_to_resume())
        finished = None if checkpoint is None else _finished(folder, config, state, bound, per_epoch)
        ranks.wait()  # until each rank has read the run folder
        if finished is not None:
            return _unless_missed(finished, config)
        held.enter_context(_own_chance(state))
        best: dict[str, Tensor] = {}  # the policy of the best check
        refreshed: dict[str, Tensor] = {}  # modules of the last recomputation of columns
        if checkpoint is None:
            torch.manual_seed(draw(config.seed, CHANCE))
            folder.begin(config, described, None if data.trained is None else data.trained.state_bytes())
        else:
            tensors = {name: tensor.to(device) for name, tensor in checkpoint[1].items()}
            forms = {name: tensor.shape for name, tensor in tensors.items()}
            if wrong := [name for name, tensor in update.changing().items() if forms.get(name) != tensor.shape]:
                fix = "restore config.toml, or train again with --overwrite"
                raise BadData(f"the checkpoint does not fit the configuration: {', '.join(wrong)}", where=folder.url, fix=fix)
            best, refreshed = part(tensors, BEST), part(tensors, REFRESHED)
            if refreshed:
                copy_into(learner.state(), refreshed)
                _compute_columns(data, batches, held_out)
            copy_into(update.changing(), tensors)
            torch.set_rng_state(checkpoint[1]["generator"])
            if device.type == "cuda":
                torch.cuda.set_rng_state(checkpoint[1]["generator_cuda"])
            folder.resume(config, state.metrics_bytes)
        values = {name: value for name, value in flat(config).items() if value is not None}
        track = held.enter_context(tracking(config.track or (), folder, values, state.update))
        ranks.copy_first(
            [tensor.detach() for tensor in update.changing().values()]
        )  # initial weights may not depend on the seed alone
        if ranks.rank:  # each rank draws random numbers for its own rows
            torch.manual_seed(draw(config.seed, CHANCE, state.update, ranks.rank))

        # ---- updates, with checks and checkpoints ----
        began, stopping = time.perf_counter() - state.seconds, False
        samples: int | Tensor = 0  # steps not yet counted in the state
        _report(on_progress, state, bound)
        while state.stopped_by is None:
            number = state.update
            if ranks.count == 1 or device.type == "cpu" or number % LOOK == 0:
                stopping = stopping or ranks.summed([float(requested() is not None)])[0] > 0
            is_checked = number > 0 and (number % config.check_every(per_epoch) == 0 or number == bound)
            is_told = is_checked or (number > 0 and number % config.log_every == 0)
            is_saved = number == bound or number % config.checkpoint_every == 0 or stopping
            if is_told or is_saved:
                before = time.perf_counter()
                state.samples, samples = state.samples + int(samples), 0
                losses = _finite_losses(update, state, config, folder, weights=is_checked or is_saved)
                state.train_seconds += time.perf_counter() - before  # time to synchronize with the device
                state.seconds = time.perf_counter() - began
            if is_saved:
                folder.save(state, _tensors(update, best, refreshed))
            if stopping:
                folder.keep_policy(update.policy_state())
                raise _interrupted(state, folder, ranks)
            if is_told:
                figures: dict[str, Any] = {}
                try:
                    with update.kept_policy():
                        if is_checked and held_out is not None:
                            scores = checks.score(learner, held_out, config.precision, ranks, recall)
                            figures |= {f"val_{name}": value for name, value in scores.items()}
                        if is_checked and environment is not None:
                            figures |= checks.played_returns(learner, config, environment, others, data.play, number, ranks)
                except StopRequested:  # the resumed run repeats the interrupted check
                    stopping = True
                    continue
                state.seconds = time.perf_counter() - began
                state.loss, state.losses, state.summed = sum(losses.values()) if losses else None, losses, 0
                update.forget_losses()
                row = _row(state, learner.losses, per_epoch, figures)
                state.metrics_bytes = folder.append(row)
                track(row)
                if is_checked and checks.decide(state, config, figures, bound):
                    best = {name: tensor.clone() for name, tensor in update.policy_state().items()}
                _report(on_progress, state, bound)
            if state.stopped_by is None:
                before, every = time.perf_counter(), learner.algorithm.refresh_every
                if every is not None and number and number % every == 0:
                    refreshed = {name: tensor.clone() for name, tensor in learner.state().items()}
                    _compute_columns(data, batches, held_out)
                samples = samples + batches.fill(number)
                if config.lr_schedule != "constant" or config.lr_warmup:
                    update.scale_rates(rate_factor(number, schedule=config.lr_schedule, warmup=config.lr_warmup, bound=bound))
                update(number)
                state.update, state.summed = number + 1, state.summed + 1
                state.train_seconds += time.perf_counter() - before
        if state.update < bound:
            folder.save(state, _tensors(update, best, refreshed))

        # ---- result ----
        keeps_last = state.best is None or not best or state.stopped_by == "target"
        copy_into(learner.policy.state_dict(), update.policy_state() if keeps_last else best)
        result = _result(folder, config, state, data, per_epoch, notes, None if keeps_last else state.best)
        result = replace(result, reference=_reference(places))
        del batches, held_out, checked  # free the epoch order: drawing the curve needs memory
        folder.finish(learner.policy.state_dict(), result.as_dict(), until_return=config.until_return)
    return _unless_missed(result, config)


# ---- options and configuration ----


def _resolved(options: Mapping[str, Any], folder: RunFolder, written: Mapping[str, Any]) -> BCConfig:
    """The configuration; for a resumed run the stored one, apart from the bound. `written`: content of the config file.

    Raises BadConfig for other changes.
    """
    asked = {name: options[name] for name in BCConfig.model_fields if name in options and name not in ("algorithm", "network")}
    if options["memory_limit"] is not None:
        asked["memory_limit"] = byte_size(options["memory_limit"], option="--memory-limit", minimum=1)
    file, stored = options["config"], folder.config() if options["resume"] else None
    agent, asked["until_return"] = checks.target_of(options["until_return"])
    named: dict[str, Any] = {"algorithm": options["algorithm"], "network": network_named(options["network"])}
    wanted = resolve_config(asked, file=file, stored=stored, said=written, plugins=options["plugins"], **named)
    if agent not in (None, wanted.agent):
        what = f"the target is for agent {agent}, but {wanted.agent or 'no single agent'} learns"
        raise BadConfig(what, where="--until-return", fix=f"use --agent {agent}")
    if stored is not None:
        said = {**written, **{name: one for name, one in asked.items() if one is not None}}
        check_named_again(wanted, said, where=folder.url)
        if changed := differences(stored_config(stored), wanted):
            fix = "leave these options out to resume, or train again with --overwrite"
            raise BadConfig.of(changed, where=folder.url, fix=fix)
    return wanted


def _finished(folder: RunFolder, config: BCConfig, state: TrainState, bound: int, updates_per_epoch: int) -> TrainResult | None:
    """The result of a run that reached its bound or target, else None. Raises BadConfig for a bound below the updates already
    made.
    """
    if state.update > bound:
        least = state.update if config.bound_name == "updates" else -(-state.update // updates_per_epoch)
        fix = f"use --{config.bound_name} {least} or more, or train again with --overwrite"
        raise BadConfig(f"the run already has {state.update} updates, more than the bound {bound}", where=folder.url, fix=fix)
    known = folder.result()
    is_over = state.stopped_by is not None or state.update == bound or (known is not None and known.stopped_by == "target")
    return known if is_over else None


def _own_chance(state: TrainState) -> AbstractContextManager[None]:
    """Context manager: fork torch's random generators for the run."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if state.device == "cuda" else [])


def _check_rows_apart(module: nn.Module) -> None:
    """Raise BadConfig for layers with batch statistics, because each process sees only some of the rows."""
    kinds = nn.modules.batchnorm
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, kinds._NormBase)]
    wrong = [name for name, part in layers if isinstance(part, kinds._BatchNorm) or part.track_running_stats]
    if wrong:
        what = f"{', '.join(wrong)}: batch statistics are not supported with several processes"
        raise BadConfig(what, where="torchrun", fix="use LayerNorm or GroupNorm, or train in one process")


# ---- checkpoints ----


def _tensors(update: Update, best: Mapping[str, Tensor], refreshed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint: those of the update, random generators, best policy and refreshed modules."""
    found = update.changing() | {"generator": torch.get_rng_state()} | prefixed(BEST, best) | prefixed(REFRESHED, refreshed)
    return found | ({"generator_cuda": torch.cuda.get_rng_state()} if update.device.type == "cuda" else {})


def _compute_columns(data: TrainingData, batches: Batches, held_out: Batches | None) -> None:
    """Recompute all columns with the current modules."""
    assert data.columns_anew is not None, "set for algorithms with refresh_every"
    stores = [batches] if held_out is None else [batches, held_out]
    for store, columns in zip(stores, data.columns_anew(), strict=True):
        store.replace(columns)


def _finite_losses(
    update: Update, state: TrainState, config: BCConfig, folder: RunFolder, *, weights: bool
) -> dict[str, float]:
    """Mean of each loss over the updates since the last row; the last value for groups without a step since, if any.
    Synchronizes with the device.

    Raises TrainingDiverged if losses, or with `weights` the weights, are not finite.
    """
    known = state.losses | update.means(state.update, state.summed)
    losses = {name: known[name] for name in update.learner.losses if name in known}
    if math.isfinite(sum(losses.values())) and (not weights or update.is_finite()):
        return losses
    what = f"training diverged: the loss is {sum(losses.values())} after {state.update} updates"
    fix = f"train again with --overwrite and an --lr below {config.lr:g}, or check the data for extreme values"
    raise TrainingDiverged(what, where=folder.url, fix=fix, details={"update": state.update})


def _interrupted(state: TrainState, folder: RunFolder, ranks: Ranks) -> Interrupted:
    """The error of a saved run that was stopped by a signal; the same in every rank."""
    number = requested() or signal.SIGTERM
    with suppress(ClusterLost):  # a failed rank does not answer
        if ranks.summed([float(requested() == signal.SIGINT)])[0]:
            number = signal.SIGINT
    what = f"stopped by {signal.Signals(number).name} after {state.update} updates, all of which are saved; "
    what += "the policy of this checkpoint can be played"
    details = {"exit_code": exit_code_of(number), "updates": state.update, "policy_update": state.update, "run": folder.url}
    return Interrupted(what, where=folder.url, fix="run the same command with --resume to continue", details=details)


@contextmanager
def _telling_how_to_resume() -> Iterator[None]:
    """Context manager: add to the fix of a StorageError that `--resume` continues."""
    try:
        yield
    except StorageError as err:
        err.fix = f"{err.fix}; then run the same command with --resume to continue from the last checkpoint"
        raise


# ---- notes, metrics and result ----


def _reference(places: Sequence[Location]) -> dict[str, float]:
    """The returns that scores are normalised by, where all sources are datasets that say the same."""
    manifests = [info.manifest for info in infos_of_manifests(places)]
    told: list[dict[str, Any]] = [{**(one.reference or {})} for one in manifests if one is not None]
    return told[0] if len(told) == len(places) and all(one == told[0] for one in told) else {}


def _notes(data: TrainingData, config: BCConfig, state: TrainState) -> list[str]:
    """Notes on the data and the start of the run."""
    encoder = config.network.get("encoder", NATURE)
    notes = [*data.facts.notes, *flattened_images(data.observation_space, "observations", encoder)]
    if config.precision == "bf16" and state.device == "cpu":
        notes.append("bf16 on a CPU is often 10 to 30 times slower than fp32; leave out --precision bf16")
    if fresh := ", ".join(state.init_from.get("fresh", [])):
        notes.append(f"modules {fresh} start with random weights: {state.init_from['run']} has none of the same shape")
    return [*notes, *data.facts.own_notes(config, uses_rewards=uses_rewards(data.learner.algorithm))]


def _row(state: TrainState, losses: Sequence[str], updates_per_epoch: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl."""
    return {
        "update": state.update,
        "epoch": round(state.update / updates_per_epoch, 6),
        "samples": state.samples,
        "loss": state.loss,
        **({f"{name}_loss": value for name, value in state.losses.items()} if len(losses) > 1 else {}),
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(state.samples / max(state.train_seconds, 1e-9)),
        **{name: value for name, value in figures.items() if not isinstance(value, Mapping)},
    }


def _report(on_progress: OnProgress, state: TrainState, bound: int) -> None:
    rates = {"updates/s": state.update, "samples/s": state.samples} if state.update else {}
    shown: dict[str, float | None] = {name: count / max(state.train_seconds, 1e-9) for name, count in rates.items()}
    shown |= {"loss": state.loss, "val loss": state.figures.get("val_loss"), "return": state.figures.get("eval_return_mean")}
    known = {name: value for name, value in shown.items() if value is not None}
    on_progress(Progress("training", state.update, bound, "updates", known))


def _result(
    folder: RunFolder,
    config: BCConfig,
    state: TrainState,
    data: TrainingData,
    updates_per_epoch: int,
    notes: Sequence[str],
    best: Best | None,
) -> TrainResult:
    """The result for the policy of the `best` check (None: the last policy)."""
    facts, figures = data.facts, state.figures if best is None else best.figures
    played = "confirm" if "confirm_return_mean" in figures else "eval"
    return TrainResult(
        run=folder.url,
        updates=state.update,
        epochs=round(state.update / updates_per_epoch, 6),
        seconds=round(state.seconds, 3),
        samples_per_second=round(state.samples / max(state.train_seconds, 1e-9), 1),
        loss=state.loss,
        losses=dict(state.losses),
        **{name: figures.get(name) for name in ("val_loss", "val_accuracy", "val_accuracy_majority", "val_mse")},
        val_recall=figures.get("val_recall", {}),
        **{f"eval_{name}": figures.get(f"{played}_{name}") for name in ("return_mean", "return_ci95", "episodes")},
        policy_update=state.update if best is None else best.update,
        stopped_by=config.bound_name if state.stopped_by in (None, "bound") else state.stopped_by,
        episodes=facts.episodes,
        steps=facts.steps,
        steps_left_out=0 if config.keep_invented else facts.invented,
        device=state.device,
        threads=state.threads,
        notes=[*notes, *checks.notes_on_accuracy(figures)],
        rewards_not_finite=dict(facts.faults),
        chosen=dict(facts.chosen),
        weights=dict(facts.weights),
        init_from=dict(state.init_from),
        reference={},  # known once the run is finished
    )


def _unless_missed(result: TrainResult, config: BCConfig) -> TrainResult:
    """Return `result`. Raises TargetNotMet for an unconfirmed target return, or a held-out score beyond its limit."""
    if missed := checks.missed_gates(result, config):
        fix = f"use --resume with more --{config.bound_name}, more or better data, or another --lr; the best policy is kept"
        raise TargetNotMet("; ".join(missed), where=result.run, fix=fix, details=result.as_dict())
    return result
