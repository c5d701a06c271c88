"""`python -m benchmarks.run [QUESTION...]`: measure, print rows as JSON, write latest.json, docs/benchmarks.md and its plot.

Questions that are not asked keep the rows, machine and date that they have. All is written again after each question, so a run
that ends early keeps what it measured. `--out FOLDER` writes all three files there instead. `--list` names the questions.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, machine
from benchmarks.page import page
from benchmarks.plot import draw

__all__ = ["QUESTIONS", "main"]

HERE = Path(__file__).resolve().parent
QUESTIONS = (
    "read_episodes",
    "read_hashed",
    "read_minari",
    "convert_packed_columns",
    "convert_sample_batch",
    "convert_table",
    "convert_lerobot",
    "operations",
    "learner_pipeline",
    "record",
    "record_rllib",
    "record_minari",
    "play_pieces",
    "update_bc",
    "update_algorithms",
    "update_sequences",
    "update_frames",
    "scores",
    "command_start",
    "cold_start",
    "train_streaming",
    "train_from_s3",
    "scaling",
    "workers",
    "cuda_small_update",
    "cuda_algorithms",
    "cuda_large_update",
    "cuda_frames",
    "cuda_utilisation",
    "cuda_cold_start",
)


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    if options.list:
        print("\n".join(QUESTIONS))
        return
    docs = options.out or HERE.parent / "docs"
    latest = (options.out or HERE) / "latest.json"
    known = figures_in(latest)
    for name in options.questions or QUESTIONS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        known[name] = answered(name)
        for row in known[name]["rows"]:
            print(json.dumps(row), flush=True)
        write(known, latest, docs)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", choices=[[], *QUESTIONS], help="default: all")
    parser.add_argument("--out", type=Path, help="folder for latest.json, benchmarks.md and benchmarks.svg")
    parser.add_argument("--list", action="store_true", help="name the questions, and measure nothing")
    return parser.parse_args(arguments)


def figures_in(latest: Path) -> dict[str, dict[str, Any]]:
    """What was measured before; without rows from before there were targets, which no page can show beside the others."""
    known = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
    return {name: entry for name, entry in known.items() if all("target" in row for row in entry["rows"])}


def answered(name: str) -> dict[str, Any]:
    """The rows of a question, with the machine as it was just before."""
    about = machine()
    rows: list[Row] = importlib.import_module(f"benchmarks.{name}").rows()
    return {"machine": about, "rows": [row.as_dict() for row in rows]}


def write(known: dict[str, dict[str, Any]], latest: Path, docs: Path) -> None:
    """The figures, the page and its plot."""
    latest.parent.mkdir(parents=True, exist_ok=True)
    latest.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    ordered = {name: known[name] for name in QUESTIONS if name in known}
    (docs / "benchmarks.md").write_text(page(ordered), encoding="utf-8")
    draw(ordered, docs / "benchmarks.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
