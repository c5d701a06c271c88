"""train_bc from datasets to run folders: what it learns, what it keeps, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sealed_runs import told_in

from offline_cli import environments
from offline_cli.connectors import ConnectorV2
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import (
    BadConfig,
    BadData,
    Diverged,
    MissingDevice,
    NoData,
    OutputExists,
    SpaceMismatch,
    StorageNotFound,
    TargetNotMet,
    UnknownEnvironment,
    UsageError,
)
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.progress import Progress
from offline_cli.training.config import resolve_config
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


def test_it_learns_continuous_actions_in_both_scales(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path
) -> None:
    batch = make_batch(continuous=True)
    for scale in ("env", "normalized"):
        data = write_dataset(batch, name=scale)
        result = train_bc(data, tmp_path / f"run-{scale}", config=config, action_scale=scale, val_fraction=0.25, epochs=80)
        assert result.val_mse is not None
        assert result.val_mse < 0.05


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
        "checkpoints",
        "config.toml",
        "curve.png",
        "metrics.jsonl",
        "policy.json",
        "policy.safetensors",
        "result.json",
    }
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
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


def test_progress_shows_rate_loss_and_return(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    reports: list[Progress] = []
    train_bc(
        write_dataset(), tmp_path / "run", config=config, env="Sign-v0", updates=20, eval_every=10, on_progress=reports.append
    )
    last = reports[-1]
    assert (last.stage, last.done, last.total, last.unit) == ("training", 20, 20, "updates")
    assert set(last.figures) == {"updates/s", "samples/s", "loss", "return"}


def test_two_runs_with_one_seed_give_the_same_policy_and_losses(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        train_bc(data, tmp_path / name, config=config, seed=seed, updates=30)
    one, two, other = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other


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
    evaluate(tmp_path / "run", episodes=50)
    played = [seed for seed in seeds if seed is not None]
    assert len(played) == 4 + 100 + 50
    assert len(set(played)) == len(played)


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


def test_a_custom_learner_piece_changes_what_is_learned(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    class Flip(ConnectorV2):
        """Turns every action into its opposite, in the episodes."""

        def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
            for episode in self.single_agent_episode_iterator(episodes):
                episode.set_actions(new_data=1 - episode.get_actions())
            return batch

    train_bc(write_dataset(), tmp_path / "run", config=config, updates=150, pipeline=lambda obs, act: Flip())
    module = load_policy(str(tmp_path / "run")).module
    assert module.act(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]])).tolist() == [0, 1]


# ---- refusals ----


def test_box_actions_of_unknown_scale_are_refused_with_the_remedy(
    write_dataset: Write, make_batch: Make, tmp_path: Path
) -> None:
    data = write_dataset(make_batch(continuous=True))
    with pytest.raises(BadConfig, match="unknown scale") as caught:
        train_bc(data, tmp_path / "run", updates=1)
    assert caught.value.where == str(data)
    assert caught.value.exit_code == 4
    assert "--action-scale" in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_an_environment_that_does_not_fit_is_refused(write_dataset: Write, tmp_path: Path) -> None:
    with pytest.raises(SpaceMismatch) as caught:
        train_bc(write_dataset(), tmp_path / "run", env="CartPole-v1", updates=1)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run").exists()


def test_an_unknown_environment_is_refused_before_any_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownEnvironment):
        train_bc(tmp_path / "nowhere", tmp_path / "run", env="NoSuch-v0")


def test_a_missing_dataset_is_a_missing_place(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound):
        train_bc(tmp_path / "nowhere", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_existing_output_is_refused_and_not_touched(write_dataset: Write, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(OutputExists) as caught:
        train_bc(write_dataset(), tmp_path / "run", updates=1, overwrite=True)
    assert caught.value.exit_code == 2
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


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
    with pytest.raises(BadData, match="observations hold NaN or infinity, first in episode episode-0-3, step 5"):
        train_bc(write_dataset(batch), tmp_path / "run", updates=1)
    assert not (tmp_path / "run").exists()


def test_actions_that_are_not_numbers_are_refused(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch(continuous=True)
    batch.actions[batch.starts[2], 0] = np.nan
    with pytest.raises(BadData, match="actions hold NaN or infinity, first in episode episode-0-2, step 0"):
        train_bc(write_dataset(batch), tmp_path / "run", action_scale="env", updates=1)


def test_an_observation_that_nothing_was_done_on_may_be_anything(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path
) -> None:
    batch = make_batch()
    batch.obs[batch.obs_starts[4] - 1] = np.nan  # the last of an episode
    assert train_bc(write_dataset(batch), tmp_path / "run", config=config, updates=3).updates == 3


@pytest.mark.parametrize("options", [{"val_fraction": 0.25}, {"env": "Sign-v0", "eval_episodes": 2}, {}])
def test_a_loss_that_is_no_number_ends_training_by_name(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(Diverged) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, lr=1e38, updates=40, **options)
    assert caught.value.exit_code == 4
    assert "--lr" in caught.value.fix
    assert not (tmp_path / "run" / "policy.safetensors").exists()


def test_weights_that_became_no_numbers_in_the_last_update_are_seen(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        train_bc(write_dataset(), tmp_path / "run", config=config, lr=1e39, updates=1)  # infinite in float32


def test_a_run_that_diverges_keeps_its_last_finite_checkpoint(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    config.write_text(SMALL.replace("log_every = 10", "log_every = 50"))  # the row would be looked at after the checkpoint
    with pytest.raises(Diverged) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, lr=1e30, updates=100, checkpoint_every=50)
    assert caught.value.details == {"update": 50}
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["000000000"]
    weights = load_policy(tmp_path / "run").module.parameters()
    assert all(bool(torch.isfinite(part).all()) for part in weights)


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**64, 10**30])
def test_any_seed_trains_and_gives_weights_of_its_own(write_dataset: Write, config: Path, tmp_path: Path, seed: int) -> None:
    data, runs = write_dataset(), {number: tmp_path / f"run-{number}" for number in (seed, seed + 1)}
    for number, run in runs.items():
        train_bc(data, run, config=config, seed=number, updates=1)
    one, other = (load_policy(run).module.state_dict()["network.0.weight"] for run in runs.values())
    assert not torch.equal(one, other)


def test_until_return_without_an_environment_and_patience_without_held_out_data_are_refused_together(
    write_dataset: Write, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        train_bc(write_dataset(), tmp_path / "run", until_return=5.0, patience=2)
    assert len(caught.value.details["problems"]) == 2


def test_an_environment_without_a_return_to_reach_is_measured_and_the_last_policy_kept(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    result = train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", updates=30, eval_every=10)
    assert (result.stopped_by, result.policy_update, result.eval_episodes) == ("updates", 30, 20)
    assert result.eval_return_mean is not None


def test_a_batch_larger_than_the_data_is_all_of_it(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    result = train_bc(write_dataset(), tmp_path / "run", config=config, batch_size=10**6, epochs=7)
    assert (result.updates, result.epochs) == (7, 7)


def test_episodes_of_one_step_are_learned_from(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> None:
    data = write_dataset(make_batch(episodes=40, length=1))
    result = train_bc(data, tmp_path / "run", config=config, val_fraction=0.25, epochs=200)
    assert (result.episodes, result.steps) == (40, 40)
    assert result.val_accuracy is not None
    assert result.val_accuracy > 0.7


def test_two_episodes_can_be_split(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> None:
    result = train_bc(write_dataset(make_batch(episodes=2)), tmp_path / "run", config=config, val_fraction=0.01, updates=3)
    assert result.val_loss is not None


def test_episodes_without_a_step_are_left_out(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> None:
    data = write_dataset(without_steps(make_batch(episodes=9), [0, 3, 8]))
    result = train_bc(data, tmp_path / "run", config=config, val_fraction=0.2, updates=3)
    assert result.episodes == 6


def test_data_without_a_step_is_no_data(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> None:
    with pytest.raises(NoData):
        train_bc(write_dataset(without_steps(make_batch(episodes=2), [0, 1])), tmp_path / "run", config=config)
    assert not (tmp_path / "run").exists()


def without_steps(batch: EpisodeBatch, empty: list[int]) -> EpisodeBatch:
    """`batch` with the steps of these episodes taken out, all but the first observation."""
    lengths = np.where(np.isin(np.arange(len(batch)), empty), 0, batch.lengths)
    gone = np.isin(np.repeat(np.arange(len(batch)), batch.lengths), empty)
    place = np.arange(len(batch.obs)) - np.repeat(batch.obs_starts[:-1], batch.lengths + 1)
    kept = ~np.isin(np.repeat(np.arange(len(batch)), batch.lengths + 1), empty) | (place == 0)
    return replace(
        batch,
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        obs=batch.obs[kept],
        actions=batch.actions[~gone],
        rewards=batch.rewards[~gone],
        terminated=np.zeros(len(batch), np.bool_),
    )


def test_extra_outputs_that_are_text_do_not_stop_training(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path
) -> None:
    batch = make_batch()
    notes = np.array(["left", "right"])[batch.actions]
    assert (
        train_bc(write_dataset(replace(batch, extra={"note": notes})), tmp_path / "run", config=config, updates=2).updates == 2
    )


def test_a_piece_that_does_not_say_which_shape_it_makes_is_refused(write_dataset: Write, tmp_path: Path) -> None:
    class Halve(ConnectorV2):
        whole_arrays = True

        def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
            batch["obs"] = episodes.acted_obs()[:, :2]
            return batch

    with pytest.raises(BadConfig, match=r"rows of \{'obs': \(2,\)\}, and announced \{'obs': \(3,\)\}"):
        train_bc(write_dataset(), tmp_path / "run", updates=1, pipeline=lambda obs, act: Halve())


@pytest.mark.parametrize("env", ["Failing-v0", "Numberless-v0"])
def test_an_environment_that_fails_in_a_check_is_bad_data_with_its_name(
    write_dataset: Write, config: Path, tmp_path: Path, env: str
) -> None:
    data = write_dataset()
    with pytest.raises(BadData, match=r"the motor is on fire|a return of nan") as caught:
        train_bc(data, tmp_path / "run", config=config, env=env, updates=20, eval_every=10)
    assert (caught.value.exit_code, caught.value.where.split(",")[0]) == (3, env)


def test_every_copy_of_the_environment_is_closed_whatever_happens(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    made, close = environments.Environment._made, gym.Env.close
    monkeypatch.setattr(environments.Environment, "_made", lambda self: (opened.append(made(self)), opened[-1])[1])
    closed: list[Any] = []
    monkeypatch.setattr(gym.Env, "close", lambda self: (closed.append(self), close(self))[1])
    with pytest.raises(BadData):
        train_bc(write_dataset(), tmp_path / "run", config=config, env="Failing-v0", updates=20, eval_every=10)
    with pytest.raises(StorageNotFound):
        train_bc(tmp_path / "nowhere", tmp_path / "other", env="Sign-v0")
    assert len(opened) > 3
    assert {id(env.unwrapped) for env in opened} <= {id(env) for env in closed}


def test_a_dry_run_checks_everything_and_writes_nothing(write_dataset: Write, tmp_path: Path) -> None:
    data = write_dataset()
    result = train_bc(data, tmp_path / "run", env="Sign-v0", until_return=3.0, dry_run=True)
    assert (result.stopped_by, result.updates, result.episodes, result.loss) == ("dry-run", 0, 12, None)
    with pytest.raises(SpaceMismatch):
        train_bc(data, tmp_path / "run", env="CartPole-v1", dry_run=True)
    assert not (tmp_path / "run").exists()


def test_one_episode_cannot_be_split(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="one episode"):
        train_bc(write_dataset(make_batch(episodes=1)), tmp_path / "run", val_fraction=0.5, updates=1)


def test_bf16_trains_too(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    result = train_bc(write_dataset(), tmp_path / "run", config=config, precision="bf16", val_fraction=0.25, epochs=60)
    assert result.val_accuracy is not None
    assert result.val_accuracy > 0.9


def test_the_number_of_torch_threads_is_put_back(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    config.write_text(SMALL + f"threads = {before + 1}\n")
    assert train_bc(write_dataset(), tmp_path / "run", config=config, updates=2).threads == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("scale", ["env", "normalized"])
def test_what_is_played_is_what_was_recorded_in_its_scale(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path, given: list[Any], scale: str
) -> None:
    """Recorded are actions of half the first two observations; `normalized` ones mean twice that in bounds of 2."""
    batch = make_batch(episodes=30, continuous=True)
    data = write_dataset(replace(batch, action_space=spaces.Box(-2.0, 2.0, (2,))))
    train_bc(data, tmp_path / "run", config=config, env="Aim-v0", action_scale=scale, epochs=150, eval_episodes=1)
    given.clear()
    evaluate(tmp_path / "run", env="Aim-v0", episodes=20)
    seen, done = (np.stack(part) for part in zip(*given, strict=True))
    wanted = np.clip(seen[:, :2] / 2 * (2 if scale == "normalized" else 1), -2, 2)
    assert np.abs(done).max() <= 2
    assert np.abs(done - wanted).mean() < 0.15


@pytest.mark.parametrize("scale", ["env", "normalized"])
def test_recordings_of_pendulum_are_learned_and_played(real_data: Path, tmp_path: Path, config: Path, scale: str) -> None:
    data = real_data / "rllib_episodes_pendulum"
    with pytest.raises(BadConfig, match="unknown scale"):
        train_bc(data, tmp_path / "run", env="Pendulum-v1", updates=1)
    result = train_bc(
        data, tmp_path / "run", config=config, env="Pendulum-v1", action_scale=scale, updates=30, val_fraction=0.2
    )
    assert (result.episodes, result.steps) == (8, 1600)
    assert result.val_mse is not None
    played = evaluate(tmp_path / "run", episodes=2, explore=True)  # drawn actions leave the bounds, and are clipped to them
    assert -2000 < played.return_mean < 0
    assert played.length_mean == 200


def test_experts_reach_their_return_within_seconds(real_data: Path, tmp_path: Path) -> None:
    result = train_bc(real_data / "rllib_episodes_cartpole_expert", tmp_path / "run", env="CartPole-v1", until_return=450)
    assert (result.episodes, result.steps, result.stopped_by) == (100, 46184, "target")
    assert evaluate(tmp_path / "run", env="CartPole-v1", episodes=100, min_return=450).return_mean >= 450


@pytest.mark.parametrize(("precision", "warnings"), [("bf16", 1), ("auto", 0)])
def test_bf16_on_a_cpu_is_warned_of(
    write_dataset: Write, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, precision: str, warnings: int
) -> None:
    train_bc(write_dataset(), tmp_path / "run", config=config, precision=precision, device="cpu", dry_run=True)
    assert sum("bf16 on a CPU" in text for text in caplog.messages) == warnings


def test_resuming_where_there_is_no_run_says_that_it_begins_one(
    write_dataset: Write, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_dataset()
    for _ in range(2):
        train_bc(data, tmp_path / "run", config=config, updates=2, resume=True)
    assert len([text for text in caplog.messages if "begins a new run" in text]) == 1


def test_a_target_that_was_missed_within_updates_asks_for_more_updates(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(TargetNotMet) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, env="Sign-v0", updates=2, until_return=1e6)
    assert "more --updates" in caught.value.fix


def test_the_first_report_is_where_training_begins_and_the_rates_agree(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    reports: list[Progress] = []
    train_bc(write_dataset(), tmp_path / "run", config=config, updates=60, on_progress=reports.append)
    training = [report for report in reports if report.stage == "training"]
    assert training[0].done == 0
    figures = training[-1].figures
    assert 0 < figures["samples/s"] / figures["updates/s"] <= resolve_config({}, file=config).batch_size
