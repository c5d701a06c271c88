"""Fixtures of the acceptance net: commands run as a user runs them, and recordings made by other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def run(call: Run) -> Run:
    """Runs `offline-cli ARGS... --json --quiet` in this process: its exit code, and the one object on stdout."""
    return call


@pytest.fixture(scope="session")
def done(told: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """As `run`, for commands that must succeed: the object alone."""
    return told


@pytest.fixture(scope="session")
def datasets(
    real_data: Path, done: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """The dataset that `convert` makes of a recording, made once: by its name and row format."""
    made: dict[tuple[str, str], Path] = {}

    def dataset(name: str, to: str = "episodes") -> Path:
        if (name, to) not in made:
            out = tmp_path_factory.mktemp("datasets") / "D"
            done("convert", real_data / name, "--out", out, "--to", to)
            made[name, to] = out
        return made[name, to]

    return dataset
