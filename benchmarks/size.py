"""`python -m benchmarks.size [--json] [--commit REV]`: how much code the package has, in how many files, and what is too large.

A line of code is a line with something on it that is no comment, no docstring and no import. A function's body is every line
from the first statement after its docstring to its end. Imports for types (`if TYPE_CHECKING`) and inside functions count as
imports: a reader follows them all the same.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["LARGEST_BODY", "LARGEST_FILE", "SMALL_FILE", "Size", "imported_both_ways", "measured", "packaged"]

PACKAGE: Final = "offline_cli"
REPOSITORY: Final = Path(__file__).resolve().parent.parent
SMALL_FILE: Final = 40  # lines of code; a file with fewer is small
LARGEST_FILE: Final = 400  # lines, all of them
LARGEST_BODY: Final = 60  # lines

_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Size:
    """What was counted in one file."""

    path: str
    lines: int  # all of them
    code: int
    with_imports: int  # lines of code, and of imports
    bodies: tuple[tuple[str, int], ...]  # name and lines of each function body over LARGEST_BODY
    imports: frozenset[str]  # modules of the package


def packaged(root: Path = REPOSITORY) -> dict[str, str]:
    """The text of every module of the package below `root`, by path relative to it."""
    return {str(path.relative_to(root)): path.read_text() for path in sorted((root / PACKAGE).rglob("*.py"))}


def committed(revision: str, root: Path = REPOSITORY) -> dict[str, str]:
    """The text of every module of the package as it was at `revision`, by path."""
    command = ["git", "-C", str(root), "archive", "--format=tar", revision, PACKAGE]
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)) as archive:
        members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(".py")]
        return {member.name: archive.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]  # files


def measured(texts: Mapping[str, str]) -> list[Size]:
    """The size of each module in `texts`, which are named by path."""
    modules = {_module_of(path): path for path in texts}
    return [_of_text(path, text, modules) for path, text in texts.items()]


def imported_both_ways(sizes: list[Size]) -> list[tuple[str, str]]:
    """Pairs of modules that import each other, sorted."""
    imports = {_module_of(size.path): size.imports for size in sizes}
    return sorted((one, other) for one, them in imports.items() for other in them if one < other and one in imports[other])


def _of_text(path: str, text: str, modules: Mapping[str, str]) -> Size:
    tree = ast.parse(text, path)
    docstrings = {line for node in ast.walk(tree) for line in _lines_of_docstring(node)}
    imported = {line for node in ast.walk(tree) for line in _lines_of_import(node)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    written = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    bodies = tuple((node.name, size) for node in ast.walk(tree) if isinstance(node, _Function) for size in _long_body(node))
    found = frozenset(name for node in ast.walk(tree) for name in _imports(node, _module_of(path), path, modules))
    return Size(
        path,
        text.count("\n"),
        len(written - docstrings - imported),
        len(written - docstrings),
        bodies,
        found - {_module_of(path)},
    )


def _lines_of_import(node: ast.AST) -> Iterable[int]:
    return range(node.lineno, (node.end_lineno or 0) + 1) if isinstance(node, (ast.Import, ast.ImportFrom)) else ()


def _lines_of_docstring(node: ast.AST) -> Iterable[int]:
    """Lines of a text that is a statement: the docstring of a module, class, function or name."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return range(node.lineno, (node.end_lineno or 0) + 1) if is_text else ()  # type: ignore[attr-defined]  # a statement


def _long_body(function: _Function) -> Iterator[int]:
    statements = function.body[ast.get_docstring(function, clean=False) is not None :]
    if statements:
        lines = (statements[-1].end_lineno or 0) - statements[0].lineno + 1
        if lines > LARGEST_BODY:
            yield lines


def _imports(node: ast.AST, importer: str, path: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        above = (
            importer.split(".")[: len(importer.split(".")) - node.level + path.endswith("__init__.py")] if node.level else []
        )
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{source}.{alias.name}"
            if name in modules or source in modules:
                yield name if name in modules else source


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def summary(sizes: list[Size]) -> dict[str, Any]:
    """What `--json` prints: totals, and every file, function and pair that is too large, too small or imported both ways."""
    return {
        "code": sum(size.code for size in sizes),
        "lines": sum(size.lines for size in sizes),
        "files": len(sizes),
        "small_files": [[size.path, size.code] for size in sizes if size.code < SMALL_FILE],
        "small_with_imports": [[size.path, size.with_imports] for size in sizes if size.with_imports < SMALL_FILE],
        "large_files": [[size.path, size.lines] for size in sizes if size.lines > LARGEST_FILE],
        "large_bodies": [[size.path, *body] for size in sizes for body in size.bodies],
        "imported_both_ways": [list(pair) for pair in imported_both_ways(sizes)],
        "code_of": {size.path: size.code for size in sizes},
    }


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    rooms: dict[str, list[int]] = {}
    for path, code in found["code_of"].items():
        rooms.setdefault(path.split("/")[1] if path.count("/") > 1 else "(top)", []).append(code)
    yield f"{'package':<16}{'files':>6}{'code':>8}{f'under {SMALL_FILE}':>10}"
    for room, codes in sorted(rooms.items(), key=lambda item: -sum(item[1])):
        yield f"{room:<16}{len(codes):>6}{sum(codes):>8}{sum(code < SMALL_FILE for code in codes):>10}"
    yield f"{'all':<16}{found['files']:>6}{found['code']:>8}{len(found['small_files']):>10}"
    yield f"files under {SMALL_FILE} lines with their imports: {len(found['small_with_imports'])}"
    yield f"files over {LARGEST_FILE} lines: {len(found['large_files'])}"
    yield from (f"  {path}: {lines}" for path, lines in found["large_files"])
    yield f"function bodies over {LARGEST_BODY} lines: {len(found['large_bodies'])}"
    yield from (f"  {path}: {name} {lines}" for path, name, lines in found["large_bodies"])
    yield f"pairs that import each other: {len(found['imported_both_ways'])}"
    yield from (f"  {one} <-> {other}" for one, other in found["imported_both_ways"])


def main(arguments: list[str] | None = None) -> int:
    """Print what was counted, as a table or as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size", description="Count the code of the package.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--commit", help="count what this commit had, not what is in the working tree")
    given = parser.parse_args(arguments)
    found = summary(measured(packaged() if given.commit is None else committed(given.commit)))
    print(json.dumps(found) if given.json else "\n".join(_table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
