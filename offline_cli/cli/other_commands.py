"""Commands of other packages: the entry points `offline_cli.commands`, each a `Command`, imported when it is called.

`offline-cli --help` lists them by name and package. A command of ours is never replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import typer

from offline_cli.cli.command_line import Command, add
from offline_cli.errors import BadConfig

__all__ = ["names_of_others", "other_command"]

METADATA: Final = (".dist-info", ".egg-info")
GROUP: Final = b"[offline_cli.commands]"


def names_of_others() -> Mapping[str, str]:
    """The packages of commands that are not ours, by name; none is imported."""
    if not any(map(_mentions_commands, sys.path)):
        return {}
    from offline_cli.plugins import COMMANDS, plugins

    return {one.name: one.package for one in plugins(COMMANDS)}


def _mentions_commands(folder: str) -> bool:
    """Whether a package installed there registers one: in 5 ms for 200 packages, where importlib.metadata takes 25 ms."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith(METADATA)]
    except OSError:  # no folder
        return False
    for name in names:
        with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
            if GROUP in file.read():
                return True
    return False


def other_command(name: str) -> Any:
    """The command that a package has registered as `name`, as typer runs it; None: there is none.

    Raises MissingPackage where it cannot be imported, BadConfig for what is no Command of this name, or is of two packages.
    """
    from offline_cli.plugins import COMMANDS, plugin

    registered = plugin(COMMANDS, name)
    if registered is None:
        return None
    found = registered.load()
    if not isinstance(found, Command) or found.name != name:
        said = f"the Command {found.name!r}" if isinstance(found, Command) else repr(found)
        what = f"command {name!r} of the package {registered.package} is {said}"
        fix = f"register an offline_cli.cli.command_line.Command whose name is {name!r}"
        raise BadConfig(what, where=registered.entry.value, fix=fix)
    alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    add(alone, found)
    return typer.main.get_command(alone)
