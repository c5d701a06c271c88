"""`make demo`, which is also the example of RLlib's documents: record 500 expert episodes, clone the expert, reach 450."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "sample_data" / "demo.sh"


def commands() -> list[list[str]]:
    """The words of every offline-cli command in the script, in order."""
    joined = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in joined.splitlines() if line.startswith("offline-cli ")]


def test_the_demo_goes_from_an_expert_to_a_clone_that_must_reach_450() -> None:
    steps = [words[0] for words in commands()]
    assert steps == ["record", "inspect", "validate", "convert", "convert", "train-bc", "evaluate"]
    record, train, evaluate = (" ".join(commands()[at]) for at in (0, -2, -1))
    assert "--episodes 500 --num-envs 64" in record
    assert "--until-return 450" in train
    assert "--min-return 450" in evaluate


def test_every_option_of_the_demo_is_one_of_its_command() -> None:
    from typer.main import get_command

    from offline_cli.cli.app import app

    known = get_command(app)
    for words in commands():
        options = {name for parameter in known.commands[words[0]].params for name in parameter.opts}  # type: ignore[attr-defined]
        assert {word for word in words if word.startswith("--")} <= options, words[0]


def test_the_demo_is_a_script_that_sh_can_read() -> None:
    assert subprocess.run(["sh", "-n", str(SCRIPT)], check=False).returncode == 0


@pytest.mark.nightly  # CI runs `make demo` itself
def test_the_demo_ends_with_a_table_and_the_learning_curve_after_less_than_a_minute_of_work(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", str(SCRIPT), str(tmp_path / "demo")]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row[0]: row[1:] for row in re.findall(r"^(\w+) +(\d+) +([\d.]+)", done.stdout, flags=re.MULTILINE)}
    assert rows["recorded"] == ("500", "500.0")
    assert rows["evaluated"][0] == "100"
    assert float(rows["evaluated"][1]) >= 450
    assert done.stdout.rstrip().endswith("demo/run/curve.png")
    assert (tmp_path / "demo" / "run" / "curve.png").stat().st_size > 1000
    problems = json.loads((tmp_path / "demo" / "validate.json").read_text())["problems"]
    assert {problem["severity"] for problem in problems} <= {"note"}
