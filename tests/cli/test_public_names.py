"""`import offline_cli`: the public names, there when asked for and not before."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_cli

Shell = Callable[..., Any]
HEAVY = ("numpy", "gymnasium", "torch", "polars", "pyarrow", "typer", "fsspec")


def names_for_type_checkers() -> dict[str, str]:
    """Name to module, as the `if TYPE_CHECKING` block says."""
    tree = ast.parse(Path(offline_cli.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_public_name_is_there() -> None:
    names = set(offline_cli.__all__) - {"__version__"}
    assert {getattr(offline_cli, name).__name__ for name in names} == names


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    assert names_for_type_checkers() == offline_cli._HOMES
    assert set(offline_cli.__all__) == {*offline_cli._HOMES, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = offline_cli.nothing  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_heavy(shell: Shell) -> None:
    done = shell("-c", f"import sys, offline_cli\nprint([name for name in {HEAVY} if name in sys.modules])")
    assert done.stdout == "[]\n"


def test_datasets_are_read_and_written_without_torch(shell: Shell) -> None:
    code = "import sys\nfrom offline_cli import DatasetWriter, open_dataset, write_dataset\nprint('torch' in sys.modules)"
    assert shell("-c", code).stdout == "False\n"
