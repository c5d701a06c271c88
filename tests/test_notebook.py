"""Library calls in a notebook: a kernel of Jupyter's is stood in for by the builtin that IPython leaves, and what displays."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from offline_cli import record, train_bc
from offline_cli.progress import Progress


class Cell:
    """A display of IPython's, which keeps what was shown last."""

    shown = ""

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        self.shown = shown["text/plain"]


def test_progress_is_shown_in_a_notebook_alone_and_only_where_nobody_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells: list[Cell] = []

    def display(shown: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        cells.append(Cell())
        cells[-1].update(shown, raw=raw)
        return cells[-1]

    module = ModuleType("IPython.display")
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    options: dict[str, Any] = {"policy": "random", "episodes": 3, "device": "cpu"}
    for shell in (None, "TerminalInteractiveShell", "ZMQInteractiveShell"):
        if shell is not None:
            made = type("Shell", (type(shell, (), {}),), {})()  # Colab's is derived from Jupyter's
            monkeypatch.setattr(builtins, "get_ipython", lambda made=made: made, raising=False)
        if shell != "ZMQInteractiveShell":
            record("CartPole-v1", tmp_path / f"{shell}", **options)
    reports: list[Progress] = []
    record("CartPole-v1", tmp_path / "D", **options, on_progress=reports.append)
    assert (bool(reports), cells) == (True, [])
    train_bc(tmp_path / "D", tmp_path / "run", updates=60, hidden=(8,), device="cpu")
    assert "60/60 updates" in cells[0].shown
