"""`python -m benchmarks.run [QUESTION...]`: measure, print rows as JSON, write latest.json and docs/benchmarks.md."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from benchmarks.harness import Row, machine

HERE = Path(__file__).resolve().parent
QUESTIONS = (
    "read_episodes",
    "convert_packed_columns",
    "convert_sample_batch",
    "learner_pipeline",
    "convert_table",
    "update_bc",
    "cold_start",
    "record",
    "train_from_s3",
)


def main(names: list[str]) -> None:
    latest = HERE / "latest.json"
    known = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
    for name in names or QUESTIONS:
        rows: list[Row] = importlib.import_module(f"benchmarks.{name}").rows()
        known[name] = {"machine": machine(), "rows": [row.as_dict() for row in rows]}
        for row in rows:
            print(json.dumps(row.as_dict()), flush=True)
    latest.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    (HERE.parent / "docs" / "benchmarks.md").write_text(page(known), encoding="utf-8")


def page(known: dict[str, dict]) -> str:
    """The page: one table, in the order of the questions."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` from `benchmarks/latest.json`. Ours and the rival run in turn; a ratio is the median",
        "of the pairs' ratios. Machines differ and are shared: the ratios carry over, the absolute figures may not.",
        "",
        "| question | ours | rival | ratio | rival is | bounded by | date |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in QUESTIONS:
        entry = known.get(name, {"rows": [], "machine": {}})
        for row in entry["rows"]:
            figures = f"{row['ours']:,.4g} {row['unit']} | {row['rival']:,.4g} {row['unit']} | {row['ratio']:.2f}"
            about = f"{row['rival_name']} | {row['floor']} | {entry['machine']['date']}"
            lines.append(f"| {row['question']} | {figures} | {about} |")
    last = next((known[name]["machine"] for name in reversed(QUESTIONS) if name in known), {})
    machine_line = f"Machine: {last.get('processor')}, Python {last.get('python')}; {last.get('versions')}."
    return "\n".join([*lines, "", machine_line, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
