"""What a new user asks of the page: which sensors are stuck, which episode leaked, which expert is better, and what to do."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_pages import Page
from rides import Made, changed, episode, held
from typer.testing import CliRunner

from offline_cli import open_dataset, report
from offline_cli.cli.app import app

WRONG = {
    "Leakage between train and val": ("val", ["copied"]),
    "Stuck sensor: obs[0]": ("train", ["e03"]),
    "Stuck sensor: obs[1]": ("train", ["e08"]),
}


@pytest.fixture
def split(made: Made) -> list[str]:
    """Rides of two experts, of which `fast` is better; two stuck sensors in train, and an episode of train in val."""
    each = [episode(f"e{i:02}", i, reward=1 + i % 2, agent_id="robot", module_id=("slow", "fast")[i % 2]) for i in range(24)]
    each[3], each[8] = changed(each[3], obs=held(0, 40)), changed(each[8], obs=held(1, 20))
    val = [episode(f"v{i}", 100 + i, reward=1 + i % 2, agent_id="robot", module_id=("slow", "fast")[i % 2]) for i in range(6)]
    copied = episode("copied", 5, reward=2, agent_id="robot", module_id="fast")
    return [made("train", each), made("val", [*val, copied])]


def flagged(problems: list[dict[str, Any]]) -> dict[str, tuple[str, list[str]]]:
    return {one["title"]: (one["source"], one["episodes"]) for one in problems if one["severity"] != "note"}


def test_a_new_user_finds_what_is_wrong_and_which_expert_is_better(split: list[str], tmp_path: Path) -> None:
    result = report(split, tmp_path / "page.html")

    assert flagged(result.problems) == WRONG
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert all(title in page.text for title in WRONG)
    assert "Mean return in train" in page.text
    assert page.text.count("The highest is that of fast, and the intervals are apart") == 2
    chips = {int(attrs["data-episode"] or "") for tag, attrs in page.elements if "data-episode" in attrs}
    assert {page.data["episodes"][at]["id"] for at in chips} >= {"e03", "e08", "copied"}


def test_each_command_of_the_page_leaves_its_episodes_out(split: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    problems = [one for one in report(split, tmp_path / "page.html").problems if one["severity"] != "note"]
    monkeypatch.chdir(tmp_path)
    for number, one in enumerate(problems, 1):
        assert CliRunner().invoke(app, shlex.split(one["command"])[1:]).exit_code == 0
        before = {state.id_ for state in open_dataset(tmp_path / one["source"])}
        assert {state.id_ for state in open_dataset(f"kept-{number}")} == before - {*one["episodes"]}


@pytest.mark.integration
def test_the_commands_of_a_table_run_as_they_are_printed(tmp_path: Path) -> None:
    rows = ["eps_id,t,x,y,action,reward"]
    for number in range(8):
        state = episode("", number)
        x, y = np.stack(state.get_observations())[:120, :2].T.astype(float).round(5)
        x[30:] = x[30] if number == 2 else x[30:]
        rows += [f"it's ${number},{t},{x[t]},{y[t]},{t % 3},1" for t in range(120)]
    (tmp_path / "ride log.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "ride log.toml").write_text(
        '[columns]\neps_id = "eps_id"\nt = "t"\nobs = ["x", "y"]\nactions = "action"\nrewards = "reward"\n', encoding="utf-8"
    )
    problems = report(tmp_path / "ride log.csv", tmp_path / "page.html", mapping=tmp_path / "ride log.toml").problems
    (stuck,) = (one for one in problems if one["title"] == "Stuck sensor: x")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "offline-cli").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m offline_cli "$@"\n')
    (bin_ / "offline-cli").chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}

    done = subprocess.run(stuck["command"], shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("kept-*")
    assert {one.id_.rpartition("$")[2] for one in open_dataset(kept)} == {*"01345", "6", "7"}
