"""A dataset that is passed on says neither on which machine nor in which folders it was made."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import DatasetWriter

Call = Callable[..., Any]
CODE = """
import os
import gymnasium as gym

resets = []

def act(observation):
    return 1

def make_env(asset=""):
    return gym.make("CartPole-v1")

class Same(gym.Wrapper):
    def reset(self, **options):
        resets.append(1)
        if len(resets) > int(os.environ.get("STOP_AFTER", 10**9)):
            raise RuntimeError("stopped")
        return super().reset(**options)
"""
PIPELINE = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that nothing may name, on a machine that nothing may name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-of-my-own")
    folder = tmp_path / "home of mine"
    folder.mkdir()
    (folder / "code.py").write_text(CODE)
    (folder / "p.toml").write_text(PIPELINE)
    (folder / "m.toml").write_text('[columns]\neps_id = "/e/x"\nobs = ["/o/x", "/o/y"]\nactions = "a"\nrewards = "r"\n')
    (folder / "t.csv").write_text("/e/x,/o/x,/o/y,a,r\n1,0.5,1,0,1\n1,0.25,2,1,1\n2,0.75,3,1,1\n")
    return folder


def said(folder: Path) -> dict[str, Any]:
    """The documents below a folder: nothing in them is private, whatever way it is written."""
    found = {path.parent.name: path.read_text() for path in folder.rglob("*.json")}
    assert found
    for text in found.values():
        assert "home of mine" not in text
        assert str(folder.parent.parent) not in text
        assert "machine-of-my-own" not in text
    return {name: json.loads(text) for name, text in found.items()}


def recorded(home: Path, call: Call, *more: str) -> Any:
    environment = (f"python:{home / 'code.py'}:make_env", "--env-kwargs", json.dumps({"asset": f"{home}/robot.xml"}))
    acts = ("--policy", f"python:{home / 'code.py'}:act", "--wrapper", f"{home / 'code.py'}:Same")
    return call("record", *environment, *acts, "--episodes", "12", "--num-envs", "2", "--quiet", "--out", home / "D", *more)


def test_a_recording_names_files_and_no_folders(home: Path, call: Call) -> None:
    done = recorded(home, call)
    assert done.exit_code == 0, done.stderr
    manifest = said(home / "D")["D"]
    assert manifest["environment"] == {
        "id": "python:code.py:make_env",
        "kwargs": {"asset": "***/robot.xml"},
        "wrappers": ["code.py:Same"],
    }
    assert manifest["provenance"]["policy"] == "python:code.py:act"
    assert "code.py:make_env" in manifest["provenance"]["commands"][0]
    assert recorded(home, call, "--resume").exit_code == 0, "nothing is left to do"
    same = ("--env", f"python:{home / 'code.py'}:make_env", "--env-kwargs", json.dumps({"asset": f"{home}/robot.xml"}))
    told = call("validate", home / "D", *same, "--wrapper", f"{home / 'code.py'}:Same")
    assert (told.exit_code, "other" in told.stderr, " is of " in told.stderr) == (0, False, False)


def test_a_table_and_what_is_made_of_it_name_files_and_no_folders(home: Path, call: Call, call_json: Call) -> None:
    table = (home / "t.csv", "--mapping", home / "m.toml")
    for words in (
        ("convert", *table, "--out", home / "D"),
        ("convert", *table, "--out", home / "D", "--append"),
        ("merge", home / "D", *table, "--out", home / "E"),
        ("filter", home / "D", "--where", "length > 1", "--out", home / "F"),
        ("split", home / "D", "--fractions", "a=0.5,b=0.5", "--out", home / "G"),
        ("apply", home / "D", "--pipeline", home / "p.toml", "--out", home / "B"),
    ):
        done = call(*words)
        assert done.exit_code == 0, done.stderr
    for name in ("E", "F", "G", "B"):
        said(home / name)
    manifest = said(home / "D")["D"]
    assert manifest["provenance"]["sources"] == ["t.csv"] * 2
    assert manifest["provenance"]["mappings"][0]["columns"]["obs"] == ["/o/x", "/o/y"], "names of columns are no folders"
    assert call_json("inspect", home / "E")[1]["meanings"]["obs"] == [{"name": "/o/x"}, {"name": "/o/y"}]


def test_a_repaired_dataset_and_one_of_a_program_name_no_folders(home: Path, recorded: Any, call: Call) -> None:
    own = {"from": [str(home / "notes.txt"), {"see": f"file://{home}/why.md"}]}
    spaces = {"observation_space": recorded.observation_space, "action_space": recorded.action_space}
    with DatasetWriter(home / "D", **spaces, provenance=own, max_rows_per_file=1) as writer:
        writer.write(recorded)
        writer.commit()
    assert said(home / "D")["D"]["provenance"]["from"] == ["notes.txt", {"see": "why.md"}]
    next((home / "D" / "data").iterdir()).unlink()
    assert call("repair", home / "D", "--drop-broken").exit_code == 0
    assert said(home / "D")["D"]["provenance"]["repaired"][0]["command"] == "offline-cli repair D --drop-broken"
