"""Plug-ins through entry points: algorithms, networks, connector pieces, readers, sinks and commands of other packages.

A name in the user's own command, config or pipeline file is enough to load a plug-in. A name from a run folder, manifest or
checkpoint is not: the user must also name the package that registered it (`--plugin NAME`), or the code (`--network`).
Plug-ins are imported only when named, except readers: `--from auto` asks each of them about files that are not our dataset.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from offline_cli.errors import BadConfig, MissingPackage, UsageError
from offline_cli.import_path import PYTHON as PYTHON
from offline_cli.import_path import named_object, names_file

Base = TypeVar("Base")
Record = TypeVar("Record")

ALGORITHMS: Final = "offline_cli.algorithms"
NETWORKS: Final = "offline_cli.networks"
ENCODERS: Final = "offline_cli.encoders"
CONNECTORS: Final = "offline_cli.connectors"
READERS: Final = "offline_cli.readers"
SINKS: Final = "offline_cli.sinks"
COMMANDS: Final = "offline_cli.commands"
KINDS: Final = {
    ALGORITHMS: "algorithm",
    NETWORKS: "network",
    ENCODERS: "encoder",
    CONNECTORS: "piece",
    READERS: "reader",
    SINKS: "sink",
    COMMANDS: "command",
}
OPTION: Final = "--plugin"

_log = logging.getLogger(__name__)
_loaded: dict[str, str] = {}  # packages by the top-level module of each imported plug-in


@dataclass(frozen=True, slots=True)
class Plugin:
    """A name that a package has registered; not yet imported."""

    kind: str  # one of `KINDS`
    name: str
    package: str  # the distribution name, as in pip
    entry: EntryPoint

    @property
    def distribution(self) -> str:
        """The package and its version."""
        return self.package if self.entry.dist is None else f"{self.package} {self.entry.dist.version}"

    def load(self) -> Any:
        """Import the plug-in. Raises MissingPackage, naming the package, if the import raises anything."""
        _loaded[self.entry.module.partition(".")[0]] = self.package
        try:
            return self.entry.load()
        except (Exception, SystemExit) as err:  # user code may raise anything
            raise MissingPackage(
                f"{self.kind} {self.name!r} of the package {self.package} cannot be imported: {err!r}",
                where=f"{self.kind} {self.name}, registered by {self.package}",
                fix=f"pip install --upgrade {self.package}; python -c 'import {self.entry.module}' shows where it fails",
            ) from err

    def load_as(self, record: type[Record]) -> Record:
        """Import an object that must be a `record`. Raises BadConfig if it is something else, and as `load` does."""
        found = self.load()
        if not isinstance(found, record):
            what = f"{self.kind} {self.name!r} of the package {self.package} is {found!r}, not a {record.__name__}"
            raise BadConfig(what, where=self.entry.value, fix=f"register an {record.__module__}.{record.__name__}")
        return found

    def is_of(self, packages: Collection[str]) -> bool:
        """Whether one of `packages` registered it; names are compared as in PEP 503."""
        own, *names = (re.sub(r"[-_.]+", "-", one).lower() for one in (self.package, *packages))
        return own in names


def plugins(group: str) -> list[Plugin]:
    """The plug-ins of installed packages in `group`, sorted by name."""
    entries = _entries(tuple(sys.path)).select(group=group)
    packages = ((entry.dist.name if entry.dist else entry.module.partition(".")[0], entry) for entry in entries)
    found = dict.fromkeys(Plugin(KINDS[group], entry.name, package, entry) for package, entry in packages)
    return sorted(found, key=lambda one: (one.name, one.package))


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> Any:
    """All entry points on the path, cached: reading them takes 0.1 s."""
    return entry_points()


def package_of(group: str, name: str) -> str | None:
    """The package that registered `name`, or None."""
    return next((one.package for one in plugins(group) if one.name == name), None)


def plugin(group: str, name: str, *, named: Collection[str] | None = None) -> Plugin | None:
    """The plug-in called `name`, or None.

    `named`: the packages that the user named, for a name that comes from a file; None: the name is the user's own.

    Raises BadConfig if two packages registered the name, or if its package is not in `named` (the error shows the option).
    """
    every = [one for one in plugins(group) if one.name == name]
    found = every if named is None else [one for one in every if one.is_of(named)]
    packages, where = list(dict.fromkeys(one.package for one in found or every)), f"{KINDS[group]} {name}"
    if len(packages) > 1:
        what = f"{KINDS[group]} {name!r} is registered by {' and by '.join(packages)}"
        raise BadConfig(what, where=where, fix="uninstall one of these packages")
    if every and not found:
        what = f"{where} is code of the package {packages[0]}; a run folder alone never causes code to be imported"
        raise BadConfig(what, where=where, fix=f"if you trust that package: {OPTION} {packages[0]}")
    return found[0] if found else None


def check_plugins(packages: Collection[str]) -> None:
    """Raise MissingPackage for a named package that registers no plug-in; UsageError for a string in place of a list."""
    if isinstance(packages, str):
        raise UsageError(f"plugins is the string {packages!r}, not a list", where="plugins", fix=f"plugins=[{packages!r}]")
    known = [one for group in KINDS for one in plugins(group)]
    for package in packages:
        if not package.startswith(PYTHON) and not any(one.is_of([package]) for one in known):
            names = ", ".join(dict.fromkeys(one.package for one in known)) or "none"
            what, fix = f"no installed package {package!r} registers anything", f"pip install {package}"
            raise MissingPackage(what, where=f"{OPTION} {package}", fix=f"{fix} (installed plug-ins: {names})")


def plugin_behind(err: BaseException) -> tuple[str, str] | None:
    """The innermost plug-in package in the traceback, with file and line; None: no plug-in is in it."""
    found = None
    for frame, line in traceback.walk_tb(err.__traceback__):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name and (package := _loaded.get(name)) is not None:  # frames without a module name belong to no plug-in
            found = package, f"{frame.f_code.co_filename}, line {line}"
    return found


# ---- plug-ins by name, from an option or a config ----


def named_plugin(
    group: str,
    name: str,
    ours: Mapping[str, Record],
    record: type[Record],
    *,
    option: str,
    made: Callable[[Any, str], Record],
    words: Collection[str] = (),
) -> Record:
    """The record that the user's `option` names: one of `ours`, a plug-in, or `python:package.module:attribute`.

    `made`: turns an attribute that is no `record`, and its name, into one. `words`: further values of the option, for the error
    text. Raises UsageError for an unknown name, BadConfig for an object that is no `record`, MissingPackage if importing fails.
    """
    if name in ours:
        return ours[name]
    kind = KINDS[group]
    if name.startswith(PYTHON):
        found = named_code(name, option=option, kind=kind.capitalize())
        return found if isinstance(found, record) else made(found, name)
    registered = plugin(group, name)
    if registered is None:
        known = ", ".join([*words, *ours, *(one.name for one in plugins(group))])
        fix = f"use {known}, or {PYTHON}module:{kind.capitalize()}"
        raise UsageError(f"no {kind} is called {name!r}", where=option, fix=fix)
    return registered.load_as(record)


def named_code(name: str, *, option: str, kind: str) -> Any:
    """Import `python:package.module:attribute` or `python:file.py:attribute`; its errors are reported as a plug-in's.

    Runs the module's code: call it only for names from the user's own option. Raises BadConfig, MissingPackage.
    """
    path = name.removeprefix(PYTHON)
    module = path.rpartition(":")[0]
    form = f"{option} {PYTHON}package.module:{kind}, importable from the current folder"
    _loaded[module.partition(".")[0]] = name
    found = named_object(path, where=f"{option} {name}", form=form)
    if names_file(module):  # a file's module has a generated name
        _loaded[str(getattr(found, "__module__", module)).partition(".")[0]] = name
    return found


def registered_class(
    group: str, name: str, base: type[Base], *, ours: Collection[str], named: Collection[str] | None
) -> type[Base]:
    """The class registered as `name` in `group`, derived from `base`. `named`: see `plugin`; `ours`: built-in names.

    Raises BadConfig for an unknown name, an unnamed package, or an object that is no complete subclass of `base`;
    MissingPackage for a plug-in that cannot be imported.
    """
    kind, where = KINDS[group], f"{KINDS[group]}.name"
    found = plugin(group, name, named=named)
    if found is None:
        known = [*ours, *(one.name for one in plugins(group))]
        near = [f"did you mean {one!r}? " for one in get_close_matches(name, known, n=1)]
        fix = f"{''.join(near)}Use {', '.join(known)}, or install the package that registers it"
        raise BadConfig(f"no {kind} {name!r}", where=where, fix=fix)
    return the_class(found.load(), base, f"{kind} {name!r} of the package {found.package}", where=where)


def the_class(loaded: Any, base: type[Base], said: str, *, where: str) -> type[Base]:
    """`loaded`, if it is a complete subclass of `base`; otherwise raises BadConfig, which calls it `said`."""
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        what = f"{said} is {loaded!r}, not a class derived from {base.__name__}"
        raise BadConfig(what, where=where, fix=f"derive it from {base.__module__}.{base.__name__}")
    if lacking := getattr(loaded, "__abstractmethods__", None):
        what = f"{said} lacks {', '.join(sorted(lacking))}"
        raise BadConfig(what, where=where, fix="define them in the class")
    return loaded


# ---- the network of a run ----


def network_named(name: str | None) -> str | None:
    """The value of `--network`, with `python:` added to a file: `net.py:build`."""
    is_file = name is not None and "://" not in name and not name.startswith(PYTHON) and names_file(name.rpartition(":")[0])
    return f"{PYTHON}{name}" if is_file else name


def with_network(packages: Collection[str], network: str | None) -> tuple[str, ...]:
    """The packages and the network whose code a run folder may load. Raises UsageError for a network that is not code: the run
    folder itself names those.
    """
    name = network_named(network)
    if name is not None and not name.startswith(PYTHON):
        fix = f"leave it out, with {OPTION} PACKAGE if another package registers that network"
        raise UsageError(f"{name!r} is not code: the run folder names its network", where="--network", fix=fix)
    return (*packages, *([name] if name else []))


def network_of_run(name: str, named: Collection[str]) -> str:
    """The user's `python:...` network for a run folder whose network is `name`; raises BadConfig if the user named none."""
    found = next((one for one in named if one.startswith(PYTHON)), None)
    if found is None:
        what = f"the run's network is code, {name}; a run folder alone never causes code to be imported"
        raise BadConfig(what, where="[network]", fix=f"if you trust this code: --network {shlex.quote(name)}")
    if found != name:
        _log.warning("note: the run was trained with the network %s; %s is used instead", name, found)
    return found
