"""Code that a user names by text: how it is imported and called, and what identifies it.

The current folder is searched last, here and in every process that is started: a file that happens to lie there must not pass
for a module of the standard library or of an installed package; a module that the user names, and that is nowhere else, is
found. A file can be named by its path too (`sub/pol.py:act`), whatever its name.

An identity is what a result follows from, by name, so that a resumed command can say which part has changed: options, and the
code (`code_of`): hashes of the user's own source files, and versions of the packages that the
environment's and policy's classes are of. A file is the user's own where it lies outside of `site-packages` and the standard
library. Its imports are followed, wherever they lead. A module that has not been imported yet is not known.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import resolve_name
from inspect import isclass, isroutine
from pathlib import Path
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


# ---- what identifies a result ----


HASHED: Final = "blake2b:"
NEVER: Final = frozenset({"--first-episode"})  # may change: episodes would be missing, or there twice
WITHIN: Final = ("env", "_played", "aec_env")  # what wrappers and games call the environment inside


def code_of(*things: Any) -> dict[str, str]:
    """Hashes by own file, as `package/module.py`, and versions by package.

    `things`: names as options take them (`module:EnvId`, `python:file.py:attribute`), environments with all that they wrap,
    functions, and other objects by their classes.
    """
    files, packages, seen = dict[str, Any](), dict[str, str](), set[str]()
    asked = {name for thing in things for name in _modules(thing)}
    pending = sorted(asked)
    for name in pending:  # which grows
        module, top = sys.modules.get(name), name.partition(".")[0]
        if name in seen or module is None or top in sys.stdlib_module_names or top == "offline_cli":
            continue
        seen.add(name)
        pending.append(name.rpartition(".")[0])
        path = Path(getattr(module, "__file__", None) or "")
        if path.is_file() and {"site-packages", "dist-packages"}.isdisjoint(path.parts):
            depth = name.count(".") + 1 + (path.stem == "__init__")
            files.setdefault("/".join(path.parts[-depth:]), hashlib.blake2b(digest_size=16)).update(path.read_bytes())
            if path.suffix == ".py":
                pending += _imports(module.__package__ or "", path, path.stat().st_mtime_ns)
        elif name in asked:
            with suppress(PackageNotFoundError):
                packages[distribution(top).name] = distribution(top).version
    return {**{name: HASHED + found.hexdigest() for name, found in sorted(files.items())}, **dict(sorted(packages.items()))}


def content_hash_of(value: Any) -> str:
    """The hash kept in place of a value that may hold secrets or local paths; `value`: text, or what `repr` tells apart."""
    text = value if isinstance(value, str) else repr(value)
    return HASHED + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def allowed_changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    allow: bool | None,
    *,
    where: str,
    fix: str,
    others: Sequence[str] = (),
) -> list[str]:
    """How two identities differ, in words; what only one of them knows is not compared.

    `allow`: the option; None: there is none. Raises BadConfig, with names as `changed` in its details, for changes that are not
    allowed; it lists `others`, further mistakes, too.
    """
    changed = {name: (before[name], value) for name, value in now.items() if name in before and before[name] != value}
    told = {
        name: f"{name} has changed" if str(new).startswith(HASHED) else f"{name} was {old}, now {new}"
        for name, (old, new) in changed.items()
    }
    refused = [name for name in told if not allow or name in NEVER]
    if refused or others:
        fix += ", or --allow-changes to go on all the same" if allow is False and NEVER.isdisjoint(refused) else ""
        error = BadConfig.of([*others, *(told[name] for name in refused)], where=where, fix=fix)
        error.details["changed"] = refused
        raise error
    return [*told.values()]


def _modules(thing: Any) -> Iterator[str]:
    """The modules that a name, a class, a function, or an object with all that it wraps, is of."""
    if isinstance(thing, str):
        path = call_of(thing)[0].removeprefix(PYTHON).rpartition(":")[0]
        yield module_named(path).__name__ if names_file(path) else path
    elif isclass(thing) or isroutine(thing):
        yield from (str(kind.__module__) for kind in getattr(thing, "__mro__", [thing]))
    elif thing is not None:
        yield from _modules(type(thing))
        inner = getattr(thing, "__dict__", {})
        for name in ("entry_point", "vector_entry_point"):
            yield from _modules(getattr(inner.get("spec"), name, None) or "")
        within = next((inner[name] for name in WITHIN if name in inner), None)
        yield from _modules(within or next(iter(inner.get("envs") or ()), None))


@cache
def _imports(package: str, path: Path, changed: int) -> Sequence[str]:
    """What a module of `package` imports, by the text of its file as it was at `changed`."""
    found = list[str]()
    with suppress(SyntaxError, ValueError, RecursionError, ImportError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found
