"""`offline-cli record`: options in, dataset out, one JSON object; and what a wrong command line says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


def test_what_is_recorded_trains_and_the_run_is_recorded_again(tmp_path: Path, call_json: Call) -> None:
    cpu = ("--device", "cpu")
    data, run, again = tmp_path / "D", tmp_path / "run", tmp_path / "again"
    words = ("record", "Pendulum-v1", "--out", data, "--policy", "random", "--steps", "300", "--format", "columns", *cpu)
    assert call_json(*words)[0] == 0
    assert call_json("train-bc", data, "--out", run, "--updates", "2", *cpu)[0] == 0
    code, told = call_json("record", "Pendulum-v1", "--out", again, "--policy", run, "--episodes", "2", "--explore", *cpu)
    assert (code, told["episodes"], told["steps"], told["action_scale"], told["explore"]) == (0, 2, 400, "normalized", True)


@pytest.mark.parametrize(
    ("words", "code", "kind", "place"),
    [
        (("Kartpole-v1", "--episodes", "1"), 4, "unknown-environment", "Kartpole-v1"),
        (("CartPole-v1", "--episodes", "1", "--wrapper", "Nothing"), 4, "bad-config", "--wrapper Nothing"),
    ],
)
def test_what_cannot_be_recorded_says_where_and_leaves_nothing(
    words: tuple[str, ...], code: int, kind: str, place: str, tmp_path: Path, call_json: Call
) -> None:
    exit_code, told = call_json("record", *words, "--out", tmp_path / "D", "--policy", "random")
    assert (exit_code, told["error"]["code"]) == (code, kind)
    assert place in told["error"]["where"]
    assert told["error"]["fix"]
    assert not (tmp_path / "D").exists()


def test_the_result_says_how_the_environment_was_made_without_secrets(tmp_path: Path, call_json: Call) -> None:
    words = ("record", "recording_envs:Guarded-v0", "--out", tmp_path / "D", "--policy", "random", "--episodes", "1")
    made = ("--env-kwargs", '{"api_key": "hunter2"}', "--wrapper", "TimeLimit:max_episode_steps=5")
    for more in (("--dry-run",), ()):
        code, told = call_json(*words, *made, *more, "--device", "cpu")
        assert (code, told["env_kwargs"], told["wrappers"]) == (0, {"api_key": "***"}, [made[3]])


def test_arguments_and_wrappers_reach_the_environment(tmp_path: Path, call_json: Call) -> None:
    words = ("record", "Pendulum-v1", "--out", tmp_path / "D", "--policy", "random", "--episodes", "2", "--device", "cpu")
    code, told = call_json(*words, "--env-kwargs", '{"max_episode_steps": 7}', "--wrapper", "FlattenObservation")
    assert (code, told["steps"], told["vectorize"]) == (0, 14, "sync")
