"""One update of an algorithm's modules, eager or as captured CUDA graphs; nothing in it waits for the device.

Both ways run the same code on the same static batch. Capturing warms up first, as CUDA libraries need, and puts back every
tensor that warming up has changed, so that a captured run starts from the same numbers as an eager one. Groups that are stepped
in every update, or in each k-th, are graphs of their own: a launch replays those that are due, in the order of the groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from offline_cli.engines.ranks import ALONE, Ranks
from offline_cli.modules.devices import autocast
from offline_cli.modules.network import checking_features
from offline_cli.policies.run_files import MODULES, OF_POLICY, STEPPED, prefixed
from offline_cli.training.algorithms.algorithm import Group
from offline_cli.training.learner import Learner, check_losses, differentiating, misnamed
from offline_cli.training.optimizer import Optimizer

__all__ = ["Stepped", "Update", "captured", "rate_factor", "unchanged"]

WARM_UPS = 3

Launch = Callable[[int], None]
"""Makes the update of a number, counted from 0."""


class Stepped:
    """One group with its optimizer. Calling it is a step of it, and raises BadConfig for losses under other names than the
    group's; `sums` add up its losses, () each, on the device.
    """

    def __init__(
        self,
        group: Group,
        learner: Learner,
        batch: Mapping[str, Any],
        *,
        lr: float,
        precision: str,
        ranks: Ranks = ALONE,
        **stepping: Any,
    ) -> None:
        """`ranks`: who makes the same step, each with its rows. `stepping`: further options of Optimizer."""
        parameters = learner.parameters_of(group)
        self.group, self.batch = group, batch
        self.lr = lr if group.lr is None else group.lr
        self.ranks = ranks
        self.adam = Optimizer(parameters, lr=self.lr, **stepping)
        self.stop = 0  # a signal that this process has got, which the ranks learn with the next step
        self._told: Tensor | None = None  # by all ranks, with the last step: losses, and whether one of them is to stop
        self._device = self.adam.parameters[0].device
        self.sums = {name: torch.zeros((), device=self._device) for name in group.losses}
        self._precision, self._kind = precision, type(learner.algorithm).__name__
        alone = len(learner.modules) == 1
        self._inputs = None if alone else [parameter for _, parameter in parameters]  # no gradient of what is not stepped

    def __call__(self) -> None:
        self.adam.zero_grad()
        with autocast(self._device, self._precision):
            losses = self.group.loss(self.batch)
            if losses.keys() != self.sums.keys():
                raise misnamed(losses, list(self.sums), self._kind)
            total = _sum(losses)
        total.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.ranks.count > 1:
            losses = self._exchange(losses)
        self.adam.step()
        for name, loss in losses.items():
            self.sums[name] += loss.detach()
        if self.group.then is not None:
            with torch.no_grad():
                self.group.then()

    def _exchange(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradient and losses of the whole batch, which are sums over the ranks; and whether one of them is to stop."""
        gradients = self.adam.gradients()
        stop = torch.tensor(float(self.stop), device=self._device)
        told = torch.stack([*(losses[name].detach() for name in self.sums), stop])
        exchanged = torch.cat([*(gradient.reshape(-1) for gradient in gradients), told.to(gradients[0].dtype)])
        self.ranks.sum_(exchanged)
        *parts, self._told = torch.split(exchanged, [*(gradient.numel() for gradient in gradients), len(told)])
        for owner, part in zip(self.adam.parameters, parts, strict=True):
            owner.grad = part.view_as(owner)
        return dict(zip(self.sums, self._told.unbind(), strict=False))

    @property
    def stopped(self) -> bool:
        """Whether a rank had to stop, as of the last step; waits for the device."""
        return self._told is not None and bool(self._told[-1] > 0)

    def check(self) -> None:
        """Compute the losses and their gradients once, without a step. Raises BadConfig where these cannot be minimised."""
        with autocast(self._device, self._precision):
            losses = self.group.loss(self.batch)
            check_losses(losses, list(self.sums), self._kind)
            total = _sum(losses)
        try:
            with differentiating(self._kind):
                total.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]  # as above
        finally:
            self.adam.zero_grad()


def _sum(losses: Mapping[str, Tensor]) -> Tensor:
    first, *others = losses.values()
    return sum(others, start=first)


class Update:
    """Calling it fits the learner's modules once to what `batch` holds then."""

    def __init__(
        self,
        learner: Learner,
        batch: Mapping[str, Any],
        *,
        lr: float,
        precision: str = "fp32",
        ema: float | None = None,
        ranks: Ranks = ALONE,
        **stepping: Any,
    ) -> None:
        """`ema`: decay of a moving average of the policy's weights, None: there is none. `stepping`: further options of
        Optimizer.
        """
        self.learner = learner
        own = {id(parameter): name for name, parameter in learner.policy.named_parameters()}
        self._averages: dict[str, Tensor] = {}  # of the policy's parameters, by name
        self.steps: list[Stepped] = []
        for group in learner.groups:
            of_policy = any(id(parameter) in own for _, parameter in learner.parameters_of(group))
            how: dict[str, Any] = {"lr": lr, "precision": precision, "ranks": ranks, **stepping}
            step = Stepped(group, learner, batch, ema=ema if of_policy else None, **how)
            pairs = zip(step.adam.parameters, step.adam.averages, strict=False)
            self._averages |= {own[id(parameter)]: average for parameter, average in pairs if id(parameter) in own}
            self.steps.append(step)
        self.stages = [(every, list(part)) for every, part in itertools.groupby(self.steps, lambda step: step.group.every)]
        self.device = self.steps[0].adam.parameters[0].device

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

    def changing(self) -> dict[str, Tensor]:
        """All that an update changes, by name: to be saved, and written back in place with `copy_`.

        With a moving average the policy under its usual names is that, so that whoever plays a checkpoint plays the policy that
        is kept, and what is stepped has names of its own.
        """
        stepped = self.learner.policy.state_dict()
        state = self.learner.state() | prefixed(OF_POLICY, self._averages)
        found = prefixed(MODULES, state) | self.optimizer_tensors()
        return found | prefixed(STEPPED, {name: stepped[name] for name in self._averages})

    def check(self) -> None:
        """Raise BadConfig for losses that cannot be minimised, and features that a network gives in another form than it says.

        Once before training, so that updates need not look. Modules stay as they are; random numbers are drawn.
        """
        with unchanged([*self.learner.others().values()]), checking_features(self.learner.whole):
            for step in self.steps:
                step.check()

    def tell(self, stop: int) -> None:
        """Have the other ranks learn of this signal, 0: of none, with the next step."""
        for step in self.steps:
            step.stop = stop

    def stopped(self, number: int) -> bool:
        """Whether a rank had to stop in update `number`, counted from 0; the same answer for all of them."""
        return any(step.stopped for every, part in self.stages if is_due(number, every) for step in part)

    def scale_rates(self, factor: float) -> None:
        """Have the steps to come take their learning rates times `factor`; captured graphs as well."""
        for step in self.steps:
            step.adam.lr.fill_(step.lr * factor)

    def __call__(self, number: int = 0) -> None:
        """The update of that number, counted from 0: every group that is due takes a step."""
        for every, part in self.stages:
            if is_due(number, every):
                for step in part:
                    step()

    def every_group(self) -> None:
        """A step of each group, due or not."""
        for step in self.steps:
            step()

    def tensors(self) -> list[Tensor]:
        """All that an update changes."""
        found: list[Tensor] = [*self.learner.others().values()]
        for step in self.steps:
            adam = step.adam
            found += [*(owner.detach() for owner in adam.parameters), *adam.averages]
            found += [*adam.tensors().values(), *step.sums.values()]
        return found

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """What optimizers and sums of losses hold, by name: to be saved, and written back in place with `copy_`."""
        found: dict[str, Tensor] = {}
        for number, step in enumerate(self.steps):
            found |= {f"adam.{number}.{name}": tensor for name, tensor in step.adam.tensors().items()}
            found |= {f"sum.{name}": tensor for name, tensor in step.sums.items()}
        return found

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
        return all(bool(torch.isfinite(owner).all()) for step in self.steps for owner in step.adam.parameters)


def rate_factor(number: int, *, schedule: str, warmup: int, bound: int) -> float:
    """What the learning rate is multiplied with in update `number`, counted from 0, of `bound`: warm-up times `schedule`."""
    rising = min(1.0, (number + 1) / warmup) if warmup else 1.0
    passed = min(1.0, max(0, number - warmup) / max(1, bound - warmup))
    if schedule == "linear":
        return rising * (1.0 - passed)
    return rising * (0.5 + 0.5 * math.cos(math.pi * passed)) if schedule == "cosine" else rising


def is_due(number: int, every: int) -> bool:
    """Whether what is done in each `every`-th update is done in update `number`, counted from 0."""
    return (number + 1) % every == 0


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


def captured(update: Update) -> Launch:
    """`update` as launches of CUDA graphs; needs losses that never read a value back."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    chance = torch.cuda.get_rng_state()
    with unchanged(update.tensors()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                update.every_group()
        torch.cuda.current_stream().wait_stream(side)
        graphs = [(every, _graph(part)) for every, part in update.stages]
    torch.cuda.set_rng_state(chance)

    def launch(number: int, _held: Update = update) -> None:  # graphs read and write tensors that nothing else may hold
        for every, graph in graphs:
            if is_due(number, every):
                graph.replay()

    return launch


def _graph(steps: Sequence[Stepped]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
        for step in steps:
            step()
    return graph
