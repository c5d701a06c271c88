"""Import user code by its import path (`package.module:attribute`, `sub/pol.py:act`), and compute its identity.

The current folder is searched last, here and in every child process: a file there never shadows the standard library or an
installed package, but a module that exists only there is found. A file can be named by its path, whatever its name.

An identity maps names to whatever determines a result, so that a resumed command can say what has changed: options, and the
code (`code_of`), as hashes of the user's source files and versions of the packages of the environment's and policy's classes.
A file is the user's own if it lies outside `site-packages` and the standard library. Imports are followed transitively, among
modules that are already imported.
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
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final

from offline_cli.errors import BadConfig, MissingPackage, OfflineCliError

PYTHON: Final = "python:"  # prefix of an import path in an option
EXTRAS: Final = {"pettingzoo": "'offline-cli[pettingzoo]'", "ale_py": "'offline-cli[atari]'"}  # pip targets by package
ALONE: Final = "import it alone in Python to see the traceback"
CALL: Final = re.compile(r"(?P<path>[^=]+?)(?::(?P<arguments>\s*[^\W\d]\w*\s*=.*))?", re.DOTALL)
ARGUMENT: Final = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")


def names_file(module: str) -> bool:
    """Whether the module is given as a file path: `pol.py`, `sub/pol.py`."""
    return module.endswith(".py")


def module_named(module: str) -> ModuleType:
    """Import a module by name (from the current folder too), or a file by path (its folder is searched last).

    Runs the module's code: call it only for names from the user's own options or files. Raises ModuleNotFoundError (with `name`
    = `module` for a missing file), and whatever the module raises.
    """
    if "" not in sys.path:
        sys.path.append("")
    if not names_file(module):
        return importlib.import_module(module)
    if not os.path.isfile(module):
        raise ModuleNotFoundError(f"no file {module}", name=module)
    place = os.path.realpath(module)
    stem = os.path.basename(place).removesuffix(".py")
    name = f"file_{hashlib.sha256(place.encode()).hexdigest()[:8]}_{stem}"  # never the name of an installed module
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None, "a path that ends in .py"
    assert spec.loader is not None, "a path that ends in .py"
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
    """Import the module that the option `where` names; `form`: the expected syntax, used as the hint.

    Raises `unknown` if there is no such module, naming similar ones; MissingPackage if a package is not installed; `raised` if
    importing it raises, also for an installed package that lacks a module.
    """
    if not module or (module.startswith(".") and not names_file(module)):
        raise unknown(f"{module!r} names no module", where=where, fix=form)
    try:
        return module_named(module)
    except ModuleNotFoundError as err:
        name, target = err.name or "", missing_package(err)
        above, _, last = name.rpartition(".")
        if f"{module}.".startswith(f"{name}.") and target not in EXTRAS.values():
            beside = [one.name for one in iter_modules(getattr(sys.modules.get(above), "__path__", ()))] if above else []
            near = [f"{above}.{one}" for one in get_close_matches(last, beside, n=3, cutoff=0.5)]
            what = f"there is no {'file' if names_file(module) else 'module'} {name!r}"
            what = f"{above} has no module {last!r}" if above in sys.modules else what
            fix = f"did you mean {' or '.join(near)}?" if near else form
            raise unknown(what, where=where, fix=fix, details={"near": near}) from err
        if target is not None:
            raise MissingPackage(f"{module} needs a package: {err}", where=where, fix=f"pip install {target}") from err
        raise raised(f"importing {module} raised {err!r}", where=where, fix=ALONE) from err
    except OfflineCliError as err:
        err.where = f"{where}: {err.where}"
        raise
    except (Exception, SystemExit) as err:  # user code may raise anything
        raise raised(f"importing {module} raised {err!r}", where=where, fix=ALONE) from err


def missing_package(error: ModuleNotFoundError) -> str | None:
    """What pip would install; None: the package is installed, and lacks a module."""
    package = (error.name or "").partition(".")[0]
    try:
        is_found = not package or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # ValueError: hidden, or without a spec
        is_found = sys.modules.get(package) is not None
    return None if is_found else EXTRAS.get(package, package)


def named_object(path: str, *, where: str, form: str, raised: type[OfflineCliError] = BadConfig) -> Any:
    """Import the object `package.module:attribute` or `file.py:attribute`; the attribute may contain dots.

    Raises BadConfig if it does not exist, and as `imported` does.
    """
    module, colon, attribute = path.rpartition(":")
    if not colon or not attribute:
        raise BadConfig(f"{path!r} is not MODULE:ATTRIBUTE", where=where, fix=form)
    found: Any = imported(module, where=where, form=form, raised=raised)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=3, cutoff=0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else form
            raise BadConfig(f"{module} has no {attribute!r}", where=where, fix=fix)
        found = getattr(found, part)
    return found


def call_of(text: str) -> tuple[str, dict[str, Any], list[str]]:
    """Split `package.module:Class:key=value,...` into path, arguments, and mistakes in the arguments.

    A value is parsed as JSON; other values stay text.
    """
    match = CALL.fullmatch(text)
    if match is None:
        return text, {}, [f"{text!r} is not NAME:key=value,..."]
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
    """Names and raw values of `key=value,...`; values may be JSON with commas. A part without `key=` has the name ''."""
    text = text.strip()
    while text:
        match = ARGUMENT.match(text)
        name, rest = (match[1], text[match.end() :]) if match else ("", text)
        raw = rest.partition(",")[0]
        if match and rest[:1] in ("[", "{", '"'):  # a JSON list, object or string may contain commas
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
    """This process's sys.path for a worker process, with the current folder last."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return [*filter(None, path), *([os.getcwd()] if "" in path else [])]


# ---- what identifies a result ----


HASHED: Final = "blake2b:"
WITHIN: Final = ("env", "_played", "aec_env")  # attributes in which wrappers and games keep the wrapped environment


def code_of(*things: Any) -> dict[str, str]:
    """The code behind `things`: hashes by user file (`package/module.py`), and versions by package.

    `things`: import paths as options take them (`module:EnvId`, `python:file.py:attribute`), environments (with the
    environments they wrap), functions, and other objects by their classes.
    """
    files, packages, seen = dict[str, Any](), dict[str, str](), set[str]()
    asked = {name for thing in things for name in _modules(thing)}
    pending = sorted(asked)
    for name in pending:  # grows while it is iterated
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
    """Hash stored in place of a value that may hold secrets or local paths; values other than text are hashed by `repr`."""
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
    """Describe how two identities differ; keys that only one of them has are not compared.

    `allow`: the value of `--allow-changes`; None: the command has no such option. Raises BadConfig, with the changed names as
    `changed` in its details, for changes that are not allowed; the error also lists `others`, further mistakes.
    """
    changed = {name: (before[name], value) for name, value in now.items() if name in before and before[name] != value}
    changes = {
        name: f"{name} has changed" if str(new).startswith(HASHED) else f"{name} was {old}, now {new}"
        for name, (old, new) in changed.items()
    }
    refused = [] if allow else [*changes]
    if refused or others:
        fix += ", or continue anyway with --allow-changes" if allow is False and refused else ""
        error = BadConfig.of([*others, *(changes[name] for name in refused)], where=where, fix=fix)
        error.details["changed"] = refused
        raise error
    return [*changes.values()]


def _modules(thing: Any) -> Iterator[str]:
    """The modules of a name, a class and its bases, a function, or an object and the environments it wraps."""
    if isinstance(thing, str):
        path = call_of(thing)[0].removeprefix(PYTHON).rpartition(":")[0]
        yield module_named(path).__name__ if names_file(path) else path
    elif isclass(thing) or isroutine(thing):
        yield from (str(kind.__module__) for kind in getattr(thing, "__mro__", [thing]))
    elif thing is not None:
        yield from _modules(type(thing))
        inner = getattr(thing, "__dict__", {})
        yield from _modules(getattr(inner.get("spec"), "entry_point", None) or "")
        within = next((inner[name] for name in WITHIN if name in inner), None)
        yield from _modules(within or next(iter(inner.get("envs") or ()), None))


@cache
def _imports(package: str, path: Path, changed: int) -> Sequence[str]:
    """Modules imported by the source file at `path`, a module of `package`; `changed`: its mtime, part of the cache key."""
    found = list[str]()
    with suppress(SyntaxError, ValueError, RecursionError, ImportError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found
