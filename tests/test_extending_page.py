"""The examples of docs/extending.md are a package that works as it stands, installed beside offline_cli and not in it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from installed_packages import register
from warm_commands import Shell

from offline_cli import plugins

REPOSITORY = Path(__file__).resolve().parent.parent


def page() -> str:
    return (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def modules() -> dict[str, str]:
    """The code of each example, by its module in `my_lab`."""
    return {code.split(maxsplit=2)[1].removeprefix("my_lab/").removesuffix(".py"): code for code in blocks(page(), "python")}


def entry_points() -> dict[str, dict[str, str]]:
    """What the package registers, by group and name."""
    (registered,) = blocks(page(), "toml")
    groups = tomllib.loads(registered)["project"]["entry-points"]
    return {group.removeprefix("offline_cli."): entries for group, entries in groups.items()}


def sections() -> dict[str, str]:
    """The text below each heading."""
    _, *parts = re.split(r"^## ", page(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample data, and with the package installed in `site`."""
    folder = tmp_path_factory.mktemp("extending")
    (folder / "sample_data").symlink_to(REPOSITORY / "sample_data")
    register(folder / "site", "my-lab", entry_points())
    (folder / "site" / "my_lab").mkdir()
    for name, code in {"__init__": "", **modules()}.items():
        (folder / "site" / "my_lab" / f"{name}.py").write_text(code, encoding="utf-8")
    return folder


def test_every_kind_of_plugin_has_an_example() -> None:
    assert {f"offline_cli.{group}" for group in entry_points()} >= plugins.KINDS.keys()


@pytest.mark.integration
def test_the_commands_of_the_page_run_as_they_stand(workplace: Path, script_shell: Shell) -> None:
    chosen = [*sections().values()]
    introduction = page().partition("\n## ")[0]
    script = "\n".join(line for text in (introduction, *chosen) for line in blocks(text, "sh"))
    done = script_shell(script, workplace, workplace / "site")
    assert done.returncode == 0, done.stderr
    assert '"returns": [500.0, 500.0]' in done.stdout
