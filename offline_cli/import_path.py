"""Code that a user names by text: where modules are searched, files, and calls with arguments.

The current folder is searched last, here and in every process that is started: a file that happens to lie there must not pass
for a module of the standard library or of an installed package; a module that the user names, and that is nowhere else, is
found. A file can be named by its path too (`sub/pol.py:act`), whatever its name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError

PYTHON: Final = "python:"  # before the name of an object, in an option
EXTRAS: Final = {"pettingzoo": "'offline-cli[pettingzoo]'", "ale_py": "'offline-cli[atari]'"}  # of packages that users name
CALL: Final = re.compile(r"(?P<path>[^=]+?)(?::(?P<arguments>\s*[^\W\d]\w*\s*=.*))?", re.DOTALL)
ARGUMENT: Final = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")


def names_file(module: str) -> bool:
    """Whether what stands for a module is the path of a file: `pol.py`, `sub/pol.py`."""
    return module.endswith(".py")


def module_named(module: str) -> ModuleType:
    """The module of that name, importable from the current folder too, or of that file, whose own folder is searched last.

    Runs its code: only to be called for what a user's own file or option names. Raises ModuleNotFoundError, whose `name` is
    `module` for a file that is not there, and what the module raises.
    """
    if "" not in sys.path:
        sys.path.append("")
    if not names_file(module):
        return importlib.import_module(module)
    if not os.path.isfile(module):
        raise ModuleNotFoundError(f"no file {module}", name=module)
    place = os.path.realpath(module)
    stem = os.path.basename(place).removesuffix(".py")
    name = f"file_{hashlib.sha256(place.encode()).hexdigest()[:8]}_{stem}"  # never that of an installed module
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None, "a name that ends in .py"
    assert spec.loader is not None, "a name that ends in .py"
    if os.path.dirname(place) not in (*sys.path, os.getcwd()):
        sys.path.append(os.path.dirname(place))
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return found


def imported(
    module: str,
    *,
    where: str,
    form: str,
    unknown: type[OfflineCliError] = BadConfig,
    raised: type[OfflineCliError] = BadConfig,
) -> ModuleType:
    """The same for an option; `form`: how it has to be written.

    Raises `unknown` where there is no such module, MissingPackage where the module needs a package, `raised` where it raises.
    """
    if not module or (module.startswith(".") and not names_file(module)):
        raise unknown(f"{module!r} names no module", where=where, fix=form)
    try:
        return module_named(module)
    except ModuleNotFoundError as err:
        package = (err.name or "what it needs").partition(".")[0]
        if f"{module}.".startswith(f"{err.name}.") and package not in EXTRAS:
            what = f"there is no {'file' if names_file(module) else 'module'} {err.name!r}"
            raise unknown(what, where=where, fix=form) from err
        fix = f"pip install {EXTRAS.get(package, package)}"
        raise MissingPackage(f"{module} needs a package: {err}", where=where, fix=fix) from err
    except OfflineCliError as err:
        err.where = f"{where}: {err.where}"
        raise
    except (Exception, SystemExit) as err:  # it is user code, which may raise anything
        raise raised(f"importing {module} raised {err!r}", where=where, fix="import it by itself, in Python") from err


def named_object(path: str, *, where: str, form: str, raised: type[OfflineCliError] = BadConfig) -> Any:
    """What `package.module:attribute` or `file.py:attribute` names; the attribute may have dots. See `imported`.

    Raises BadConfig where there is no such thing, and what `imported` raises.
    """
    module, colon, attribute = path.rpartition(":")
    if not colon or not attribute:
        raise BadConfig(f"{path!r} names no module and attribute", where=where, fix=form)
    found: Any = imported(module, where=where, form=form, raised=raised)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=3, cutoff=0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else form
            raise BadConfig(f"{module} has no {attribute!r}", where=where, fix=fix)
        found = getattr(found, part)
    return found


def call_of(text: str) -> tuple[str, dict[str, Any], list[str]]:
    """What `package.module:Class:key=value,...` names, its arguments, and every mistake in these.

    A value is JSON, or else text as it stands.
    """
    match = CALL.fullmatch(text)
    if match is None:
        return text, {}, [f"{text!r} is no NAME:key=value,..."]
    found: dict[str, Any] = {}
    wrong = []
    for name, raw in _arguments_of(match["arguments"] or ""):
        if not name:
            wrong.append(f'{raw!r} is not key=value (lists as [84,84], other commas within "quotes")')
        elif name in found:
            wrong.append(f"{name} is given twice")
        found[name] = _value(raw)
    return match["path"], found, wrong


def _arguments_of(text: str) -> Iterator[tuple[str, str]]:
    """Names and texts of `key=value,...`, where values may be JSON with commas; without a name what is none."""
    text = text.strip()
    while text:
        match = ARGUMENT.match(text)
        name, rest = (match[1], text[match.end() :]) if match else ("", text)
        raw = rest.partition(",")[0]
        if match and rest[:1] in ("[", "{", '"'):  # a list, object or quoted text goes to its own end
            with suppress(ValueError, RecursionError):
                end = json.JSONDecoder().raw_decode(rest)[1]
                raw = rest[:end] if rest[end:].lstrip()[:1] in ("", ",") else raw
        yield name, raw.strip()
        text = rest[len(raw) :].lstrip().removeprefix(",").lstrip()


def _value(raw: str) -> Any:
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return raw


def _no_constant(name: str) -> None:
    raise ValueError(name)


def path_for_workers() -> list[str]:
    """This process's path for another one, with the current folder last."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return [*filter(None, path), *([os.getcwd()] if "" in path else [])]
