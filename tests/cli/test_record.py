"""`offline-cli record`: options in, dataset out, one JSON object; and what a wrong command line says."""

from __future__ import annotations

import json
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
        (("CartPole-v1",), 2, "usage-error", "record"),
        (("CartPole-v1", "--episodes", "1", "--steps", "1"), 2, "usage-error", "record"),
        (("Kartpole-v1", "--episodes", "1"), 4, "unknown-environment", "Kartpole-v1"),
        (("CartPole-v1", "--episodes", "1", "--env-kwargs", "{gravity: 9}"), 4, "bad-config", "--env-kwargs"),
        (("CartPole-v1", "--episodes", "1", "--env-kwargs", "[1]"), 4, "bad-config", "--env-kwargs"),
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


@pytest.fixture
def play_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a module over two stacked observations, and the file of the pieces that it needs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_pieces.py").write_text(
        """
import gymnasium as gym
import numpy as np
from offline_cli import ConnectorV2
from offline_cli.modules import build_module

two = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
net = build_module(two, gym.spaces.Discrete(2), hidden=[8])


class Boom(ConnectorV2):
    def __call__(self, *, batch, **_):
        raise ValueError("no")
""",
        encoding="utf-8",
    )
    stack = """kind = "learner"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n"""
    (tmp_path / "pieces.toml").write_text(stack, encoding="utf-8")
    (tmp_path / "boom.toml").write_text("""kind = "module_to_env"\n[[pieces]]\nuse = "cli_pieces:Boom"\n""", encoding="utf-8")
    return tmp_path


PIECES = ("record", "CartPole-v1", "--policy", "python:cli_pieces:net", "--episodes", "3", "--device", "cpu", "--num-envs", "2")


def test_pieces_are_named_by_file_and_observations_are_recorded_raw(play_through: Path, call_json: Call) -> None:
    words = (*PIECES, "--out", "D", "--env-to-module", "pieces.toml", "--lookback", "4", "--vectorize", "sync")
    code, told = call_json(*words, "--dry-run")
    assert (code, told["dry_run"], told["env_to_module"][:2]) == (
        0,
        True,
        ["FrameStacking", "AddObservationsFromEpisodesToBatch"],
    )
    code, told = call_json(*words)
    assert (code, told["episodes"]) == (0, 3)
    manifest = json.loads((play_through / "D" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["observation_space"]["shape"] == [4], "observations are recorded as the environment gave them"


@pytest.mark.parametrize(
    ("words", "code", "kind", "place"),
    [
        ((), 4, "space-mismatch", "python:cli_pieces:net in CartPole-v1"),
        (("--env-to-module", "nowhere.toml"), 5, "storage-not-found", "nowhere.toml"),
        (("--env-to-module", "boom.toml"), 4, "bad-config", "boom.toml"),
        (("--module-to-env", "pieces.toml"), 4, "bad-config", "pieces.toml"),
        (("--env-to-module", "pieces.toml", "--module-to-env", "boom.toml"), 3, "bad-data", "CartPole-v1, episode 0, step 0"),
        (("--env-to-module", "pieces.toml", "--lookback", "0"), 2, "usage-error", ""),
    ],
)
def test_pieces_that_cannot_play_say_so_and_leave_nothing(
    words: tuple[str, ...], code: int, kind: str, place: str, play_through: Path, call_json: Call
) -> None:
    exit_code, told = call_json(*PIECES, "--out", "D", "--vectorize", "sync", *words)
    assert (exit_code, told["error"]["code"]) == (code, kind)
    assert place in told["error"]["where"]
    assert told["error"]["fix"]
    assert not (play_through / "D").exists()
