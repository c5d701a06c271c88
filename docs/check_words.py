"""Wording: phrases that sound translated, or say nothing, in pages and help texts; part of `make check`.

Vale, which docs teams use for this, is a program of its own that pip cannot install; a list of twenty phrases needs none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from write_reference import checks_page, errors_page  # noqa: E402

from offline_cli.cli.app import COMMANDS  # noqa: E402  found by the line above
from offline_cli.cli.command import built  # noqa: E402
from offline_cli.cli.streams import write  # noqa: E402

__all__ = ["main", "mistakes", "texts"]

PHRASES = {  # a regular expression, and what to write
    r"\bis called so\b|\bare called so\b": "is named that",
    r"\bgo(es)? on with\b": "continue(s)",
    r"\bby itself alone\b": "alone",
    r"\bof (one's|our|their|your) own making\b": "custom",
    r"\bthe most that\b": "at most",
    r"\bmakes? the update of\b": "runs update",
    r"\bno longer holds?\b": "releases",
    r"\bwhat (a|the) \w+ says of itself\b": "its metadata",
    r"\bin spite of that\b": "still",
    r"\bas it stands\b": "unchanged",
    r"\ban? number of ours\b|\ba \w+ of ours\b": "our ...",
    r"\bfor its part\b|\bat that\b(?=[.,;])": "(nothing)",
    r"\bin order to\b": "to",
    r"\bplease\b|\bsimply\b|\bjust\b|\bobviously\b|\beasily\b": "(nothing)",
    r"\butili[sz]e": "use",
    r"\bleverag(e|es|ing)\b|\bseamless(ly)?\b|(?<!doubly )\brobust(ly)?\b|\bpowerful\b": "say what it does",
    r"\be\.g\.|\bi\.e\.": "such as; that is",
    r"\bteach(es)? no\b": "is not used to learn",
    r"\bLooking needs\b|\bchooses no\b|\bcloses nothing\b": "say who does what",
    r"\bwhat played\b": "the recorded policy",
    r"\bmay not be\b": "must not be, or might not be",
}
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/howto/*.md", "docs/explanation/*.md"),
    *("docs/reference/assumptions.md", "docs/reference/on-disk-format.md"),  # the others are generated
)


def texts() -> Iterator[tuple[str, str]]:
    """Lines of pages, without code, and help texts, each with its place."""
    files = [file for pattern in PAGES for file in sorted(HERE.parent.glob(pattern))]
    pages = {str(file.relative_to(HERE.parent)): file.read_text(encoding="utf-8") for file in files}
    pages |= {"errors": errors_page(), "checks": checks_page()}
    for name, text in pages.items():
        page = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
        for number, line in enumerate(page.splitlines(), 1):
            yield f"{name}:{number}", re.sub(r"`[^`]*`", "`", line)
    for name, command in COMMANDS.items():
        yield f"{name} --help", " ".join((getdoc(command) or "").split())
        for parameter in built(name, command).params:
            yield f"{name} --help, {parameter.name}", getattr(parameter, "help", None) or ""


def mistakes(placed: Iterator[tuple[str, str]]) -> list[str]:
    """One line for each phrase that is in the list."""
    return [
        f"{place}: {found[0]!r}: {better}"
        for place, text in placed
        for phrase, better in PHRASES.items()
        for found in re.finditer(phrase, text, re.IGNORECASE)
    ]


def main() -> int:
    """Print all mistakes; 1 if there are any."""
    found: list[Any] = mistakes(texts())
    write(sys.stdout, "".join(f"{one}\n" for one in found))
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
