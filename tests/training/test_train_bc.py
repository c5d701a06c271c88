"""train_bc from datasets to run folders: what it learns, what it keeps, what it refuses."""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited_json import told_in
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import (
    BadData,
    MissingDevice,
    SpaceMismatch,
    StorageNotFound,
    TargetNotMet,
    TrainingDiverged,
)
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
SMALL = "hidden = [16]\nbatch_size = 64\nlr = 0.01\nlog_every = 10\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small network."""
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_it_learns_what_the_data_shows(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    result = train_bc(write_dataset(), tmp_path / "run", config=config, val_fraction=0.25, epochs=60)
    assert result.val_accuracy is not None
    assert result.val_accuracy > 0.95
    assert result.loss is not None
    assert result.loss < 0.2
    assert (result.episodes, result.stopped_by, result.updates) == (12, "epochs", 60 * result.updates // 60)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on POSIX systems alone")
def test_a_config_file_may_be_a_pipe_which_can_be_read_once(write_dataset: Write, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(SMALL,))
    writer.start()
    train_bc(write_dataset(), tmp_path / "run", config=tmp_path / "pipe", updates=1)
    writer.join()
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["hidden"] == [16]


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.MultiDiscrete([2, 2]),
        spaces.MultiBinary(2),
        spaces.Discrete(2, start=-1),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(2)])}),
    ],
    ids=str,
)
def test_it_learns_every_kind_of_discrete_action(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path, action_space: Any
) -> None:
    batch = make_batch(episodes=20)
    acted = batch.acted_obs()
    bits = (acted[:, :2] > 0).astype(np.int64)
    actions: Any = bits
    if isinstance(action_space, spaces.Discrete):
        actions = bits[:, 0] - 1
    elif isinstance(action_space, spaces.MultiBinary):
        actions = bits.astype(np.int8)
    elif isinstance(action_space, spaces.Dict):
        actions = {"a": bits[:, 0], "b": (bits[:, 1],)}
    data = write_dataset(replace(batch, actions=actions, action_space=action_space))
    result = train_bc(data, tmp_path / "run", config=config, val_fraction=0.2, epochs=60)
    assert result.val_accuracy is not None
    assert result.val_accuracy > 0.88


def test_the_run_folder_is_complete_and_its_policy_is_the_trained_one(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    result = train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", updates=120, eval_every=60)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.toml",
        "curve.png",
        "metrics.jsonl",
        "policy.json",
        "policy.safetensors",
        "result.json",
        "state.json",
        "state.safetensors",
    }
    assert told_in(tmp_path / "run" / "result.json") == result.as_dict()
    module = load_policy(str(tmp_path / "run")).module
    obs = torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])
    assert module.act(obs).tolist() == [1, 0]


def test_metrics_have_a_row_per_log_interval_and_figures_at_checks(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", updates=25, eval_every=20, eval_episodes=3)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [10, 20, 25]
    assert ["eval_return_mean" in row for row in rows] == [False, True, True]
    assert all(row["loss"] > 0 for row in rows)


def test_patience_stops_and_the_best_policy_is_kept(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch(episodes=8, length=10)
    noise = np.random.default_rng(0).integers(0, 2, batch.num_steps)  # nothing to learn: held-out loss must rise again
    (tmp_path / "c.toml").write_text("hidden = [64]\nlr = 0.02\neval_every = 5\nval_fraction = 0.5\npatience = 4\n")
    result = train_bc(write_dataset(replace(batch, actions=noise)), tmp_path / "run", config=tmp_path / "c.toml")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {row["update"]: row["val_loss"] for row in rows if "val_loss" in row}
    assert result.stopped_by == "patience"
    assert result.policy_update == min(losses, key=lambda update: losses[update])
    assert result.updates == result.policy_update + 4 * 5
    assert result.val_loss == min(losses.values())


def test_a_confirmed_return_ends_training_and_the_run_holds_the_confirmed_weights(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    config.write_text(SMALL + "confirm_episodes = 30\n")
    result = train_bc(
        write_dataset(), tmp_path / "run", config=config, env="Sign-v0", until_return=12.5, eval_every=20, eval_episodes=10
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert result.stopped_by == "target"
    assert result.updates == result.policy_update == rows[-1]["update"]
    assert result.eval_return_mean == rows[-1]["confirm_return_mean"] >= 12.5
    assert result.eval_episodes == 30
    assert result.updates % 20 == 0


def test_checks_and_confirmation_and_evaluation_play_different_episodes(
    write_dataset: Write, config: Path, tmp_path: Path, seeds: list[int | None]
) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", until_return=1.0, eval_every=5, eval_episodes=4)
    learned = seeds.copy()
    assert len(set(learned)) == len(learned) == 4 + 100
    evaluate(tmp_path / "run", episodes=50)
    evaluated = seeds[len(learned) + 1 :]  # the first reset is a look: the policy is tried on what episode 0 begins with
    assert len(set(evaluated)) == len(evaluated) == 50
    assert not {*learned} & {*evaluated}


def test_a_return_out_of_reach_is_exit_7_and_the_best_policy_is_kept(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(TargetNotMet) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", until_return=99, updates=60, eval_every=20)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    checked = {row["update"]: row["eval_return_mean"] for row in rows if "eval_return_mean" in row}
    assert caught.value.exit_code == 7
    assert caught.value.details["policy_update"] == max(checked, key=lambda update: checked[update])
    assert evaluate(tmp_path / "run", env="Sign-v0", episodes=10).episodes == 10


def test_an_environment_that_does_not_fit_is_refused(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(SpaceMismatch) as caught:
        train_bc(write_dataset(), tmp_path / "run", env="CartPole-v1", updates=1)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run").exists()


def test_a_failing_run_with_overwrite_leaves_the_old_run(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, updates=3)
    before = (tmp_path / "run" / "policy.safetensors").read_bytes()
    with pytest.raises(StorageNotFound):
        train_bc(tmp_path / "nowhere", tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "policy.safetensors").read_bytes() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_a_missing_device(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(MissingDevice) as caught:
        train_bc(write_dataset(), tmp_path / "run", device="cuda")
    assert caught.value.exit_code == 6
    assert "--device cpu" in caught.value.fix


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_numbers_are_refused_with_episode_and_step(
    write_dataset: Write, make_batch: Make, tmp_path: Path, value: float
) -> None:
    batch = make_batch()
    batch.obs[batch.obs_starts[3] + 5, 1] = value
    with pytest.raises(BadData, match="episode-0-3, step 5"):
        train_bc(write_dataset(batch), tmp_path / "run", updates=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"env": "Sign-v0", "eval_episodes": 2}, {}])
def test_a_loss_that_is_no_number_ends_training_by_name(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(TrainingDiverged) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, lr=1e38, updates=40, **options)
    assert (caught.value.exit_code, caught.value.code) == (7, "training-diverged")
    assert "--lr" in caught.value.fix
    assert not (tmp_path / "run" / "policy.safetensors").exists()


def test_episodes_of_one_step_are_learned_from(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> None:
    data = write_dataset(make_batch(episodes=40, length=1))
    result = train_bc(data, tmp_path / "run", config=config, val_fraction=0.25, epochs=200)
    assert (result.episodes, result.steps) == (40, 40)
    assert result.val_accuracy is not None
    assert result.val_accuracy > 0.7


@pytest.mark.parametrize("env", ["Failing-v0", "Numberless-v0"])
def test_an_environment_that_fails_in_a_check_is_bad_data_with_its_name(
    write_dataset: Write, config: Path, tmp_path: Path, env: str
) -> None:
    data = write_dataset()
    with pytest.raises(BadData) as caught:
        train_bc(data, tmp_path / "run", config=config, env=env, updates=20, eval_every=10)
    assert (caught.value.exit_code, caught.value.where.split(",")[0]) == (3, env)
