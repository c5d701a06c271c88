"""The scale of Box actions as each command tells, takes and refuses it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two random episodes of Pendulum-v1."""
    from offline_cli.recording.record import record

    out = tmp_path_factory.mktemp("pendulum") / "D"
    record("Pendulum-v1", out, policy="random", episodes=2, device="cpu")
    return out


@pytest.fixture
def unknown(pendulum: Path, tmp_path: Path) -> Path:
    """The shards alone: a foreign source, which says nothing of scale or spaces."""
    return Path(shutil.copytree(pendulum / "data", tmp_path / "foreign"))


def test_record_tells_env_for_actions_of_the_environment_and_normalized_for_those_of_a_run(
    pendulum: Path, tmp_path: Path, call_json: Call
) -> None:
    run = tmp_path / "run"
    assert call_json("inspect", pendulum)[1]["action_scale"] == "env"
    assert call_json("train-bc", pendulum, "--out", run, "--updates", 2, "--eval-episodes", 1)[0] == 0
    code, told = call_json("record", "Pendulum-v1", "--policy", run, "--episodes", 1, "--out", tmp_path / "D")
    assert (code, told["action_scale"]) == (0, "normalized")


def test_train_bc_on_actions_of_unknown_scale_exits_4_with_the_remedy(unknown: Path, tmp_path: Path, call_json: Call) -> None:
    code, told = call_json("train-bc", unknown, "--env", "Pendulum-v1", "--out", tmp_path / "run", "--updates", 2)
    assert code == 4
    assert "--action-scale env" in told["error"]["fix"]
    assert not (tmp_path / "run").exists()


def test_convert_of_two_scales_exits_4_and_names_both(unknown: Path, pendulum: Path, tmp_path: Path, call: Call) -> None:
    assert call("convert", unknown, "--action-scale", "normalized", "--out", tmp_path / "N").exit_code == 0
    done = call("convert", pendulum, tmp_path / "N", "--out", tmp_path / "D")
    assert done.exit_code == 4
    assert str(pendulum) in done.stderr
    assert str(tmp_path / "N") in done.stderr


def test_evaluate_plays_what_was_learned_once_the_scale_is_said(unknown: Path, tmp_path: Path, call_json: Call) -> None:
    options = ("--action-scale", "env", "--updates", 2, "--eval-episodes", 1, "--out", tmp_path / "run")
    assert call_json("train-bc", unknown, "--env", "Pendulum-v1", *options)[0] == 0
    code, told = call_json("evaluate", tmp_path / "run", "--episodes", 1)
    assert code == 0
    assert -2500 < told["return_mean"] < 0
