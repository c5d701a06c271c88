"""One run of training, from top to bottom: configuration, data, modules, updates with checks and checkpoints, result.

`learn` is the run; `Run` holds what it works with. Between two updates a run is consistent: what is saved there is resumed bit
for bit (on the CPU, with the number of threads that the checkpoint holds). A checkpoint is of the moment before what belongs to
its number of updates (row of metrics, check, end of the run), so that a run which resumes there with another bound is as if it
had had that from the start: to one that is reached already as well.
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

from offline_cli.byte_sizes import byte_size
from offline_cli.connectors.pipeline_spec import Given
from offline_cli.engines.ranks import Ranks, is_first, joined
from offline_cli.environments import Environment, open_environment
from offline_cli.errors import (
    BadConfig,
    BadData,
    ClusterLost,
    Diverged,
    Interrupted,
    StorageError,
    TargetNotMet,
    TrainingDiverged,
)
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.opening import infos_of_manifests
from offline_cli.formats.tables import TableOptions
from offline_cli.modules.devices import choose_device, choose_threads, use_threads
from offline_cli.modules.images import BY_SHAPE, flattened_images, image_notes
from offline_cli.plugins import check_plugins, network_named
from offline_cli.policies.policy import Policy
from offline_cli.policies.run_files import BEST, REFRESHED, copy_into, part, prefixed
from offline_cli.policies.seeds import draw
from offline_cli.progress import OnProgress, Progress
from offline_cli.source_code import code_of
from offline_cli.stop_signals import StopRequested, exit_code_of, requested, signals_noted
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.training.action_recall import ActionRecall
from offline_cli.training.algorithms.algorithm import BC, uses_rewards
from offline_cli.training.checks import CONFIRMED, check_gates, decide, measure, missed_gates, notes_on_accuracy
from offline_cli.training.chosen_episodes import Weights
from offline_cli.training.config import check_named_again, differences, flat, read_config, resolve_config, stored_config
from offline_cli.training.config_model import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.one_agent import files_of_others, open_others, seen_by, target_of
from offline_cli.training.result import TrainResult
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.run_state import TrainState, check_same_run, describe_policy
from offline_cli.training.steps import Batches
from offline_cli.training.trackers import OnRow, check_trackers, tracking
from offline_cli.training.training_data import TrainingData, load_data
from offline_cli.training.updates import Launch, Update, captured, rate_factor

__all__ = ["learn"]

CHANCE: Final = 16  # sets the seed of losses that draw random numbers apart from others drawn from the same run seed
LOOK: Final = 20  # updates after which ranks on GPUs look whether one of them has to stop: it waits for the device

_log = logging.getLogger(__name__)


def learn(
    sources: Sources,
    out: Any,
    options: Mapping[str, Any],
    *,
    algorithm: Mapping[str, Any],
    weight: Any,
    env_to_module: Given,
    on_progress: OnProgress,
) -> TrainResult:
    """The whole run. `options`: those of `train_bc`, and keys of the configuration. `algorithm`: what was asked for of its
    table. What is raised: see `train`.
    """
    sources = [sources] if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    with ExitStack() as held:
        # ---- configuration and run folder ----
        storage_options, resume = options["storage_options"], options["resume"]
        players = files_of_others(options["policy"])
        beside = [out, *sources, *players, *filter(None, [options.get("init_from")])]  # all that storage options may be for
        weights = Weights.of(weight, sources, storage_options, beside=beside)
        folder = RunFolder(open_location(out, storage_options, beside=beside), writes=is_first())
        folder.claim(resume=resume, overwrite=options["overwrite"])
        tables = TableOptions.of({name: value for name, value in options.items() if name not in BCConfig.model_fields})
        check_plugins(options["plugins"])
        config = _resolved(options, algorithm, folder)
        trackers = [*dict.fromkeys(config.track or ())]
        check_trackers(trackers, folder)
        asked = AskedEnvironment.of({name: getattr(config, name) for name in ("env", "env_kwargs", "wrappers")})
        setup = Setup.of(config)
        device = choose_device(config.device)
        if not options["dry_run"]:
            held.enter_context(folder.locked())
        checkpoint = folder.load() if resume else None
        if checkpoint is not None:  # pieces keep what they had learned
            setup = replace(setup, learned=folder.learned())
        elif config.init_from is not None:
            setup = setup.starting(config, storage_options, options["plugins"], out=folder.url, beside=beside)

        # ---- data ----
        ranks = held.enter_context(joined(lambda: device.type))
        places = expand(sources, storage_options, beside=beside)
        known = ((info.location, info.environment) for info in infos_of_manifests(places))
        played_in, notes = (None, []) if asked is None else asked.chosen(known)
        environment = (
            None
            if played_in is None
            else held.enter_context(open_environment(played_in.id, played_in.kwargs, played_in.wrappers))
        )
        others = {} if environment is None else open_others(config, environment, options["plugins"], options["storage_options"])
        data = load_data(
            places,
            config,
            setup,
            environment=None if environment is None else seen_by(config.agent, environment),
            env_to_module=env_to_module,
            device=device.type,
            tables=tables,
            weights=weights,
            on_progress=on_progress,
            **{name: options[name] for name in ("module_id", "pipeline", "from_", "storage_options")},
        )
        held.callback(data.close)

        # ---- modules, and what a resumed run shares with the one before ----
        state = TrainState(data=data.facts.digest, seen=data.facts.figures(), device=device.type, pipeline=data.pipeline)
        state.init_from = setup.told(data.learner) if checkpoint is None else checkpoint[0].init_from
        own_code = [config.env or "", *(config.wrappers or ()), config.network["name"], config.algorithm["name"]]
        own_code += [text.partition("=")[2] for text in config.policy or ()]
        state.code = code_of(*(environment.singles(1) if environment else ()), *own_code, setup.algorithm, *data.code)
        state.threads = config.threads or choose_threads(data.learner.whole, config.batch_size, ranks.here)
        notes += _notes(data, config, state)
        described = describe_policy(data, config, played_in)
        if checkpoint is not None:
            wanted, state = state, checkpoint[0]
            check_same_run(state, wanted, options["allow_changes"], where=folder.url)
            notes += [f"resumed although {change}" for change in state.changes]
        _tell(notes, config, state, began_anew=resume and checkpoint is None, where=folder.url)
        run = Run(data, config, state, folder, environment, others, ranks, on_progress, notes)
        held.callback(run.close)
        held.enter_context(use_threads(state.threads))
        held.enter_context(signals_noted())
        with _own_chance(state):
            run.check_losses()  # before anything is written: an algorithm's mistake leaves no run folder
        if options["dry_run"]:
            return replace(run.result(state.update), stopped_by="dry-run")
        held.enter_context(run.telling_how_to_resume())

        # ---- begin, or go back to the checkpoint ----
        finished = None if checkpoint is None else run.finished()
        ranks.wait()  # until each has read what is there
        if finished is not None:
            return _unless_missed(finished, config)
        held.enter_context(_own_chance(state))
        if checkpoint is None:
            torch.manual_seed(draw(config.seed, CHANCE))
            folder.begin(config, described, None if data.trained is None else data.trained.state_bytes())
        else:
            run.restore(checkpoint[1])
            folder.resume(config, state.metrics_bytes)
        told = {name: value for name, value in flat(config).items() if value is not None}
        run.track = held.enter_context(tracking(trackers, folder, told, state.update))
        run.prepare()

        # ---- updates, with checks and checkpoints ----
        while state.stopped_by is None:
            if run.must_stop:
                run.save()
                folder.keep_policy(run.update.policy_state())
                raise run.interrupted()
            if state.update == run.bound or (state.update % config.checkpoint_every == 0 and folder.checkpoint_is_due):
                run.save()
            try:
                run.settle()
            except StopRequested:  # the check that was cut short is made again by the resumed run
                run.stopping = True
                continue
            if state.stopped_by is None:
                run.step()
        if state.update < run.bound:
            run.save()

        # ---- result ----
        kept = run.keep_best()
        result = run.result(kept)
        folder.finish(run.learner.policy.state_dict(), result.as_dict(), until_return=config.until_return)
    return _unless_missed(result, config)


class Run:
    """What one run works with."""

    def __init__(
        self,
        data: TrainingData,
        config: BCConfig,
        state: TrainState,
        folder: RunFolder,
        environment: Environment | None,
        others: Mapping[str, Policy],
        ranks: Ranks,
        on_progress: OnProgress,
        notes: Sequence[str],
    ) -> None:
        """Move the modules to their device, with batches and optimizers."""
        self.data, self.config, self.state, self.folder, self.ranks = data, config, state, folder, ranks
        self.environment, self.others = environment, others
        self.on_progress, self.notes, self.learner = on_progress, notes, data.learner
        self.track: OnRow = lambda row: None  # takes each row of metrics.jsonl
        self.device = torch.device(state.device)
        self.learner.to(self.device)
        form: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "device": self.device}
        form |= {"before": self.learner.before_sequences(), "ranks": ranks}
        self.batches = Batches(data.train, **form)
        self.held_out = None if data.val is None else Batches(data.val, **form)
        self.recall = None if data.val is None else ActionRecall(data.action_space, data.meanings, data.train)
        self.bound = config.bound(self.batches.updates_per_epoch)  # the update at which training ends, whatever it has reached
        stepping = {name: getattr(config, name) for name in ("lr", "precision", "weight_decay", "clip_norm", "ema", "compile")}
        self.update = Update(self.learner, self.batches.batch, ranks=ranks, **stepping)
        self.launch: Launch = self.update
        self.stopping = False  # whether a rank has to stop: all of them know, at the same number of updates
        self.best: dict[str, Tensor] = {}  # the policy of the best check
        self.refreshed: dict[str, Tensor] = {}  # the modules that columns were last computed with, where they are computed anew
        self.saved = state.update or None  # the update of the newest checkpoint
        self.samples: int | Tensor = 0  # steps learned from that the state does not count yet
        self.clock = time.perf_counter()

    def close(self) -> None:
        """End threads that gather batches."""
        for one in (self.batches, self.held_out):
            if one is not None:
                one.close()

    # ---- before the first update ----

    def check_losses(self) -> None:
        """Compute the losses of the next batch once, before `restore`. Raises BadConfig where they cannot be minimised, and for
        gates on figures that there will be none of.

        Nothing changes but torch's random generators. Several processes share out no batch whose rows are normalized together.
        """
        if self.ranks.count > 1:
            _check_rows_apart(self.learner.whole)
        self.batches.fill(self.state.update)
        self.update.check()
        check_gates(self.learner, self.batches.batch, self.config)

    def finished(self) -> TrainResult | None:
        """The result of a run that is finished within its bound; None: it is not. Raises BadConfig for a lower bound."""
        made, per_epoch = self.state.update, self.batches.updates_per_epoch
        if made > self.bound:
            name = self.config.bound_name
            fix = f"--{name} {made if name == 'updates' else -(-made // per_epoch)} or more, or train again with --overwrite"
            what = f"{made} updates are made already, and only {self.bound} asked for"
            raise BadConfig(what, where=self.folder.url, fix=fix)
        known = self.folder.result()
        return known if known is not None and (self.state.stopped_by is not None or made == self.bound) else None

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a checkpoint. Raises BadData where they are not those of such a run."""
        best, refreshed = part(tensors, BEST), part(tensors, REFRESHED)
        wanted = self._changing()
        wanted |= prefixed(BEST, self.learner.policy.state_dict()) if best else {}
        wanted |= prefixed(REFRESHED, self.learner.state()) if refreshed else {}
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        wrong = [name for name, tensor in wanted.items() if forms.get(name) != (tensor.shape, tensor.dtype)]
        if wrong or (refreshed and self.data.columns_anew is None):
            what = f"the checkpoint does not fit the run's configuration: {', '.join(wrong) or 'recomputed columns'}"
            fix = "put config.toml back as it was, or train again with --overwrite"
            raise BadData(what, where=self.folder.url, fix=fix)
        self.best = {name: tensor.to(self.device, copy=True) for name, tensor in best.items()}
        self.refreshed = {name: tensor.to(self.device, copy=True) for name, tensor in refreshed.items()}
        if self.refreshed:
            copy_into(self.learner.state(), self.refreshed)
            self._compute_columns()
        copy_into(self.update.changing(), tensors)
        torch.set_rng_state(tensors["generator"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["generator_cuda"])

    def prepare(self) -> None:
        """Capture the update where there is a GPU, and report where training begins; once, after `restore`."""
        state, ranks = self.state, self.ranks
        ranks.copy_first([tensor.detach() for tensor in self.update.changing().values()])  # networks need not follow from seeds
        if ranks.rank:  # what losses draw is of each rank's own rows
            torch.manual_seed(draw(self.config.seed, CHANCE, state.update, ranks.rank))
        if self.device.type == "cuda" and ranks.count == 1:
            self.batches.fill(state.update)
            self.launch = captured(self.update)
        self.clock = time.perf_counter()
        self._report()

    # ---- updates, and what belongs to their numbers ----

    def step(self) -> None:
        """One update."""
        before, state, every = time.perf_counter(), self.state, self.learner.algorithm.refresh_every
        if every is not None and state.update and state.update % every == 0:
            self.refreshed = {name: tensor.clone() for name, tensor in self.learner.state().items()}
            self._compute_columns()
        self.samples += self.batches.fill(state.update)
        schedule, warmup = self.config.lr_schedule, self.config.lr_warmup
        if schedule != "constant" or warmup:
            self.update.scale_rates(rate_factor(state.update, schedule=schedule, warmup=warmup, bound=self.bound))
        self.update.stop = requested() or 0
        self.launch(state.update)
        if self.ranks.count > 1 and (self.device.type == "cpu" or state.update % LOOK == 0):
            self.stopping = self.update.stopped(state.update)
        state.update += 1
        state.summed += 1
        state.train_seconds += time.perf_counter() - before

    def _compute_columns(self) -> None:
        """Have the learner pipeline recompute all columns with the current modules."""
        assert self.data.columns_anew is not None, "data in memory, of an algorithm that asks for it"
        stores = [one for one in (self.batches, self.held_out) if one is not None]
        for batches, columns in zip(stores, self.data.columns_anew(), strict=True):
            batches.replace(columns)

    def settle(self) -> None:
        """Whatever belongs to this number of updates: check, row of metrics, report.

        Raises StopRequested, nothing changed; Diverged.
        """
        state, config = self.state, self.config
        if state.settled == state.update:
            return
        every = config.check_every(self.batches.updates_per_epoch)
        checking = state.update > 0 and (state.update % every == 0 or state.update == self.bound)
        if checking or state.update % config.log_every == 0:
            losses = self._finite_losses(weights=checking)
            figures: dict[str, Any] = {}
            if checking:
                with self.update.kept_policy():
                    measured = self.held_out, self.environment, self.others, self.data.play
                    figures = measure(self.learner, config, *measured, state.update, self.ranks, self.recall)
            self._tick()
            state.loss, state.losses, state.summed = sum(losses.values()) if losses else None, losses, 0
            self.update.forget_losses()
            row = self._row(figures)
            state.metrics_bytes = self.folder.append(row)
            self.track(row)
            if checking and decide(state, config, figures, self.bound):
                self.best = {name: tensor.clone() for name, tensor in self.update.policy_state().items()}
            self._report()
        state.settled = state.update

    def _finite_losses(self, *, weights: bool) -> dict[str, float]:
        """The mean of each over the updates since the last row; of one whose group was not stepped since, the last known value,
        and none where it never was. Waits for the device, so the wait is time spent in updates.

        Raises Diverged rather than continue with, or keep, a policy that is not finite. `weights`: look at these, too.
        """
        state, known = self.state, self.state.losses
        if state.summed or state.loss is None:
            before = time.perf_counter()
            state.samples, self.samples = state.samples + int(self.samples), 0
            known = state.losses | self.update.means(state.update, state.summed)
            state.train_seconds += time.perf_counter() - before
        losses = {name: known[name] for name in self.learner.losses if name in known}
        if math.isfinite(sum(losses.values())) and (not weights or self.update.is_finite()):
            return losses
        what = f"training diverged: the loss is {sum(losses.values())} after {state.update} updates"
        fix = f"train again with --overwrite and a smaller --lr than {self.config.lr:g}, or look for wild values in the data"
        kind = Diverged if self.config.algorithm["name"] == BC else TrainingDiverged
        raise kind(what, where=self.folder.url, fix=fix, details={"update": state.update})

    def _tick(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self.clock
        self.clock = now

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return round(self.state.update / self.batches.updates_per_epoch, 6)

    @property
    def samples_per_second(self) -> float:
        """Steps per second spent in updates."""
        return self.state.samples / max(self.state.train_seconds, 1e-9)

    def _row(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        state = self.state
        return {
            "update": state.update,
            "epoch": self.epochs,
            "samples": state.samples,
            "loss": state.loss,
            **({f"{name}_loss": value for name, value in state.losses.items()} if len(self.learner.losses) > 1 else {}),
            "seconds": round(state.seconds, 3),
            "samples_per_second": round(self.samples_per_second),
            **{name: value for name, value in figures.items() if not isinstance(value, Mapping)},
        }

    def _report(self) -> None:
        state = self.state
        shown: dict[str, float | None] = {"loss": state.loss}
        if state.update:
            pace = state.update / max(state.train_seconds, 1e-9)
            shown = {"updates/s": pace, "samples/s": self.samples_per_second, **shown}
        shown |= {"val loss": state.figures.get("val_loss"), "return": state.figures.get("eval_return_mean")}
        known = {name: value for name, value in shown.items() if value is not None}
        self.on_progress(Progress("training", state.update, self.bound, "updates", known))

    # ---- checkpoints, and ends ----

    def _changing(self) -> dict[str, Tensor]:
        """All that an update changes, and torch's random generators."""
        found = self.update.changing() | {"generator": torch.get_rng_state()}
        return found | ({"generator_cuda": torch.cuda.get_rng_state()} if self.device.type == "cuda" else {})

    def save(self) -> None:
        """Write a checkpoint of this moment. Raises Diverged, and keeps the previous one, where weights are not finite."""
        self._finite_losses(weights=True)
        self._tick()
        self.folder.save(self.state, self._changing() | prefixed(BEST, self.best) | prefixed(REFRESHED, self.refreshed))
        self.saved = self.state.update

    @property
    def must_stop(self) -> bool:
        """Whether a signal ends the run before the next update; for all ranks alike."""
        return requested() is not None if self.ranks.count == 1 else self.stopping

    def interrupted(self) -> Interrupted:
        """The error of a run that is saved, and was stopped by a signal: in every rank the same one, whichever it reached."""
        number = requested() or signal.SIGTERM
        with suppress(ClusterLost):  # a rank that has failed meanwhile does not answer
            if self.ranks.summed([float(requested() == signal.SIGINT)])[0]:
                number = signal.SIGINT
        update, where, name = self.state.update, self.folder.url, signal.Signals(number).name
        what = f"stopped by {name} after {update} updates; all of them are saved, and the policy of this last checkpoint "
        what += "can be played until the run is resumed"
        details = {"exit_code": exit_code_of(number), "updates": update, "policy_update": update, "run": where}
        return Interrupted(what, where=where, fix="the same command with --resume continues from there", details=details)

    @contextmanager
    def telling_how_to_resume(self) -> Iterator[None]:
        """Within it a StorageError says from where `--resume` continues."""
        try:
            yield
        except StorageError as err:
            begun = "nothing is saved yet, so it begins the run"
            so_far = begun if self.saved is None else f"from its checkpoint at update {self.saved}"
            err.fix = f"{err.fix}; then the same command with --resume continues: {so_far}"
            raise

    def keep_best(self) -> int:
        """Load the policy that the run keeps into its module; returns its update number."""
        best, policy = self.state.best, self.learner.policy.state_dict()
        if best is None or not self.best or self.state.stopped_by == "target":
            copy_into(policy, self.update.policy_state())
            return self.state.update
        copy_into(policy, self.best)
        return best.update

    def result(self, kept: int) -> TrainResult:
        """The result, with the policy of update `kept`."""
        state, config, facts = self.state, self.config, self.data.facts
        figures = state.best.figures if state.best is not None and state.best.update == kept else state.figures
        played = "confirm" if CONFIRMED in figures else "eval"
        counts = {"confirm": config.confirm_episodes, "eval": config.eval_episodes}
        return TrainResult(
            run=self.folder.url,
            updates=state.update,
            epochs=self.epochs,
            seconds=round(state.seconds, 3),
            samples_per_second=round(self.samples_per_second, 1),
            loss=state.loss,
            losses=dict(state.losses),
            **{name: figures.get(name) for name in ("val_loss", "val_accuracy", "val_accuracy_majority", "val_mse")},
            val_recall=figures.get("val_recall", {}),
            eval_return_mean=figures.get(f"{played}_return_mean"),
            eval_return_ci95=figures.get(f"{played}_return_ci95"),
            eval_episodes=counts[played] if f"{played}_return_mean" in figures else None,
            policy_update=kept,
            stopped_by=config.bound_name if state.stopped_by in (None, "bound") else state.stopped_by,
            episodes=facts.episodes,
            steps=facts.steps,
            steps_left_out=0 if config.keep_invented else facts.invented,
            device=state.device,
            threads=state.threads,
            notes=[*self.notes, *notes_on_accuracy(figures)],
            rewards_not_finite=facts.faults,
            chosen=dict(facts.chosen),
            weights=dict(facts.weights),
            init_from=dict(state.init_from),
        )


# ---- what a run is asked for ----


def _resolved(options: Mapping[str, Any], algorithm: Mapping[str, Any], folder: RunFolder) -> BCConfig:
    """The configuration; for a resumed run the stored one, or with another bound. Raises BadConfig for other changes."""
    asked = {name: value for name, value in options.items() if name in BCConfig.model_fields and name != "network"}
    if options["memory_limit"] is not None:
        asked["memory_limit"] = byte_size(options["memory_limit"], option="--memory-limit", minimum=1)
    file, stored = options["config"], folder.config() if options["resume"] else None
    agent, asked["until_return"] = target_of(options["until_return"])
    named: dict[str, Any] = {"algorithm": algorithm, "network": network_named(options["network"])}
    wanted = resolve_config(asked, file=file, stored=stored, plugins=options["plugins"], **named)
    if agent not in (None, wanted.agent):
        what = f"the target is for agent {agent}, and {wanted.agent or 'no single agent'} learns"
        raise BadConfig(what, where="--until-return", fix=f"--agent {agent}")
    if stored is not None:
        said = {**({} if file is None else read_config(file)), **{name: one for name, one in asked.items() if one is not None}}
        check_named_again(wanted, said, where=folder.url)
        changed = differences(stored_config(stored), wanted)
        if changed:
            fix = "leave these options out to resume, or train again with --overwrite"
            raise BadConfig.of(changed, where=folder.url, fix=fix)
    return wanted


def _own_chance(state: TrainState) -> AbstractContextManager[None]:
    """Within it torch's random generators are the run's; afterwards they are restored."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if state.device == "cuda" else [])


def _check_rows_apart(module: nn.Module) -> None:
    """Raise BadConfig for layers that compute statistics over the rows of a batch, of which each process sees some only."""
    kinds = nn.modules.batchnorm
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, kinds._NormBase)]
    wrong = [name for name, part in layers if isinstance(part, kinds._BatchNorm) or part.track_running_stats]
    if wrong:
        what = f"{', '.join(wrong)}: statistics over the rows of a batch, which several processes share out"
        raise BadConfig(what, where="torchrun", fix="LayerNorm or GroupNorm in the network, or train in one process")


# ---- what it tells ----


def _tell(notes: Sequence[str], config: BCConfig, state: TrainState, *, began_anew: bool, where: str) -> None:
    """Log what was asked for but may not be intended."""
    if config.precision == "bf16" and state.device == "cpu":
        _log.warning("warning: bf16 on a CPU is often 10 to 30 times slower than fp32; leave out --precision bf16")
    if began_anew:
        _log.warning("note: no checkpoint in %s yet, so --resume begins a new run", where)
    for note in notes:
        _log.warning("note: %s", note)


def _notes(data: TrainingData, config: BCConfig, state: TrainState) -> list[str]:
    """What is worth knowing of the data, and of how the run begins."""
    algorithm, name = data.learner.algorithm, config.algorithm["name"]
    form = getattr(getattr(data.learner.policy, "encoder", None), "images", BY_SHAPE)
    seen = (data.observation_space, "observations", form)
    notes = [*data.facts.notes, *flattened_images(*seen), *image_notes(*seen)]
    if fresh := ", ".join(state.init_from.get("fresh", [])):
        notes.append(f"{fresh} of the algorithm begin anew: {state.init_from['run']} has none of this form")
    if data.facts.invented:
        left_out = f"the last step of each is left out, as {name} bootstraps; --keep-invented takes them"
        how = f"{name} bootstraps from copies of the ones before" if config.keep_invented else left_out
        notes.append(f"{data.facts.invented:,} truncated episodes have no recorded last observation: {how}")
    return [*notes, *data.facts.notes_on_rewards(unused_by=None if uses_rewards(algorithm) else name)]


def _unless_missed(result: TrainResult, config: BCConfig) -> TrainResult:
    """`result`, or TargetNotMet where a target return was given and not confirmed, or a gate on a held-out figure is missed."""
    missed = missed_gates(result, config)
    if config.until_return is None or result.stopped_by == "target":
        if missed:
            fix = "more or better data, or another --lr or network; the run keeps its policy, and --resume takes another bound"
            raise TargetNotMet("; ".join(missed), where=result.run, fix=fix, details=result.as_dict())
        return result
    best = "none" if result.eval_return_mean is None else f"{result.eval_return_mean:.2f}"
    what = f"no policy was confirmed at a return of {config.until_return:g} in {result.updates} updates; best: {best}"
    what = "; ".join([what, *missed])
    fix = f"--resume with more --{config.bound_name}, more or better data, or another --lr; the run keeps its best policy"
    raise TargetNotMet(what, where=result.run, fix=fix, details=result.as_dict())
