"""The protocol of algorithms: groups and how often they are stepped, columns, what the pipeline gets, refreshing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from signal_at import signal_at
from torch import nn

from offline_cli.connectors.batch_items import Batch as PieceBatch
from offline_cli.connectors.batch_items import Episodes
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.errors import BadConfig, Interrupted, TrainingDiverged
from offline_cli.modules.network import Mlp
from offline_cli.training import learner as learners
from offline_cli.training.algorithms import Algorithm, Batch, Group, Modules, Task, frozen_copy, move_towards
from offline_cli.training.learner import Learner, Update
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
BOX = spaces.Box(-9.0, 9.0, (3,))


def task(actions: spaces.Space[Any] | None = None) -> Task:
    return Task(BOX, actions or spaces.Discrete(2), "env", Mlp({"hidden": [8], "activation": "relu"}))


def batch(rows: int = 16) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    obs = torch.randn(rows, 3, generator=g)
    return {"obs": obs, "actions": (obs[:, 0] > 0).long(), "weights": torch.full((rows,), 1 / rows)}


class Two(Algorithm):
    """A policy in each second update, a value in each; the slow copy follows the value; losses draw random numbers."""

    def modules(self, task: Task) -> dict[str, nn.Module]:
        value = task.critic()
        return {"policy": task.policy(), "value": value, "slow": frozen_copy(value)}

    def groups(self, modules: Modules) -> list[Group]:
        policy: Any = modules["policy"]

        def value_loss(batch: Batch) -> dict[str, Any]:
            target = modules["slow"](batch["obs"]) + torch.randn_like(batch["obs"][:, :1]) + 1
            return {"value": (modules["value"](batch["obs"]) - target).square().mean()}

        def policy_loss(batch: Batch) -> dict[str, Any]:
            weights = batch["weights"] * modules["value"](batch["obs"])[:, 0]  # gradients stay out of the value
            inputs = policy.forward_train(batch)["action_dist_inputs"]
            return {"cloning": -torch.dot(policy.action_head.logp(inputs, batch["actions"]), weights)}

        def follow() -> None:
            move_towards(modules["slow"], modules["value"], 0.5)

        return [
            Group(("value",), ("value",), value_loss, then=follow),
            Group(("policy",), ("cloning",), policy_loss, every=2, lr=0.1),
        ]


def two() -> Learner:
    return Learner.of(Two({}), task())


def copies(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.state().items()}


def changed(before: Mapping[str, torch.Tensor], learner: Learner) -> set[str]:
    return {name.partition(".")[0] for name, tensor in learner.state().items() if not torch.equal(tensor, before[name])}


def test_a_group_is_stepped_in_each_kth_update_and_its_gradients_stay_in_it() -> None:
    learner = two()
    update = Update(learner, batch(), lr=1e-2)
    seen = []
    for number in range(4):
        before = copies(learner)
        update(number)
        seen.append(changed(before, learner))
    assert seen == [{"value", "slow"}, {"value", "slow", "policy"}] * 2
    value, policy = update.steps
    assert [float(next(iter(step.tensors.values()))) for step in (value, policy)] == [4, 2]
    assert (float(value.lr), float(policy.lr)) == (pytest.approx(1e-2), pytest.approx(0.1))


def test_means_of_losses_are_over_the_steps_that_were_taken() -> None:
    update = Update(two(), batch(), lr=1e-2)
    for number in range(3):
        update(number)
    value, policy = update.steps
    assert update.means(3, 3) == {"value": float(value.sums["value"]) / 3, "cloning": float(policy.sums["cloning"])}
    update.forget_losses()
    assert update.means(3, 1).keys() == {"value"}


class Wrong(Two):
    """Its groups name whatever a test says."""

    named: tuple[str, ...] = ()

    def groups(self, modules: Modules) -> list[Group]:
        return [Group((name,), (f"{number}",), lambda _: {}) for number, name in enumerate(self.named)]


@pytest.mark.parametrize("named", [("policy", "actor"), (), ("policy", "policy"), ("policy", "slow")])
def test_groups_that_do_not_fit_the_modules_are_refused(named: tuple[str, ...]) -> None:
    algorithm = Wrong({})
    algorithm.named = named
    with pytest.raises(BadConfig) as caught:
        Learner.of(algorithm, task())
    assert caught.value.where == "algorithm Wrong"


@pytest.mark.parametrize("wrong", [{"every": 0}, {"losses": ()}, {"modules": ()}, {"losses": ("val",)}])
def test_a_group_that_cannot_be_stepped_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  a mistake of who writes an algorithm
        Group(**{"modules": ("policy",), "losses": ("nll",), "loss": lambda _: {}, **wrong})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("group", [0, 1])
def test_one_loss_of_several_that_is_no_number_ends_training_and_the_last_checkpoint_stays(
    write_dataset: Write, config: Path, tmp_path: Path, learn_by: Callable[..., None], group: int, bad: float
) -> None:
    calls = []

    class Spoiled(Two):
        def groups(self, modules: Modules) -> list[Group]:
            found = super().groups(modules)
            whole = found[group].loss

            def loss(batch: Batch) -> dict[str, Any]:
                calls.append(0)
                return {name: part + (bad if len(calls) == 14 else 0) for name, part in whole(batch).items()}

            found[group] = replace(found[group], loss=loss)
            return found

    learn_by(Spoiled)
    with pytest.raises(TrainingDiverged) as caught:
        train_bc(write_dataset(), tmp_path / "run", config=config, **{**OPTIONS, "eval_every": 50})
    update = caught.value.details["update"]
    kept = json.loads((tmp_path / "run" / "state.json").read_text())
    assert (update, kept["update"]) in {(14, 10), (28, 20), (30, 20)}


class Guess(ConnectorV2):
    """`guess` (N,): how likely the module finds the recorded actions."""

    calls: list[tuple[bool, bool]] = []  # noqa: RUF012  of the test at hand

    def __call__(self, *, rl_module: Any, batch: PieceBatch, episodes: Episodes, **_: Any) -> PieceBatch:
        Guess.calls.append((rl_module.training, torch.is_grad_enabled()))
        inputs = rl_module.forward_train(batch)["action_dist_inputs"]
        batch["guess"] = rl_module.action_head.logp(inputs, batch["actions"]).exp()
        return batch


Guess.whole_arrays = True  # type: ignore[misc]


class Guessing(Algorithm):
    """Clones what it does not guess yet."""

    columns = ("obs", "actions", "guess")

    def extend(self, pipeline: ConnectorPipelineV2) -> None:
        pipeline.append(Guess())

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {"policy": task.policy()}

    def groups(self, modules: Modules) -> list[Group]:
        policy: Any = modules["policy"]

        def loss(batch: Batch) -> dict[str, Any]:
            inputs = policy.forward_train(batch)["action_dist_inputs"]
            weights = (1.1 - batch["guess"]) * batch["weights"]
            return {"cloning": -torch.dot(policy.action_head.logp(inputs, batch["actions"]), weights)}

        return [Group(("policy",), ("cloning",), loss)]


class Refreshing(Guessing):
    refresh_every = 20


@pytest.fixture
def learn_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Algorithm]], None]:
    """Has runs learn by a class of this file, whatever their configuration names."""

    def use(kind: type[Algorithm]) -> None:
        Guess.calls = []
        monkeypatch.setattr(learners, "algorithm_kind", lambda name: kind)

    return use


OPTIONS: dict[str, Any] = {"updates": 45, "val_fraction": 0.25, "eval_every": 15, "seed": 4, "device": "cpu"}


def test_a_run_whose_columns_change_resumes_bit_for_bit(
    write_dataset: Write, config: Path, tmp_path: Path, learn_by: Callable[..., None]
) -> None:
    update = 33
    learn_by(Refreshing)
    data = write_dataset()
    train_bc(data, tmp_path / "whole", config=config, **OPTIONS)
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "cut", config=config, on_progress=signal_at(update), **OPTIONS)
    train_bc(data, tmp_path / "cut", resume=True)
    assert (tmp_path / "whole" / "policy.safetensors").read_bytes() == (tmp_path / "cut" / "policy.safetensors").read_bytes()
