"""Fixtures of the acceptance net: commands run as a user runs them, and recordings made by other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs `offline-cli ARGS... --json --quiet` in this process: its exit code, and the one object on stdout."""
    from offline_cli.cli.app import app

    def call(*args: Any) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, [*map(str, args), "--json", "--quiet"])
        assert done.stdout.count("\n") == 1, f"{done.output}\n{done.exception!r}"
        return done.exit_code, json.loads(done.stdout)

    return call


@pytest.fixture(scope="session")
def done(run: Run) -> Callable[..., dict[str, Any]]:
    """As `run`, for commands that must succeed: the object alone."""

    def call(*args: Any) -> dict[str, Any]:
        code, told = run(*args)
        assert code == 0, told
        return told

    return call


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
