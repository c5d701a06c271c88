"""Progress of library calls in a Jupyter notebook: one bar of rich's for each stage, in the output of the cell.

`checked_keywords.checked` shows them for calls without `on_progress`. Nothing else of IPython's is imported than what displays.
"""

from __future__ import annotations

import builtins
import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from offline_cli.progress import Progress, ProgressBars

SHELL: Final = "ZMQInteractiveShell"  # of a kernel; in a terminal IPython has another one
DRAW_SECONDS: Final = 0.25


def in_notebook() -> bool:
    """Whether this program runs in a kernel of Jupyter's, whose IPython is a builtin."""
    shell = vars(builtins).get("get_ipython")
    return shell is not None and any(kind.__name__ == SHELL for kind in type(shell()).__mro__)


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Within it the bars take reports; afterwards they stand where the work ended."""
    bars = Bars()
    try:
        yield bars
    finally:
        bars.draw()


class Bars:
    """Takes a `Progress`, and displays it."""

    def __init__(self) -> None:
        self._bars = ProgressBars(auto_refresh=False)  # never started: that would take ipywidgets
        self._cell: Any = None
        self._next = 0.0

    def __call__(self, report: Progress) -> None:
        self._bars(report)
        if time.monotonic() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Show the bars as they are now."""
        self._next = time.monotonic() + DRAW_SECONDS
        if self._cell is not None:
            self._cell.update(self._bars.shown)
        elif self._bars.shown.tasks:
            self._cell = importlib.import_module("IPython.display").display(self._bars.shown, display_id=True)
