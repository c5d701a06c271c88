"""MARWIL: its losses are RLlib's, it learns from returns, and with beta 0 it is behaviour cloning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from rllib_answers import Answers
from signal_at import signal_at

from offline_cli.connectors.learner.returns import discounted, factors
from offline_cli.errors import BadConfig, BadData, Diverged, Interrupted, TrainingDiverged
from offline_cli.modules.network import Mlp
from offline_cli.policies.by_name import load_policy
from offline_cli.spaces import Space
from offline_cli.training.algorithms.algorithm import Task, algorithm_kind
from offline_cli.training.config import BCConfig, filled
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import load_data
from offline_cli.training.updates import Update
from offline_cli.trees import Tree, map_leaves

Write = Callable[..., Path]
Make = Callable[..., Any]
BOX = spaces.Box(-9.0, 9.0, (3,), np.float32)
ROWS = 12
ACTIONS: dict[str, Space] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4]),
    "nested": spaces.Dict(
        {"grip": spaces.Discrete(3), "arm": spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)))}
    ),
}


def marwil(actions: Space, **options: Any) -> Learner:
    """A small learner whose weights follow from no version of torch."""
    algorithm = algorithm_kind("marwil")({k: v for k, v in filled("algorithm", {"name": "marwil", **options}).items() if k != "name"})
    learner = Learner.of(algorithm, Task(BOX, actions, "normalized", Mlp({"hidden": [5], "activation": "tanh"})))
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for _, parameter in sorted(learner.whole.named_parameters()):
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape) / 2))
    return learner


def drawn(space: Space, rng: np.random.Generator) -> Tree:
    """(ROWS, ...) of actions in the units of networks."""
    match space:
        case spaces.Box():
            return torch.from_numpy(rng.normal(size=(ROWS, *space.shape)).astype(np.float32))
        case spaces.Discrete():
            return torch.from_numpy(rng.integers(0, space.n, ROWS))
        case spaces.MultiDiscrete():
            return torch.from_numpy(rng.integers(0, space.nvec, (ROWS, *space.shape)))
        case spaces.Dict():
            return {name: drawn(part, rng) for name, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(drawn(part, rng) for part in space.spaces)
    raise AssertionError(space)


def batch_of(space: Space, *, left_out: int = 0) -> dict[str, Any]:
    """Rows of which the last `left_out` do not count."""
    rng = np.random.default_rng(5)
    weights = torch.zeros(ROWS)
    weights[: ROWS - left_out] = 1 / (ROWS - left_out)
    return {
        "obs": torch.from_numpy(rng.normal(size=(ROWS, 3)).astype(np.float32)),
        "actions": drawn(space, rng),
        "value_targets": torch.from_numpy((3 * rng.normal(size=ROWS)).astype(np.float32)),
        "weights": weights,
    }


def gradients(learner: Learner) -> dict[str, NDArray[Any]]:
    named = {f"{name}.{leaf}": p for name, part in learner.modules.items() for leaf, p in part.named_parameters()}
    return {name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy() for name, p in named.items()}


def rllibs_answer(learner: Learner, space: Space, batch: dict[str, Any], left_out: int) -> dict[str, Any]:
    """Losses and gradients of RLlib's learner, whose module puts out what ours do."""
    from ray.rllib.algorithms.marwil.torch.marwil_torch_learner import MARWILTorchLearner
    from ray.rllib.core.models.catalog import Catalog

    options = learner.algorithm.options
    policy: Any = learner.modules["policy"]
    distribution: Any = Catalog._get_dist_cls_from_action_space(space, framework="torch")

    def from_logits(inputs: torch.Tensor) -> Any:
        made = distribution.from_logits(inputs)
        if options["bc_logstd_coeff"]:  # RLlib's learner asks for an attribute that its Gaussian does not have
            made.log_std = inputs.chunk(2, -1)[1]
        return made

    module = SimpleNamespace(
        get_train_action_dist_cls=lambda: SimpleNamespace(from_logits=from_logits),
        compute_values=lambda batch, embeddings=None: learner.modules["value"](batch["obs"]),
    )
    told: dict[str, Any] = {}

    def see(name: Any, value: Any = None, **_: Any) -> None:
        told.update(name if isinstance(name, dict) else {name[1]: value})

    averages = {"default_policy": torch.tensor(options["moving_average_sqd_adv_norm_start"])}
    theirs: Any = SimpleNamespace(
        module={"default_policy": SimpleNamespace(unwrapped=lambda: module)},
        config=SimpleNamespace(burnin_len=0),
        metrics=SimpleNamespace(log_value=see, log_dict=lambda told, **_: see(told)),
        moving_avg_sqd_adv_norms_per_module=averages,
    )
    given = {name: part for name, part in batch.items() if name != "weights"}
    if left_out:
        given["loss_mask"] = batch["weights"] > 0
    learner.whole.zero_grad()
    loss = MARWILTorchLearner.compute_loss_for_module(
        theirs,
        module_id="default_policy",
        config=SimpleNamespace(**options),
        batch=given,
        fwd_out=policy.forward_train(batch),
    )
    loss.backward()
    parts = {name: float(told[name].detach()) for name in ("policy_loss", "vf_loss") if name in told}
    average = float(averages["default_policy"])
    return {"loss": float(loss.detach()), **parts, "average": average, "gradients": gradients(learner)}


CASES = [
    *((name, {"beta": 1.0, "moving_average_sqd_adv_norm_update_rate": 0.3}, 0) for name in ACTIONS),
    *((name, {"beta": 0.0}, 0) for name in ACTIONS),
    ("box", {"beta": 0.4, "vf_coeff": 0.3, "moving_average_sqd_adv_norm_start": 7.0, "bc_logstd_coeff": 0.2}, 0),
    ("nested", {"beta": 0.7, "moving_average_sqd_adv_norm_update_rate": 1e-8}, 5),
]


@pytest.mark.parametrize(("name", "options", "left_out"), CASES, ids=[f"{n}_{k}" for k, (n, _, _) in enumerate(CASES)])
def test_loss_its_parts_and_all_gradients_are_rllibs(
    answers: Answers, name: str, options: dict[str, Any], left_out: int
) -> None:
    space = ACTIONS[name]
    learner, batch = marwil(space, **options), batch_of(space, left_out=left_out)
    theirs = answers(lambda: rllibs_answer(learner, space, batch, left_out))
    learner.whole.zero_grad()
    (group,) = learner.groups
    losses = group.loss(batch)
    loss = torch.stack([*losses.values()]).sum()
    loss.backward()
    near = {"rel": 1e-5, "abs": 1e-7}
    losses = {part: value.detach() for part, value in losses.items()}
    assert float(loss.detach()) == pytest.approx(theirs["loss"], **near)
    assert float(losses["policy"]) == pytest.approx(theirs["policy_loss"], **near)
    if "vf" in losses:
        assert float(losses["vf"]) == pytest.approx(options.get("vf_coeff", 1.0) * theirs["vf_loss"], **near)
        assert float(learner.modules["value"].squared_norm) == pytest.approx(theirs["average"], **near)  # type: ignore[arg-type]
    for path, mine in gradients(learner).items():
        wanted = theirs["gradients"][path]
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5 * float(np.abs(wanted).max()), err_msg=path)
