"""Everything that one run of training works with, built anew or from a checkpoint.

`train.fit` is the loop; this is what it calls. Between two updates a session is consistent: `save` there, and a resumed run
continues bit for bit (on the CPU, with the number of threads that the checkpoint holds).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor, nn

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, ClusterLost, Diverged, TrainingDiverged
from offline_cli.policies.run_files import (
    BEST,
    REFRESHED,
    copy_into,
    part,
    prefixed,
)
from offline_cli.policies.seeds import draw
from offline_cli.progress import OnProgress, Progress
from offline_cli.source_code import allowed_changes
from offline_cli.stop_signals import requested
from offline_cli.training.algorithms.algorithm import BC
from offline_cli.training.checkpoints import TrainState
from offline_cli.training.checks import Checks
from offline_cli.training.config_model import BCConfig
from offline_cli.training.loader import StepLoader
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.training_data import TrainingData, data_difference
from offline_cli.training.updates import Launch, Update, captured, rate_factor

__all__ = ["CHANCE", "Session", "check_same_run"]

CHANCE: Final = 16  # sets the seed of losses that draw random numbers apart from others drawn from the same run seed
LOOK: Final = 20  # updates after which ranks on GPUs look whether one of them has to stop: it waits for the device


class Session:
    """One run: modules, optimizers, loader, checks, counters, and the folder they are saved in."""

    def __init__(
        self,
        data: TrainingData,
        config: BCConfig,
        state: TrainState,
        folder: RunFolder,
        *,
        environment: Environment | None,
        on_progress: OnProgress,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self._stopping = False  # whether a rank has to stop: all of them know, at the same number of updates
        device = torch.device(state.device)
        self.learner = data.learner
        self.learner.to(device)
        self.data, self.config, self.state, self.folder = data, config, state, folder
        form: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "device": device}
        form |= {"before": self.learner.before_sequences(), "ranks": ranks}
        self.loader = StepLoader(data.train, **form)
        self._val = None if data.val is None else StepLoader(data.val, **form)
        self.checks = Checks(
            self.learner,
            config,
            val=self._val,
            environment=environment,
            pieces=data.pieces,
            updates_per_epoch=self.loader.updates_per_epoch,
            ranks=ranks,
        )
        self._update = Update(
            self.learner,
            self.loader.batch,
            lr=config.lr,
            precision=config.precision,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            ema=config.ema,
            ranks=ranks,
        )
        self._best: dict[str, Tensor] = {}  # the policy of the best check
        self._refreshed: dict[str, Tensor] = {}  # the modules that the columns were last computed with, where they change
        self._on_progress = on_progress
        self._samples: int | Tensor = 0  # steps learned from that the state does not count yet
        self._launch: Launch = self._update
        self._clock = time.perf_counter()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a checkpoint. Raises BadData where they are not those of such a run."""
        own = self._update.changing() | self._generators()
        best, refreshed = part(tensors, BEST), part(tensors, REFRESHED)
        wanted = own | (prefixed(BEST, self.learner.policy.state_dict()) if best else {})
        wanted |= prefixed(REFRESHED, self.learner.state()) if refreshed else {}
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        wrong = [name for name, tensor in wanted.items() if forms.get(name) != (tensor.shape, tensor.dtype)]
        if wrong or (refreshed and self.data.columns_anew is None):
            raise self._misfit(", ".join(wrong) or "recomputed columns")
        self._refreshed = self._held(refreshed)
        if self._refreshed:
            copy_into(self.learner.state(), self._refreshed)
            self._compute_columns()
        copy_into(self._update.changing(), tensors)
        try:
            torch.set_rng_state(tensors["generator"])
            if "generator_cuda" in own:
                torch.cuda.set_rng_state(tensors["generator_cuda"])
        except RuntimeError as err:
            raise self._misfit(str(err)) from err
        self._best = self._held(best)

    def _misfit(self, what: str) -> BadData:
        fix = "put config.toml back as it was, or train again with --overwrite"
        return BadData(f"the checkpoint does not fit the run's configuration: {what}", where=self.folder.url, fix=fix)

    def _held(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self._update.device, copy=True) for name, tensor in tensors.items()}

    def check_losses(self) -> None:
        """Compute the losses of the next batch once, before `restore`. Raises BadConfig where they cannot be minimised.

        Nothing changes but torch's random generators. Several processes share out no batch whose rows are normalized together.
        """
        if self.ranks.count > 1:
            check_rows_apart(self.learner.whole)
        self.loader.fill(self.state.update)
        self._update.check()

    def prepare(self) -> None:
        """Capture the update where there is a GPU, and report where training begins; once, after `restore`."""
        self.ranks.copy_first([*self._update.tensors()])  # a network may begin with weights that no seed gives
        if self.ranks.rank:  # what losses draw is of each rank's own rows
            torch.manual_seed(draw(self.config.seed, CHANCE, self.state.update, self.ranks.rank))
        if self._update.device.type == "cuda" and self.ranks.count == 1:
            self.loader.fill(self.state.update)
            self._launch = captured(self._update)
        self._clock = time.perf_counter()
        self._report()

    @property
    def is_to_stop(self) -> bool:
        """Whether a signal ends the run before the next update; for all ranks alike."""
        return requested() is not None if self.ranks.count == 1 else self._stopping

    def signal_that_stops(self) -> int:
        """The signal of `is_to_stop`, in every rank the same one: it may have reached another rank alone, or first.

        Asked for once all is saved: a rank that has failed meanwhile does not answer.
        """
        own = requested() or signal.SIGTERM
        try:
            interrupted = self.ranks.summed([float(requested() == signal.SIGINT)])[0]
        except ClusterLost:
            return own
        return signal.SIGINT if interrupted else own

    def cut_short(self) -> None:
        """A check has ended early, in every rank, because one of them has to stop."""
        self._stopping = True

    def advance(self) -> None:
        """One update."""
        before = time.perf_counter()
        every = self.learner.algorithm.refresh_every
        if every is not None and self.state.update and self.state.update % every == 0:
            self._refreshed = {name: tensor.clone() for name, tensor in self.learner.state().items()}
            self._compute_columns()
        self._samples += self.loader.fill(self.state.update)
        if self.config.lr_schedule != "constant" or self.config.lr_warmup:
            self._update.scale_rates(self._rate_factor())
        self._update.tell(requested() or 0)
        self._launch(self.state.update)
        if self.ranks.count > 1 and (self._update.device.type == "cpu" or self.state.update % LOOK == 0):
            self._stopping = self._update.stopped(self.state.update)
        self.state.update += 1
        self.state.summed += 1
        self.state.train_seconds += time.perf_counter() - before

    def _rate_factor(self) -> float:
        config = self.config
        return rate_factor(self.state.update, schedule=config.lr_schedule, warmup=config.lr_warmup, bound=self.checks.bound)

    def _compute_columns(self) -> None:
        """Have the learner pipeline recompute all columns with the current modules."""
        assert self.data.columns_anew is not None, "data in memory, of an algorithm that asks for it"
        for loader, columns in zip((self.loader, self._val), self.data.columns_anew(), strict=True):
            if loader is not None and columns is not None:
                loader.replace(columns)

    def settle(self) -> None:
        """Whatever belongs to this number of updates: check, row of metrics, report.

        Raises StopRequested, nothing changed; Diverged.
        """
        state = self.state
        if state.settled == state.update:
            return
        checking = self.checks.due(state.update)
        if checking or state.update % self.config.log_every == 0:
            losses = self._losses()
            loss = sum(losses.values()) if losses else None  # None: no group was due yet
            self._check_numbers(loss, weights=checking)
            with self._update.kept_policy():
                figures = self.checks.measure(state.update) if checking else {}
            self._tick()
            state.loss, state.losses = loss, losses
            self._update.forget_losses()
            state.summed = 0
            state.metrics_bytes = self.folder.append_metrics(self._row(figures))
            if checking and self.checks.decide(state, figures):
                self._best = {name: tensor.clone() for name, tensor in self.policy_state().items()}
            self._report()
        state.settled = state.update

    def _losses(self) -> dict[str, float]:
        """The mean of each over the updates since the last row; of one whose group was not stepped since, the last known value.

        Waits for the device, so the wait is time spent in updates.
        """
        if not self.state.summed and self.state.loss is not None:
            return self.state.losses
        before = time.perf_counter()
        self.state.samples += int(self._samples)
        self._samples = 0
        known = self.state.losses | self._update.means(self.state.update, self.state.summed)
        self.state.train_seconds += time.perf_counter() - before
        return {name: known[name] for name in self.learner.losses if name in known}

    def _check_numbers(self, loss: float | None, *, weights: bool) -> None:
        """Raise Diverged rather than continue with, or keep, a policy that is not finite. `weights`: look at these, too."""
        if (loss is None or math.isfinite(loss)) and (not weights or self._update.is_finite()):
            return
        what = f"training diverged: the loss is {loss} after {self.state.update} updates"
        steadier = [f"a smaller --lr than {self.config.lr:g}", *filter(None, [self.learner.algorithm.steadied_by])]
        fix = f"train again with --overwrite and {' or '.join(steadier)}, or look for wild values in the data"
        kind = Diverged if self.config.algorithm["name"] == BC else TrainingDiverged
        raise kind(what, where=self.folder.url, fix=fix, details={"update": self.state.update})

    def _tick(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self._clock
        self._clock = now

    def _row(self, figures: Mapping[str, float]) -> dict[str, Any]:
        state = self.state
        return {
            "update": state.update,
            "epoch": round(self.epochs, 6),
            "samples": state.samples,
            "loss": state.loss,
            **({f"{name}_loss": value for name, value in state.losses.items()} if len(self.learner.losses) > 1 else {}),
            "seconds": round(state.seconds, 3),
            "samples_per_second": round(self.samples_per_second),
            **figures,
        }

    def _report(self) -> None:
        state = self.state
        shown: dict[str, float | None] = {"loss": state.loss}
        if state.update:
            pace = state.update / max(state.train_seconds, 1e-9)
            shown = {"updates/s": pace, "samples/s": self.samples_per_second, **shown}
        shown |= {"val loss": state.figures.get("val_loss"), "return": state.figures.get("eval_return_mean")}
        known = {name: value for name, value in shown.items() if value is not None}
        self._on_progress(Progress("training", state.update, self.checks.bound, "updates", known))

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.state.update / self.loader.updates_per_epoch

    @property
    def samples_per_second(self) -> float:
        """Steps per second spent in updates."""
        return self.state.samples / max(self.state.train_seconds, 1e-9)

    def save_if_due(self) -> None:
        """Write a checkpoint where one is asked for at this number of updates, and the storage is quick enough for it."""
        if self.state.update % self.config.checkpoint_every == 0 and self.folder.checkpoint_is_due:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of this moment. Raises Diverged, and keeps the previous one, where weights are not finite."""
        losses = self._losses()
        self._check_numbers(sum(losses.values()) if losses else None, weights=True)
        self._tick()
        self.folder.save_checkpoint(self.state, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that determines the next update, by name."""
        kept = prefixed(BEST, self._best) | prefixed(REFRESHED, self._refreshed)
        return self._update.changing() | self._generators() | kept

    def _generators(self) -> dict[str, Tensor]:
        found = {"generator": torch.get_rng_state()}
        return found | ({"generator_cuda": torch.cuda.get_rng_state()} if self._update.device.type == "cuda" else {})

    def kept_policy(self) -> AbstractContextManager[None]:
        """Within it the learner's policy is the one that is checked and kept."""
        return self._update.kept_policy()

    def policy_state(self) -> dict[str, Tensor]:
        """The policy that is checked and kept, as of now."""
        return self._update.policy_state()

    def keep_best(self) -> int:
        """Load the policy that the run keeps into its module; returns its update number."""
        best = self.state.best
        if best is None or not self._best or self.state.stopped_by == "target":
            copy_into(self.learner.policy.state_dict(), self.policy_state())
            return self.state.update
        copy_into(self.learner.policy.state_dict(), self._best)
        return best.update


def check_rows_apart(module: nn.Module) -> None:
    """Raise BadConfig for layers that compute statistics over the rows of a batch, of which each process sees some only."""
    kinds = nn.modules.batchnorm
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, kinds._NormBase)]
    wrong = [name for name, part in layers if isinstance(part, kinds._BatchNorm) or part.track_running_stats]
    if wrong:
        what = f"{', '.join(wrong)}: statistics over the rows of a batch, which several processes share out"
        raise BadConfig(what, where="torchrun", fix="LayerNorm or GroupNorm in the network, or train in one process")


def check_same_run(stored: TrainState, wanted: TrainState, allow_changes: bool, where: str) -> None:
    """Raise BadConfig unless a run with the state `stored` can continue as `wanted`: same data, pipeline, device and code.

    Changes of the code that are allowed are added to `stored`.
    """
    problems = []
    if stored.data != wanted.data:
        differs = data_difference(stored.seen, wanted.seen, same_pipeline=stored.pipeline == wanted.pipeline)
        problems += [f"the data differs: {differs}"] * (differs is not None)
    for name, text in (("pipeline", "the learner pipeline differs"), ("device", "the device differs")):
        one, other = getattr(stored, name), getattr(wanted, name)
        if one != other:
            problems.append(f"{text}: the run has {one or 'the default'}, this call {other or 'the default'}")
    fix = "resume with what the run was started with, train again with --overwrite"
    stored.changes += allowed_changes(stored.code, wanted.code, allow_changes, where=where, fix=fix, others=problems)
    stored.code = wanted.code
