"""Stopping and going on: the same final weights, bit for bit, as a run that nothing disturbed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from safetensors.torch import load_file
from signal_at import signal_at

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OPTIONS: dict[str, Any] = {"updates": 95, "val_fraction": 0.25, "eval_every": 15, "seed": 4}


def comparable(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The policy's bytes, and all rows of metrics without what the clock says."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in rows]
    return (run / "policy.safetensors").read_bytes(), untimed


def test_a_run_stopped_by_ctrl_c_ends_as_an_undisturbed_one(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    update = 45
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **OPTIONS)
    with pytest.raises(Interrupted) as caught:
        train_bc(data, tmp_path / "cut", config=config, on_progress=signal_at(update), **OPTIONS)
    assert caught.value.details["exit_code"] == 130
    assert "--resume" in caught.value.fix
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


def test_a_bound_that_is_reached_already_ends_the_run_as_if_it_had_been_the_bound_from_the_start(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    """Stopped before a check's number."""
    data, grown = write_dataset(), tmp_path / "grown"
    made = interrupted(data, grown, 30, config=config, **OPTIONS)
    result = train_bc(data, grown, resume=True, updates=made)
    assert (result.updates, result.stopped_by) == (made, "updates")
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "updates": made})
    assert comparable(grown) == comparable(tmp_path / "whole")
    again = train_bc(data, grown, resume=True, updates=made)
    assert again.as_dict() == result.as_dict()


def test_an_interrupted_run_leaves_the_policy_of_its_last_checkpoint(
    write_dataset: Write, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, run = write_dataset(), tmp_path / "run"
    with pytest.raises(Interrupted) as caught:
        train_bc(data, run, config=config, on_progress=signal_at(35, signal.SIGTERM), **OPTIONS)
    made = caught.value.details["policy_update"]
    assert made == caught.value.details["updates"]
    saved = load_file(run / "state.safetensors")
    played = load_policy(run).module.state_dict()
    assert all(torch.equal(tensor, saved[f"modules.policy.{name}"]) for name, tensor in played.items())
    kept = load_file(run / "policy.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in load_policy(run).module.state_dict().items())
    caplog.clear()
    assert evaluate(run, env="Sign-v0", episodes=2).checkpoint == made
    assert [f"unfinished: using the policy of its last checkpoint, update {made}" in line for line in caplog.messages]
    train_bc(data, run, resume=True)
    assert evaluate(run, env="Sign-v0", episodes=2).checkpoint is None


def test_resuming_a_finished_run_gives_its_result_again(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    first = train_bc(data, tmp_path / "run", config=config, **OPTIONS)
    before = comparable(tmp_path / "run")
    again = train_bc(data, tmp_path / "run", resume=True)
    assert again.as_dict() == first.as_dict()
    assert comparable(tmp_path / "run") == before


def test_a_finished_run_goes_on_to_a_larger_bound_as_if_it_had_had_that_from_the_start(
    write_dataset: Write, config: Path, tmp_path: Path
) -> None:
    first, then = 50, 95  # checks are due at 15, 30, ...: between two of them
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **{**OPTIONS, "updates": then})
    train_bc(data, tmp_path / "grown", config=config, **{**OPTIONS, "updates": first})
    result = train_bc(data, tmp_path / "grown", resume=True, updates=then)
    assert result.updates == then
    assert comparable(tmp_path / "grown") == comparable(tmp_path / "whole")
    assert (tmp_path / "grown" / "config.toml").read_bytes() == (tmp_path / "whole" / "config.toml").read_bytes()


def test_fewer_updates_than_are_made_are_refused(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "run", config=config, updates=5)
    before = comparable(tmp_path / "run")
    with pytest.raises(BadConfig, match=r"5.*4"):
        train_bc(data, tmp_path / "run", resume=True, updates=4)
    assert comparable(tmp_path / "run") == before


def test_resuming_with_other_options_is_refused_by_name(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    with pytest.raises(BadConfig) as caught:
        train_bc(data, tmp_path / "run", resume=True, lr=0.5, seed=9)
    assert caught.value.details["problems"] == [
        "lr: the run has 0.01, this call 0.5",
        "seed: the run has 4, this call 9",
    ]


def test_resuming_with_other_data_is_refused_by_name(
    write_dataset: Write, make_batch: Make, config: Path, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train_bc(write_dataset(), tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    other = write_dataset(make_batch(seed=1), name="other")
    with pytest.raises(BadConfig, match="the data"):
        train_bc(other, tmp_path / "run", resume=True)


def test_resuming_with_another_pipeline_is_refused_by_name(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data = write_dataset()
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "run", config=config, on_progress=signal_at(30), **OPTIONS)
    with pytest.raises(BadConfig, match="pipeline"):
        train_bc(data, tmp_path / "run", resume=True, pipeline=lambda obs, act: [])
