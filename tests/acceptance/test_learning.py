"""Record, apply, train, evaluate and export: losses of seeded runs, returns, batches and files, by every algorithm.

`expected.json` holds what the runs gave when it was written (`python tests/acceptance/test_learning.py` writes it again):
losses within 1e-4, since processors differ in the last digits, and other optimizers may take their place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from offline_cli import EpisodeBatch, open_dataset

HERE = Path(__file__).resolve().parent
RECORDINGS = HERE.parent / "testdata" / "recordings"
REPOSITORY = HERE.parents[1]
CARTPOLE = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
EXPERT = f"sb3:{REPOSITORY / 'sample_data' / 'experts' / 'cartpole.zip'}"
EXPECTED = HERE / "expected.json"
Done = Callable[..., dict[str, Any]]

FILTER = 'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 3\n'
SMALL = ("--updates", 30, "--batch-size", 128, "--seed", 7, "--device", "cpu", "--memory-limit", "8GiB")
RUNS: dict[str, tuple[Any, ...]] = {
    "bc": ("train-bc", CARTPOLE, "--env", "CartPole-v1", "--val-fraction", 0.2, "--eval-episodes", 2),
    "bc streaming": ("train-bc", CARTPOLE, "--val-fraction", 0.2, "--streaming"),
    "bc through pieces": ("train-bc", CARTPOLE, "--pipeline", "filter.toml"),
    "bc of Box actions": ("train-bc", RECORDINGS / "rllib_episodes_pendulum", "--action-scale", "normalized"),
    "bc of choices": ("train-bc", RECORDINGS / "rllib_episodes_dict_flattened"),
    "marwil": ("train", CARTPOLE, "--algorithm", "marwil"),
    "iql": ("train", RECORDINGS / "rllib_episodes_pendulum", "--action-scale", "normalized", "--algorithm", "iql"),
    "td3-bc": ("train", RECORDINGS / "rllib_episodes_pendulum", "--action-scale", "normalized", "--algorithm", "td3-bc"),
}


def losses(done: Done, folder: Path, name: str) -> dict[str, float]:
    """Train one of RUNS: its losses by name, those of the first update and of the last, and what validation says."""
    (folder / "filter.toml").write_text(FILTER, encoding="utf-8")
    words = [folder / word if word == "filter.toml" else word for word in RUNS[name]]
    told = done(*words, *SMALL, "--out", folder / name)
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    first = next(row["loss"] for row in rows if row.get("loss") is not None)
    found = {"first": first, **told["losses"], "val_loss": told["val_loss"], "val_accuracy": told["val_accuracy"]}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("name", RUNS)
def test_a_seeded_run_has_the_losses_that_it_had(name: str, done: Done, tmp_path: Path) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))[name]
    assert losses(done, tmp_path, name) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_an_expert_is_recorded_cloned_and_evaluated(done: Done, tmp_path: Path) -> None:
    recorded = done("record", "CartPole-v1", "--policy", EXPERT, "--episodes", 8, "--num-envs", 4, "--out", tmp_path / "D")
    assert (recorded["episodes"], recorded["return_mean"]) == (8, 500.0)
    trained = done(
        "train-bc", tmp_path / "D", "--env", "CartPole-v1", "--updates", 200, "--device", "cpu", "--out", tmp_path / "R"
    )
    assert trained["eval_return_mean"] > 100  # a random policy has 20
    assert (tmp_path / "R" / "curve.png").read_bytes().startswith(b"\x89PNG")
    evaluated = done("evaluate", tmp_path / "R", "--env", "CartPole-v1", "--episodes", 5, "--seed", 1)
    assert evaluated["episodes"] == 5
    assert evaluated["return_min"] <= evaluated["return_mean"] <= evaluated["return_max"]
    assert (
        done("evaluate", tmp_path / "R", "--env", "CartPole-v1", "--episodes", 5, "--seed", 1)["return_mean"]
        == evaluated["return_mean"]
    )


PIECES = {
    "frames": '[[pieces]]\nname = "frame_stacking"\nnum_frames = 3\n',
    "filter": '[[pieces]]\nname = "mean_std_filter"\n',
    "returns": '[[pieces]]\nname = "compute_returns_to_go"\ngamma = 0.99\n',
    "next": '[[pieces]]\nname = "add_next_observations_from_episodes_to_train_batch"\n',
}


def expected_columns(episodes: list[EpisodeBatch]) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """By the name of PIECES the column that it changes or adds, and what that holds, computed step by step."""
    frames, returns = [], []
    for episode in episodes:
        rows = np.concatenate([np.zeros((2, 4), np.float32), episode.obs[:-1]])
        frames += [rows[step : step + 3].ravel() for step in range(episode.num_steps)]
        total, sums = 0.0, []
        for reward in episode.rewards[::-1]:
            total = float(reward) + 0.99 * total
            sums.append(total)
        returns += sums[::-1]
    obs = np.concatenate([episode.obs[:-1] for episode in episodes]).astype(np.float64)
    return {
        "frames": ("obs", np.stack(frames)),
        "filter": ("obs", (obs - obs.mean(0)) / (obs.std(0, ddof=1) + 1e-6)),
        "returns": ("returns_to_go", np.array(returns)),
        "next": ("new_obs", np.concatenate([episode.obs[1:] for episode in episodes])),
    }


@pytest.mark.parametrize("pieces", PIECES)
def test_train_batches_hold_what_a_loop_over_the_steps_gives(pieces: str, done: Done, tmp_path: Path) -> None:
    done("convert", CARTPOLE, "--limit", 5, "--out", tmp_path / "D")
    (tmp_path / "p.toml").write_text(f'kind = "learner"\n{PIECES[pieces]}', encoding="utf-8")
    done("apply", tmp_path / "D", "--pipeline", tmp_path / "p.toml", "--out", tmp_path / "A")
    rows = pl.concat([pl.read_parquet(file) for file in sorted(tmp_path.glob("A/**/*.parquet"))])
    batch = EpisodeBatch.concat(list(open_dataset(str(tmp_path / "D")).batches()))
    name, expected = expected_columns([batch.select([number]) for number in range(len(batch))])[pieces]
    np.testing.assert_allclose(rows[name].to_numpy(), expected, atol=1e-5)


if __name__ == "__main__":  # write expected.json again
    import tempfile

    from typer.testing import CliRunner

    from offline_cli.cli.app import app

    def call(*words: Any) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*map(str, words), "--json", "--quiet"])
        assert done.exit_code == 0, done.output
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    with tempfile.TemporaryDirectory() as temp:
        expected = {name: losses(call, Path(temp), name) for name in RUNS}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{EXPECTED}\n")
