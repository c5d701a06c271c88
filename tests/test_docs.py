"""The pages in docs/ are complete: what the code counts, they explain."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from offline_cli.tally import KINDS

REPOSITORY = Path(__file__).resolve().parent.parent


def counted_kinds() -> set[str]:
    """Every kind that the code gives to `Tally.assume` as a literal."""
    code = "\n".join(file.read_text(encoding="utf-8") for file in (REPOSITORY / "offline_cli").rglob("*.py"))
    return set(re.findall(r"\.assume\(\s*\"([a-z-]+)\"", code))


def test_every_kind_of_assumption_is_explained() -> None:
    page = (REPOSITORY / "docs" / "assumptions.md").read_text(encoding="utf-8")
    kinds = counted_kinds()
    assert len(kinds) > 20
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()


def test_the_kinds_that_a_gate_knows_are_those_of_the_page() -> None:
    page = (REPOSITORY / "docs" / "assumptions.md").read_text(encoding="utf-8")
    table = page[page.index("| kind") :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    explained = [kind for cell in cells for kind in re.findall(r"`([a-z-]+)[^`]*`", cell)]
    assert sorted(explained) == sorted(KINDS)
    assert counted_kinds() <= KINDS


def test_every_page_that_a_page_links_to_is_there() -> None:
    for page in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_target_and_marker_that_contributors_are_told_of_is_there() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", page)) <= targets
    options = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in options["markers"]}
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, flags=re.MULTILINE)) == markers
