"""Commands by name, as typer has them."""

from __future__ import annotations

from typing import Any

from offline_cli.cli import app
from offline_cli.cli.command import built

__all__ = ["COMMANDS", "command_named"]

COMMANDS: tuple[str, ...] = tuple(app.COMMANDS)


def command_named(name: str) -> Any:
    """The command; `about` has what its help shows beside its parameters."""
    return built(name, app.COMMANDS[name])
