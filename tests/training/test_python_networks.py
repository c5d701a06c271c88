"""A network that is the user's own code: trained, kept by name and weights, and imported only where the user names it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from edited_json import told_in

from offline_cli import evaluate, export, load_policy, record, train
from offline_cli.datasets.dataset import open_dataset
from offline_cli.errors import BadConfig, OutputExists
from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]
CODE = """
import torch
from torch import nn
from pathlib import Path
from offline_cli import RLModule
from offline_cli.modules.network import Network
from offline_cli.modules.python_network import action_inputs

(Path(__file__).parent / "ran").touch()

def build(observation_space, action_space, options):
    width = options.get("width", 8)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, action_inputs(action_space)))

class Features(nn.Module):
    def __init__(self, observation_space, action_space, options):
        super().__init__()
        self.size, self.layer = 8, nn.Linear(3, 8)
    def forward(self, observations):
        return torch.relu(self.layer(observations))

class Own(RLModule):
    def __init__(self, *spaces, **kwargs):
        super().__init__(*spaces, **kwargs)
        self.layer = nn.Linear(3, self.model_config.get("width", 2))
        self.last = nn.Linear(self.model_config.get("width", 2), 2)
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.last(self.layer(batch["obs"]))}

class Remembering(RLModule):
    def __init__(self, *spaces, **kwargs):
        super().__init__(*spaces, **kwargs)
        self.cells, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)
    def get_initial_state(self):
        return {"h": torch.zeros(5)}
    def _forward(self, batch, **kwargs):
        outputs, after = self.cells(batch["obs"], batch["state_in"]["h"][None].contiguous())
        return {"action_dist_inputs": self.last(outputs), "state_out": {"h": after[0]}}

class Kind(Network):
    schema = {"properties": {"width": {"type": "integer", "minimum": 1, "default": 4}}}
    def features(self, observation_space):
        made = nn.Linear(3, self.options["width"])
        made.size = self.options["width"]
        return made

def too_wide(observation_space, action_space, options):
    return nn.Linear(3, 7)
def too_narrow_features(observation_space, action_space, options):
    made = nn.Linear(3, 5)
    made.size = 6
    return made
class Detached(nn.Linear):
    def __init__(self, observation_space, action_space, options):
        super().__init__(3, 2)
    def forward(self, observations):
        return super().forward(observations).detach()
def of_other_inputs(observation_space, action_space, options):
    return nn.Linear(4, 2)
def of_two(observation_space, action_space): ...
def nothing(observation_space, action_space, options): ...
constant = 3
class Unlearnable(nn.Module):
    def __init__(self, observation_space, action_space, options):
        super().__init__()
    def forward(self, observations):
        return torch.zeros(len(observations), 2)
class Forgetful(Own):
    def __init__(self, *spaces, model_config):
        super().__init__(*spaces, model_config={"max_seq_len": 5})
    def get_initial_state(self):
        return {"h": torch.zeros(5)}
class Unconfigured(Own):
    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
class Silent(Own):
    def _forward(self, batch, **kwargs):
        return {"logits": self.last(self.layer(batch["obs"]))}
"""
OPTIONS: dict[str, Any] = {"updates": 24, "batch_size": 32, "lr": 0.01, "device": "cpu"}
BUILD = "python:own_net:build"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the code of CODE, in the current folder, has run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text(CODE)
    yield tmp_path / "ran"
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name == "own_net" or name.endswith("_own_net")]:
        del sys.modules[name]


@pytest.fixture
def data(write_dataset: Write, code: Path) -> Path:
    return write_dataset()


@pytest.fixture
def run(data: Path, code: Path, tmp_path: Path) -> Path:
    """A finished run of the function, whose code has not been imported since."""
    (tmp_path / "c.toml").write_text("[network]\nwidth = 6\n")
    train_bc(data, tmp_path / "run", network=BUILD, config=tmp_path / "c.toml", env="Sign-v0", eval_episodes=2, **OPTIONS)
    forget()
    code.unlink()
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["build", "Features", "Own", "Kind"])
def test_a_function_and_classes_of_each_kind_learn(data: Path, tmp_path: Path, told: Told, name: str) -> None:
    words = ["train-bc", data, "--out", tmp_path / "run", "--network", f"python:own_net:{name}", "--lr", 0.03]
    found = told(*words, "--updates", 150, "--batch-size", 64, "--device", "cpu", "--val-fraction", 0.2)
    assert found["val_accuracy"] > 0.9
    described = told_in(tmp_path / "run" / "policy.json")
    assert described["network"]["name"] == f"python:own_net:{name}"
    played = ["evaluate", tmp_path / "run", "--env", "Sign-v0", "--episodes", 4, "--network", f"python:own_net:{name}"]
    assert told(*played)["return_mean"] > 8


def test_a_module_in_rllibs_manner_with_a_memory_learns_from_sequences_and_plays_with_its_state(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("[network]\nmax_seq_len = 5\n")
    name = "python:own_net:Remembering"
    train_bc(data, tmp_path / "run", network=name, config=tmp_path / "c.toml", **OPTIONS)
    record("Sign-v0", tmp_path / "out", policy=str(tmp_path / "run"), network=name, episodes=3, vectorize="sync", device="cpu")
    policy = load_policy(tmp_path / "run", network=name)
    for batch in open_dataset(str(tmp_path / "out")).batches():
        for episode in batch:
            policy.reset()
            for step in range(len(episode)):
                assert policy.act(episode.get_observations(step)) == episode.get_actions(step)


# ---- what a run folder does not get to choose ----


@pytest.mark.parametrize("command", ["evaluate", "record", "resume", "init-from"])
def test_no_code_is_imported_because_a_run_folder_names_it(
    run: Path, code: Path, data: Path, tmp_path: Path, command: str
) -> None:
    def use(network: str | None) -> Any:
        match command:
            case "evaluate":
                return evaluate(run, env="Sign-v0", episodes=2, network=network)
            case "record":
                return record("Sign-v0", tmp_path / "out", policy=str(run), episodes=2, network=network)
            case "resume":
                return train_bc(data, run, resume=True, updates=45, network=network)
            case "init-from":
                config = tmp_path / "c.toml" if network else None
                return train(data, tmp_path / "next", init_from=run, updates=2, network=network, config=config)
            case "export":
                pytest.importorskip("onnxruntime")
                return export(run, tmp_path / "policy.onnx", to="onnx", network=network)
        return load_policy(run, network=network)

    with pytest.raises(BadConfig) as caught:
        use(None)
    assert caught.value.fix.endswith(f"--network {BUILD}")
    assert not code.exists()
    assert not (tmp_path / "next").exists()
    use(BUILD)
    assert code.exists()


def test_code_of_other_weights_is_refused_with_the_weights_and_shapes_that_differ(
    run: Path, tmp_path: Path, call: Call
) -> None:
    (tmp_path / "own_net.py").write_text(CODE.replace("nn.Linear(width, action", "nn.Linear(width, 9), nn.Linear(9, action"))
    code, found = call("evaluate", run, "--env", "Sign-v0", "--network", BUILD)
    assert (code, found["error"]["code"]) == (4, "bad-config")
    assert all(named in found["error"]["what"] for named in ("network.2.weight", "[2, 6]", "[9, 6]"))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("too_wide", r"\(32, 7\)"),
        ("too_narrow_features", r"\(32, 5\).*\(32, 6\)"),
        ("Detached", None),
        ("of_other_inputs", None),
        ("of_two", "of_two"),
        ("nothing", "torch.nn.Module"),
        ("constant", None),
        ("Silent", "'action_dist_inputs'"),
        ("Unlearnable", "network of python:own_net:Unlearnable has no trainable parameters"),
        ("Forgetful", "'state_out'"),
        ("Unconfigured", r"Unconfigured\(observation_space, action_space\).*model_config"),
        ("Remembering", None),
        ("buld", "'buld'"),
    ],
)
def test_a_mistake_is_exit_4(data: Path, tmp_path: Path, name: str, named: str | None) -> None:
    with pytest.raises(BadConfig, match=named) as caught:
        train_bc(data, tmp_path / "run", network=f"python:own_net:{name}", **OPTIONS)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("seeds", [None, 2])
def test_the_corrected_command_runs_after_a_network_failed_in_its_first_batch_but_no_trained_run_is_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    with pytest.raises(BadConfig):
        train_bc(data, tmp_path / "run", network="python:own_net:too_wide", seeds=seeds, **OPTIONS)
    assert train_bc(data, tmp_path / "run", network=BUILD, seeds=seeds, **OPTIONS).updates == 24 * (seeds or 1)
    for result in (tmp_path / "run").rglob("result.json"):
        result.unlink()
    with pytest.raises(OutputExists):
        train_bc(data, tmp_path / "run", network=BUILD, seeds=seeds, **OPTIONS)
