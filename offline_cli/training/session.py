"""Everything that one run of training works with, put together anew or from a checkpoint; refuses a checkpoint of another run.

`bc.fit` is the loop; this is what it calls. Between two updates a session is consistent: `save` there, and a resumed run goes
on bit for bit (on the CPU, with the number of threads that the checkpoint holds).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from offline_cli.environments import Environment
from offline_cli.errors import BadConfig, BadData, Diverged
from offline_cli.modules.rl_module import RLModule
from offline_cli.progress import OnProgress, Progress
from offline_cli.training.checks import Checks
from offline_cli.training.config import BCConfig
from offline_cli.training.data import TrainingData
from offline_cli.training.flat_adam import FlatAdam
from offline_cli.training.loaders import open_loader
from offline_cli.training.run_folder import RunFolder
from offline_cli.training.seen_data import data_difference
from offline_cli.training.signals import StopSignals
from offline_cli.training.state import TrainState
from offline_cli.training.updates import Update, captured

__all__ = ["Session", "check_same_run"]

KEPT = "best"  # the policy of the best check, in a checkpoint


class Session:
    """One run: module, optimizer, loader, checks, counters, and the folder they are saved in."""

    def __init__(
        self,
        module: RLModule,
        data: TrainingData,
        config: BCConfig,
        state: TrainState,
        folder: RunFolder,
        *,
        environment: Environment | None,
        on_progress: OnProgress,
    ) -> None:
        self.module = module.to(torch.device(state.device)).train()
        self.data, self.config, self.state, self.folder = data, config, state, folder
        device = torch.device(state.device)
        self.loader = open_loader(data.train, batch_size=config.batch_size, seed=config.seed, device=device)
        val = None
        if data.val is not None:
            val = open_loader(data.val, batch_size=config.batch_size, seed=config.seed, device=device)
        per_epoch = self.loader.updates_per_epoch
        self.checks = Checks(module, config, val=val, environment=environment, pieces=data.pieces, updates_per_epoch=per_epoch)
        self.optimizer = FlatAdam(module.named_parameters(), lr=config.lr)
        self._update = Update(module, self.optimizer, self.loader.batch, precision=config.precision)
        self._best: Tensor | None = None
        self._on_progress = on_progress
        self._launch: Callable[[], None] = self._update
        self._clock = time.perf_counter()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a checkpoint. Raises BadData where they are not those of such a run."""
        own = self._tensors()
        wrong = [name for name, tensor in own.items() if name not in tensors or tensors[name].shape != tensor.shape]
        if wrong:
            what = f"the checkpoint does not fit the run's configuration: {', '.join(wrong)}"
            fix = "put config.toml back as it was, or train anew with --overwrite"
            raise BadData(what, where=self.folder.url, fix=fix)
        for name, tensor in own.items():
            if name == "generator":
                torch.set_rng_state(tensors[name])
            elif name not in (KEPT, "generator_cuda"):
                tensor.copy_(tensors[name])
        if "generator_cuda" in own:
            torch.cuda.set_rng_state(tensors["generator_cuda"])
        self._best = tensors[KEPT].to(self._update.device, copy=True) if KEPT in tensors else None

    def prepare(self) -> None:
        """Capture the update where there is a GPU, and report where training begins; once, after `restore`."""
        if self._update.device.type == "cuda":
            self.loader.fill(self.state.update)
            self._launch = captured(self._update)
        self._clock = time.perf_counter()
        self._report()

    def advance(self) -> None:
        """One update."""
        before = time.perf_counter()
        self.state.samples += self.loader.fill(self.state.update)
        self._launch()
        self.state.update += 1
        self.state.summed += 1
        self.state.train_seconds += time.perf_counter() - before

    def settle(self, stop: StopSignals) -> None:
        """Whatever belongs to this number of updates: check, row of metrics, report.

        Raises StopRequested, nothing changed; Diverged.
        """
        state = self.state
        reached = state.update == self.checks.bound and state.stopped_by is None  # older checkpoints are settled
        if state.settled == state.update and not (reached and state.update):
            return
        checking = self.checks.due(state.update)
        if checking or state.update % self.config.log_every == 0:
            loss = self._mean_loss()
            self._check_numbers(loss, checking=checking)
            figures = self.checks.measure(state.update, stop) if checking else {}
            self._tick()
            state.loss = loss
            self._update.loss_sum.zero_()
            state.summed = 0
            state.metrics_bytes = self.folder.append_metrics(self._row(figures))
            if checking and self.checks.decide(state, figures):
                self._best = self.optimizer.weights.clone()
            self._report()
        state.settled = state.update

    def _mean_loss(self) -> float:
        """Of the updates since the last row; waits for the device, so the wait is time spent in updates."""
        if not self.state.summed and self.state.loss is not None:
            return self.state.loss
        before = time.perf_counter()
        total = float(self._update.loss_sum)
        self.state.train_seconds += time.perf_counter() - before
        return total / self.state.summed

    def _check_numbers(self, loss: float, *, checking: bool) -> None:
        """Raise Diverged rather than go on with, or keep, a policy that is no numbers; the weights are looked at in checks."""
        if math.isfinite(loss) and not (checking and not bool(torch.isfinite(self.optimizer.weights).all())):
            return
        raise Diverged(
            f"training diverged: the loss is {loss} after {self.state.update} updates",
            where=self.folder.url,
            fix=f"train anew with --overwrite and a smaller --lr than {self.config.lr:g}, or look for wild values in the data",
            details={"update": self.state.update},
        )

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
        """Write a checkpoint of this moment."""
        self._tick()
        self.folder.save_checkpoint(self.state, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        """All that makes the next update what it is, by name."""
        tensors = {"weights": self.optimizer.weights, "loss_sum": self._update.loss_sum, "generator": torch.get_rng_state()}
        tensors |= {f"adam.{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        if self._update.device.type == "cuda":
            tensors["generator_cuda"] = torch.cuda.get_rng_state()
        return tensors if self._best is None else {**tensors, KEPT: self._best}

    def keep_best(self) -> int:
        """Put the policy that the run keeps into the module; gives the update it is from."""
        best = self.state.best
        if best is None or self._best is None or self.state.stopped_by == "target":
            return self.state.update
        self.optimizer.weights.copy_(self._best)
        return best.update


def check_same_run(stored: TrainState, wanted: TrainState, where: str) -> None:
    """Raise BadConfig unless a run with the state `stored` can go on as `wanted`: same data, pipeline and device."""
    problems = []
    if stored.data != wanted.data:
        differs = data_difference(stored.seen, wanted.seen, same_pipeline=stored.pipeline == wanted.pipeline)
        problems += [f"the data differs: {differs}"] * (differs is not None)
    for name, text in (("pipeline", "the learner pipeline differs"), ("device", "the device differs")):
        one, other = getattr(stored, name), getattr(wanted, name)
        if one != other:
            problems.append(f"{text}: the run has {one or 'the default'}, this call {other or 'the default'}")
    if problems:
        fix = "resume with what the run was started with, or train anew with --overwrite"
        raise BadConfig.of(problems, where=where, fix=fix)
