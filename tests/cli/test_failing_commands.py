"""What goes wrong with real commands: each its exit code, place and remedy, and nothing that existed touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
Case = tuple[list[str], int, str]  # arguments, exit code, what `at:` names


def everything_below(folder: Path) -> dict[str, bytes | None]:
    """Every file's bytes and every folder, by path."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def sample_batch_line() -> str:
    columns = {"type": "SampleBatch", "obs": [[0.0], [0.1]], "actions": [0, 1], "rewards": [1.0, 1.0]}
    return json.dumps({**columns, "eps_id": [1, 1], "t": [0, 1], "terminateds": [False, True], "truncateds": [False, False]})


def cut_parquet(tmp_path: Path) -> Case:
    part = tmp_path / "recording" / "part-0.parquet"
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    return ["convert", str(tmp_path / "recording"), "--out", str(tmp_path / "D")], 3, "part-0.parquet"


def cut_sample_batch(tmp_path: Path) -> Case:
    line = sample_batch_line()
    (tmp_path / "old.json").write_text(f"{line}\n{line[: len(line) // 2]}\n", encoding="utf-8")
    return ["convert", str(tmp_path / "old.json"), "--out", str(tmp_path / "D")], 3, "old.json"


def run_exists(tmp_path: Path) -> Case:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine", encoding="utf-8")
    return ["train-bc", str(tmp_path / "recording"), "--out", str(tmp_path / "run"), "--updates", "2"], 2, "run"


def no_gpu(tmp_path: Path) -> Case:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    return ["train-bc", str(tmp_path / "recording"), "--out", str(tmp_path / "run"), "--device", "cuda"], 6, "cuda"


def environment_that_raises(tmp_path: Path) -> Case:
    (tmp_path / "raising_envs.py").write_text("raise RuntimeError('half written')", encoding="utf-8")
    sys.path.append(str(tmp_path))
    env = "python:raising_envs:make"
    return ["train-bc", str(tmp_path / "recording"), "--out", str(tmp_path / "run"), "--env", env], 3, env


def target_without_environment(tmp_path: Path) -> Case:
    return ["train-bc", str(tmp_path / "recording"), "--out", str(tmp_path / "run"), "--until-return", "9"], 2, "options"


def no_run(tmp_path: Path) -> Case:
    return ["evaluate", str(tmp_path / "no-run"), "--env", "CartPole-v1"], 5, "no-run"


CASES = [
    cut_parquet,
    cut_sample_batch,
    run_exists,
    no_gpu,
    environment_that_raises,
    target_without_environment,
    no_run,
]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """One thing that goes wrong, set up in `tmp_path`."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of modules in `tmp_path`
    made: Case = request.param(tmp_path)
    return made


def test_a_failure_has_its_exit_code_names_place_and_remedy_and_touches_nothing(case: Case, call: Call, tmp_path: Path) -> None:
    args, exit_code, place = case
    before = everything_below(tmp_path)
    done = call(*args)
    assert done.exit_code == exit_code, done.output
    told = {label: text for label, _, text in (line.strip().partition(": ") for line in done.stderr.splitlines())}
    assert place in told["at"]
    assert told["try"]
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert everything_below(tmp_path) == before
