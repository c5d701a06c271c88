"""One update of an algorithm's modules: each group's losses, its gradient, its Adam; nothing in it waits for the device.

On a GPU the update is captured as CUDA graphs: the same code on the same static batch. Capturing warms up first, as CUDA
libraries need, and puts back every tensor that warming up has changed. With `--compile` losses are what torch.compile makes of
them.

Decision: the moving average of weights is a `lerp_` of ours. `swa_utils.AveragedModel` reads its counter back in each step,
which waits for the GPU, and cannot be captured. `LambdaLR` counts its own steps; here the number of the update says all.
"""

from __future__ import annotations

import inspect
import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.modules.devices import autocast
from offline_cli.plugins import plugin_behind
from offline_cli.policies.run_files import MODULES, OF_POLICY, STEPPED, prefixed
from offline_cli.training.algorithms.algorithm import Group
from offline_cli.training.learner import Learner

__all__ = ["Update", "captured", "rate_factor"]

BETAS: Final = (0.9, 0.999)
WARM_UPS: Final = 3
UNWRAPPED_STEP: Final = inspect.unwrap(torch.optim.AdamW.step)  # what wraps it imports torch's compiler: 60 MB and a second
LIKE_EAGER: Final[dict[str, Any]] = {"fallback_random": True}  # random numbers are torch's, which checkpoints keep
NO_COMPILER: Final = ("InvalidCxxCompiler", "TritonMissing", "No working C++ compiler")
SHORTAGE: Final = ("allocat", "out of memory")  # words of errors that are of the machine


class GroupStep:
    """One group with its Adam, whose whole state exists from the start, to be saved and written in place.

    Calling it is a step. `sums` add up its losses, () each, on the device.
    """

    def __init__(self, update: Update, group: Group, *, lr: float, weight_decay: float, ema: float | None) -> None:
        self.update, self.group, self._ema = update, group, ema
        self.loss = torch.compile(group.loss, options=LIKE_EAGER) if update.compile else group.loss
        named = update.learner.parameters_of(group)
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self.device = self.parameters[0].device
        self.rate = lr if group.lr is None else group.lr
        self.lr = torch.tensor(float(self.rate), device=self.device)  # so that a captured graph reads it anew
        without = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
        if without is not None:  # marked already: else torch imports its compiler to mark it
            vars(without).setdefault("__dynamo_disable", without)
        how: dict[str, Any] = {"betas": BETAS, "weight_decay": weight_decay, "fused": True}
        self._adam = torch.optim.AdamW(self.parameters, lr=self.lr, capturable=self.device.type == "cuda", **how)
        for parameter in self.parameters:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self._adam.state[parameter] = {"step": torch.zeros((), device=self.device), **moments}
        self.averages = [] if ema is None else [parameter.detach().clone() for parameter in self.parameters]
        self._kind = f"algorithm {type(update.learner.algorithm).__name__}"  # for messages
        self.sums = {name: torch.zeros((), device=self.device) for name in group.losses}
        self._inputs = None if len(update.learner.modules) == 1 else self.parameters  # no gradient of what is not stepped

    def __call__(self) -> None:
        losses, total = self._losses(self.loss)
        self._backward(total)
        for parameter in self.parameters:
            if parameter.grad is None:  # the loss does not depend on it in this step
                parameter.grad = torch.zeros_like(parameter)
        if self.update.ranks.count > 1:
            losses = self._exchanged(losses)
        if self.update.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.update.clip_norm)
        with torch.no_grad():
            UNWRAPPED_STEP(self._adam)
            self._average()
            for name, loss in losses.items():
                self.sums[name] += loss
            if self.group.then is not None:
                self.group.then()

    def _losses(self, function: Callable[[Mapping[str, Any]], Mapping[str, Tensor]]) -> tuple[Mapping[str, Tensor], Tensor]:
        """The losses by name, and their sum. Raises BadConfig for other names than the group has."""
        with autocast(self.device, self.update.precision):
            losses = function(self.update.batch)
            if not isinstance(losses, Mapping) or losses.keys() != self.sums.keys():
                given = list(losses) if isinstance(losses, Mapping) else f"a {type(losses).__name__}"
                what = f"{self._kind} has losses {list(self.sums)}, and its function gives {given}"
                raise BadConfig(
                    what, where=self._kind, fix="return a dict with each loss under the name that its Group has for it"
                )
            first, *others = losses.values()
            return losses, sum(others, start=first)

    def _backward(self, total: Tensor) -> None:
        """The gradients of a loss, in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        total.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _average(self) -> None:
        """After step n the average becomes d times itself plus 1 - d times the weights, d = min(ema, (1 + n) / (10 + n)): the
        first weights soon count little. Source: tf.train.ExponentialMovingAverage with `num_updates`.
        """
        if self._ema is not None:
            steps = self._adam.state[self.parameters[0]]["step"]
            share = 1 - ((1 + steps) / (10 + steps)).clamp(max=self._ema)
            for average, parameter in zip(self.averages, self.parameters, strict=True):
                average.lerp_(parameter, share.to(parameter.dtype))

    def _exchanged(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The losses of the whole batch, sums over the ranks as its gradients become."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        told = torch.stack([losses[name].detach() for name in self.sums]).to(gradients[0].dtype)
        together = self.update.ranks.sum_(torch.cat([*(gradient.reshape(-1) for gradient in gradients), told]))
        *parts, told = torch.split(together, [*(gradient.numel() for gradient in gradients), len(told)])
        for owner, part in zip(self.parameters, parts, strict=True):
            owner.grad = part.view_as(owner)
        return dict(zip(self.sums, told.unbind(), strict=True))

    def check(self) -> None:
        """Compute the losses and their gradients once, without a step, and compiled as well if they are to be.

        Raises BadConfig where these cannot be minimised, or compiled; MissingPackage without a compiler.
        """
        losses, total = self._losses(self.group.loss)
        try:
            if not all(loss.shape == () for loss in losses.values()):
                raise RuntimeError(f"shapes { ({name: tuple(loss.shape) for name, loss in losses.items()}) }")
            self._backward(total)
        except (RuntimeError, AttributeError) as err:
            if plugin_behind(err) is not None or any(word in str(err).lower() for word in SHORTAGE):
                raise
            fix = 'scalars with a gradient: torch.dot(rows, batch["weights"]), without .item(), detach() or in-place operations'
            what = f"{self._kind} has losses {list(self.sums)} that cannot be minimised: {err}"
            raise BadConfig(what, where=self._kind, fix=fix) from err
        try:
            if self.update.compile:
                self._backward(self._losses(self.loss)[1])
        except Exception as err:  # without compiling they were computed a moment ago
            said = "".join(traceback.format_exception(err))
            if any(word in said.lower() for word in SHORTAGE):
                raise
            lacks_compiler = any(name in said for name in NO_COMPILER)
            fix = (
                "leave out --compile" + "; or install g++ or clang++ (CXX names another one), on a GPU triton" * lacks_compiler
            )
            raised = MissingPackage if lacks_compiler else BadConfig
            raise raised(f"torch.compile cannot compile the losses: {err}", where="--compile", fix=fix) from err
        finally:
            for parameter in self.parameters:
                parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Adam's state by `parameter.name`."""
        owners = zip(self.names, self.parameters, strict=True)
        return {f"{name}.{key}": tensor for name, owner in owners for key, tensor in self._adam.state[owner].items()}


class Update:
    """Calling it fits the learner's modules once to what `batch` holds then."""

    def __init__(
        self,
        learner: Learner,
        batch: Mapping[str, Any],
        *,
        lr: float,
        precision: str = "fp32",
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        ema: float | None = None,
        compile: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """`clip_norm`: the longest gradient of a group, all its parameters as one vector. `ema`: decay of a moving average of
        the policy's weights; None: there is none. `compile`: compute losses by what torch.compile makes of them.
        """
        self.learner, self.batch, self.precision, self.clip_norm, self.ranks = learner, batch, precision, clip_norm, ranks
        self.compile = compile
        own = {id(parameter): name for name, parameter in learner.policy.named_parameters()}
        self._averages: dict[str, Tensor] = {}  # of the policy's parameters, by name
        self.steps: list[GroupStep] = []
        for group in learner.groups:
            of_policy = any(id(parameter) in own for _, parameter in learner.parameters_of(group))
            step = GroupStep(self, group, lr=lr, weight_decay=weight_decay, ema=ema if of_policy else None)
            pairs = zip(step.parameters, step.averages, strict=False)
            self._averages |= {own[id(parameter)]: average for parameter, average in pairs if id(parameter) in own}
            self.steps.append(step)
        self.stages = [(every, list(part)) for every, part in itertools.groupby(self.steps, lambda step: step.group.every)]
        self.device = self.steps[0].device

    def __call__(self, number: int = 0) -> None:
        """The update of that number, counted from 0: every group that is due takes a step."""
        for every, steps in self.stages:
            if (number + 1) % every == 0:
                for step in steps:
                    step()

    def scale_rates(self, factor: float) -> None:
        """Have the steps to come take their learning rates times `factor`; captured graphs as well."""
        for step in self.steps:
            step.lr.fill_(step.rate * factor)

    def check(self) -> None:
        """Raise BadConfig for losses that cannot be minimised, and what `GroupStep.check` raises.

        Once before training, so that updates need not look. Modules stay as they are; random numbers are drawn.
        """
        with unchanged([*self.learner.others().values()]):
            for step in self.steps:
                step.check()

    # ---- the policy that is kept ----

    def policy_state(self) -> dict[str, Tensor]:
        """The policy that is checked and kept: its parameters, or their moving averages, and its buffers; in place."""
        return {**self.learner.policy.state_dict(), **self._averages}

    @contextmanager
    def kept_policy(self) -> Iterator[None]:
        """Within it the learner's policy is the one that is kept."""
        stepped = self.learner.policy.state_dict()
        own = {name: stepped[name] for name in self._averages}
        with unchanged(list(own.values())), torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(self._averages[name])
            yield

    # ---- figures, and what is saved ----

    def means(self, number: int, since: int) -> dict[str, float]:
        """The mean of each loss over the steps in the last `since` of `number` updates; none where its group took no step.

        Waits for the device.
        """
        found: dict[str, float] = {}
        for step in self.steps:
            every = step.group.every
            count = number // every - (number - since) // every
            if count:
                found |= {name: float(total) / count for name, total in step.sums.items()}
        return found

    def forget_losses(self) -> None:
        """Begin to add up anew."""
        for step in self.steps:
            for total in step.sums.values():
                total.zero_()

    def is_finite(self) -> bool:
        """Whether all weights are numbers; waits for the device."""
        return all(bool(torch.isfinite(parameter).all()) for step in self.steps for parameter in step.parameters)

    def changing(self) -> dict[str, Tensor]:
        """All that an update changes, by name: to be saved, and written back in place with `copy_`.

        With a moving average the policy under its usual names is that, so that whoever plays a checkpoint plays the policy that
        is kept, and what is stepped has names of its own.
        """
        stepped = self.learner.policy.state_dict()
        found = prefixed(MODULES, self.learner.state() | prefixed(OF_POLICY, self._averages))
        for number, step in enumerate(self.steps):
            found |= prefixed(f"adam.{number}.", step.tensors()) | prefixed("sum.", step.sums)
        return found | prefixed(STEPPED, {name: stepped[name] for name in self._averages})


def rate_factor(number: int, *, schedule: str, warmup: int, bound: int) -> float:
    """What the learning rate is multiplied with in update `number`, counted from 0, of `bound`: warm-up times `schedule`."""
    rising = min(1.0, (number + 1) / warmup) if warmup else 1.0
    passed = min(1.0, max(0, number - warmup) / max(1, bound - warmup))
    if schedule == "linear":
        return rising * (1.0 - passed)
    return rising * (0.5 + 0.5 * math.cos(math.pi * passed)) if schedule == "cosine" else rising


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Whatever happens inside, `tensors` have their old values, in the same memory, afterwards."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def captured(update: Update) -> Callable[[int], None]:
    """`update` as launches of CUDA graphs, one for the groups of each `every`; needs losses that never read a value back."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    chance = torch.cuda.get_rng_state()
    with unchanged([tensor.detach() for tensor in update.changing().values()]):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                for step in update.steps:
                    step()
        torch.cuda.current_stream().wait_stream(side)
        graphs = []
        for every, steps in update.stages:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
                for step in steps:
                    step()
            graphs.append((every, graph))
    torch.cuda.set_rng_state(chance)

    def launch(number: int, _held: Update = update) -> None:  # graphs read and write tensors that nothing else may hold
        for every, graph in graphs:
            if (number + 1) % every == 0:
                graph.replay()

    return launch
