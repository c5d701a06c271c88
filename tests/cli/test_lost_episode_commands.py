"""What `convert`, `inspect` and `validate` say of episodes that are not in a dataset because rows of them were refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
MAPPING = (
    '[columns]\neps_id = "eps_id"\nt = "t"\nobs = "obs"\nnew_obs = "new_obs"\nactions = "a"\nrewards = "r"\nterminateds = "d"\n'
)


@pytest.fixture
def log(tmp_path: Path) -> list[Any]:
    """Six episodes of four steps, two of them with a bad cell: the arguments that convert them."""
    rows = ["eps_id,t,obs,new_obs,a,r,d"]
    for episode in range(6):
        rows += [f"e{episode},{t},{episode}.{t},{episode}.{t + 1},{t % 2},{t}.0,{int(t == 3)}" for t in range(4)]
    text = "\n".join(rows) + "\n"
    (tmp_path / "log.csv").write_text(text.replace("e1,2,1.2", "e1,2,oops").replace("e4,0,4.0", "e4,0,oops"), encoding="utf-8")
    (tmp_path / "mapping.toml").write_text(MAPPING, encoding="utf-8")
    return [tmp_path / "log.csv", "--mapping", tmp_path / "mapping.toml", "--quiet"]


@pytest.fixture
def lossy(log: list[Any], call: Call, tmp_path: Path) -> Path:
    """The dataset that is made of them."""
    assert call("convert", *log, "--out", tmp_path / "D", "--on-error", "skip").exit_code == 0
    return tmp_path / "D"


def rows_of(text: str) -> dict[str, str]:
    """The table that people see: its first two words by what follows them."""
    words = [line.split() for line in text.splitlines()]
    return {" ".join(line[:2]): " ".join(line[2:]) for line in words if len(line) > 2}


def test_json_says_how_many_episodes_were_lost_and_why(log: list[Any], call_json: Call, tmp_path: Path) -> None:
    code, told = call_json("convert", *log, "--out", tmp_path / "D", "--on-error", "skip")
    assert (code, told["episodes"], told["episodes_lost"], told["rows_quarantined"]) == (0, 4, 2, 8)
    assert told["assumptions"]["lost-episode-bad-row"] == 2


def test_inspect_says_how_many_episodes_a_dataset_lost(lossy: Path, call: Call, call_json: Call) -> None:
    assert call_json("inspect", lossy, "--quiet")[1]["episodes_lost"] == 2
    assert rows_of(call("inspect", lossy, "--quiet").stdout)["episodes lost"] == "2"


def test_strict_validation_fails_on_lost_episodes_and_says_why(lossy: Path, call_json: Call) -> None:
    code, told = call_json("validate", lossy, "--strict", "--quiet")
    (problem,) = (one for one in told["problems"] if one["code"] == "lost-episodes")
    assert (code, problem["severity"], problem["count"]) == (3, "warning", 2)
    assert "lost-episode-bad-row 2" in problem["what"]
    assert "--allow-lost" in problem["fix"]


def test_lost_episodes_that_are_allowed_are_a_note(lossy: Path, call_json: Call) -> None:
    code, told = call_json("validate", lossy, "--strict", "--allow-lost", "--quiet")
    (problem,) = (one for one in told["problems"] if one["code"] == "lost-episodes")
    assert (code, problem["severity"]) == (0, "note")


def test_repair_keeps_the_count_of_lost_episodes(lossy: Path, call_json: Call) -> None:
    manifest = lossy / "manifest.json"
    (lossy / "_writing.json").write_text("{}", encoding="utf-8")
    assert call_json("repair", lossy, "--quiet")[0] == 0
    assert json.loads(manifest.read_text(encoding="utf-8"))["episodes_lost"] == 2
