"""Commands by name, as typer has them."""

from __future__ import annotations

from typing import Any

import typer.main

from offline_cli.cli.app import app

__all__ = ["COMMANDS", "command_named"]

GROUP: Any = typer.main.get_command(app)
COMMANDS: tuple[str, ...] = tuple(GROUP.commands)


def command_named(name: str) -> Any:
    """The command; `about` has what its help shows beside its parameters."""
    return GROUP.commands[name]
