"""The site says what the code does; `make check` builds it, so that every link and anchor holds."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import check_words
import pytest
import write_reference as reference

from offline_cli.checking.validate import CODES
from offline_cli.cli.app import COMMANDS
from offline_cli.errors import OfflineCliError
from offline_cli.tally import KINDS
from offline_cli.training.config import resolve_config

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PACKAGE = [(file, file.read_text(encoding="utf-8")) for file in sorted((REPOSITORY / "offline_cli").rglob("*.py"))]
PAGES = {file: file.read_text(encoding="utf-8") for file in DOCS.rglob("*.md") if "_build" not in file.parts}
PAGES |= {file: file.read_text(encoding="utf-8") for file in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md")}
MOST_LINES = {"README.md": 80, "CHANGELOG.md": 60}


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as MyST and GitHub make them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_and_anchor_that_readme_and_contributing_name_is_there() -> None:
    for page in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"):
        for target, anchor in re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", PAGES[page]):
            file = (page.parent / target).resolve()
            assert file.exists(), f"{page.name} names {target}"
            assert not anchor or anchor in anchors(PAGES[file]), f"{page.name} names {target}#{anchor}"


def test_a_message_names_headings_of_the_documentation_and_no_file_that_an_installed_package_lacks() -> None:
    headings = {one for page in PAGES.values() for one in re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)}
    headings |= {reference.PAGES["config.md"]().partition("\n")[0].removeprefix("# ")}
    for file, text in PACKAGE:
        nodes = [*ast.walk(ast.parse(text))]
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and node not in docstrings}
        for shown in [one for one in texts if isinstance(one, str)]:
            assert "docs/" not in shown, f"{file}: {shown}"
            assert {*re.findall(r'"([^"{]+)" in the documentation', shown)} <= headings, f"{file}: {shown}"


def counted_kinds() -> set[str]:
    """Every kind that the code gives to `Tally.assume` as a literal."""
    return {kind for _, text in PACKAGE for kind in re.findall(r"\.assume\(\s*\"([a-z-]+)\"", text)}


def test_the_kinds_of_assumptions_that_are_counted_are_those_of_the_page() -> None:
    page = PAGES[DOCS / "reference" / "assumptions.md"]
    table = page[page.index("| kind") :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    explained = [kind for cell in cells for kind in re.findall(r"`([a-z-]+)[^`]*`", cell)]
    assert sorted(explained) == sorted(KINDS)
    assert counted_kinds() <= KINDS
    assert len(counted_kinds()) > 20


def test_every_error_and_every_check_has_an_entry_with_a_remedy() -> None:
    page, kinds = reference.errors_page(), [*reference.error_classes()]
    assert len(kinds) > 20
    assert all(issubclass(kind, OfflineCliError) and f"\n### {kind.code}\n" in page for kind in kinds)
    named = {kind.__name__ for kind in kinds}
    bases = "|".join({*named, OfflineCliError.__name__})
    defined = {name for _, text in PACKAGE for name in re.findall(rf"^class (\w+)\((?:{bases})\b", text, flags=re.MULTILINE)}
    assert defined == named == reference.REMEDIES.keys()
    assert anchors(reference.checks_page()) >= CODES.keys()


def test_every_command_has_a_guide() -> None:
    assert reference.GUIDES.keys() == COMMANDS.keys()
    assert all(reference.GUIDES.values())


def test_every_problem_that_an_error_asks_for_is_known() -> None:
    code = "\n".join(text for _, text in PACKAGE)
    asked = {name for pair in re.findall(r"PROBLEM: \"([a-z-]+)\"|problem=\"([a-z-]+)\"", code) for name in pair if name}
    assert len(asked) >= 4
    assert asked <= set(CODES)


@pytest.mark.parametrize("name", reference.SCHEMAS)
def test_a_schema_is_what_its_model_says(name: str) -> None:
    page = (REPOSITORY / "schemas" / f"{name}.v1.json").read_text(encoding="utf-8")
    assert page == reference.schema_page(name), "run `make docs`"


def test_the_example_on_the_page_of_config_keys_holds(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(reference.config_page().split("```toml\n")[1].split("```")[0], encoding="utf-8")
    assert resolve_config({}, file=tmp_path / "c.toml").hidden == (64, 64)


def test_every_target_and_marker_that_contributors_are_told_of_is_there() -> None:
    page = PAGES[REPOSITORY / "CONTRIBUTING.md"]
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", page, flags=re.MULTILINE)) <= targets
    options = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in options["markers"]}
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, flags=re.MULTILINE)) == markers


def test_the_extras_of_the_install_page_are_those_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = re.findall(r"^\| (`.*?) \|", PAGES[DOCS / "install.md"], flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == {*project["optional-dependencies"]} - {
        "dev",
        "cloud-tests",
    }


def test_readme_and_changelog_stay_short() -> None:
    assert all(len((REPOSITORY / name).read_text(encoding="utf-8").splitlines()) <= most for name, most in MOST_LINES.items())


def test_a_phrase_of_the_word_list_is_found_with_its_place() -> None:
    found = check_words.mistakes(iter([("page.md:3", "Columns that are called so are kept."), ("page.md:4", "Kept columns.")]))
    assert [line.partition(" ")[0] for line in found] == ["page.md:3:"]


def test_the_word_list_is_for_errors_checks_and_the_reference_written_by_hand_too() -> None:
    read = {place.partition(":")[0] for place, _ in check_words.texts()}
    assert {"errors", "checks", "docs/reference/assumptions.md", "docs/reference/on-disk-format.md"} <= read


def test_the_files_that_the_design_page_names_are_there() -> None:
    named = set(re.findall(r"`([\w/-]+(?:\.py|/))`", PAGES[DOCS / "architecture.md"]))
    assert len(named) > 50
    assert [name for name in named if not ((REPOSITORY / "offline_cli" / name).exists() or (REPOSITORY / name).exists())] == []
