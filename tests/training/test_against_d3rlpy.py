"""IQL and TD3+BC compute what d3rlpy 2.8.1 computes from the same weights and batch: losses, targets, gradients, four updates.

Differences in definition are none of the numbers here but one: d3rlpy's IQL policy has a spread that is the same in all states,
and the answers are of its own policy class with the other choice, which ours is (docs/howto/algorithms.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy_answers as asked
import numpy as np
import pytest
import rival_answers
import torch
from gymnasium import spaces
from rival_answers import LANES, TESTDATA, ask, lane_of
from torch import Tensor, nn

from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms import Task
from offline_cli.training.algorithms.algorithm import own_algorithms, td_targets
from offline_cli.training.learner import Learner, Update

STORED = TESTDATA / "d3rlpy_answers"
TASK = Task(
    spaces.Box(-np.inf, np.inf, (asked.OBS,)),
    spaces.Box(-1.0, 1.0, (asked.ACTIONS,)),
    "env",
    Mlp({"hidden": [asked.HIDDEN, asked.HIDDEN], "activation": "relu"}),
)
KINDS = {"iql": ("iql", asked.IQL), "td3_bc": ("td3-bc", asked.TD3_BC)}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module")
def answered_anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ask("d3rlpy", asked.__file__, tmp_path_factory.mktemp("d3rlpy"))


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> Path:
    """The folder of answers: d3rlpy's own of today, which must still be the stored ones, or these."""
    return lane_of(request, STORED)


def answer(folder: Path, name: str) -> dict[str, Any]:
    return rival_answers.answer(folder, STORED, name)


def learner(name: str) -> Learner:
    """Ours, with the weights of the question."""
    registered, options = KINDS[name]
    kind = own_algorithms(registered)[registered]
    defaults = {key: one["default"] for key, one in kind.schema["properties"].items() if "default" in one}
    made = Learner.of(kind({**defaults, "gamma": asked.GAMMA, "tau": asked.TAU, **options}), TASK)
    weights = asked.question(name)[0]
    with torch.no_grad():
        for network, layers in parameters(made).items():
            for layer, parameter in layers.items():
                parameter.copy_(torch.from_numpy(weights[network][layer]))
    return made


def parameters(made: Learner) -> dict[str, dict[str, nn.Parameter]]:
    """By the question's names."""
    modules: dict[str, Any] = dict(made.modules)
    parts = {name: modules.pop(name) for name in ("critics", "target_critics")}
    modules |= {f"{name[:-1]}{number}": one for name, pair in parts.items() for number, one in enumerate(pair)}
    found: dict[str, dict[str, nn.Parameter]] = {}
    for name, module in modules.items():
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        found[name] = {f"{at}.{kind}": getattr(one, kind) for at, one in enumerate(linear) for kind in ("weight", "bias")}
    return found


def batch(name: str) -> dict[str, Tensor]:
    held = {column: torch.from_numpy(values) for column, values in asked.question(name)[1].items()}
    return {
        "obs": held["observations"],
        "actions": held["actions"],
        "rewards": held["rewards"][:, 0],
        "new_obs": held["next_observations"],
        "terminateds": held["terminals"][:, 0] > 0,
        "weights": torch.full((asked.ROWS,), 1 / asked.ROWS),
    }


def close(mine: Tensor, theirs: Any, where: str) -> None:
    np.testing.assert_allclose(mine.detach().numpy(), theirs, **CLOSE, err_msg=where)


def of_part(layer: str, tensor: Tensor) -> tuple[str, Tensor]:
    """What `2.weight/mean` is of our tensors: the layer's name, and its rows."""
    name, _, part = layer.partition("/")
    rows = {"": slice(None), "mean": slice(0, asked.ACTIONS), "log_std": slice(asked.ACTIONS, None)}[part]
    return name, tensor[rows]


@pytest.mark.parametrize("name", asked.NAMES)
def test_losses_and_gradients_are_those_of_d3rlpy(lane: Path, name: str) -> None:
    theirs, made, rows = answer(lane, name), learner(name), batch(name)
    torch.manual_seed(asked.SEED)
    found: dict[str, Tensor] = {}
    for group in made.groups:
        losses = group.loss(rows)
        sum(losses.values()).backward(inputs=list(made.parameters_of(group)))  # type: ignore[union-attr]
        found |= losses
    if name == "iql":
        pairs = {"v_loss": found["value"], "q_loss": found["q"], "actor_loss": found["policy"]}
    else:  # theirs is the sum of both
        pairs = {"critic_loss": found["q"], "actor_loss": found["policy"] + found["cloning"], "bc_loss": found["cloning"]}
    for loss, mine in pairs.items():
        close(mine, theirs[loss], loss)
    compared = 0
    for key, gradient in theirs.items():
        if key.startswith("gradient."):
            _, network, layer = key.split(".", 2)
            plain, _, _ = layer.partition("/")
            held = parameters(made)[network][plain].grad
            assert held is not None
            close(of_part(layer, held)[1], gradient, key)
            compared += 1
    assert compared == {"iql": 3 * 6 + 8, "td3_bc": 3 * 6}[name]


@pytest.mark.parametrize("name", asked.NAMES)
def test_targets_are_those_of_d3rlpy(lane: Path, name: str) -> None:
    theirs, made, rows = answer(lane, name), learner(name), batch(name)
    torch.manual_seed(asked.SEED)
    algorithm: Any = made.algorithm
    wanted = td_targets(
        rows, torch.from_numpy(theirs["next_values"]), {"gamma": asked.GAMMA, "reward_scale": 1, "reward_shift": 0}
    )
    close(algorithm.targets(made.modules, rows), wanted.numpy(), "targets")


@pytest.mark.parametrize("name", asked.NAMES)
def test_four_updates_end_where_d3rlpys_do(lane: Path, name: str) -> None:
    """The order of the steps, their optimizers, which weights each step sees, and how target copies follow."""
    theirs, made = answer(lane, name), learner(name)
    torch.manual_seed(asked.SEED)
    update = Update(made, batch(name), lr=asked.LR)
    for number in range(asked.UPDATES):
        update(number)
    for key, values in theirs.items():
        if key.startswith("after."):
            _, network, layer = key.split(".", 2)
            plain, _, _ = layer.partition("/")
            np.testing.assert_allclose(
                of_part(layer, parameters(made)[network][plain])[1].detach().numpy(), values, rtol=1e-5, atol=1e-5, err_msg=key
            )
