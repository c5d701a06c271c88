"""A stop that comes at a certain update of training."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from offline_cli.progress import Progress

__all__ = ["signal_at"]


def signal_at(update: int, number: int = signal.SIGINT) -> Callable[[Progress], None]:
    """A progress listener that sends this process a signal, once, when `update` updates are made."""
    sent: list[int] = []

    def listen(progress: Progress) -> None:
        if progress.stage == "training" and progress.done >= update and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    return listen
