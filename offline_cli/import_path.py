"""Where modules are looked for: the current folder comes last, here and in every process that is started.

A file that happens to lie there must not pass for a module of the standard library or of an installed package; a module that
the user names, and that is nowhere else, is found.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["add_current_folder", "path_for_workers", "safe_flags", "without_current_folder_first"]

HOME: Final = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def add_current_folder() -> None:
    """Have modules of the current folder found too: before the first module that a user names."""
    if "" not in sys.path:
        sys.path.append("")


def path_for_workers() -> list[str]:
    """This process's path for another one; what stands for the current folder, as a prompt or `-c` puts first, comes last."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    here = os.getcwd()
    if "" not in path:
        return path
    if _is_home(here):  # this package may be found nowhere else
        return [entry or here for entry in path]
    return [*filter(None, path), here]


def without_current_folder_first() -> None:
    """Put last what `python -m` puts first."""
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd() and not _is_home(sys.path[0]):
        sys.path.append(sys.path.pop(0))


def safe_flags() -> list[str]:
    """Flags for an interpreter that is started: nothing comes before its path, and it heeds what this one heeds."""
    if sys.flags.isolated:
        return ["-I"]
    given = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return ["-P", *(flag for flag, is_set in given.items() if is_set)]


def _is_home(folder: str) -> bool:
    return os.path.realpath(folder) == HOME
