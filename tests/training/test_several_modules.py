"""Several modules in one run: each learns as it would alone, and they are checked, kept and resumed together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import BadConfig, OfflineCliError, OutputExists, TargetNotMet, UsageError
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.recording.record import record
from offline_cli.training import several_modules
from offline_cli.training.several_modules import ModulesResult
from offline_cli.training.train import train

WALKERS = "python:agent_games:Walkers"
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 64, "device": "cpu", "checkpoint_every": 7}
SAMPLES = Path(__file__).resolve().parents[1] / "testdata" / "sample_batch"
CLOCK = ("seconds", "samples_per_second")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of three agents, each with a policy and module of its own."""
    out = tmp_path_factory.mktemp("games") / "D"
    policies = ["*=random", "left=python:agent_games:walk"]
    record(WALKERS, out, policy=policies, episodes=20, device="cpu")
    return out


def content(run: Path, *, without: tuple[str, ...] = ("result.json",)) -> dict[str, Any]:
    """Every file but those with times; rows without them."""
    found: dict[str, Any] = {}
    for file in sorted(run.rglob("*")):
        name = str(file.relative_to(run))
        if file.is_file() and file.name not in without and "checkpoints" not in name:
            found[name] = file.read_bytes()
            if file.name == "metrics.jsonl":
                rows = [json.loads(line) for line in found[name].splitlines()]
                found[name] = [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]
    return found


def test_each_module_learns_as_in_a_run_of_its_own(data: Path, tmp_path: Path) -> None:
    options = {**SMALL, "updates": 10}
    result = train(data, tmp_path / "run", module_of=["module_id"], **options)
    assert isinstance(result, ModulesResult)
    assert sorted(result.modules) == ["helper", "left", "right"]
    for name, one in result.modules.items():
        alone = train(data, tmp_path / name, module_id=name, **options)
        assert content(tmp_path / "run" / "modules" / name) == content(tmp_path / name)
        assert one["episodes"] == alone.episodes
    assert result.episodes == sum(one["episodes"] for one in result.modules.values())


@pytest.mark.parametrize(
    ("module_of", "wanted"),
    [
        (["*=shared"], {"shared": 3}),
        (["agent_id"], {"helper": 1, "left": 1, "right": 1}),
        (["*=others", "left=one"], {"one": 1, "others": 2}),
        (["*t=sides", "helper=third"], {"sides": 2, "third": 1}),
    ],
)
def test_an_agent_learns_in_the_module_that_is_named_last_for_it(
    module_of: list[str], wanted: dict[str, int], data: Path, tmp_path: Path
) -> None:
    train(data, tmp_path / "run", module_of=module_of, **SMALL, updates=2)
    agents = json.loads((tmp_path / "run" / "modules.json").read_text())["agents"]
    assert {name: list(agents.values()).count(name) for name in agents.values()} == wanted
    for name in wanted:
        assert load_policy(tmp_path / "run" / "modules" / name).checkpoint is None


@pytest.mark.parametrize(
    ("stops_in", "how"), [(5, {"streaming": True}), (28, {"env": WALKERS, "eval_every": 6, "eval_episodes": 3})]
)
def test_a_run_that_broke_off_is_resumed_to_the_same_files(
    stops_in: int, how: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "module_of": ["*=shared", "helper=late"], "updates": 15, "val_fraction": 0.2, **how}
    train(data, tmp_path / "whole", **options)
    advance, made = several_modules.Session.advance, 0

    def failing(self: Any, stop: Any) -> None:
        nonlocal made
        made += 1
        if made == stops_in:
            raise RuntimeError("the plug was pulled")
        advance(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(several_modules.Session, "advance", failing)
        with pytest.raises(RuntimeError):
            train(data, tmp_path / "broken", **options)
    result = train(data, tmp_path / "broken", **options, resume=True)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")
    again = train(data, tmp_path / "broken", **options, resume=True)
    assert again.as_dict() == result.as_dict()


def test_a_resumed_run_with_a_longer_bound_is_as_if_it_had_had_it_from_the_start(data: Path, tmp_path: Path) -> None:
    options = {**SMALL, "module_of": ["*=shared", "helper=late"], "env": WALKERS, "eval_every": 6, "eval_episodes": 3}
    train(data, tmp_path / "a", **options, updates=20)
    train(data, tmp_path / "b", **options, updates=9)
    train(data, tmp_path / "b", **options, updates=20, resume=True)
    one, other = content(tmp_path / "a"), content(tmp_path / "b")
    rows = [row for row in other.pop("metrics.jsonl") if row["updates"] != {"late": 9, "shared": 9}]
    assert rows == one.pop("metrics.jsonl")
    assert one == other


def test_the_modules_are_checked_together_and_the_confirmed_ones_kept(data: Path, tmp_path: Path) -> None:
    options = {**SMALL, "module_of": ["agent_id"], "env": WALKERS, "eval_every": 5, "updates": 30, "seed": 3}
    config = tmp_path / "config.toml"
    config.write_text("confirm_episodes = 6\n")
    result = train(data, tmp_path / "run", **options, until_return=-50.0, eval_episodes=4, config=config)
    assert isinstance(result, ModulesResult)
    assert (result.stopped_by, result.updates, result.policy_update, result.eval_episodes) == ("target", 5, 5, 6)
    assert sum(one["return_mean"] * one["games"] for one in result.return_by_agent.values()) / 6 == pytest.approx(
        result.eval_return_mean
    )
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["updates"] == dict.fromkeys(("helper", "left", "right"), 5)
    assert row["return_by_agent"] == result.return_by_agent


def test_where_the_target_is_missed_the_best_modules_of_one_check_are_kept(data: Path, tmp_path: Path) -> None:
    options = {**SMALL, "module_of": ["agent_id"], "env": WALKERS, "eval_every": 5, "updates": 20}
    with pytest.raises(TargetNotMet) as caught:
        train(data, tmp_path / "run", **options, until_return=1000.0, eval_episodes=4)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: row["eval_return_mean"])
    assert caught.value.details["eval_return_mean"] == best["eval_return_mean"]
    assert {name: one["policy_update"] for name, one in caught.value.details["modules"].items()} == best["updates"]


@pytest.mark.parametrize("algorithm", ["bc", "marwil", "iql", "td3-bc"])
def test_every_algorithm_learns_the_modules_of_several_agents(algorithm: str, tmp_path: Path) -> None:
    env_kwargs = {"continuous": algorithm == "td3-bc"}
    record(WALKERS, tmp_path / "D", policy="random", env_kwargs=env_kwargs, episodes=6, device="cpu")
    options = {**SMALL, "algorithm": algorithm, "module_of": ["*=shared", "helper=late"], "updates": 4}
    train(tmp_path / "D", tmp_path / "run", **options, env=WALKERS, env_kwargs=env_kwargs, eval_episodes=2)
    found = evaluate(tmp_path / "run", env=WALKERS, env_kwargs=env_kwargs, episodes=4, device="cpu")
    assert set(found.return_by_agent) == {"left", "right", "helper"}


MISTAKES: list[tuple[dict[str, Any], type[OfflineCliError], str]] = [
    ({"module_of": ["left=a"]}, BadConfig, "agent 'right' \\(20 episodes\\) has no module"),
    ({"module_of": ["*=a", "up=b"]}, BadConfig, "no agent is called 'up'"),
    ({"module_of": ["*=a/b"]}, BadConfig, "folders cannot be"),
    ({"module_of": ["left"]}, UsageError, "'left' says no module of an agent"),
    ({"module_of": ["agent_id", "*=a"]}, UsageError, "say no module of an agent"),
    ({"module_of": ["*=a"], "module_id": "left"}, UsageError, "exclude each other"),
    ({"module_of": ["*=a"], "env": "CartPole-v1"}, OfflineCliError, "CartPole"),
    ({"module_id": "left", "env": WALKERS}, BadConfig, "is an environment of several agents"),
    ({}, BadConfig, "one policy learns from one of them"),
]


@pytest.mark.parametrize(("options", "kind", "said"), MISTAKES)
def test_a_mistake_is_named_before_anything_is_written(
    options: dict[str, Any], kind: type[OfflineCliError], said: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        train(data, tmp_path / "run", **SMALL, **options, updates=2)
    assert not (tmp_path / "run").exists()


def test_a_run_folder_is_not_taken_for_another_kind(data: Path, tmp_path: Path) -> None:
    options = {**SMALL, "updates": 2}
    train(data, tmp_path / "one", module_id="left", **options)
    train(data, tmp_path / "several", module_of=["agent_id"], **options)
    for how in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(OutputExists):
            train(data, tmp_path / "one", module_of=["agent_id"], **options, **how)
        with pytest.raises(OutputExists):
            train(data, tmp_path / "several", module_id="left", **options, **how)
    with pytest.raises(OutputExists, match="a run is there already"):
        train(data, tmp_path / "several", module_of=["agent_id"], **options)
    with pytest.raises(OutputExists, match="other modules: helper, left, right"):
        train(data, tmp_path / "several", module_of=["*=shared"], **options, overwrite=True)
    with pytest.raises(BadConfig, match="resume with the data"):
        train(data, tmp_path / "several", module_of=["*=left"], **options, resume=True)
    train(data, tmp_path / "several", module_of=["agent_id"], **options, overwrite=True, seed=5)


def test_a_dry_run_writes_nothing(data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path / "run", module_of=["agent_id"], **SMALL, updates=2, dry_run=True)
    assert (result.stopped_by, (tmp_path / "run").exists()) == ("dry-run", False)


def test_agents_of_a_table_and_of_sample_batches_learn_too(tmp_path: Path) -> None:
    rows = ["game,player,step,x,a,r,end"]
    for game in range(6):
        for player in ("ann", "bob"):
            rows += [f"{game}-{player},{player},{t},{t / 4},{t % 2},1.0,{int(t == 3)}" for t in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    columns = {"eps_id": "game", "agent_id": "player", "t": "step", "obs": "x", "actions": "a", "rewards": "r", "dones": "end"}
    options: dict[str, Any] = {**SMALL, "updates": 2}
    train(tmp_path / "t.csv", tmp_path / "a", mapping={"columns": columns}, module_of=["ann=one", "bob=two"], **options)
    assert {path.name for path in (tmp_path / "a" / "modules").iterdir()} == {"one", "two"}
    batches = [json.loads((SAMPLES / "multi_agent_batch.json").read_text().splitlines()[0])]
    batches[0]["policy_batches"]["other"] = batches[0]["policy_batches"]["default_policy"]
    (tmp_path / "m.json").write_text(json.dumps(batches[0]) + "\n")
    train(tmp_path / "m.json", tmp_path / "b", module_of=["module_id"], action_scale="env", **options)
    assert {path.name for path in (tmp_path / "b" / "modules").iterdir()} == {"default_policy", "other"}
