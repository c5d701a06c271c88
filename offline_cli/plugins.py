"""Code of other packages: algorithms, networks, connector pieces, readers, sinks and commands, by entry points.

One rule at load: a name in the user's own command, config or pipeline file is enough; one that comes from a run folder,
manifest or checkpoint is not: the user has to name the package that registered it (`--plugin NAME`), or the code (`--network`).
Nothing is imported before it is named, but readers: `--from auto` asks all of them about files that are no dataset of ours.
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
_loaded: dict[str, str] = {}  # who registered what was imported: packages by the top module of their code


@dataclass(frozen=True, slots=True)
class Plugin:
    """One name that a package has registered; not imported."""

    kind: str  # one of `KINDS`
    name: str
    package: str  # the distribution, as pip knows it
    entry: EntryPoint

    @property
    def distribution(self) -> str:
        """The package and its version."""
        return self.package if self.entry.dist is None else f"{self.package} {self.entry.dist.version}"

    def load(self) -> Any:
        """Import it. Raises MissingPackage, which names the package, whatever the import raises."""
        _loaded[self.entry.module.partition(".")[0]] = self.package
        try:
            return self.entry.load()
        except (Exception, SystemExit) as err:  # it is user code, which may raise anything
            raise MissingPackage(
                f"{self.kind} {self.name!r} of the package {self.package} cannot be imported: {err!r}",
                where=f"{self.kind} {self.name}, registered by {self.package}",
                fix=f"pip install --upgrade {self.package}; python -c 'import {self.entry.module}' shows where it fails",
            ) from err

    def load_as(self, record: type[Record]) -> Record:
        """Import what has to be a `record`. Raises BadConfig where it is something else, and as `load` does."""
        found = self.load()
        if not isinstance(found, record):
            what = f"{self.kind} {self.name!r} of the package {self.package} is {found!r}, not a {record.__name__}"
            raise BadConfig(what, where=self.entry.value, fix=f"register an {record.__module__}.{record.__name__}")
        return found

    def is_of(self, packages: Collection[str]) -> bool:
        """Whether one of `packages` registered it; names are equal whatever their case and separators (PEP 503)."""
        own, *names = (re.sub(r"[-_.]+", "-", one).lower() for one in (self.package, *packages))
        return own in names


def plugins(group: str) -> list[Plugin]:
    """What installed packages have registered in `group`, sorted by name."""
    entries = _entries(tuple(sys.path)).select(group=group)
    packages = ((entry.dist.name if entry.dist else entry.module.partition(".")[0], entry) for entry in entries)
    found = dict.fromkeys(Plugin(KINDS[group], entry.name, package, entry) for package, entry in packages)
    return sorted(found, key=lambda one: (one.name, one.package))


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> Any:
    """All that is registered on the path: reading the files of every installed package takes a tenth of a second."""
    return entry_points()


def package_of(group: str, name: str) -> str | None:
    """The package that has registered the name; None: no package has."""
    return next((one.package for one in plugins(group) if one.name == name), None)


def plugin(group: str, name: str, *, named: Collection[str] | None = None) -> Plugin | None:
    """The registered `name`; None: no package has registered it.

    `named`: the packages that the user named, where the name is not the user's own; None: it is.

    Raises BadConfig where two packages registered the name, and, with the option to give, where `named` lacks its package.
    """
    every = [one for one in plugins(group) if one.name == name]
    found = every if named is None else [one for one in every if one.is_of(named)]
    packages, where = list(dict.fromkeys(one.package for one in found or every)), f"{KINDS[group]} {name}"
    if len(packages) > 1:
        what = f"{KINDS[group]} {name!r} is registered by {' and by '.join(packages)}"
        raise BadConfig(what, where=where, fix="uninstall one of these packages")
    if every and not found:
        what = f"{where} is code of the package {packages[0]}; no code is imported because a run folder names it"
        raise BadConfig(what, where=where, fix=f"if you trust that package: {OPTION} {packages[0]}")
    return found[0] if found else None


def check_plugins(packages: Collection[str]) -> None:
    """Raise MissingPackage for a package that the user named and that registers nothing; UsageError for one text in place of
    several."""
    if isinstance(packages, str):
        raise UsageError(f"plugins is the text {packages!r}", where="plugins", fix=f"plugins=[{packages!r}]")
    known = [one for group in KINDS for one in plugins(group)]
    for package in packages:
        if not package.startswith(PYTHON) and not any(one.is_of([package]) for one in known):
            names = ", ".join(dict.fromkeys(one.package for one in known)) or "none"
            what, fix = f"no installed package {package!r} registers anything", f"pip install {package}"
            raise MissingPackage(what, where=f"{OPTION} {package}", fix=f"{fix} (installed plug-ins: {names})")


def plugin_behind(err: BaseException) -> tuple[str, str] | None:
    """The package whose code raised, or called what raised, with file and line of it; None: no plug-in was on the way."""
    found = None
    for frame, line in traceback.walk_tb(err.__traceback__):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name and (package := _loaded.get(name)) is not None:  # code without a name is no plug-in's
            found = package, f"{frame.f_code.co_filename}, line {line}"
    return found


# ---- what an option or a config names ----


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
    """What the user's `option` names: one of `ours`, a registered one, or `python:package.module:attribute`.

    `made`: gives the record for an attribute that is not one, and its name. `words`: what the option takes besides. Raises
    UsageError for an unknown name, BadConfig for an object that is no `record`, MissingPackage for one that cannot be imported.
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
    """The object that `python:package.module:attribute` or `python:file.py:attribute` names, whose errors are the user's own.

    Runs the module's code: only for what `option` of the user's names. Raises BadConfig, MissingPackage.
    """
    path = name.removeprefix(PYTHON)
    module = path.rpartition(":")[0]
    form = f"{option} {PYTHON}package.module:{kind}, importable from the current folder"
    _loaded[module.partition(".")[0]] = name
    found = named_object(path, where=f"{option} {name}", form=form)
    if names_file(module):  # whose module has another name
        _loaded[str(getattr(found, "__module__", module)).partition(".")[0]] = name
    return found


def registered_class(
    group: str, name: str, base: type[Base], *, ours: Collection[str], named: Collection[str] | None
) -> type[Base]:
    """The class of that name in `group`, derived from `base`. `named`: see `plugin`; `ours`: names that need no package.

    Raises BadConfig for an unknown name, an unnamed package, and what is not a class of `base` or lacks a part; MissingPackage
    for a plug-in that cannot be imported.
    """
    kind, where = KINDS[group], f"{KINDS[group]}.name"
    found = plugin(group, name, named=named)
    if found is None:
        known = [*ours, *(one.name for one in plugins(group))]
        near = [f"did you mean {one!r}? " for one in get_close_matches(name, known, n=1)]
        fix = f"{''.join(near)}There are {', '.join(known)}; or install the package that registers it"
        raise BadConfig(f"no {kind} {name!r}", where=where, fix=fix)
    return the_class(found.load(), base, f"{kind} {name!r} of the package {found.package}", where=where)


def the_class(loaded: Any, base: type[Base], said: str, *, where: str) -> type[Base]:
    """`loaded`, which is called `said`, as a whole class of `base`. Raises BadConfig as `registered_class` does."""
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        what = f"{said} is {loaded!r}, not a class derived from {base.__name__}"
        raise BadConfig(what, where=where, fix=f"derive it from {base.__module__}.{base.__name__}")
    if lacking := getattr(loaded, "__abstractmethods__", None):
        what = f"{said} lacks {', '.join(sorted(lacking))}"
        raise BadConfig(what, where=where, fix="define what docs/howto/algorithms.md lists without a default")
    return loaded


# ---- the network of a run ----


def network_named(name: str | None) -> str | None:
    """What `--network` names, where a file may stand without `python:`: `net.py:build`."""
    is_file = name is not None and "://" not in name and not name.startswith(PYTHON) and names_file(name.rpartition(":")[0])
    return f"{PYTHON}{name}" if is_file else name


def with_network(packages: Collection[str], network: str | None) -> tuple[str, ...]:
    """Whose code a run folder may name: `packages`, and the network that is code. Raises UsageError for any other network: a
    run says itself which one it has.
    """
    name = network_named(network)
    if name is not None and not name.startswith(PYTHON):
        fix = f"leave it out, with {OPTION} PACKAGE if another package registers that network"
        raise UsageError(f"{name!r} is not code: the run says which network it has", where="--network", fix=fix)
    return (*packages, *([name] if name else []))


def network_of_run(name: str, named: Collection[str]) -> str:
    """The network, `python:...`, that the user named for a run folder's, called `name`. Raises BadConfig, with the option to
    give, where none is.
    """
    found = next((one for one in named if one.startswith(PYTHON)), None)
    if found is None:
        what = f"the network of the run is code, {name}; no code is imported because a run folder names it"
        raise BadConfig(what, where="[network]", fix=f"if that is yours, name it again: --network {shlex.quote(name)}")
    if found != name:
        _log.warning("note: the run was trained with the network %s, and %s is taken for it", name, found)
    return found
