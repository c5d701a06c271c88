"""Show a command's result on stdout, as JSON or as a table.

JSON is one valid line: NaN and infinities become null. The table, for people, has the same names, without empty values. It
uses rich, with colours only on a terminal.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from offline_cli.cli.streams import colour_wanted, is_terminal, printable, write

__all__ = ["in_words", "plain", "show", "show_grid", "to_json"]

WIDE: Final = 160  # table width for files and pipes
MOST: Final = 20  # maximum items of a list
EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})  # omitted values
LONG: Final = 40  # lists with longer items get one line per item


def to_json(value: Any) -> str:
    """`value` as one line of ASCII JSON, with control characters escaped."""
    return json.dumps(plain(value), allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def plain(value: Any) -> Any:
    """`value` in JSON types: arrays as lists, NaN and infinities as None. Raises TypeError for other types."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        return plain(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}")


def show(told: Mapping[str, Any]) -> None:
    """Write a result to stdout as a table of names and values."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(plain(told)):
        table.add_row(Text(name), Text(text))
    _draw(table)


def show_grid(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, above: str = "") -> None:
    """Write a table with headings to stdout, below the line `above`; numbers are right-aligned, empty columns omitted."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = [
        column for column in zip(headings, *plain(rows), strict=True) if any(cell not in (None, "") for cell in column[1:])
    ]
    for heading, *cells in columns:
        numeric = all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells)
        table.add_column(Text(heading), justify="right" if numeric else "left", no_wrap=not table.columns, overflow="fold")
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*(Text("" if cell is None else in_words(cell, nested=True)) for cell in row))
    write(sys.stdout, printable(above) + "\n" if above else "")
    _draw(table)


def in_words(value: Any, *, nested: bool = False) -> str:
    """A plain value for people: thousands separators, five significant digits, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 100_000 <= abs(value) < 1e15 else f"{value:.5g}"  # larger floats are not exact
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        known = {name: item for name, item in value.items() if item not in EMPTY}
        parts = [f"{printable(name)} {in_words(item, nested=True)}" for name, item in known.items()]
    else:
        parts = [in_words(item, nested=True) for item in value]
    if nested:
        return f"[{', '.join(parts)}]"
    parts[MOST:] = [f"and {len(parts) - MOST:,} more"] if len(parts) > MOST else []
    return ("\n" if any(len(part) > LONG for part in parts) else ", ").join(parts)


def _rows(told: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Names and texts of rows. Nested mappings get one row each; spaces are shown by their `_text` key."""
    for name, value in told.items():
        label, parts = within + printable(name.removesuffix("_text").replace("_", " ")), _by_number(value)
        if isinstance(parts, Mapping) and any(isinstance(_by_number(part), Mapping) for part in parts.values()):
            yield from _rows(parts, f"{label} ")
        elif value not in EMPTY and f"{name}_text" not in told and (text := in_words(value)):
            yield label, text


def _by_number(value: Any) -> Any:
    """A list of mappings as a mapping by number, any other value itself."""
    is_list = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    return {str(number): item for number, item in enumerate(value, 1)} if is_list else value


def _draw(table: Any) -> None:
    from rich.console import Console

    coloured = colour_wanted(sys.stdout)
    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        width=None if is_terminal(sys.stdout) else WIDE,
        highlight=False,
    )
    console.print(table)
    write(sys.stdout, "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))
