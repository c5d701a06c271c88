"""Shows a command's result, as JSON or as a small table; nothing else is written on stdout.

JSON is one line and valid: NaN and infinities, which JSON cannot express, become null. The table is for people; it
loads rich, and colours only a terminal.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offline_cli.cli.streams import colour_wanted, is_terminal, printable, write

__all__ = ["NOT_KNOWN", "Lines", "Summary", "in_words", "plain", "show", "show_grid", "to_json", "with_reasons"]

NOT_KNOWN = "not known"
_WIDE = 160  # columns of a table that goes to a file or pipe, where no line needs to fit a window

Summary = Callable[[Mapping[str, Any]], Mapping[str, Any] | Sequence[tuple[str, Any]]]
"""Rows of a table from the keys of `--json`; pairs where a name may stand more than once."""


class Lines(tuple[str, ...]):
    """A value of a table that is shown in lines of its own, each of which is one text."""

    __slots__ = ()


def show(told: Mapping[str, Any], *, as_json: bool, summary: Summary = dict) -> None:
    """Write a result on stdout: all of it as JSON, or for people what `summary` makes of it."""
    write(sys.stdout, to_json(told) if as_json else _table(summary(told)))


def show_grid(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | tuple[str, ...]]],
    *,
    above: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Write a table with headings on stdout, and lines above and below it; a cell that is a tuple has a line for each."""
    write(sys.stdout, "".join(f"{printable(line)}\n" for line in above) + _grid(headings, rows))
    write(sys.stdout, "".join(f"{printable(line)}\n" for line in below))


def to_json(value: Any) -> str:
    """`value` as one line of valid JSON, in ASCII: whatever would act on a terminal is an escape of JSON."""
    return json.dumps(plain(value), allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def plain(value: Any) -> Any:
    """`value` in JSON's own types: arrays as lists, NaN and infinities as None. Raises TypeError for what has no such form."""
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
    if hasattr(value, "tolist"):  # numpy arrays and scalars, known without loading numpy
        return plain(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _table(result: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in result.items() if isinstance(result, Mapping) else result:
        table.add_row(Text(printable(name.replace("_", " "))), Text(_cell(value)))
    return _drawn(table)


def _cell(value: Any) -> str:
    return "\n".join(map(printable, value)) if isinstance(value, Lines) else printable(in_words(plain(value)))


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str | tuple[str, ...]]]) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(Text(heading, style="bold"), no_wrap=not number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(Lines(cell) if isinstance(cell, tuple) else cell)) for cell in row))
    return _drawn(table)


def _drawn(table: Any) -> str:
    """A rich table as text."""
    from rich.console import Console

    coloured = colour_wanted(sys.stdout)
    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        width=None if is_terminal(sys.stdout) else _WIDE,
        highlight=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")) + "\n"


def in_words(value: Any) -> str:
    """One value for people: thousands set apart, five significant digits, a dash where there is nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(item)}" for name, item in value.items()) or "none"
    return ", ".join(in_words(item) for item in value) or "none"


def with_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Each name, and the reason beside it."""
    return [f"{name} ({reason})" for name, reason in reasons.items()]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if 1000 <= abs(value) < 1e15:  # beyond it not every digit is known
        return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:,.1f}"
    return f"{value:.5g}"
