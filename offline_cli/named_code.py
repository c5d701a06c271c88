"""What was meant by a text that should name code and does not: a file alone, a module alone, an attribute behind a dot.

Nothing is imported: files are parsed for what they define.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from offline_cli.import_path import add_current_folder, names_file

__all__ = ["MOST_NAMES", "PYTHON", "defined_in", "meant_by"]

PYTHON: Final = "python:"
MOST_NAMES: Final = 5  # of a file, that are offered
MAKES: Final = ("make", "env")  # in the name of a function that makes an environment


def meant_by(text: str) -> tuple[str, list[str]]:
    """Why `text` names no code, and names that would; of a text that looks like none, nothing."""
    path = text.removeprefix(PYTHON)
    if ":" in path:
        return "", []
    if names_file(path):
        if not os.path.isfile(path):
            return f"there is no file {path!r}", []
        return _within(path, path)
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        return "", []
    for file in (f"{os.path.join(*parts)}.py", os.path.join(*parts, "__init__.py")):
        if os.path.isfile(file):
            return _within(path, file)
    return "", _attribute_of_module(".".join(parts[:-1]), parts[-1])


def _within(name: str, file: str) -> tuple[str, list[str]]:
    found = defined_in(file)
    what = "name one of its functions or classes" if found else "it defines no function or class"
    return f"{file} is a file: {what}", [f"{PYTHON}{name}:{one}" for one in found[:MOST_NAMES]]


def _attribute_of_module(module: str, attribute: str) -> list[str]:
    """`package.module.make_env` as it should be written, where the package is there."""
    add_current_folder()
    with suppress(ImportError, ValueError):
        if module and importlib.util.find_spec(module.partition(".")[0]):
            return [f"{PYTHON}{module}:{attribute}"]
    return []


def defined_in(file: str) -> list[str]:
    """Public functions and classes of a file, the likeliest makers of environments first; none of what is no Python."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError), open(file, "rb") as source:
        found = dict(_definitions(ast.parse(source.read())))
        return sorted((name for name in found if not name.startswith("_")), key=lambda name: found[name])
    return []


def _definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names, and how unlikely each makes an environment."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, 0 if any(word in node.name.lower() for word in MAKES) else 2
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            yield node.name, 1 if any(base.endswith("Env") for base in bases) else 3
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            yield from ((target.id, 2) for target in node.targets if isinstance(target, ast.Name))
