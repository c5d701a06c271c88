"""Adam over all weights as one flat tensor, which has one dtype and one device.

Weights and gradients of the module become views of two flat tensors, so that one step is a handful of operations whatever the
number of layers, its whole state is three tensors that are saved without pickle, and nothing in it waits for the device: a CUDA
graph can hold it. (torch's own optimizers would also cost each start about 1.4 s: their first use loads torch._dynamo.) Source:
Kingma and Ba 2015, Algorithm 1; equal to torch.optim.Adam to rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from offline_cli.errors import BadConfig

__all__ = ["Average", "FlatAdam"]


class FlatAdam:
    """Takes over `parameters` (their memory moves into `weights`); gradients must be accumulated, never replaced."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        beside: int = 0,
    ) -> None:
        """`parameters`: of a module, with or without their names, which errors then name. `weight_decay`: as AdamW has it
        (Loshchilov and Hutter 2019, Algorithm 2). `clip_norm`: the longest gradient, of all parameters as one vector. Raises
        BadConfig for parameters of several dtypes or devices: one tensor would change the dtype of some. `beside`: numbers
        that are exchanged with the gradient, and behind it in `exchanged`.
        """
        named = [part if isinstance(part, tuple) else (str(number), part) for number, part in enumerate(parameters)]
        _check_alike(named)
        owners = [owner for _, owner in named]
        self.weights = torch.cat([owner.detach().reshape(-1) for owner in owners])
        self.exchanged = torch.zeros(len(self.weights) + beside, dtype=self.weights.dtype, device=self.weights.device)
        self.gradients = self.exchanged[: len(self.weights)]
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.step_number = torch.zeros((), dtype=torch.float64, device=self.weights.device)  # 1 - beta^t needs the digits
        self.lr = torch.tensor(float(lr), device=self.weights.device)  # so that a captured graph reads it anew; too high: inf
        self._beta1, self._beta2, self._eps = *betas, eps
        self._weight_decay, self._clip_norm = weight_decay, clip_norm
        self._decay = torch.tensor(betas, dtype=torch.float64, device=self.weights.device)
        self._scratch = torch.empty_like(self.weights)
        self.averaged: Average | None = None
        first = 0
        for owner in owners:
            part = slice(first, first + owner.numel())
            owner.data, owner.grad = self.weights[part].view_as(owner), self.gradients[part].view_as(owner)
            first += owner.numel()

    def average(self, decay: float) -> Average:
        """A moving average of the weights from now on, moved by each step."""
        self.averaged = Average(self.weights, self.step_number, decay)
        return self.averaged

    def zero_grad(self) -> None:
        """Before each backward pass."""
        self.gradients.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients."""
        if self._clip_norm is not None:
            self.gradients.mul_((self._clip_norm / (torch.linalg.vector_norm(self.gradients) + 1e-6)).clamp(max=1.0))
        if self._weight_decay:
            self.weights.mul_(1 - self.lr * self._weight_decay)
        self.step_number += 1
        correction1, correction2 = (1 - self._decay**self.step_number).unbind()
        self.mean.lerp_(self.gradients, 1 - self._beta1)
        self.square.mul_(self._beta2).addcmul_(self.gradients, self.gradients, value=1 - self._beta2)
        torch.sqrt(self.square, out=self._scratch)
        self._scratch.mul_(correction2.rsqrt()).add_(self._eps)
        torch.div(self.mean, self._scratch, out=self._scratch)
        self.weights.sub_(self._scratch.mul_(self.lr / correction1))
        if self.averaged is not None:
            self.averaged.follow()

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes but the weights, by name: to be saved, and written back in place with `copy_`."""
        return {"mean": self.mean, "square": self.square, "step_number": self.step_number}


class Average:
    """An exponential moving average of `weights`, in place, which begins with what they are now.

    After step n it becomes d times itself plus 1 - d times the weights, d = min(decay, (1 + n) / (10 + n)): the first weights
    soon count little, however short the run is. Source: tf.train.ExponentialMovingAverage with `num_updates`.
    """

    def __init__(self, weights: Tensor, step_number: Tensor, decay: float) -> None:
        """`step_number`: () of steps made, read anew each time, as in a captured graph."""
        self.weights, self.mean = weights, weights.clone()
        self._step_number, self._decay = step_number, decay

    def follow(self) -> None:
        """After each step."""
        number = self._step_number
        share = 1 - ((1 + number) / (10 + number)).clamp(max=self._decay)
        self.mean.lerp_(self.weights, share.to(self.weights.dtype))

    def of(self, parameter: Tensor) -> Tensor:
        """The average of one of the parameters that the weights were taken over from: a view of its shape."""
        first = parameter.storage_offset()
        return self.mean[first : first + parameter.numel()].view_as(parameter)


def _check_alike(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise BadConfig, naming the parameters that are unlike most of the others."""
    forms = {name: f"{owner.dtype} on {owner.device}" for name, owner in named}
    kinds = Counter(forms.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        problems = [f"parameter {name} is {form}, most are {usual}" for name, form in forms.items() if form != usual]
        fix = "bring the module to one dtype and device before training, for example with module.float()"
        raise BadConfig.of(problems, where="the parameters to train", fix=fix)
