"""IQL and TD3+BC as runs: what bootstraps, what counts, which spaces; runs stop, stream and resume as others do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from signal_at import signal_at
from stored_steps import columns_in
from torch import Tensor

from offline_cli.applying import learner_batches
from offline_cli.connectors.learner.added_columns import AddNextActionsFromEpisodesToTrainBatch
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, Diverged, Interrupted
from offline_cli.modules.network import Mlp
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.algorithms.bc import bc_loss
from offline_cli.training.config import resolve_config
from offline_cli.training.disk_store import StoreForm
from offline_cli.training.learner import Learner
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import load_data
from offline_cli.training.updates import Update, captured
from offline_cli.trees import map_leaves

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
Call = Callable[..., tuple[int, dict[str, Any]]]
NAMES = ("iql", "td3-bc")
LOSSES = {"iql": ["value", "q", "policy"], "td3-bc": ["q", "policy", "cloning"]}
OBS = spaces.Box(-9.0, 9.0, (3,))
BOX = spaces.Box(-4.0, 4.0, (2,))
NESTED = spaces.Dict({"arm": BOX, "legs": spaces.Tuple([spaces.Box(0.0, 1.0, (2, 2)), spaces.Box(-1.0, 1.0, ())])})
MIXED = spaces.Dict({"arm": BOX, "mode": spaces.MultiDiscrete([2, 3])})
OPTIONS: dict[str, Any] = {"updates": 45, "val_fraction": 0.25, "eval_every": 15, "seed": 4, "device": "cpu"}


def learner(name: str, actions: spaces.Space[Any] = BOX, **options: Any) -> Learner:
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    algorithm = kind({**defaults, **options})
    algorithm.check(OBS, actions)
    return Learner.of(algorithm, Task(OBS, actions, "env", Mlp({"hidden": [8], "activation": "tanh"})))


def steps(actions: spaces.Space[Any] = BOX, rows: int = 16) -> dict[str, Any]:
    """A batch of actions in the units of networks."""
    g = torch.Generator().manual_seed(0)

    def drawn(space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: drawn(part) for key, part in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(drawn, space))
        if isinstance(space, spaces.Box):
            return torch.rand((rows, *space.shape), generator=g) * 2 - 1
        high = torch.as_tensor(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)
        return (torch.rand((rows, *high.shape), generator=g) * high).long()

    return {
        "obs": torch.randn(rows, 3, generator=g),
        "actions": drawn(actions),
        "rewards": torch.randn(rows, generator=g),
        "terminateds": torch.rand(rows, generator=g) < 0.3,
        "new_obs": torch.randn(rows, 3, generator=g),
        "next_actions": drawn(actions),
        "is_followed": torch.rand(rows, generator=g) < 0.8,
        "weights": torch.full((rows,), 1 / rows),
    }


def losses(made: Learner, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {name: loss for group in made.groups for name, loss in group.loss(batch).items()}


def config(folder: Path, name: str, **options: Any) -> Path:
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in {"name": name, **options}.items())
    file = folder / f"{name}.toml"
    file.write_text(
        f"hidden = [16]\nbatch_size = 32\nlr = 0.01\nlog_every = 7\ncheckpoint_every = 10\n[algorithm]\n{table}",
        encoding="utf-8",
    )
    return file


@pytest.fixture
def data(write_dataset: Write, make_batch: Make) -> Path:
    """Box actions in [-4, 4], recorded in these units."""
    return write_dataset(make_batch(continuous=True), action_scale="env")


# ---- the formulas ----


def test_discrete_iql_is_what_its_formulas_say() -> None:
    """Against numpy, written down from Kostrikov et al. 2021, equations 5 to 7, with an expectile of 0.9."""
    made, batch = learner("iql", spaces.Discrete(3), expectile=0.9, temperature=2.0, max_weight=0.8), steps(spaces.Discrete(3))
    batch["actions"] = batch["actions"].reshape(-1)
    obs, new_obs, actions = (batch[name].double().numpy() for name in ("obs", "new_obs", "actions"))
    one_hot = np.eye(3)[actions.astype(int)]

    def layers(module: Any, inputs: Any) -> Any:
        first, last = ({k: p.detach().double().numpy() for k, p in module[at].named_parameters()} for at in (0, 2))
        return np.tanh(inputs @ first["weight"].T + first["bias"]) @ last["weight"].T + last["bias"]

    modules: Any = made.modules
    with torch.no_grad():
        for parameter in modules["target_critics"].parameters():
            parameter.mul_(1.3)  # not what the critics are
    value, after = (layers(modules["value"].trunk, seen)[:, 0] for seen in (obs, new_obs))
    pairs = {
        name: [layers(critic.trunk, np.hstack([obs, one_hot]))[:, 0] for critic in modules[name]]
        for name in ("critics", "target_critics")
    }
    advantages = np.minimum(*pairs["target_critics"]) - value
    target = batch["rewards"].numpy() + 0.99 * (1 - batch["terminateds"].numpy()) * after
    logits = layers(modules["policy"].network, obs)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    weights = np.minimum(np.exp(2.0 * advantages), 0.8)
    wanted = {
        "value": (np.where(advantages < 0, 0.1, 0.9) * advantages**2).mean(),
        "q": sum(((q - target) ** 2).mean() for q in pairs["critics"]),
        "policy": -(weights * (logp * one_hot).sum(-1)).mean(),
    }
    assert {name: float(loss.detach()) for name, loss in losses(made, batch).items()} == pytest.approx(wanted, rel=1e-5)
    assert 0 < int((weights == 0.8).sum()) < len(weights)


def test_iql_of_temperature_0_clones() -> None:
    made, batch = learner("iql", temperature=0.0), steps()
    torch.testing.assert_close(losses(made, batch)["policy"], bc_loss(made.policy, batch))


@pytest.mark.parametrize("name", NAMES)
def test_a_terminated_step_has_no_value_after_it_and_a_truncated_one_has(name: str) -> None:
    made, batch = learner(name, gamma=0.5, reward_scale=3.0, reward_shift=-1.0), steps()
    algorithm: Any = made.algorithm
    torch.manual_seed(3)
    targets = algorithm.targets(made.modules, {**batch, "truncateds": torch.ones(16, dtype=torch.bool)})
    torch.manual_seed(3)
    values = (
        algorithm.targets(made.modules, {**batch, "rewards": torch.full((16,), 1 / 3), "terminateds": torch.zeros(16)}) / 0.5
    )
    rewards = batch["rewards"] * 3 - 1
    torch.testing.assert_close(targets, torch.where(batch["terminateds"], rewards, rewards + 0.5 * values))
    assert float(values.abs().min()) > 0


@pytest.mark.parametrize("options", [{"critic_bc": 0.4}, {"critic_bc": 0.4, "gamma": 0.0}])
def test_targets_of_rebrac_lose_by_the_distance_from_the_next_recorded_action(options: dict[str, Any]) -> None:
    batch = steps()
    found = []
    for factor in (0.0, options["critic_bc"]):
        made = learner("td3-bc", **{**options, "critic_bc": factor, "policy_noise": 0.0})
        algorithm: Any = made.algorithm
        found.append(algorithm.targets(made.modules, batch))
    head, inputs = made.policy.action_head, made.policy.forward_train({"obs": batch["new_obs"]})["action_dist_inputs"]
    far = (head.greedy(inputs) - batch["next_actions"]).square().mean(-1) * batch["is_followed"]
    discount = options.get("gamma", 0.99) * (1 - batch["terminateds"].float())
    torch.testing.assert_close(found[0] - found[1], discount * 0.4 * far)


def test_the_policy_of_rebrac_follows_the_smaller_critic_and_may_leave_q_as_it_is() -> None:
    made, batch = learner("td3-bc", policy_q="min", normalize_q=False, alpha=1.0, actor_bc=0.3), steps()
    found = losses(made, batch)
    inputs = made.policy.forward_train(batch)["action_dist_inputs"]
    actions = made.policy.action_head.greedy(inputs)
    critics: Any = made.modules["critics"]
    smaller = torch.minimum(*[critic(batch["obs"], actions)[:, 0] for critic in critics])
    torch.testing.assert_close(found["policy"], -smaller.mean())
    torch.testing.assert_close(found["cloning"], 0.3 * (actions - batch["actions"]).square().mean())


@pytest.mark.parametrize(
    ("name", "actions", "options"),
    [
        ("iql", spaces.Discrete(3), {}),
        ("iql", spaces.MultiDiscrete([2, 3]), {}),
        ("iql", MIXED, {}),
        ("iql", BOX, {}),
        ("td3-bc", BOX, {"policy_noise": 0.0}),
        ("td3-bc", NESTED, {"policy_noise": 0.0, "critic_bc": 0.1, "policy_q": "min"}),
    ],
)
def test_rows_that_pad_change_neither_losses_nor_gradients(
    name: str, actions: spaces.Space[Any], options: dict[str, Any]
) -> None:
    made, batch = learner(name, actions, **options), steps(actions)
    padded = {column: map_leaves(lambda leaf: torch.cat([leaf, leaf[:5] + 0]), tree) for column, tree in batch.items()}
    padded["rewards"][16:] = 1e6
    padded["weights"][16:] = 0
    found = []
    for rows in (batch, padded):
        gradients = []
        for group in made.groups:
            inputs = [parameter for _, parameter in made.parameters_of(group)]
            total: Any = sum(group.loss(rows).values())
            gradients += torch.autograd.grad(total, inputs, materialize_grads=True)
        found.append([*losses(made, rows).values(), *gradients])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "actions"), [("iql", BOX), ("iql", spaces.Discrete(3)), ("td3-bc", NESTED)])
def test_updates_move_critics_each_time_and_target_copies_a_part_of_the_way(name: str, actions: spaces.Space[Any]) -> None:
    made, batch = learner(name, actions, tau=0.25), steps(actions)
    if isinstance(actions, spaces.Discrete):
        batch["actions"] = batch["actions"].reshape(-1)
    update = Update(made, batch, lr=1e-2)
    moved = []
    for number in range(2):
        before = {key: tensor.clone() for key, tensor in made.state().items()}
        update(number)
        moved.append({key.partition(".")[0] for key, tensor in made.state().items() if not torch.equal(tensor, before[key])})
        for key, tensor in made.state().items():
            if key.startswith("target_critics.") and "target_critics" in moved[-1]:
                source = made.state()[key.removeprefix("target_")]
                torch.testing.assert_close(tensor, before[key] + 0.25 * (source - before[key]))
    every = set(made.modules)
    assert moved == ([every, every] if name == "iql" else [{"critics"}, every])


@pytest.mark.parametrize(
    ("actions", "form"),
    [
        (spaces.Discrete(3), []),
        (BOX, ["tanh"]),
        (NESTED, ["tanh"] * 3),
        (spaces.Box(-np.inf, np.inf, (2,)), ["linear"]),
        (spaces.Tuple([BOX, spaces.Box(0.0, np.inf, (2,))]), ["linear"] * 2),
    ],
)
def test_the_mean_of_iqls_policy_is_within_the_bounds_where_all_boxes_have_some(
    actions: spaces.Space[Any], form: list[str]
) -> None:
    assert [one.mean for one in learner("iql", actions).policy.action_head.forms()] == form


def test_td3_bc_explores_with_the_spread_that_td3_has() -> None:
    made = learner("td3-bc", NESTED)
    inputs = made.policy.forward_train({"obs": torch.zeros(4000, 3)})["action_dist_inputs"].detach()
    head, g = made.policy.action_head, torch.Generator().manual_seed(0)
    apart: Any = map_leaves(lambda drawn, mean: (drawn - mean).std(), head.sample(inputs, g), head.greedy(inputs))
    assert [float(apart["arm"]), *map(float, apart["legs"])] == pytest.approx([0.1] * 3, rel=0.05)


def test_a_critic_sees_integer_boxes_in_the_units_of_networks() -> None:
    task = Task(OBS, spaces.Box(0, 255, (2,), np.uint8), "env", Mlp({"hidden": [], "activation": "relu"}))
    critic, seen = task.critic(of_actions=True), torch.zeros(2, 3)
    values = critic(seen, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close((values[1] - values[0])[0], 2 * critic.trunk[0].weight[0, 3:].sum())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device, and torch finds none")
@pytest.mark.parametrize("name", NAMES)
def test_captured_updates_end_where_eager_ones_do(name: str) -> None:
    ends = []
    for capture in (False, True):
        made = learner(name, **({"policy_noise": 0.0} if name == "td3-bc" else {}))
        made.to(torch.device("cuda"))
        update = Update(made, {column: tensor.cuda() for column, tensor in steps().items()}, lr=1e-3)
        launch = captured(update) if capture else update
        for number in range(11):
            launch(number)
        ends.append({key: tensor.clone() for key, tensor in made.state().items()})
    for key, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][key], tensor, rtol=1e-3, atol=1e-4)


# ---- runs ----


def comparable(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The policy's bytes, and all rows of metrics without what the clock says."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in found]
    return (run / "policy.safetensors").read_bytes(), untimed


@pytest.mark.parametrize("name", NAMES)
def test_results_and_metrics_name_the_losses(data: Path, tmp_path: Path, name: str, call: Call) -> None:
    file = config(tmp_path, name)
    code, found = call("train-bc", data, "--out", tmp_path / "run", "--config", file, "--updates", 20, "--device", "cpu")
    assert (code, list(found["losses"])) == (0, LOSSES[name])
    rows = comparable(tmp_path / "run")[1]
    assert all({f"{loss}_loss" for loss in LOSSES[name]} < row.keys() for row in rows)
    assert rows[-1]["loss"] == pytest.approx(sum(rows[-1][f"{loss}_loss"] for loss in LOSSES[name]))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(data: Path, tmp_path: Path, name: str, streaming: bool) -> None:
    more = {"critic_bc": 0.1} if name == "td3-bc" else {}
    options = {**OPTIONS, "config": config(tmp_path, name, **more), "streaming": streaming}
    train_bc(data, tmp_path / "whole", **options)
    for update in (13, 30):
        with pytest.raises(Interrupted):
            train_bc(data, tmp_path / "cut", **{**options, "resume": True}, on_progress=signal_at(update))
    torch.manual_seed(99)  # chance is the run's own
    train_bc(data, tmp_path / "cut", resume=True)
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")


@pytest.mark.parametrize(("name", "more"), [("iql", {}), ("td3-bc", {"policy_noise": 0.0, "critic_bc": 0.1})])
def test_streaming_loses_what_memory_loses(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: dict[str, Any]
) -> None:
    """Each batch holds all steps, in whatever order."""
    monkeypatch.setattr(StoreForm, "within", lambda *args: StoreForm(window=60, pool=50, unit=5))
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)  # several parts through the pipeline
    file = config(tmp_path, name, **more)
    file.write_text(file.read_text().replace("batch_size = 32", "batch_size = 1024").replace("log_every = 7", "log_every = 2"))
    found = []
    for streaming in (False, True):
        train_bc(data, tmp_path / f"{streaming}", config=file, updates=8, streaming=streaming, device="cpu", seed=1)
        rows = comparable(tmp_path / f"{streaming}")[1]
        found.append([[row[f"{loss}_loss"] for loss in LOSSES[name]] for row in rows])
    np.testing.assert_allclose(np.array(found[0], float), np.array(found[1], float), rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_diverges_keeps_its_last_finite_checkpoint(data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(Diverged):
        train_bc(data, tmp_path / "run", config=config(tmp_path, name, critic_lr=1e30), updates=60, device="cpu")
    kept = sorted(folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["000000000"]
    assert all(bool(torch.isfinite(part).all()) for part in load_policy(tmp_path / "run").module.parameters())


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (spaces.Discrete(2), "actions are Discrete"),
        (spaces.Box(-np.inf, np.inf, (2,)), "actions are Box"),
        (spaces.Dict({"a": BOX, "b": spaces.Discrete(2)}), "actions.b are Discrete"),
    ],
)
def test_td3_bc_refuses_what_is_no_box_with_bounds(actions: spaces.Space[Any], named: str) -> None:
    with pytest.raises(BadConfig, match="TD3\\+BC learns Box actions with bounds") as caught:
        learner("td3-bc", actions)
    assert named in caught.value.what
    assert "iql" in caught.value.fix
    assert "td3-bc" not in caught.value.fix


def test_td3_bc_refuses_discrete_actions_before_data_is_read(
    make_batch: Make, write_dataset: Write, tmp_path: Path, call: Call
) -> None:
    recorded = make_batch()
    recorded.obs[0] = np.nan  # bad data, as soon as it is looked at
    file = config(tmp_path, "td3-bc")
    code, found = call("train-bc", write_dataset(recorded), "--out", tmp_path / "run", "--config", file)
    assert (code, "Discrete(2)" in found["error"]["what"]) == (4, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "wrong"), [("iql", {"expectile": 1.0, "gama": 0.9}), ("td3-bc", {"alpha": -1, "policy_q": "mean"})]
)
def test_mistakes_in_options_are_all_named(data: Path, tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as caught:
        train_bc(data, tmp_path / "run", config=config(tmp_path, name, **wrong))
    problems = " ".join(caught.value.details["problems"])
    assert [key for key in wrong if f"algorithm.{key}" not in problems] == []


def test_learning_rates_of_actor_and_critics_are_options_and_else_the_runs() -> None:
    for name in NAMES:
        assert [group.lr for group in learner(name).groups] == [None, None]
        assert [group.lr for group in learner(name, actor_lr=0.1, critic_lr=0.2).groups] == [0.2, 0.1]


# ---- what comes after a step ----


def held_of(data: Path, folder: Path, *, streaming: bool = False, pieces: str = "") -> dict[str, Any]:
    (folder / "p.toml").write_text(f'kind = "learner"\n{pieces}')
    options = resolve_config({"streaming": streaming}, file=config(folder, "td3-bc", critic_bc=0.1))
    made = load_data(data, options, pipeline=folder / "p.toml", on_progress=lambda _: None)
    found = {name: tensor.numpy() for name, tensor in columns_in(made.train).items()}
    made.close()
    return found


@pytest.mark.parametrize("pieces", ["", '[[pieces]]\nname = "mean_std_filter"\n'], ids=["plain", "filtered"])
def test_the_next_observations_and_actions_are_those_recorded_after_each_step(
    make_batch: Make, write_dataset: Write, tmp_path: Path, pieces: str
) -> None:
    ended = np.arange(12) % 2 == 0
    recorded = replace(make_batch(continuous=True), terminated=ended, truncated=~ended)
    held = held_of(write_dataset(recorded, action_scale="env"), tmp_path, pieces=pieces)
    ends = recorded.starts[1:] - 1
    within = np.setdiff1d(np.arange(recorded.num_steps), ends)
    np.testing.assert_array_equal(np.flatnonzero(~held["is_followed"]), ends)
    np.testing.assert_array_equal(np.flatnonzero(held["terminateds"]), ends[::2])
    np.testing.assert_array_equal(held["next_actions"][within], held["actions"][within + 1])
    np.testing.assert_array_equal(held["next_actions"][ends], held["actions"][ends])
    np.testing.assert_array_equal(held["new_obs"][within], held["obs"][within + 1])
    if not pieces:
        np.testing.assert_array_equal(held["new_obs"][ends], recorded.obs[recorded.obs_starts[1:] - 1])


def test_streaming_holds_the_same_steps_with_what_came_after_each(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_batches, "PART_BYTES", 2000)
    found = []
    for streaming in (False, True):
        held = held_of(data, tmp_path, streaming=streaming)
        flat = np.concatenate([np.asarray(held[name], np.float64).reshape(len(held["obs"]), -1) for name in sorted(held)], 1)
        found.append(sorted(map(tuple, flat.tolist())))
    assert found[0] == found[1]


def test_next_actions_of_episodes_one_by_one_are_those_of_a_batch(make_batch: Make) -> None:
    recorded = make_batch(continuous=True, episodes=3)
    pieces: Any = [AddNextActionsFromEpisodesToTrainBatch(), AddNextActionsFromEpisodesToTrainBatch()]
    whole = pieces[0](batch={}, episodes=recorded)
    parts = pieces[1](batch={}, episodes=list(recorded))
    for name in ("next_actions", "is_followed"):
        rows = np.concatenate([filed[0].tree for filed in parts[name].values()])
        np.testing.assert_array_equal(rows, whole[name])


def test_the_spread_of_td3_bc_is_that_of_td3() -> None:
    (form,) = learner("td3-bc").policy.action_head.forms()
    assert (form.mean, [math.exp(limit) for limit in form.log_std]) == ("tanh", pytest.approx([0.1, 0.1]))
