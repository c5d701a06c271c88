"""`python -m benchmarks.run [QUESTION...]`: measure, print rows as JSON, write latest.json and docs/benchmarks.md.

Questions that are not asked keep the rows, machine and date that they have, and all is written again after each question.
`--out FOLDER` writes both files there instead. `--small` measures next to nothing, to see that the questions run, and writes
nothing. `--gpu gpu.json` takes what `make gpu` wrote into both files.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import HERE, machine
from benchmarks.page import page

__all__ = ["QUESTIONS", "answered", "main"]

QUESTIONS = (
    "read_episodes",
    "convert_columns",
    "convert_sample_batch",
    "convert_table",
    "operations",
    "pipeline",
    "record",
    "update_and_cold_start",
    "train_streaming",
    "start",
)


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    latest, docs = (options.out or HERE) / "latest.json", options.out or HERE.parent / "docs"
    known: dict[str, Any] = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
    if options.gpu:
        measured = json.loads(options.gpu.read_text(encoding="utf-8"))
        write(known | {"gpu": {name: measured[name] for name in ("machine", "rows", "tests")}}, latest, docs)
        return
    for name in options.questions or QUESTIONS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        known[name] = answered(name, small=options.small)
        for row in known[name]["rows"]:
            print(json.dumps(row), flush=True)
        if not options.small:
            write(known, latest, docs)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", choices=[[], *QUESTIONS], help="default: all")
    parser.add_argument("--out", type=Path, help="folder for latest.json and benchmarks.md")
    parser.add_argument("--small", action="store_true", help="tiny data, one pair, nothing written")
    parser.add_argument("--gpu", type=Path, metavar="FILE", help="take the figures of this gpu.json, and measure nothing")
    return parser.parse_args(arguments)


def answered(name: str, *, small: bool = False) -> dict[str, Any]:
    """The rows of a question, with the machine as it was just before."""
    about = machine()
    return {"machine": about, "rows": [row.as_dict() for row in importlib.import_module(f"benchmarks.{name}").rows(small)]}


def write(known: dict[str, dict[str, Any]], latest: Path, docs: Path) -> None:
    """The figures and the page."""
    latest.parent.mkdir(parents=True, exist_ok=True)
    ordered = {name: known[name] for name in (*QUESTIONS, "gpu") if name in known}
    latest.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    (docs / "benchmarks.md").write_text(page(ordered), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
