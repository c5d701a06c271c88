"""The package stays readable: no long file, no long function, no two modules that import each other."""

from __future__ import annotations

import re
import textwrap
from functools import cache

import pytest

from benchmarks.size import LARGEST_FILE, Size, imported_both_ways, measured, packaged

LONG_BODIES: frozenset[tuple[str, str]] = frozenset()
"""Functions that are still too long: a list to make shorter."""

CIRCLES: frozenset[tuple[str, str]] = frozenset()
"""Modules that still import each other: a list to make shorter."""


@cache
def sizes() -> list[Size]:
    return measured(packaged())


def test_no_file_is_longer_than_400_lines() -> None:
    assert {size.path: size.lines for size in sizes() if size.lines > LARGEST_FILE} == {}


ALGORITHM = "offline_cli/training/algorithms/"


def test_no_algorithm_is_longer_than_150_lines() -> None:
    files = {size.path: size.lines for size in sizes() if size.path.startswith(ALGORITHM)}
    seam = {f"{ALGORITHM}{name}.py" for name in ("__init__", "algorithm")}
    assert {path.removeprefix(ALGORITHM) for path in files.keys() - seam} == {"bc.py", "marwil.py", "iql.py", "td3_bc.py"}
    assert {path: lines for path, lines in files.items() if path not in seam and lines > 150} == {}


def test_the_registry_alone_names_the_algorithms_that_learn_from_rewards() -> None:
    """A code word, not a mention: a string or an import in any module beside their own."""
    named = re.compile(r"""["'](marwil|iql|td3-bc)["']|training\.algorithms\.(marwil|iql|td3_bc)\b""")
    texts = {path: text for path, text in packaged().items() if named.search(text)}
    assert texts.keys() - {f"{ALGORITHM}{name}.py" for name in ("marwil", "iql", "td3_bc")} == {f"{ALGORITHM}algorithm.py"}


def test_no_further_function_body_is_longer_than_60_lines() -> None:
    assert {(size.path, name) for size in sizes() for name, _ in size.bodies} <= LONG_BODIES


def test_no_further_two_modules_import_each_other() -> None:
    assert set(imported_both_ways(sizes())) <= CIRCLES


def one(text: str, path: str = "offline_cli/a.py") -> Size:
    return measured({path: textwrap.dedent(text)})[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("# a comment\n\n", 0),
        ('"""A docstring\n\nof three lines."""\n', 0),
        ("from a import (\n    b,\n    c,\n)\nimport d\n", 0),
        ("A = 1  # with a comment\n", 1),
        ("A = [\n    1,\n\n    2,\n]\n", 4),
        ('A = 1\n"""What A is."""\n', 1),
        ('def f():\n    """Says.\n\n    More.\n    """\n    return 1\n', 2),
        ('TEXT = """one\n\ntwo"""\n', 3),
    ],
)
def test_code_is_what_is_no_blank_comment_docstring_or_import(text: str, code: int) -> None:
    assert one(text).code == code


def test_a_body_is_counted_without_its_docstring() -> None:
    docstring = '    """' + "line\n    " * 50 + '"""\n'
    assert one("def short():\n" + docstring + "    a = 1\n" * 60).bodies == ()
    assert one("def long():\n" + docstring + "    a = 1\n" * 61).bodies == (("long", 61),)


@pytest.mark.parametrize(
    "imported",
    [
        "import offline_cli.b",
        "from offline_cli import b",
        "from offline_cli.b import name",
        "from .b import name",
        "from . import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from offline_cli.b import Name",
        "def late():\n    from offline_cli.b import name",
    ],
)
def test_modules_that_import_each_other_are_found_however_they_do(imported: str) -> None:
    texts = {"offline_cli/a.py": imported + "\n", "offline_cli/b.py": "from offline_cli.a import other\n"}
    assert imported_both_ways(measured(texts)) == [("offline_cli.a", "offline_cli.b")]


def test_modules_that_import_one_way_are_no_circle() -> None:
    texts = {"offline_cli/a.py": "", "offline_cli/b.py": "from offline_cli.a import other\n"}
    assert imported_both_ways(measured(texts)) == []
