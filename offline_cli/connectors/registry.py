"""Pieces by the names that pipeline files use; a name that nobody registered is an error with the nearest ones.

Our own pieces go by their class name in small letters: FrameStacking is `frame_stacking`, and `FrameStacking` works too. A
third-party package registers pieces under the entry point group `offline_cli.connectors`, name = "package.module:Class".
Nothing of it is imported before a pipeline file names it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import cache
from typing import Any

import offline_cli.connectors as ours
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.errors import BadConfig, MissingPackage, UnknownPiece
from offline_cli.import_path import add_current_folder
from offline_cli.plugins import CONNECTORS, plugin, plugins

__all__ = ["Maker", "imported", "own_pieces", "registered"]

Maker = Callable[..., Any]  # a class of pieces, or a function that makes some


@cache
def own_pieces() -> dict[str, type[ConnectorV2]]:
    """Our pieces by name, in alphabetical order."""
    found = (getattr(ours, name) for name in ours.__all__)
    pieces = [kind for kind in found if isinstance(kind, type) and issubclass(kind, ConnectorV2) and _is_piece(kind)]
    return {snake(kind.__name__): kind for kind in sorted(dict.fromkeys(pieces), key=lambda kind: kind.__name__)}


def _is_piece(kind: type[ConnectorV2]) -> bool:
    return not issubclass(kind, ConnectorPipelineV2) and not getattr(kind, "__abstractmethods__", None)


def snake(name: str) -> str:
    """`FrameStacking` as `frame_stacking`, `NStepReturns` as `n_step_returns`; what is written so already stays."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("UnBatch", "Unbatch")).lower()


def registered(name: str, *, named: Collection[str] | None = None) -> Maker:
    """The class, or function, of that name; ours come first. Class names of ours work too. `named`: see `plugins.plugin`.

    Raises UnknownPiece with the nearest names; BadConfig for a package that is not named, and for what makes no pieces;
    MissingPackage for a third-party piece that cannot be imported.
    """
    own = own_pieces()
    if snake(name) in own:
        return own[snake(name)]
    found = plugin(CONNECTORS, name, named=named)
    if found is not None:
        return _checked(found.load(), found.entry.value, where=f"piece {name}, registered by {found.package}")
    others = [one.name for one in plugins(CONNECTORS)] if named is None else []
    near = get_close_matches(snake(name), [*own, *others], n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join([*own, *others])}"
    raise UnknownPiece(f"no piece {name!r}", where=f"piece {name}", fix=f'{fix} Your own: use = "package.module:Class"')


def imported(path: str, *, where: str) -> Maker:
    """What `package.module:attribute` names, importable from the current folder too.

    Runs the module's code: only to be called for what a user's own file or flag names. Raises BadConfig, MissingPackage.
    """
    module, colon, attribute = path.partition(":")
    if not colon or not module or module.startswith(".") or not attribute:
        raise BadConfig(f"{path!r} names no module and class", where=where, fix='use = "package.module:Class"')
    add_current_folder()
    found = _module(module, where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=3, cutoff=0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else "name a class or function of that module"
            raise BadConfig(f"{module} has no {attribute!r}", where=where, fix=fix)
        found = getattr(found, part)
    return _checked(found, path, where=where)


def _checked(found: Any, path: str, *, where: str) -> Maker:
    if not callable(found) or (isinstance(found, type) and not issubclass(found, ConnectorV2)):
        what = f"{path} is {found!r}, which is neither a ConnectorV2 nor a function that makes one"
        raise BadConfig(what, where=where, fix="derive the class from offline_cli.ConnectorV2")
    maker: Maker = found
    return maker


def _module(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if f"{name}.".startswith(f"{err.name}."):
            fix = "a module that is installed, or lies in the current folder"
            raise BadConfig(f"there is no module {err.name!r}", where=where, fix=fix) from err
        package = (err.name or "what it needs").partition(".")[0]
        raise MissingPackage(f"{name} needs a package: {err}", where=where, fix=f"pip install {package}") from err
    except (Exception, SystemExit) as err:  # it is the user's code, and any may come of it
        raise BadConfig(f"importing {name} raised {err!r}", where=where, fix="import it by itself, in Python") from err
