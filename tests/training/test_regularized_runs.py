"""Moving averages of the policy, dropout, layer norm and limits of the spread: against torch's own, and as runs of `train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from sealed_runs import tell, told_in
from signal_at import signal_at
from torch import nn
from torch.optim.swa_utils import AveragedModel

from offline_cli import train
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, Interrupted
from offline_cli.modules.encoders import mlp
from offline_cli.modules.network import Mlp
from offline_cli.modules.policy_modules import build_module
from offline_cli.modules.rl_module import evaluating
from offline_cli.policies.run_files import tensors_of
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.algorithms.bc import bc_loss
from offline_cli.training.flat_adam import FlatAdam
from offline_cli.training.learner import Learner, cloning_learner
from offline_cli.training.updates import Update, captured

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
Call = Callable[..., tuple[int, dict[str, Any]]]

OBS = spaces.Box(-9.0, 9.0, (3,))
BOX = spaces.Box(-4.0, 4.0, (2,))
ALL = ("bc", "marwil", "iql", "td3-bc")
OPTIONS: dict[str, Any] = {"hidden": (16,), "batch_size": 32, "lr": 0.01, "updates": 40, "val_fraction": 0.25, "seed": 4}
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
    return tensors_of((run / "policy.safetensors").read_bytes())[0]


def last_checkpoint(run: Path) -> dict[str, Any]:
    (file,) = run.glob("checkpoints/*/tensors.safetensors")
    return tensors_of(file.read_bytes())[0]


# ---- the moving average ----


def test_the_moving_average_is_that_of_torch() -> None:
    module, batch = made()

    def ramped(average: Any, current: Any, seen: Any) -> Any:
        share = min(0.9, (1 + int(seen)) / (10 + int(seen)))
        return share * average + (1 - share) * current

    reference = AveragedModel(module, avg_fn=ramped)
    reference.update_parameters(module)  # begins with the first weights
    adam = FlatAdam(module.parameters(), lr=1e-2)
    average = adam.average(0.9)
    for _ in range(100):  # beyond 80, from where on the decay is what was asked for
        adam.zero_grad()
        bc_loss(module, batch).backward()
        adam.step()
        reference.update_parameters(module)
    for mine, theirs in zip(module.parameters(), reference.module.parameters(), strict=True):
        torch.testing.assert_close(average.of(mine), theirs, rtol=1e-4, atol=1e-6)


def test_the_moving_average_changes_no_step() -> None:
    ends = []
    for ema in (None, 0.9):
        module, batch = made()
        update = Update(cloning_learner(module), batch, lr=1e-2, ema=ema)
        for number in range(20):
            update(number)
        ends.append(torch.cat([part.detach().reshape(-1) for part in module.parameters()]))
    assert torch.equal(*ends)


def test_what_is_checked_is_the_moving_average_and_what_is_stepped_comes_back() -> None:
    module, batch = made()
    update = Update(cloning_learner(module), batch, lr=1e-2, ema=0.9)
    for number in range(20):
        update(number)
    stepped = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in update.policy_state().items()}
    with update.kept_policy():
        assert all(torch.equal(tensor, kept[name]) for name, tensor in module.state_dict().items())
    assert all(torch.equal(tensor, stepped[name]) for name, tensor in module.state_dict().items())
    assert not any(torch.equal(kept[name], tensor) for name, tensor in stepped.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device, and torch finds none")
def test_a_captured_update_moves_the_average_as_an_eager_one_does() -> None:
    ends = []
    for capture in (False, True):
        module, batch = made(layer_norm=True)
        on_device = {name: tensor.cuda() for name, tensor in batch.items()}
        update = Update(cloning_learner(module.cuda()), on_device, lr=1e-2, ema=0.9)
        launch = captured(update) if capture else update
        for number in range(20):
            launch(number)
        ends.append({name: tensor.clone() for name, tensor in update.changing().items()})
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", ALL)
def test_the_policy_of_a_run_is_the_average_and_checkpoints_hold_both(data: Path, tmp_path: Path, algorithm: str) -> None:
    run = run_of(data, tmp_path / "run", algorithm=algorithm, ema=0.95, val_fraction=None)
    found = last_checkpoint(run)
    for name, tensor in weights_in(run).items():
        assert torch.equal(found[f"modules.policy.{name}"], tensor)
        assert not torch.equal(found[f"stepped.{name}"], tensor)
    module = load_policy(run).module
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in weights_in(run).items())


def test_the_best_policy_is_an_average_too(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path / "run", algorithm="bc", ema=0.95, eval_every=10)
    kept = json.loads((run / "result.json").read_text())["policy_update"]
    before = "modules.policy." if kept == OPTIONS["updates"] else "best."  # the last checkpoint is of before the last check
    found = last_checkpoint(run)
    assert all(torch.equal(found[f"{before}{name}"], tensor) for name, tensor in weights_in(run).items())
    plain = run_of(data, tmp_path / "plain", algorithm="bc", eval_every=10)
    rows = [[row["val_loss"] for row in comparable(one)[1] if "val_loss" in row] for one in (run, plain)]
    losses = [[row["loss"] for row in comparable(one)[1]] for one in (run, plain)]
    assert (losses[0] == losses[1], rows[0] == rows[1]) == (True, False)


def test_the_last_checkpoint_of_a_run_that_was_stopped_plays_the_average(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(data, tmp_path / "run", algorithm="bc", ema=0.95, **OPTIONS, on_progress=signal_at(15))
    found = last_checkpoint(tmp_path / "run")
    module = load_policy(tmp_path / "run").module
    for name, tensor in module.state_dict().items():
        assert torch.equal(found[f"modules.policy.{name}"], tensor)


# ---- dropout and layer norm ----


def test_a_network_with_layer_norm_computes_what_torchs_layers_do() -> None:
    torch.manual_seed(1)
    network = mlp([3, 8, 8, 2], "tanh", layer_norm=True)
    layers: list[nn.Module] = []
    for width, next_width in ((3, 8), (8, 8)):
        layers += [nn.Linear(width, next_width), nn.Tanh(), nn.LayerNorm(next_width)]
    reference = nn.Sequential(*layers, nn.Linear(8, 2))
    for mine, theirs in zip(network.parameters(), reference.parameters(), strict=True):
        theirs.data.copy_(mine.data.add_(torch.randn_like(mine) * 0.1))
    seen = torch.randn(5, 3)
    assert torch.equal(network(seen), reference(seen))


def test_without_dropout_losses_and_gradients_are_what_they_were() -> None:
    (plain, batch), (zero, _) = made(), made(dropout=0.0)
    losses = [bc_loss(module, batch) for module in (plain, zero)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), zero.parameters(), strict=True))


def test_dropout_begins_with_the_same_weights_by_the_same_names() -> None:
    plain, dropping = made()[0].state_dict(), made(dropout=0.5)[0].state_dict()
    assert all(torch.equal(tensor, dropping[name]) for name, tensor in plain.items())
    assert plain.keys() == dropping.keys()


def test_dropout_acts_where_a_gradient_is_computed_and_nowhere_else() -> None:
    (module, batch), (plain, _) = made(dropout=0.5), made()
    assert not torch.equal(bc_loss(module, batch), bc_loss(plain, batch))
    with torch.no_grad():  # as targets are made
        assert torch.equal(bc_loss(module, batch), bc_loss(plain, batch))
    with evaluating(module):
        assert torch.equal(bc_loss(module, batch), bc_loss(plain, batch))
    assert torch.equal(module.act(batch["obs"]), plain.act(batch["obs"]))


def learner(name: str, network: Mlp, **options: Any) -> Learner:
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    return Learner.of(kind({**defaults, **options}), Task(OBS, BOX, "env", network))


@pytest.mark.parametrize("name", ["marwil", "iql", "td3-bc"])
def test_critics_have_the_layers_that_the_network_has(name: str) -> None:
    network = Mlp({"hidden": [8, 8], "activation": "relu", "dropout": 0.1, "layer_norm": True})
    for module in learner(name, network).modules.values():
        kinds = [type(part) for part in module.modules()]
        heads = kinds.count(nn.Linear) // 3
        assert (kinds.count(nn.LayerNorm), sum(issubclass(kind, nn.Dropout) for kind in kinds)) == (2 * heads, 2 * heads)


def test_td3_bc_normalises_the_layers_of_its_critics_alone_where_asked() -> None:
    found = learner("td3-bc", Mlp({"hidden": [8, 8], "activation": "relu"}), critic_layer_norm=True).modules
    normed = {name for name, module in found.items() if any(isinstance(part, nn.LayerNorm) for part in module.modules())}
    assert normed == {"critics", "target_critics"}


@pytest.mark.parametrize("algorithm", ALL)
def test_a_policy_with_layer_norm_is_read_back_as_it_was_trained(data: Path, tmp_path: Path, algorithm: str) -> None:
    run = run_of(data, tmp_path / "run", algorithm=algorithm, layer_norm=True, dropout=0.2)
    described = told_in(run / "policy.json")
    assert (described["version"], described["mlp"]["layer_norm"], "gaussian" in described) == (
        5,
        True,
        algorithm in ("iql", "td3-bc"),
    )
    module: Any = load_policy(run).module
    assert any(isinstance(part, nn.LayerNorm) for part in module.modules())
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in weights_in(run).items())


def test_a_policy_with_dropout_is_described_as_one_without(data: Path, tmp_path: Path) -> None:
    runs = [run_of(data, tmp_path / str(rate), algorithm="bc", dropout=rate) for rate in (None, 0.2)]
    assert told_in(runs[0] / "policy.json") == told_in(runs[1] / "policy.json")
    assert comparable(runs[0])[0] != comparable(runs[1])[0]


@pytest.mark.parametrize("told", [None, False, 1, "yes"])
def test_a_description_whose_layer_norm_is_no_truth_is_bad_data(data: Path, tmp_path: Path, told: Any) -> None:
    run = run_of(data, tmp_path / "run", algorithm="bc", layer_norm=True, updates=2)
    tell(run / "policy.json", {**told_in(run / "policy.json"), "mlp": {"layer_norm": told}})
    with pytest.raises(BadData):
        load_policy(run)


# ---- limits of the spread ----


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
    ("algorithm", "asked", "what"),
    [
        ("td3-bc", {"log_std_min": -6.0}, "the algorithm learns no spread of actions"),
        ("bc", {"log_std_min": 3.0}, "from 3 to 2; the algorithm's is from -3 to 2"),
        ("bc", {"log_std_min": 1, "log_std_max": -1}, "--log-std-min 1 is above --log-std-max -1"),
    ],
)
def test_limits_that_limit_nothing_are_refused(
    data: Path, tmp_path: Path, algorithm: str, asked: dict[str, float], what: str
) -> None:
    with pytest.raises(Exception, match=what) as caught:
        run_of(data, tmp_path / "run", algorithm=algorithm, **asked)
    assert getattr(caught.value, "exit_code", None) in (2, 4)
    assert not (tmp_path / "run").exists()


def test_limits_of_the_spread_of_choices_are_refused(write_dataset: Write, make_batch: Make, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="they limit the spread of Box actions"):
        run_of(write_dataset(make_batch()), tmp_path / "run", algorithm="bc", log_std_min=-5.0)


# ---- runs ----


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("algorithm", ALL)
def test_a_run_that_was_stopped_ends_with_the_same_bytes(data: Path, tmp_path: Path, algorithm: str, streaming: bool) -> None:
    options = {**OPTIONS, "algorithm": algorithm, "streaming": streaming, "ema": 0.9, "dropout": 0.3, "layer_norm": True}
    if algorithm == "marwil" and streaming:
        options["set"] = {"refresh_every": 0}
    train(data, tmp_path / "whole", **options)
    for update in (13, 25):
        with pytest.raises(Interrupted):
            train(data, tmp_path / "cut", **{**options, "resume": True}, on_progress=signal_at(update))
    torch.manual_seed(99)  # chance is the run's own
    train(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


def test_options_that_were_not_given_leave_no_trace(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path / "run", algorithm="td3-bc", updates=2)
    text = (run / "config.toml").read_text()
    assert not [name for name in ("ema", "dropout", "layer_norm", "log_std") if name in text]
    assert told_in(run / "policy.json")["version"] == 4
    assert not [name for name in last_checkpoint(run) if name.startswith("stepped.")]


def test_command_and_file_take_the_options(data: Path, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "mine.toml"
    head = "hidden = [16]\nbatch_size = 32\nema = 0.9\nlog_std_min = -4.0\n"
    file.write_text(head + '[network]\nname = "mlp"\ndropout = 0.1\nlayer_norm = true\n')
    flags = ("--hidden", 16, "--batch-size", 32, "--ema", 0.9, "--log-std-min=-4", "--dropout", 0.1, "--layer-norm")
    bound = ("--updates", 3, "--device", "cpu")
    assert call("train", data, "--out", tmp_path / "train", *flags, *bound)[0] == 0
    assert call("train-bc", data, "--out", tmp_path / "file", "--config", file, *bound)[0] == 0
    for name in ("config.toml", "policy.json", "policy.safetensors"):
        assert (tmp_path / "train" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()
    code, told = call("train", data, "--out", tmp_path / "train", "--resume", "--ema", 0.8)
    assert (code, "ema: the run has 0.9, this call asks for 0.8" in told["error"]["what"]) == (4, True)


def test_all_mistakes_are_told_at_once(data: Path, tmp_path: Path, call: Call) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('ema = 1.5\ndropout = 1.0\nlog_std_min = inf\nlayer_norm = "yes"\n')
    code, told = call("train", data, "--out", tmp_path / "run", "--config", file)
    assert (code, sorted(told["error"]["problems"])) == (
        4,
        [
            "dropout: must be a number at least 0 and below 1, not 1.0",
            "ema: must be a number above 0 and below 1, not 1.5",
            "layer_norm: must be true or false, not 'yes'",
            "log_std_min: must be a finite number, not inf",
        ],
    )
    code, told = call("train", data, "--out", tmp_path / "run", "--ema", 1.5, "--dropout", 1.0)
    assert (code, told["error"]["what"]) == (2, "--dropout 1 is not below 1; --ema 1.5 is not below 1")


def test_the_network_of_another_package_has_layers_of_its_own(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('layer_norm = true\ndropout = 0.5\n[network]\nname = "residual"\n')
    code, told = call("train", data, "--out", tmp_path / "run", "--config", file)
    assert code == 4
    wanted = [f"{name}: an option of the network 'mlp'; others have theirs in [network]" for name in ("dropout", "layer_norm")]
    assert set(wanted) <= set(told["error"]["problems"])


def test_a_shape_of_network_without_layer_norm_says_so() -> None:
    from offline_cli.modules.network import Network

    class Other(Network):
        def features(self, observation_space: Any, *, uint8_scaling: str = "") -> Any:
            raise AssertionError

    task = replace(Task(OBS, BOX, "env", Mlp({})), network=Other({}))
    with pytest.raises(BadConfig, match="the network Other has no layer norm to add"):
        task.critic(layer_norm=True)
