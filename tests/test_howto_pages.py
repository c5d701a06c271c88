"""docs/howto and the tutorials: the blocks of each page run from top to bottom, and print what the page shows.

A block whose first line is a comment with the name of a file is that file, and so is one that is included; other `sh` and
`python` blocks run. A `text` block after one of these is its output: each line occurs in it, in this order, whatever numbers
and spaces; `...` is for lines that are left out. Blocks of other languages (`console`: it needs an account, a cluster or hours)
are only shown.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from howto_files import FILES, entry_points
from warm_commands import Shell

from offline_cli import plugins

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = REPOSITORY / "docs" / "howto"
PYTHON = ("python",)  # pages that start no commands
TUTORIALS = ("../tutorial", "../tutorial-no-simulator")
NIGHTLY = {"../tutorial-no-simulator", "algorithms", "compare", "export", "formats", "rllib-training", "train"}
NEEDS = {
    "agents": ["pettingzoo"],
    "export": ["onnxscript", "onnxruntime"],
    "formats": ["h5py", "stable_baselines3"],
    "report": ["plotly", "jinja2"],
    "rllib-training": ["ray"],
}
OF_OTHERS = {"share"}  # needs an account on the Hub; tests/publishing runs its commands against an emulator


def names() -> Iterator[object]:
    for page in [*TUTORIALS, *sorted(file.stem for file in PAGES.glob("*.md"))]:
        if page not in OF_OTHERS:
            kind = pytest.mark.nightly if page in NIGHTLY else pytest.mark.integration
            yield pytest.param(page, marks=[] if page in PYTHON else [kind])


def blocks(text: str) -> list[tuple[str, str, bool]]:
    """Language and content of each block, and whether it follows the one before at once."""
    found = re.finditer(r"^```([^\n`]*)\n(.*?)^```\n?", text, flags=re.DOTALL | re.MULTILINE)
    end, made = -1, []
    for block in found:
        made.append((block[1], block[2], end >= 0 and not text[end : block.start()].strip()))
        end = block.end()
    return made


def file_of(content: str) -> str | None:
    named = re.match(r"(?:#|//) ([\w./-]+\.\w+)\n", content)
    return named[1] if named else None


def run(page: str, folder: Path, shell: Shell) -> Iterator[tuple[str, str, str]]:
    """Run a page in a folder; language, block and output of each block that runs."""
    values: dict[str, object] = {"__name__": "page"}
    for language, content, _ in blocks(page):
        name, said = file_of(content), io.StringIO()
        if language.startswith("{literalinclude}"):
            content = (PAGES / language.split()[1]).read_text(encoding="utf-8")
            name = language.split()[1].removeprefix("examples/")
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
        elif language == "python":
            with contextlib.redirect_stdout(said):
                exec(compile(content, f"block {content[:40]!r}", "exec"), values)
        elif language == "sh":
            done = shell(f"exec 2>&1\n{content}", folder, folder / "site")
            said.write(done.stdout)
            assert done.returncode == 0, f"{content}\n{done.stdout}"
        yield language, content, said.getvalue()


def form(line: str) -> str:
    """A line without its numbers, hashes and spaces."""
    return re.sub(r"[-+\d.,e]*\d[\d.,]*|\s+|[-─━=_]{3,}", "", re.sub(r"\b[0-9a-f]{6,}\b", "", line))


def check_shown(shown: str, said: str) -> None:
    """Each line that is shown was printed, in this order."""
    printed = iter([form(line) for line in said.splitlines()])
    for line in shown.splitlines():
        if line.strip() not in ("", "..."):
            wanted = form(line.removesuffix("..."))
            test: Callable[[str], bool] = str.startswith if line.endswith("...") else str.__eq__  # type: ignore[assignment]
            assert any(test(one, wanted) for one in printed), f"{line}\nis not in\n{said}"


@pytest.mark.parametrize("name", [*names()])
def test_the_blocks_of_a_page_run_and_print_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    (tmp_path / "sample_data").symlink_to(REPOSITORY / "sample_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    FILES.get(name, lambda folder: None)(tmp_path)
    shell = None if name in PYTHON else request.getfixturevalue("script_shell")
    page, outputs = (PAGES / f"{name}.md").read_text(encoding="utf-8"), ""
    for (language, content, said), (_, _, follows) in zip(run(page, tmp_path, shell), blocks(page), strict=True):
        if language == "text" and follows:
            check_shown(content, outputs)
        outputs = said


def test_every_kind_of_plugin_has_an_example() -> None:
    assert {f"offline_cli.{group}" for group in entry_points()} >= plugins.KINDS.keys()


def test_the_workflow_to_copy_runs_what_the_page_runs() -> None:
    page = (PAGES / "ci.md").read_text(encoding="utf-8")
    (workflow,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"- run: (offline-cli .*)", workflow)
    assert len(commands) == 4
    assert "\n".join(commands) in page.replace(workflow, "")
