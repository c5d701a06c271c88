"""IQL and TD3+BC as runs: what bootstraps, what counts, which spaces; runs stop, stream and resume as others do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.errors import BadConfig
from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import own_algorithms
from offline_cli.training.learner import Learner

NAMES = ("iql", "td3-bc")
OBS = spaces.Box(-9.0, 9.0, (3,))
BOX = spaces.Box(-4.0, 4.0, (2,))


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


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (spaces.Discrete(2), "actions is Discrete"),
        (spaces.Box(-np.inf, np.inf, (2,)), "actions is Box"),
        (spaces.Dict({"a": BOX, "b": spaces.Discrete(2)}), "actions.b is Discrete"),
    ],
)
def test_td3_bc_refuses_what_is_no_box_with_bounds(actions: spaces.Space[Any], named: str) -> None:
    with pytest.raises(BadConfig, match="actions") as caught:
        learner("td3-bc", actions)
    assert named in caught.value.what
    assert "iql" in caught.value.fix
    assert "td3-bc" not in caught.value.fix
