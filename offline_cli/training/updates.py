"""One update of behaviour cloning, eager or as a captured CUDA graph; refuses to wait for the device.

Both run the same code on the same static batch. Capturing warms up first, as CUDA libraries need, and puts back every tensor
that warming up has changed, so that a captured run starts from the same numbers as an eager one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.modules.rl_module import RLModule
from offline_cli.training.batches import WEIGHTS
from offline_cli.training.devices import autocast
from offline_cli.training.flat_adam import FlatAdam

__all__ = ["Update", "bc_loss", "captured", "unchanged"]

WARM_UPS = 3


def bc_loss(module: RLModule, batch: Mapping[str, Any]) -> Tensor:
    """() the weighted mean of the negative log-likelihood of the recorded actions, in nats."""
    inputs = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    return -torch.dot(module.action_head.logp(inputs, batch[Columns.ACTIONS]), batch[WEIGHTS])


class Update:
    """Calling it fits `module` once to what `batch` holds then; `loss_sum` () adds up the losses on the device."""

    def __init__(self, module: RLModule, optimizer: FlatAdam, batch: Mapping[str, Any], *, precision: str) -> None:
        self.module, self.optimizer, self.batch = module, optimizer, batch
        self.device = optimizer.weights.device
        self.loss_sum = torch.zeros((), device=self.device)
        self._precision = precision

    def __call__(self) -> None:
        """One update."""
        self.optimizer.zero_grad()
        with autocast(self.device, self._precision):
            loss = bc_loss(self.module, self.batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        self.loss_sum += loss.detach()

    def tensors(self) -> list[Tensor]:
        """All that an update changes."""
        return [self.optimizer.weights, self.loss_sum, *self.optimizer.tensors().values()]


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Whatever happens inside, `tensors` hold the same numbers, in the same memory, afterwards."""
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


def captured(update: Update) -> Callable[[], None]:
    """`update` as one launch of a CUDA graph; needs a module whose forward pass never reads a value back."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with unchanged(update.tensors()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                update()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
            update()

    def launch(_held: Update = update) -> None:  # the graph reads and writes tensors that nothing else may hold
        graph.replay()

    return launch
