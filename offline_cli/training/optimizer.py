"""Adam with gradient clipping and a moving average of the weights, all of whose state is tensors by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Optimizer"]

BETAS = (0.9, 0.999)


class Optimizer:
    """torch's fused AdamW over named parameters; its whole state exists from the start, to be saved and written in place."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        ema: float | None = None,
    ) -> None:
        """`clip_norm`: the longest gradient, of all parameters as one vector. `ema`: decay of the moving average, which begins
        with what the weights are now; None: there is none.
        """
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        device = self.parameters[0].device
        self.lr = torch.tensor(float(lr), device=device)  # so that a captured graph reads it anew; too high: inf
        how: dict[str, Any] = {"betas": BETAS, "weight_decay": weight_decay, "fused": True, "capturable": device.type == "cuda"}
        self._adam = torch.optim.AdamW(self.parameters, lr=self.lr, **how)
        for parameter in self.parameters:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self._adam.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
        self._clip_norm, self._ema = clip_norm, ema
        self.averages = [] if ema is None else [parameter.detach().clone() for parameter in self.parameters]

    def zero_grad(self) -> None:
        """Before each backward pass."""
        self._adam.zero_grad()

    @property
    def steps(self) -> Tensor:
        """() the number of steps made."""
        found: Tensor = self._adam.state[self.parameters[0]]["step"]
        return found

    def gradients(self) -> list[Tensor]:
        """Of all parameters; zeros, kept as theirs, for those that the loss does not depend on in this step."""
        found = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
        return found

    def step(self) -> None:
        """One update from the gradients.

        After step n the average becomes d times itself plus 1 - d times the weights, d = min(ema, (1 + n) / (10 + n)): the
        first weights soon count little, however short the run is. Source: tf.train.ExponentialMovingAverage with `num_updates`.
        """
        self.gradients()
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
        self._adam.step()
        if self._ema is not None:
            share = 1 - ((1 + self.steps) / (10 + self.steps)).clamp(max=self._ema)
            with torch.no_grad():
                for average, parameter in zip(self.averages, self.parameters, strict=True):
                    average.lerp_(parameter, share.to(parameter.dtype))

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes but weights and their averages, by `parameter.name`."""
        owners = zip(self.names, self.parameters, strict=True)
        return {f"{name}.{key}": tensor for name, owner in owners for key, tensor in self._adam.state[owner].items()}
