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

    shown: str

    def update(self, bars: Any) -> None:
        self.shown = bars._repr_mimebundle_([], [])["text/html"]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The outputs of cells."""
    made: list[Cell] = []

    def display(bars: Any, display_id: bool) -> Cell:
        assert display_id
        made.append(Cell())
        made[-1].update(bars)
        return made[-1]

    module = ModuleType("IPython.display")
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def run_in(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = type("Shell", (type(shell, (), {}),), {})()  # Colab's is derived from Jupyter's
    monkeypatch.setattr(builtins, "get_ipython", lambda: made, raising=False)


def test_a_call_in_a_notebook_shows_its_progress(cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=3)
    run_in("ZMQInteractiveShell", monkeypatch)
    train_bc(tmp_path / "D", tmp_path / "run", updates=60, hidden=(8,), device="cpu")
    assert len(cells) == 1
    assert "3 episodes" in cells[0].shown
    assert "60 updates" in cells[0].shown


def test_whoever_takes_progress_sees_it_alone(cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in("ZMQInteractiveShell", monkeypatch)
    reports: list[Progress] = []
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=3, on_progress=reports.append)
    assert reports
    assert not cells


@pytest.mark.parametrize("shell", [None, "TerminalInteractiveShell"])
def test_elsewhere_nothing_is_shown(
    shell: str | None, cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shell is not None:
        run_in(shell, monkeypatch)
    record("CartPole-v1", tmp_path / "D", policy="random", episodes=3)
    assert not cells
