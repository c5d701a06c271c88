"""Stopping and going on: the same final weights, bit for bit, as a run that nothing disturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from signal_at import signal_at

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Interrupted
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.progress import Progress
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = "hidden = [16]\nbatch_size = 32\nlr = 0.01\nlog_every = 7\ncheckpoint_every = 10\n"
OPTIONS: dict[str, Any] = {"updates": 95, "val_fraction": 0.25, "eval_every": 15, "seed": 4}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small network, many checkpoints, and row and check intervals that do not divide each other."""
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path / "c.toml"


def comparable(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The policy's bytes, and all rows of metrics without what the clock says."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in rows]
    return (run / "policy.safetensors").read_bytes(), untimed


@pytest.mark.parametrize("update", [7, 30, 45, 84])
def test_a_run_stopped_by_ctrl_c_ends_as_an_undisturbed_one(
    write_dataset: Write, config: Path, tmp_path: Path, update: int
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **OPTIONS)
    with pytest.raises(Interrupted) as caught:
        train_bc(data, tmp_path / "cut", config=config, on_progress=signal_at(update), **OPTIONS)
    assert caught.value.details["exit_code"] == 130
    assert "--resume" in caught.value.fix
    train_bc(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


def test_a_run_stopped_many_times_ends_as_an_undisturbed_one(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, env="Sign-v0", eval_episodes=5, **OPTIONS)
    for update in (7, 21, 42, 60, 77):
        with pytest.raises(Interrupted):
            train_bc(
                data,
                tmp_path / "cut",
                config=config,
                env="Sign-v0",
                eval_episodes=5,
                resume=True,
                on_progress=signal_at(update, signal.SIGTERM),
                **OPTIONS,
            )
    train_bc(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


def test_a_signal_inside_a_check_saves_and_the_check_is_made_again(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    options = {**OPTIONS, "env": "Sign-v0", "eval_episodes": 5}
    train_bc(data, tmp_path / "whole", config=config, **options)
    environment = type(gym.make("Sign-v0").unwrapped)
    real, calls = environment.step, []

    def step(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 40:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(environment, "step", step)
        with pytest.raises(Interrupted) as caught:
            train_bc(data, tmp_path / "cut", config=config, **options)
    assert caught.value.details == {"exit_code": 143, "updates": 15, "policy_update": 15, "run": str(tmp_path / "cut")}
    train_bc(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


def interrupted(data: Path, run: Path, update: int, **options: Any) -> int:
    """Train until a signal after that many updates, or a few more; gives how many it were."""
    with pytest.raises(Interrupted) as caught:
        train_bc(data, run, on_progress=signal_at(update), **options)
    made: int = caught.value.details["updates"]
    return made


@pytest.mark.parametrize("extra", [6, 9, 14])
def test_a_bound_that_is_reached_already_ends_the_run_as_if_it_had_been_the_bound_from_the_start(
    write_dataset: Write, config: Path, tmp_path: Path, extra: int
) -> None:
    """Stopped beside a row and a check, before a checkpoint's number, and before a check's."""
    data, grown = write_dataset(), tmp_path / "grown"
    made = interrupted(data, grown, 21 + extra, config=config, **OPTIONS)
    result = train_bc(data, grown, resume=True, updates=made)
    assert (result.updates, result.stopped_by) == (made, "updates")
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "updates": made})
    assert comparable(grown) == comparable(tmp_path / "whole")
    again = train_bc(data, grown, resume=True, updates=made)
    assert again.as_dict() == result.as_dict()


@pytest.mark.parametrize("made", [30, 40])
def test_a_killed_run_ends_at_its_last_checkpoint_where_that_is_the_bound(
    write_dataset: Write, config: Path, tmp_path: Path, made: int
) -> None:
    """With a check at 30, and none at 40; both have a row of metrics only in one of the two runs."""
    data, killed = write_dataset(), tmp_path / "killed"
    config.write_text(CONFIG.replace("log_every = 7", "log_every = 10"))

    def copied(progress: Progress) -> None:
        if progress.stage == "training" and progress.done == made + 10 and not killed.exists():
            shutil.copytree(tmp_path / "run", killed)

    train_bc(data, tmp_path / "run", config=config, on_progress=copied, **OPTIONS)
    (killed / "_training.json").unlink()
    newest = sorted(path.name for path in (killed / "checkpoints").iterdir())[-1]
    assert int(newest) in (made, made + 10)
    if int(newest) > made:
        shutil.rmtree(killed / "checkpoints" / newest)
    train_bc(data, killed, resume=True, updates=int(newest))
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "updates": int(newest)})
    assert comparable(killed) == comparable(tmp_path / "whole")
    train_bc(data, killed, resume=True, updates=95)
    assert comparable(killed) == comparable(tmp_path / "run")


def test_epochs_that_are_made_already_end_the_run_and_fewer_are_refused(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, run = write_dataset(), tmp_path / "run"
    per_epoch = round(95 / train_bc(data, tmp_path / "whole", config=config, updates=95).epochs)
    made = interrupted(data, run, 4 * per_epoch - 3, config=config, epochs=50, seed=4)
    full = -(-made // per_epoch)
    assert train_bc(data, run, resume=True, updates=full * per_epoch).updates == full * per_epoch
    result = train_bc(data, run, resume=True, epochs=full)
    assert (result.updates, result.epochs) == (full * per_epoch, full)
    with pytest.raises(BadConfig) as caught:
        train_bc(data, run, resume=True, epochs=full - 1)
    assert caught.value.fix.startswith(f"--epochs {full} or more")


def test_an_interrupted_run_leaves_the_policy_of_its_last_checkpoint(
    write_dataset: Write, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, run = write_dataset(), tmp_path / "run"
    with pytest.raises(Interrupted, match="the policy of this last checkpoint can be played") as caught:
        train_bc(data, run, config=config, on_progress=signal_at(35, signal.SIGTERM), **OPTIONS)
    made = caught.value.details["policy_update"]
    assert made == caught.value.details["updates"]
    (checkpoint,) = (run / "checkpoints").iterdir()
    saved = load_file(checkpoint / "tensors.safetensors")
    played = load_policy(run).module.state_dict()
    assert all(torch.equal(tensor, saved[f"modules.policy.{name}"]) for name, tensor in played.items())
    kept = load_file(run / "policy.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in load_policy(run).module.state_dict().items())
    caplog.clear()
    assert evaluate(run, env="Sign-v0", episodes=2).checkpoint == made
    assert [f"not finished: the policy is that of its last checkpoint, of update {made}" in line for line in caplog.messages]
    train_bc(data, run, resume=True)
    assert evaluate(run, env="Sign-v0", episodes=2).checkpoint is None


def test_a_killed_run_plays_its_last_checkpoint_and_not_an_older_policy(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data, run, killed = write_dataset(), tmp_path / "run", tmp_path / "killed"
    train_bc(data, run, config=config, **{**OPTIONS, "updates": 20})

    def copied(progress: Progress) -> None:
        if progress.stage == "training" and progress.done >= 63 and not killed.exists():
            shutil.copytree(run, killed)

    train_bc(data, run, resume=True, updates=95, on_progress=copied)
    assert (killed / "policy.safetensors").is_file()
    assert evaluate(killed, env="Sign-v0", episodes=2).checkpoint == 60


def test_the_thread_count_of_the_checkpoint_is_used(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    config.write_text(CONFIG + "threads = 2\n")
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(7), updates=12)
    assert train_bc(data, tmp_path / "run", resume=True).threads == 2


def test_resuming_a_finished_run_gives_its_result_again(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    first = train_bc(data, tmp_path / "run", config=config, **OPTIONS)
    before = comparable(tmp_path / "run")
    again = train_bc(data, tmp_path / "run", resume=True)
    assert again.as_dict() == first.as_dict()
    assert comparable(tmp_path / "run") == before


@pytest.mark.parametrize(("first", "then"), [(50, 95), (60, 95), (95, 96)])
def test_a_finished_run_goes_on_to_a_larger_bound_as_if_it_had_had_that_from_the_start(
    write_dataset: Write, config: Path, tmp_path: Path, first: int, then: int
) -> None:
    """Checks are due at 15, 30, ...: one bound lies between two, the other on one."""
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "updates": then})
    train_bc(data, tmp_path / "grown", config=config, **{**OPTIONS, "updates": first})
    result = train_bc(data, tmp_path / "grown", resume=True, updates=then)
    assert result.updates == then
    assert comparable(tmp_path / "grown") == comparable(tmp_path / "whole")
    assert (tmp_path / "grown" / "config.toml").read_bytes() == (tmp_path / "whole" / "config.toml").read_bytes()


def test_a_run_that_grew_and_was_stopped_still_ends_as_an_undisturbed_one(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **OPTIONS)
    train_bc(data, tmp_path / "grown", config=config, **{**OPTIONS, "updates": 40})
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "grown", resume=True, updates=95, on_progress=signal_at(70))
    assert (tmp_path / "grown" / "policy.safetensors").is_file()  # of the smaller bound, until the larger one is reached
    train_bc(data, tmp_path / "grown", resume=True)
    assert comparable(tmp_path / "grown") == comparable(tmp_path / "whole")


def test_a_bound_in_epochs_can_replace_one_in_updates(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "run", config=config, updates=5)
    assert train_bc(data, tmp_path / "run", resume=True, epochs=3).epochs == 3
    stored = (tmp_path / "run" / "config.toml").read_text()
    assert "epochs = 3" in stored
    assert "updates" not in stored


def test_fewer_updates_than_are_made_are_refused(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "run", config=config, updates=5)
    before = comparable(tmp_path / "run")
    with pytest.raises(BadConfig, match="5 updates are made already, and only 4 asked for"):
        train_bc(data, tmp_path / "run", resume=True, updates=4)
    assert comparable(tmp_path / "run") == before


def test_patience_that_ran_out_is_not_given_back_by_a_larger_bound(
    write_dataset: Write, make_batch: Make, tmp_path: Path
) -> None:
    batch = make_batch(episodes=8, length=10)
    noise = np.random.default_rng(0).integers(0, 2, batch.num_steps)
    data = write_dataset(replace(batch, actions=noise))
    (tmp_path / "c.toml").write_text("hidden = [64]\nlr = 0.02\neval_every = 5\nval_fraction = 0.5\npatience = 4\n")
    first = train_bc(data, tmp_path / "run", config=tmp_path / "c.toml", updates=400)
    again = train_bc(data, tmp_path / "run", resume=True, updates=800)
    assert (again.updates, again.stopped_by) == (first.updates, "patience")


def test_a_checkpoint_of_another_network_is_refused(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    stored = tmp_path / "run" / "config.toml"
    stored.write_text(stored.read_text().replace("16,", "32,"))
    with pytest.raises(BadData, match=r"does not fit the run's configuration: modules.policy.network.0.weight"):
        train_bc(data, tmp_path / "run", resume=True)


def test_resuming_where_nothing_was_begun_begins(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    assert train_bc(write_dataset(), tmp_path / "run", config=config, resume=True, updates=3).updates == 3


def test_resuming_with_other_options_is_refused_by_name(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    with pytest.raises(BadConfig) as caught:
        train_bc(data, tmp_path / "run", resume=True, lr=0.5, seed=9)
    assert caught.value.details["problems"] == [
        "lr: the run has 0.01, this call asks for 0.5",
        "seed: the run has 4, this call asks for 9",
    ]


def test_resuming_with_other_data_is_refused_by_name(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train_bc(write_dataset(), tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    other = write_dataset(make_batch(seed=1), name="other")
    with pytest.raises(BadConfig, match="the data differs"):
        train_bc(other, tmp_path / "run", resume=True)


def test_resuming_with_another_pipeline_is_refused_by_name(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    with pytest.raises(BadConfig, match="the learner pipeline differs"):
        train_bc(data, tmp_path / "run", resume=True, pipeline=lambda obs, act: [])


@pytest.fixture
def begun(write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path) -> Callable[..., str]:
    """Begins a run on the given data, goes on with other data or options, and gives the refusal."""

    def refusal(first: Any, then: Any, **other: Any) -> str:
        with pytest.raises(Interrupted):
            train_bc(first, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS, **other.pop("begin", {}))
        with pytest.raises(BadConfig) as caught:
            train_bc(then, tmp_path / "run", resume=True, **other)
        return str(caught.value)

    return refusal


@pytest.mark.parametrize("streaming", [None, True])
class TestARefusalToGoOnSaysInWordsWhatDiffers:
    def test_that_there_are_more_episodes(
        self, streaming: bool | None, begun: Callable[..., str], write_dataset: Write, make_batch: Make
    ) -> None:
        few, many = make_batch(episodes=4), make_batch(episodes=5)
        told = begun(write_dataset(few), write_dataset(many, name="more"), begin={"streaming": streaming})
        assert "the data differs: the run has 4 episodes with " in told
        assert "this call 5 episodes" in told

    def test_that_the_sources_come_in_another_order(
        self, streaming: bool | None, begun: Callable[..., str], write_dataset: Write, make_batch: Make
    ) -> None:
        batch = make_batch(episodes=4)
        one, two = (write_dataset(batch.select(part), name=name) for part, name in ((slice(0, 2), "a"), (slice(2, 4), "b")))
        told = begun([one, two], [two, one], begin={"streaming": streaming})
        assert "the data differs: the same episodes in another order" in told

    def test_that_values_have_changed(
        self, streaming: bool | None, begun: Callable[..., str], write_dataset: Write, make_batch: Make
    ) -> None:
        batch = make_batch(episodes=4)
        changed = replace(batch, obs=batch.obs + np.float32(0.001))
        told = begun(write_dataset(batch), write_dataset(changed, name="b"), begin={"streaming": streaming})
        assert "the episodes are the same ones, and their values are not" in told

    def test_that_the_pipeline_was_forgotten_and_nothing_else(
        self, streaming: bool | None, begun: Callable[..., str], write_dataset: Write, tmp_path: Path
    ) -> None:
        (tmp_path / "p.toml").write_text('kind = "learner"\n[[pieces]]\nname = "clip_rewards"\n', encoding="utf-8")
        data = write_dataset()
        told = begun(data, data, begin={"streaming": streaming, "pipeline": tmp_path / "p.toml"})
        assert "the learner pipeline differs: the run has clip_rewards" in told
        assert "the data differs" not in told

    def test_that_another_module_is_chosen(
        self, streaming: bool | None, begun: Callable[..., str], write_dataset: Write, make_batch: Make
    ) -> None:
        batch = make_batch(episodes=4)
        data = write_dataset(replace(batch, module_ids=("attacker", "defender") * 2))
        told = begun(data, data, begin={"streaming": streaming, "module_id": "attacker"}, module_id="defender")
        assert "the data differs: the run learns module attacker, this call defender" in told


PROGRAM = """
import sys
from offline_cli.training.train import train_bc
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.training_data import data_difference
train_bc(sys.argv[1], sys.argv[2], config=sys.argv[3], updates=3000, val_fraction=0.25, eval_every=150, seed=4, resume=True)
"""


@pytest.mark.nightly
def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}

    def start(run: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(data), str(tmp_path / run), str(config)], env=env)

    def checkpoints() -> set[str]:
        folder = tmp_path / "cut" / "checkpoints"
        return set(os.listdir(folder)) if folder.is_dir() else set()

    assert start("whole").wait(timeout=300) == 0
    chance = random.Random(0)
    for longest in (0.0, 0.01, 0.1, 0.2, 0.2, 0.2):  # seconds after it has begun to write
        before, process = checkpoints(), start("cut")
        while checkpoints() == before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(longest * chance.random())
        process.kill()
        process.wait()
    assert not (tmp_path / "cut" / "result.json").exists(), "every kill came too late"
    assert start("cut").wait(timeout=300) == 0
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")
