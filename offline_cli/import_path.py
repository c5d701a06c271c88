"""Where modules are searched: the current folder comes last, here and in every process that is started.

A file that happens to lie there must not pass for a module of the standard library or of an installed package; a module that
the user names, and that is nowhere else, is found.
"""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import Any, Final

from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError

__all__ = ["add_current_folder", "named_object", "path_for_workers", "safe_flags", "without_current_folder_first"]

HOME: Final = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def add_current_folder() -> None:
    """Have modules of the current folder found too: before the first module that a user names."""
    if "" not in sys.path:
        sys.path.append("")


def named_object(path: str, *, where: str, form: str, raised: type[OfflineCliError] = BadConfig) -> Any:
    """What `package.module:attribute` names, importable from the current folder too; the attribute may have dots.

    Runs the module's code: only to be called for what a user's own file or option names. `form`: how it has to be written.
    Raises BadConfig where there is no such thing, MissingPackage where the module needs a package, `raised` where it raises.
    """
    module, colon, attribute = path.rpartition(":")
    if not colon or not module or module.startswith(".") or not attribute:
        raise BadConfig(f"{path!r} names no module and attribute", where=where, fix=form)
    add_current_folder()
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as err:
        if f"{module}.".startswith(f"{err.name}."):
            raise BadConfig(f"there is no module {err.name!r}", where=where, fix=form) from err
        package = (err.name or "what it needs").partition(".")[0]
        raise MissingPackage(f"{module} needs a package: {err}", where=where, fix=f"pip install {package}") from err
    except OfflineCliError as err:
        err.where = f"{where}: {err.where}"
        raise
    except (Exception, SystemExit) as err:  # it is user code, which may raise anything
        raise raised(f"importing {module} raised {err!r}", where=where, fix="import it by itself, in Python") from err
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=3, cutoff=0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else form
            raise BadConfig(f"{module} has no {attribute!r}", where=where, fix=fix)
        found = getattr(found, part)
    return found


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
    """Flags for an interpreter that is started: nothing comes before its path, and it has the same settings as this one."""
    if sys.flags.isolated:
        return ["-I"]
    given = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return ["-P", *(flag for flag, is_set in given.items() if is_set)]


def _is_home(folder: str) -> bool:
    return os.path.realpath(folder) == HOME
