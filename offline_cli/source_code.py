"""Identities: what a result follows from, by name, so that what resumes or appends can say which part has changed.

Options are parts, and the code (`code_of`): hashes of the user's own source files, and versions of the packages that the
environment's and policy's classes are of. A file is the user's own where it lies outside of `site-packages` and the standard
library. Its imports are followed, wherever they lead. A module that has not been imported yet is not known.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import resolve_name
from inspect import isclass, isroutine
from pathlib import Path
from typing import Any, Final

from offline_cli.errors import BadConfig
from offline_cli.import_path import PYTHON, call_of, module_named, names_file

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
