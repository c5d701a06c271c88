"""Batches from data that stays in host memory, one ahead of the device.

A batch takes three steps: its rows are gathered into pinned memory, copied from there to a waiting tensor on the device by a
stream of its own, and moved into the tensors that updates read. The first two are done for the next batch while the device
works on this one. Without CUDA the same steps happen one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Gather", "HostFeed"]


Gather = Callable[[int, Sequence[Tensor]], None]
"""Puts the batch of a number into tensors on the host, one for each target."""


class HostFeed:
    """Fills each target (B, ...) on `device` with what a `Gather` puts together on the host."""

    def __init__(self, targets: Sequence[Tensor], device: torch.device) -> None:
        self._targets = list(targets)
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        pinned = self._side is not None
        self._gathered = [torch.empty(part.shape, dtype=part.dtype, pin_memory=pinned) for part in self._targets]
        self._ahead = [torch.empty_like(part) for part in self._targets]
        self._number: int | None = None  # of the batch that is, or will be, in `_ahead`

    def fill(self, number: int, gather: Gather) -> None:
        """Put batch `number` into the targets, and send for the one after it."""
        if self._number != number:
            self._send(number, gather)
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)
        for target, ahead in zip(self._targets, self._ahead, strict=True):
            target.copy_(ahead)
        self._send(number + 1, gather)

    def forget(self) -> None:
        """Gather again what was sent ahead: its rows have changed."""
        self._number = None

    def _send(self, number: int, gather: Gather) -> None:
        if self._side is not None:
            self._side.synchronize()  # the copy before this one has left the pinned memory
        gather(number, self._gathered)
        if self._side is None:
            self._copy()
        else:
            self._side.wait_stream(torch.cuda.current_stream(self._device))  # what was ahead has been taken
            with torch.cuda.stream(self._side):
                self._copy()
        self._number = number

    def _copy(self) -> None:
        for ahead, gathered in zip(self._ahead, self._gathered, strict=True):
            ahead.copy_(gathered, non_blocking=True)
