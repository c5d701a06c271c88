"""Hints recommend what the command at hand has, and lists say what they leave out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import as_convert_would

Call = Callable[..., Any]
MAPPING = '[columns]\neps_id = "e"\nobs = "x"\nactions = "a"\nrewards = "r"\nterminateds = "end"\n'


def table(folder: Path, *broken: str) -> list[str]:
    """Twelve good episodes of two steps, and these rows after the first row; what a command needs to read them."""
    good = [f"{episode},0.5,{step},1,{step}" for episode in range(12) for step in range(2)]
    (folder / "log.csv").write_text("\n".join(["e,x,a,r,end", good[0], *broken, *good[1:]]) + "\n", encoding="utf-8")
    (folder / "robot.toml").write_text(MAPPING, encoding="utf-8")
    return [str(folder / "log.csv"), "--mapping", str(folder / "robot.toml")]


def test_validate_has_no_on_error_and_sends_to_convert(call: Call, tmp_path: Path) -> None:
    done = call("validate", *table(tmp_path, "0,oops,0,1,0"))
    assert done.exit_code == 3
    for told in (done.stdout, done.stderr):
        assert "convert --on-error skip" in told
        assert told.count("--on-error") == told.count("convert --on-error")
        assert "convert convert" not in told


@pytest.mark.parametrize("fix", ["skip it with --on-error skip", "convert with --on-error quarantine", "or --on-error skip"])
def test_a_hint_that_names_convert_is_not_changed_again(fix: str) -> None:
    once = as_convert_would(fix)
    assert "convert" in once
    assert as_convert_would(once) == once


def test_a_list_of_rejected_rows_says_how_many_it_leaves_out(call: Call, tmp_path: Path) -> None:
    source = table(tmp_path, *(f"{number},0.5" for number in range(100, 115)))
    done = call("convert", *source, "--out", tmp_path / "skipped", "--on-error", "skip")
    assert done.stdout.count("log.csv") == 10
    assert ["rejected", "in", "all", "15"] in [line.split() for line in done.stdout.splitlines()]


def test_inspect_shows_the_modules_of_a_recording(call: Call, tmp_path: Path) -> None:
    rows = [f"{e},{'attacker' if e % 3 else 'defender'},0.5,{step},1,{step}" for e in range(6) for step in range(2)]
    text = "\n".join(["eps_id,module_id,obs,actions,rewards,terminateds", *rows]) + "\n"
    (tmp_path / "teams.csv").write_text(text, encoding="utf-8")
    assert json.loads(call("inspect", tmp_path / "teams.csv", "--json").stdout)["modules"] == {"defender": 2, "attacker": 4}
    shown = [line.split() for line in call("inspect", tmp_path / "teams.csv").stdout.splitlines()]
    assert ["modules", "defender", "2,", "attacker", "4"] in shown
