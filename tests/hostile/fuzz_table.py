"""Turns the JSON lines of fuzz runs into a table: `python tests/hostile/fuzz_table.py FILE`; refuses nothing.

Where a target ran more than once, its last run counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CRASHED = "crash: "


def table(lines: list[str]) -> str:
    """Markdown, a row for each target, in the order of their first runs."""
    runs: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line.startswith("{"):
            run = json.loads(line)
            runs[run["target"]] = run
    head = "| target | inputs | a second | slowest | peak memory | read | refused | crashed |\n| --- " + "| ---: " * 7 + "|"
    return "\n".join([head, *(_row(run) for run in runs.values())])


def _row(run: dict[str, Any]) -> str:
    answers: dict[str, int] = run.get("answers", {})
    crashed = sum(count for name, count in answers.items() if name.startswith(CRASHED))
    read = answers.get("read", 0)
    figures = (run.get("inputs", 0), run.get("inputs_per_second", 0), run.get("slowest_ms", 0), run.get("peak_mib", 0))
    cells = [f"{figures[0]:,}", f"{figures[1]:,}", f"{figures[2]:,} ms", f"{figures[3]} MiB"]
    refused = sum(answers.values()) - read - crashed
    return f"| `{run['target']}` | {' | '.join(cells)} | {read:,} | {refused:,} | {crashed or 'none'} |"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
