"""docs/benchmarks.md from the figures: what misses its target first, then a table per question; no row is left out.

`python -m benchmarks.page GPU.json` takes what `make gpu` wrote into latest.json, the page and its plot.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["page", "with_gpu"]

HERE = Path(__file__).resolve().parent
HEAD = """# Benchmarks

Written by `make bench` from `benchmarks/latest.json`; `python -m benchmarks.compare OLD NEW` shows what changed between two
such files. Ours and the rival take turns, each rival in an environment and process of its own; a ratio is the median of the
pairs' ratios, and above 1 ours is better. The floor is what the machine would allow: bytes over its bandwidth, operations over
its rate, measured in the same run. Machines differ and are shared: the ratios carry over, the absolute figures may not.

Questions about a GPU are answered by `make gpu` on a machine that has one; `python -m benchmarks.page gpu.json` takes its file
in, and date and hardware stand below the tables.

![Each row against its target](benchmarks.svg)
"""
COLUMNS = "| | ours | rival | ratio | rival is | floor | target | met |\n| --- | --- | --- | --- | --- | --- | --- | --- |"


def page(known: Mapping[str, Mapping[str, Any]]) -> str:
    """`known`: by question's name `machine` and `rows`, in the order of the page."""
    parts = [HEAD, summary(known)]
    for name, entry in known.items():
        rows = "\n".join(map(line, entry["rows"]))
        parts.append(f"## {title(name)}\n\n{COLUMNS}\n{rows}\n\n{where(entry['machine'])}\n")
    return "\n".join(parts)


def title(name: str) -> str:
    """The question, as its file asks it: the first sentence."""
    file = HERE / f"{name}.py"
    said = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or name) if file.is_file() else name
    return said.partition("?")[0].split("\n")[0] + "?"


def summary(known: Mapping[str, Mapping[str, Any]]) -> str:
    """How many targets are met, and which are not."""
    rows = [row for entry in known.values() for row in entry["rows"] if row["target"]["at_least"] is not None]
    missed = [row for row in rows if row["met"] is False]
    unknown = [row for row in rows if row["met"] is None]
    lines = [f"{len(rows) - len(missed) - len(unknown)} of {len(rows)} targets are met."]
    lines += [f"- missed: {row['question']}: {distance(row)} ({row['target']['words']})" for row in missed]
    lines += [f"- not measured: {row['question']} ({row['target']['words']}): {row['not_measured']}" for row in unknown]
    return "\n".join(lines) + "\n"


def distance(row: Mapping[str, Any]) -> str:
    """By how much, in the target's own measure."""
    target = row["target"]
    unit = "" if target["of"] == "ratio" else f" {row['unit']}"
    return f"{row[target['of']]:,.4g}{unit} where {target['at_least']:,.4g}{unit} was to be reached"


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    return "| " + " | ".join(cells(row)) + " |"


def cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["question"]
    if row["not_measured"]:
        yield from (f"not measured: {row['not_measured']}", "", "", row["rival_name"], "", row["target"]["words"], "")
        return
    yield figure(row["ours"], row["unit"])
    yield figure(row["rival"], row["unit"])
    yield ratio(row)
    yield row["rival_name"]
    yield floor(row)
    yield row["target"]["words"]
    yield {True: "yes", False: "**no**", None: ""}[row["met"]]


def figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.4g} {unit}"


def ratio(row: Mapping[str, Any]) -> str:
    """`12.3 (11.9 to 12.8)`: the median and the quartiles."""
    if row["ratio"] is None:
        return ""
    spread = row["spread"]
    return f"{row['ratio']:,.3g}" + ("" if spread is None else f" ({spread[0]:,.3g} to {spread[1]:,.3g})")


def floor(row: Mapping[str, Any]) -> str:
    """In words, and the rate that it allows."""
    if row["floor_rate"] is None:
        return str(row["floor"])
    return f"{row['floor']}: {figure(row['floor_rate'], row['unit'])}"


def where(machine: Mapping[str, str]) -> str:
    """The machine, the day, and a warning where it had other things to do."""
    taken = f"{machine['date']}; {machine['processor']}, load {machine['load']} before"
    about = f"{taken}; Python {machine['python']}; {machine['versions']}."
    about += f" {machine['gpu']}." if machine.get("gpu") else ""
    return about + (
        " **The machine was busy: its figures are too low, and the ratios uncertain.**" if machine.get("busy") else ""
    )


def with_gpu(known: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """`known` with the questions that a gpu.json answers; those that failed say so, and those not reached stay as they are.

    Raises ValueError for JSON of another kind.
    """
    from benchmarks.gpu import FORMAT
    from benchmarks.harness import machine, missing

    if not isinstance(measured, dict) or (measured.get("format"), measured.get("version")) != (FORMAT, 1):
        raise ValueError(f"no JSON of {FORMAT}, version 1")
    said = in_words(measured)
    merged = dict(known)
    for name, part in measured["questions"].items():
        rows = part["rows"] or [missing(title(name), f"failed on {measured['gpu']['name']}: {part['error']}").as_dict()]
        about = part["machine"] or {**machine(), "date": measured["date"][:10], "python": measured["python"], "load": "unknown"}
        merged[name] = {"machine": {**about, "gpu": said}, "rows": rows}
    return merged


def in_words(measured: Mapping[str, Any]) -> str:
    """Card, driver and what came of the tests."""
    gpu, tests = measured["gpu"], measured["tests"]
    card = f"GPU: {gpu['name']}, {gpu['memory_gib']} GiB, driver {gpu['driver']}, torch {gpu['torch']}, CUDA {gpu['cuda']}"
    if tests is None:
        return f"{card}; its tests were not reached"
    return f"{card}; its tests: {tests['passed']} passed" + (f", **{tests['error']}**" if tests["error"] else "")


def main(arguments: list[str]) -> None:
    from benchmarks.run import figures_in, write

    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("measured", type=Path, metavar="GPU.json")
    parser.add_argument("--out", type=Path, help="folder for latest.json, benchmarks.md and benchmarks.svg; default: their own")
    options = parser.parse_args(arguments)
    latest, docs = (options.out or HERE) / "latest.json", options.out or HERE.parent / "docs"
    try:
        measured = json.loads(options.measured.read_text(encoding="utf-8"))
        known = with_gpu(figures_in(latest), measured)
    except (OSError, ValueError) as err:
        parser.error(f"{options.measured}: {err}")
    write(known, latest, docs)
    left = measured["not_reached"]
    print(f"{len(measured['questions'])} questions taken over" + (f"; not reached: {', '.join(left)}" if left else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
