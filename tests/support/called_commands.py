"""Commands run in this process, for tests that look at their exit codes and results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def call() -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs `offline-cli ARGS... --json --quiet`; the exit code and the one object on stdout."""
    from typer.testing import CliRunner

    from offline_cli.cli.app import app

    def run(*args: Any) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, [*map(str, args), "--json", "--quiet"])
        assert done.stdout.count("\n") == 1, f"{done.output}\n{done.exception!r}"
        return done.exit_code, json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def told(call: Callable[..., tuple[int, dict[str, Any]]]) -> Callable[..., dict[str, Any]]:
    """As `call`, for commands that must succeed."""

    def run(*args: Any) -> dict[str, Any]:
        code, found = call(*args)
        assert code == 0, found
        return found

    return run
