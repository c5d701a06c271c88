"""An algorithm, a network and a piece of another package (tests/plugins/cloning): trained, resumed, streamed, played."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed_packages import Install

from offline_cli.training.train import train_bc

Write = Callable[..., Path]
Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]
PACKAGE = "valued-cloning"
CONFIG = """
batch_size = 32
lr = 0.01
log_every = 7
checkpoint_every = 10
[algorithm]
name = "valued_cloning"
tau = 0.1
[network]
name = "residual"
width = 8
"""
OPTIONS: dict[str, Any] = {"updates": 46, "val_fraction": 0.25, "eval_every": 15, "seed": 4, "device": "cpu"}
pytestmark = pytest.mark.usefixtures("valued_cloning")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The package's algorithm, with its network."""
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path / "c.toml"


@pytest.fixture
def run(write_dataset: Write, config: Path, tmp_path: Path) -> Path:
    """A finished run of it."""
    train_bc(write_dataset(), tmp_path / "run", config=config, **{**OPTIONS, "updates": 10})
    return tmp_path / "run"


def is_imported() -> bool:
    return any(name.partition(".")[0] == "valued_cloning" for name in sys.modules)


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "valued_cloning"]:
        del sys.modules[name]


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if "second" not in name} for row in found]


def test_train_bc_trains_with_an_algorithm_that_a_config_file_names(
    write_dataset: Write, config: Path, tmp_path: Path, told: Told
) -> None:
    found = told(
        "train-bc", write_dataset(), "--out", tmp_path / "run", "--config", config, "--updates", 200, "--device", "cpu"
    )
    assert found["losses"].keys() == {"value", "cloning", "entropy"}
    assert found["loss"] == pytest.approx(sum(found["losses"].values()))
    first, last = rows(tmp_path / "run")[0], rows(tmp_path / "run")[-1]
    assert {"value_loss", "cloning_loss", "entropy_loss"} < first.keys()
    assert last["cloning_loss"] < 0.7 * first["cloning_loss"]
    assert first["loss"] == pytest.approx(first["value_loss"] + first["cloning_loss"] + first["entropy_loss"])


ENVIRONMENT = """
import gymnasium, numpy
class Still(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (3,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(3, numpy.float32), 1.0, True, False, {}
"""


@pytest.mark.parametrize("runners", [0, pytest.param(1, marks=pytest.mark.integration)])
def test_its_policy_is_evaluated_and_recorded_once_its_package_is_named(
    run: Path, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, runners: int
) -> None:
    (tmp_path / "still_environment.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    env = "python:still_environment:Still"
    played = ["--env", env, "--episodes", 5, "--num-env-runners", runners, "--plugin", PACKAGE]
    assert told("evaluate", run, *played)["episodes"] == 5
    options = ["--policy", run, "--episodes", 3, "--num-env-runners", runners, "--plugin", PACKAGE]
    assert told("record", env, "--out", tmp_path / "recorded", *options)["episodes"] == 3


def test_resuming_imports_what_the_run_folder_names_once_its_package_is_named(
    run: Path, write_dataset: Write, call: Call, told: Told
) -> None:
    data, options = run.parent / "data", ["--updates", 12, "--resume"]
    forget()
    code, found = call("train-bc", data, "--out", run, *options)
    assert (code, "--plugin valued-cloning" in found["error"]["fix"]) == (4, True)
    assert not is_imported()
    assert told("train-bc", data, "--out", run, *options, "--plugin", PACKAGE)["updates"] == 12


def test_all_mistakes_of_the_tables_are_reported_together_by_key(write_dataset: Write, tmp_path: Path, call: Call) -> None:
    (tmp_path / "c.toml").write_text(
        'lr = 0\nhidden = [3]\n[algorithm]\nname = "valued_cloning"\ntau = 2\ngama = 0.9\n'
        '[network]\nname = "residual"\nwidth = "wide"\n'
    )
    code, found = call("train-bc", write_dataset(), "--out", tmp_path / "run", "--config", tmp_path / "c.toml")
    assert code == 4
    problems = " | ".join(found["error"]["problems"])
    for words in (
        "lr: should be greater than 0, not 0",
        "'gama' was unexpected",
        "algorithm.tau: 2",
        "network.width: 'wide'",
        "hidden: only for",
    ):
        assert words in problems
    assert not (tmp_path / "run").exists()


def test_a_plugin_that_fails_to_import_is_named_with_its_package_when_it_is_asked_for(
    write_dataset: Write, tmp_path: Path, install: Install, call: Call
) -> None:
    install("torn-package", {"algorithms": {"torn": "torn:Torn"}}, torn="raise RuntimeError('no licence')")
    (tmp_path / "c.toml").write_text('[algorithm]\nname = "torn"\n')
    code, found = call("train-bc", write_dataset(), "--out", tmp_path / "run", "--config", tmp_path / "c.toml")
    assert code == 6
    assert (
        "algorithm 'torn' of the package torn-package cannot be imported: RuntimeError('no licence')" in found["error"]["what"]
    )
    assert "torn-package" in found["error"]["fix"]


FAULTY = """
from offline_cli.training.algorithms import Algorithm, Group
from offline_cli.training.algorithms.bc import BC
class Raising(BC):
    def modules(self, task):
        raise RuntimeError("boom")
class Misnamed(BC):
    def groups(self, modules):
        return [Group(("policy",), ("nll",), lambda batch: {"other": modules["policy"]})]
class Half(Algorithm):
    def modules(self, task):
        return {"policy": task.policy()}
class Unlike(BC):
    def groups(self, modules):
        def loss(batch):
            return self.changed({"nll": super(Unlike, self).groups(modules)[0].loss(batch)["nll"]})
        return [Group(("policy",), ("nll",), loss)]
class Rows(Unlike):
    def changed(self, losses):
        return {"nll": losses["nll"].expand(32, 2)}
class Bare(Unlike):
    def changed(self, losses):
        return losses["nll"]
class Detached(Unlike):
    def changed(self, losses):
        return {"nll": losses["nll"].detach()}
"""


@pytest.mark.parametrize(
    ("kind", "code", "what"),
    [
        ("Raising", 3, "the package faulty raised RuntimeError('boom')"),
        ("Misnamed", 4, "Misnamed: the losses ['nll'] cannot be minimised"),
        ("Half", 4, "algorithm 'it' of the package faulty lacks groups"),
        ("Rows", 4, "Rows: the losses ['nll'] cannot be minimised"),
        ("Bare", 4, "Bare: the losses ['nll'] cannot be minimised"),
        ("Detached", 4, "Detached: the losses ['nll'] cannot be minimised"),
    ],
)
def test_faults_of_an_algorithm_are_told_as_its_own(
    write_dataset: Write, tmp_path: Path, install: Install, call: Call, kind: str, code: int, what: str
) -> None:
    install("faulty", {"algorithms": {"it": f"faulty:{kind}"}}, faulty=FAULTY)
    (tmp_path / "c.toml").write_text('[algorithm]\nname = "it"\n')
    found = call("train-bc", write_dataset(), "--out", tmp_path / "run", "--config", tmp_path / "c.toml")
    assert (found[0], what in found[1]["error"]["what"]) == (code, True)
