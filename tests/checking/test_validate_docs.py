"""docs/validate.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from offline_cli.checking.validate import CODES
from offline_cli.checking.validate.findings import Code

REPOSITORY = Path(__file__).resolve().parents[2]


def row(name: str, code: Code) -> str:
    severity = f"{code.severity}; {code.otherwise}" if code.otherwise else code.severity
    return f"| `{name}` | {severity} | [{code.unit}s] {code.meaning} | {code.fix} |"


def test_the_page_lists_every_problem_as_the_code_has_it() -> None:
    page = (REPOSITORY / "docs" / "validate.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed == [row(name, code) for name, code in CODES.items()]


def test_every_problem_that_an_error_asks_for_is_known() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (REPOSITORY / "offline_cli").rglob("*.py"))
    asked = set(re.findall(r"PROBLEM: \"([a-z-]+)\"|problem=\"([a-z-]+)\"", code))
    names = {name for pair in asked for name in pair if name}
    assert len(names) >= 4
    assert names <= set(CODES)
