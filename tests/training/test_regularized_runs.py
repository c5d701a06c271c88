"""Moving averages of the policy, dropout, layer norm and limits of the spread: against torch's own, and as runs of `train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_json import told_in
from gymnasium import spaces
from safetensors.torch import load
from signal_at import signal_at

from offline_cli import train
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Interrupted
from offline_cli.modules.network import Mlp
from offline_cli.modules.policy_modules import build_module
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import number, own_algorithms
from offline_cli.training.learner import Learner, Update, cloning_learner

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]

OBS = spaces.Box(-9.0, 9.0, (3,))
BOX = spaces.Box(-4.0, 4.0, (2,))
ALL = ("bc", "marwil", "iql", "td3-bc")
OPTIONS: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "lr": 0.01, "updates": 24, "val_fraction": 0.25, "seed": 4}
OPTIONS |= {"eval_every": 15, "device": "cpu"}


def made(seed: int = 0, **form: Any) -> tuple[Any, dict[str, Any]]:
    """A policy of four choices, and a batch (32,) for it."""
    g = torch.Generator().manual_seed(seed)
    batch = {"obs": torch.randn(32, 3, generator=g), "actions": torch.randint(0, 4, (32,), generator=g)}
    module = build_module(OBS, spaces.Discrete(4), hidden=[16, 16], seed=seed, **form)
    return module, {**batch, "weights": torch.full((32,), 1 / 32)}


@pytest.fixture
def data(write_dataset: Write, make_batch: Make) -> Path:
    """Box actions in [-4, 4], recorded in these units."""
    return write_dataset(make_batch(continuous=True), action_scale="env")


def run_of(data: Path, out: Path, **options: Any) -> Path:
    train(data, out, **{**OPTIONS, **options})
    return out


def comparable(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The policy's bytes, and all rows of metrics without what the clock says."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in found]
    return (run / "policy.safetensors").read_bytes(), untimed


def weights_in(run: Path) -> dict[str, Any]:
    return load((run / "policy.safetensors").read_bytes())


def last_checkpoint(run: Path) -> dict[str, Any]:
    return load((run / "state.safetensors").read_bytes())


def test_what_is_checked_is_the_moving_average_and_what_is_stepped_comes_back() -> None:
    module, batch = made()
    update = Update(cloning_learner(module), batch, lr=1e-2, ema=0.9)
    for update_number in range(20):
        update(update_number)
    stepped = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in update.policy_state().items()}
    with update.kept_policy():
        assert all(torch.equal(tensor, kept[name]) for name, tensor in module.state_dict().items())
    assert all(torch.equal(tensor, stepped[name]) for name, tensor in module.state_dict().items())
    assert not any(torch.equal(kept[name], tensor) for name, tensor in stepped.items())


@pytest.mark.parametrize("algorithm", ALL)
def test_the_policy_of_a_run_is_the_average_and_checkpoints_hold_both(data: Path, tmp_path: Path, algorithm: str) -> None:
    run = run_of(data, tmp_path / "run", algorithm=algorithm, ema=0.95, val_fraction=None)
    found = last_checkpoint(run)
    for name, tensor in weights_in(run).items():
        assert torch.equal(found[f"modules.policy.{name}"], tensor)
        assert not torch.equal(found[f"stepped.{name}"], tensor)
    module = load_policy(run).module
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in weights_in(run).items())


def learner(name: str, network: Mlp, **options: Any) -> Learner:
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    return Learner.of(kind({**defaults, **options}), Task(OBS, BOX, "env", network))


@pytest.mark.parametrize(
    ("algorithm", "asked", "told"),
    [
        ("bc", {"log_std_min": -6.0}, {"mean": "linear", "log_std": [-6.0, 2.0]}),
        ("marwil", {"log_std_max": 0.5}, {"mean": "linear", "log_std": [-3.0, 0.5]}),
        ("iql", {"log_std_min": -1.0, "log_std_max": -1.0}, {"mean": "tanh", "log_std": [-1.0, -1.0]}),
    ],
)
def test_the_spread_is_within_the_limits_that_were_asked_for(
    data: Path, tmp_path: Path, algorithm: str, asked: dict[str, float], told: dict[str, Any]
) -> None:
    run = run_of(data, tmp_path / "run", algorithm=algorithm, updates=3, **asked)
    assert told_in(run / "policy.json")["gaussian"] == told
    assert [list(form.log_std) for form in load_policy(run).module.action_head.forms()] == [told["log_std"]]


@pytest.mark.parametrize(
    ("name", "space", "limits"),
    [
        ("bc", spaces.Discrete(2), {"log_std_min": -2.0}),
        ("bc", BOX, {"log_std_min": 3.0}),
        ("td3-bc", BOX, {"log_std_max": 0.0}),
    ],
)
def test_limits_of_a_spread_that_is_not_learned_are_refused(name: str, space: Any, limits: dict[str, float]) -> None:
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    asked = limits.get("log_std_min"), limits.get("log_std_max")
    with pytest.raises(BadConfig):
        Learner.of(kind(defaults), Task(OBS, space, "env", Mlp({"hidden": [4]}), log_std=asked))


@pytest.mark.parametrize(("limits", "low"), [({}, 0), ({"exclusiveMinimum": 0}, None), ({"minimum": -1}, -1)])
def test_an_option_that_is_a_number_is_not_negative_unless_its_limits_say_so(limits: dict[str, int], low: int | None) -> None:
    assert number("a share", 0.5, **limits).get("minimum") == low


def test_a_run_that_was_stopped_ends_with_the_same_bytes(data: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "algorithm": "td3-bc", "ema": 0.9, "dropout": 0.3, "layer_norm": True}
    train(data, tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        train(data, tmp_path / "cut", on_progress=signal_at(13), **options)
    torch.manual_seed(99)  # chance is the run's own
    train(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")
