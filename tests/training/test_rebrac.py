"""`rebrac` is td3-bc with the settings of Tarasov et al. 2023."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import algorithm_kind
from offline_cli.training.config import resolve_config
from offline_cli.training.learner import Learner

OPTIONS = {
    "alpha": 1.0,
    "normalize_q": True,
    "policy_q": "min",
    "actor_bc": 0.001,
    "critic_bc": 0.01,
    "distance": "sum",
    "policy_noise": 0.2,
    "noise_clip": 0.5,
    "policy_every": 2,
    "critic_layer_norm": True,
    "gamma": 0.99,
    "tau": 0.005,
}
"""Of the configuration for halfcheetah-medium-v2 in the authors' repository."""


OBS, BOX = spaces.Box(-9.0, 9.0, (3,)), spaces.Box(-4.0, 4.0, (2,))


def learner(actions: Any = BOX, **options: Any) -> Learner:
    kind = algorithm_kind("rebrac")
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    algorithm = kind({**defaults, **options})
    algorithm.check(OBS, actions)
    return Learner.of(algorithm, Task(OBS, actions, "env", Mlp({"hidden": [8], "activation": "tanh"})))


def steps(rows: int = 16) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(rows, 3, generator=g) for name in ("obs", "new_obs")}
    drawn |= {name: torch.rand(rows, 2, generator=g) * 2 - 1 for name in ("actions", "next_actions")}
    drawn |= {"terminateds": torch.rand(rows, generator=g) < 0.3, "is_followed": torch.rand(rows, generator=g) < 0.8}
    return {**drawn, "rewards": torch.randn(rows, generator=g), "weights": torch.full((rows,), 1 / rows)}


def test_the_preset_has_the_published_options_and_settings() -> None:
    found = resolve_config({}, algorithm={"name": "rebrac"})
    table = {name: value for name, value in found.algorithm.items() if name not in ("name", "reward_scale", "reward_shift")}
    assert table == OPTIONS
    assert (found.hidden, found.activation, found.batch_size, found.lr) == ((256, 256, 256), "relu", 1024, 1e-3)


def test_options_and_the_file_win_over_the_preset_and_other_networks_keep_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "net_beside_rebrac.py").write_text("from torch.nn import Linear\n")
    (tmp_path / "c.toml").write_text('batch_size = 256\n[algorithm]\nname = "rebrac"\nactor_bc = 0.1\n')
    found = resolve_config({"hidden": (8,)}, file=tmp_path / "c.toml")
    assert (found.hidden, found.batch_size, found.lr, found.algorithm["actor_bc"]) == ((8,), 256, 1e-3, 0.1)
    other = resolve_config({}, algorithm={"name": "rebrac"}, network="python:net_beside_rebrac:Linear")
    assert (other.batch_size, "hidden" in other.as_dict()) == (1024, False)
    assert resolve_config({}, algorithm={"name": "td3-bc"}).hidden == (256, 256)


def test_its_losses_are_those_of_td3_bc_with_distances_added_up() -> None:
    """Against the formulas of the paper, from critics and policy as they are."""
    made, batch = learner(policy_noise=0.0), steps()
    found = {name: loss for group in made.groups for name, loss in group.loss(batch).items()}
    modules: Any = made.modules
    with torch.no_grad():

        def acted(policy: Any, seen: Any) -> Any:
            inputs = policy.forward_train({"obs": seen})["action_dist_inputs"]
            return policy.action_head.greedy(inputs)

        def least(critics: Any, seen: Any, actions: Any) -> Any:
            return torch.minimum(*(critic(seen, actions)[:, 0] for critic in critics))

        after = acted(modules["target_policy"], batch["new_obs"])
        far = (after - batch["next_actions"]).square().sum(-1) * batch["is_followed"]
        values = least(modules["target_critics"], batch["new_obs"], after) - 0.01 * far
        targets = batch["rewards"] + 0.99 * (1 - batch["terminateds"].float()) * values
        critics: Any = modules["critics"]
        errors = [(critic(batch["obs"], batch["actions"])[:, 0] - targets).square().mean() for critic in critics]
        actions = acted(modules["policy"], batch["obs"])
        seeking = least(critics, batch["obs"], actions)
        near = (actions - batch["actions"]).square().sum(-1).mean()
        wanted = {"q": sum(errors), "policy": -seeking.mean() / seeking.abs().mean(), "cloning": 0.001 * near}
    assert {name: float(loss.detach()) for name, loss in found.items()} == pytest.approx(
        {name: float(one) for name, one in wanted.items()}, rel=1e-5
    )
