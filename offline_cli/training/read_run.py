"""A run folder as the processes see it that train beside the one that writes it: what is there is read, nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from offline_cli.training.checkpoints import TrainState
from offline_cli.training.config_model import BCConfig
from offline_cli.training.run_folder import RunFolder

__all__ = ["ReadRun"]


class ReadRun(RunFolder):
    """See RunFolder; whatever would change it does nothing, because another process does it."""

    @contextmanager
    def at_work(self, command: str) -> Iterator[None]:
        """Without a lock, which the process that writes has."""
        yield

    def remove_note(self, command: str) -> None:
        """See ReadRun."""

    def begin(self, config: BCConfig, policy: Mapping[str, Any], learned: bytes | None = None) -> None:
        """See ReadRun."""

    def go_on(self, config: BCConfig, metrics_bytes: int) -> None:
        """See ReadRun."""

    def save_checkpoint(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """See ReadRun."""

    def append_metrics(self, row: Mapping[str, Any]) -> int:
        """See ReadRun; the length counts in the other process alone."""
        return 0

    def keep_policy(self, weights: Mapping[str, Tensor]) -> None:
        """See ReadRun."""

    def finish(self, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> None:
        """See ReadRun."""
