"""docs/benchmarks.md from the figures: which rows are below their floors, then a table per question; no row is left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import HERE

__all__ = ["page"]

HEAD = """# Benchmarks

Written by `make bench` from `benchmarks/latest.json`. Ours and the rival take turns, RLlib and Minari in an environment and
process of their own; a ratio is the median of the pairs' ratios (quartiles in brackets), and above 1 ours is better. No change
may take a row below its floor. Machines differ and are shared: the ratios carry over, the absolute figures may not.

The rows on training scores and other libraries' updates, remote data, workers, growth of cost, LeRobot and recording with
Minari were removed; the history of this file has their last figures. `make gpu` answers the questions about a GPU, on a
machine that has one, and `python -m benchmarks.run --gpu gpu.json` takes its file in.
"""
COLUMNS = "| | ours | rival | ratio | rival is | floor | held |\n| --- | --- | --- | --- | --- | --- | --- |"


def page(known: Mapping[str, Mapping[str, Any]]) -> str:
    """`known`: by question's name `machine` and `rows`, in the order of the page."""
    parts = [HEAD, summary(known)]
    for name, entry in known.items():
        rows = "\n".join(f"| {' | '.join(cells(row))} |" for row in entry["rows"])
        parts.append(f"## {title(name)}\n\n{COLUMNS}\n{rows}\n\n{where(entry['machine'])}\n")
    return "\n".join(parts)


def title(name: str) -> str:
    """The question, as its file asks it: the first sentence."""
    said = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or name
    return said.partition("?")[0].split("\n")[0] + "?"


def summary(known: Mapping[str, Mapping[str, Any]]) -> str:
    """How many floors are held, and which are not."""
    rows = [row for entry in known.values() for row in entry["rows"] if row["floor"]["at_least"] is not None]
    missed = [f"- below: {row['question']} ({row['floor']['words']})" for row in rows if row["met"] is False]
    unknown = [f"- not measured: {row['question']}: {row['not_measured']}" for row in rows if row["met"] is None]
    return "\n".join([f"{len(rows) - len(missed) - len(unknown)} of {len(rows)} floors are held.", *missed, *unknown]) + "\n"


def cells(row: Mapping[str, Any]) -> Iterator[str]:
    """Of a row of the table."""
    yield row["question"]
    if row["not_measured"]:
        yield from (f"not measured: {row['not_measured']}", "", "")
    else:
        yield from (figure(row["ours"], row["unit"]), figure(row["rival"], row["unit"]), ratio(row))
    yield from (row["rival_name"], row["floor"]["words"], {True: "yes", False: "**no**", None: ""}[row["met"]])


def figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.4g} {unit}"


def ratio(row: Mapping[str, Any]) -> str:
    """`12.3 (11.9 to 12.8)`: the median and the quartiles."""
    if row["ratio"] is None:
        return ""
    spread = row["spread"]
    return f"{row['ratio']:,.3g}" + ("" if spread is None else f" ({spread[0]:,.3g} to {spread[1]:,.3g})")


def where(machine: Mapping[str, str]) -> str:
    """The machine, the day, and a warning where it had other things to do."""
    about = f"{machine['date']}; {machine['processor']}, load {machine['load']} before; Python {machine['python']}; "
    about += f"{machine['versions']}." + (f" {machine['gpu']}." if machine.get("gpu") else "")
    warning = " **The machine was busy: its figures are too low, and the ratios uncertain.**"
    return about + (warning if machine.get("busy") else "")
