"""docs/algorithms.md shows the package of tests/plugins/cloning, which other tests train with."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

from offline_cli.training.algorithms import Algorithm, Group

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "tests" / "plugins" / "cloning"
PAGE = (REPOSITORY / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_the_code_on_the_page_is_the_code_of_the_package() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown == [
        (PACKAGE / "valued_cloning" / f"{name}.py").read_text(encoding="utf-8") for name in ("algorithm", "network")
    ]


def test_the_entry_points_on_the_page_are_those_of_the_package() -> None:
    told = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[-1])["project"]["entry-points"]
    held = ConfigParser()
    held.read(PACKAGE / "valued_cloning-1.0.dist-info" / "entry_points.txt")
    assert told == {group: dict(held[group]) for group in held.sections()}


def test_the_page_explains_every_member_of_an_algorithm_and_of_a_group() -> None:
    members = [name for name in vars(Algorithm) if not name.startswith("_")]
    assert [name for name in members if f"| `{name}" not in PAGE] == []
    fields = list(Group.__dataclass_fields__)
    assert [name for name in fields if not re.search(rf"`{name}\b", PAGE)] == []
