"""The README's tour runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from warm_commands import Shell

REPOSITORY = Path(__file__).resolve().parent.parent


def tour_commands() -> list[str]:
    """The shell commands of the README's tour, in order."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    tour = readme.split("## A tour in 60 seconds")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", tour, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder with nothing but the sample data in it."""
    (tmp_path / "sample_data").symlink_to(REPOSITORY / "sample_data")
    return tmp_path


@pytest.mark.integration
def test_the_tour_of_the_readme_runs_as_it_stands(workplace: Path, script_shell: Shell) -> None:
    done = script_shell("\n".join(tour_commands()), workplace)
    assert done.returncode == 0, done.stderr
    assert (workplace / "run" / "policy.safetensors").is_file()
    assert (workplace / "run-without-env" / "curve.png").is_file()
