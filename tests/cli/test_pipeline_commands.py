"""train-bc --pipeline and evaluate with pieces, as commands: what they print, and how they fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli import EpisodeBatch, train_bc, write_dataset

Call = Callable[..., Any]
STACKED = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 2\n'


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(recorded: EpisodeBatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run through a filter and stacked frames, measured in CartPole on the way; its data and pipeline file are beside it."""
    folder = tmp_path_factory.mktemp("trained")
    write_dataset(recorded, folder / "D")
    options: dict[str, Any] = {"updates": 3, "eval_episodes": 2, "env": "CartPole-v1", "device": "cpu"}
    told = train_bc([folder / "D"], folder / "run", pipeline=str(written(folder / "pipeline.toml", STACKED)), **options)
    assert (told.updates, told.eval_episodes) == (3, 2)
    return folder / "run"


def test_a_run_trained_through_a_pipeline_file_plays_with_its_pieces(run: Path, tmp_path: Path, call_json: Call) -> None:
    args = ("evaluate", run, "--episodes", "3", "--device", "cpu")
    code, told = call_json(*args)
    assert (code, told["episodes"]) == (0, 3)
    assert call_json(*args, "--env-to-module", run.parent / "pipeline.toml", "--lookback", "5") == (0, told)
    default = ("get_actions", "tensor_to_numpy", "unbatch_to_individual_items", "listify_data_for_vector_env")
    pieces = ['use = "odd_pieces:Bolder"', *(f'name = "{name}"' for name in default)]
    listed = "".join(f"[[pieces]]\n{piece}\n" for piece in pieces)
    after = written(tmp_path / "after.toml", f'kind = "module_to_env"\ndefaults = false\n{listed}')
    assert call_json(*args, "--module-to-env", after)[1]["return_mean"] != told["return_mean"]


def test_resuming_wants_the_pipeline_named_again(run: Path, tmp_path: Path, call_json: Call) -> None:
    again = shutil.copytree(run, tmp_path / "again")
    args = ("train-bc", run.parent / "D", "--out", again, "--resume", "--updates", "5", "--device", "cpu")
    code, told = call_json(*args)
    assert (code, told["error"]["code"]) == (4, "bad-config")
    assert "mean_std_filter, frame_stacking" in told["error"]["what"]
    assert call_json(*args, "--pipeline", run.parent / "pipeline.toml")[1]["updates"] == 5


@pytest.mark.parametrize(
    ("text", "exit_code", "what"),
    [
        (None, 5, "no such pipeline file"),
        ('kind = "env_to_module"', 4, "'learner' is needed here"),
        ('kind = "learner"\n[[pieces]]\nname = "frame_stak"\n[[pieces]]\nname = "one_hat"', 4, "2 mistakes"),
        ('kind = "learner"\n[[pieces]]\nuse = "odd_pieces:LearnerRaises"', 4, "piece LearnerRaises raised ZeroDivisionError"),
        ('kind = "learner"\n[[pieces]]\nuse = "odd_pieces:RaisesOn"\nsteps = 4', 3, "piece RaisesOn raised"),
        ('kind = "learner"\n[[pieces]]\nuse = "odd_pieces:Lies"', 3, ", but takes (4,)"),
    ],
)
def test_what_is_wrong_with_a_pipeline_ends_training_with_its_name(
    recording: Path, tmp_path: Path, call: Call, text: str | None, exit_code: int, what: str
) -> None:
    file = tmp_path / "pipeline.toml"
    if text is not None:
        written(file, text)
    args = ("--updates", "2", "--env", "CartPole-v1", "--eval-episodes", "2", "--device", "cpu", "--quiet", "--json")
    done = call("train-bc", recording, "--out", tmp_path / "run", "--pipeline", file, *args)
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"]) == (exit_code, exit_code)
    assert what in told["error"]["what"]
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_dry_run_checks_the_pipeline_too_and_writes_nothing(recording: Path, tmp_path: Path, call_json: Call) -> None:
    file = written(tmp_path / "pipeline.toml", STACKED)
    args = ("train-bc", recording, "--out", tmp_path / "run", "--dry-run", "--device", "cpu", "--pipeline", file)
    assert call_json(*args)[1]["stopped_by"] == "dry-run"
    written(file, STACKED.replace("2", "0"))
    assert call_json(*args)[0] == 4
    assert not (tmp_path / "run").exists()
