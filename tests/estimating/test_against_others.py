"""Estimators equal SCOPE-RL's, and fitted Q evaluation d3rlpy's, but where an exact calculation says that those are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ope_answers as asked
import pytest
import rival_answers
import torch
from gymnasium import spaces
from rival_answers import LANES, TESTDATA, ask, lane_of
from torch import Tensor, nn

from offline_cli.estimating.estimators import ALL, Episodes, Values, distribution_free, estimates
from offline_cli.estimating.intervals import bernstein, bootstrapped
from offline_cli.modules.distributions import build_head
from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms.algorithm import Task
from offline_cli.training.algorithms.fqe import CRITICS, FQE, TARGETS, values_of
from offline_cli.training.learner import Learner, Update

STORED = TESTDATA / "ope_answers"


@pytest.fixture(scope="module")
def answered_anew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ask("scope-rl", asked.__file__, tmp_path_factory.mktemp("others"))


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> Path:
    """The folder of answers: the packages' own of today, which must still be the stored ones, or these."""
    return lane_of(request, STORED)


def ours(given: dict[str, Any], gamma: float = 1.0) -> tuple[Episodes, Values]:
    """The question's episodes."""
    rows, action, wanted = np.arange(len(given["action"])), given["action"], given["evaluation_policy_action_dist"]
    lengths = np.full(asked.EPISODES, asked.STEPS)
    episodes = Episodes(lengths, given["reward"], np.log(wanted[rows, action]), np.log(given["pscore"]), gamma)
    q = given["state_action_value_prediction"]
    values = (q * wanted).sum(1).reshape(-1, asked.STEPS)
    after = np.pad(values[:, 1:], ((0, 0), (0, 1))).ravel()
    return episodes, Values(values[None, :, 0], np.zeros(asked.EPISODES, np.int64), q[rows, action], after)


@pytest.mark.parametrize("gamma", asked.GAMMAS)
def test_estimates_equal_those_of_scope_rl(lane: Path, gamma: float) -> None:
    theirs = rival_answers.answer(lane, STORED, "scope_rl")
    episodes, values = ours(asked.recordings(), gamma)
    found = estimates(episodes, ALL, values)
    assert {name: one.value for name, one in found.items()} == pytest.approx(
        {name: float(theirs[f"{name} {gamma}"]) for name in ALL}, rel=1e-9
    )


def test_the_lower_bernstein_bound_is_that_of_scope_rl(lane: Path) -> None:
    weights = estimates(ours(asked.one_each())[0], ("is",))["is"].features[:, 0]  # returns are 1
    theirs = rival_answers.answer(lane, STORED, "scope_rl")["lower end of Bernstein's interval of weights at 2.5 %"]
    assert bernstein(weights, weights.max(), 0.025) == pytest.approx(theirs, rel=1e-9)


def test_scope_rls_interval_of_weighted_returns_leaves_the_sum_of_weights_as_it_is(lane: Path) -> None:
    """Where every return is 1, every weighted mean is 1: there is no spread."""
    low, high = rival_answers.answer(lane, STORED, "scope_rl")["wis of returns that are all 1"]
    wis = estimates(ours(asked.one_each())[0], ("wis",))["wis"]
    assert bootstrapped([wis], 0) == [pytest.approx((1, 1))]
    assert (low, high) == pytest.approx((0.56, 1.51), abs=0.01)


def test_scope_rls_bernstein_interval_of_negative_returns_ends_before_it_starts(lane: Path) -> None:
    low, high = rival_answers.answer(lane, STORED, "scope_rl")["bernstein of returns that are all -1"]
    assert high < -1 < low
    low, high = distribution_free(ours(asked.one_each(-1.0, ratio=1.0))[0], "is")
    assert low <= -1 <= high


def test_scope_rl_adds_to_the_sum_of_weights_what_can_be_more_than_they_are(lane: Path) -> None:
    """All weights are 1e-12, the returns 1; theirs is 1e-12 / (1e-12 + 1e-10)."""
    assert rival_answers.answer(lane, STORED, "scope_rl")["wis of weights that are all 1e-12"] == pytest.approx(1 / 101)
    assert estimates(ours(asked.one_each(ratio=0.01))[0], ("wis",))["wis"].value == pytest.approx(1)


def learner(name: str) -> Learner:
    """A critic of ours with the weights of the question, whose copy follows at once."""
    actions = spaces.Discrete(asked.ACTIONS + 1) if name == "discrete" else spaces.Box(-1.0, 1.0, (asked.ACTIONS,))
    network = Mlp({"hidden": [asked.HIDDEN] * 2, "activation": "relu"})
    options = {"gamma": asked.GAMMA, "tau": 1.0, "explore": False, "members": 1}
    made = Learner.of(FQE(options), Task(spaces.Box(-np.inf, np.inf, (asked.OBS,)), actions, "env", network))
    for module, network_name in ((CRITICS, "critic"), (TARGETS, "target")):
        for part, parameter in layers(made, module).items():
            parameter.data.copy_(torch.from_numpy(asked.fqe(name)[0][network_name][part]))
    return made


def layers(made: Learner, module: str) -> dict[str, nn.Parameter]:
    linear = [layer for layer in made.modules[module].modules() if isinstance(layer, nn.Linear)]
    return {f"{number}.{kind}": getattr(one, kind) for number, one in enumerate(linear) for kind in ("weight", "bias")}


def batch(name: str, given: dict[str, Any]) -> dict[str, Tensor]:
    """`next_policy` is all in the next action: a probability of 1, or the mean of a Gaussian."""
    held = {column: torch.from_numpy(values) for column, values in given.items()}
    then = held["next_actions"]
    if name == "discrete":
        held["actions"], policy = held["actions"][:, 0].long(), torch.eye(asked.ACTIONS + 1)[then[:, 0].long()]
    else:
        policy = torch.cat([then, torch.zeros_like(then)], -1)
    return {
        "obs": held["observations"],
        "actions": held["actions"],
        "rewards": held["rewards"][:, 0],
        "new_obs": held["next_observations"],
        "terminateds": held["terminals"][:, 0] > 0,
        "next_policy": policy,
        "fold": torch.ones(len(then), dtype=torch.long),  # no row is left out
        "weights": torch.full((len(then),), 1 / len(then)),
    }


@pytest.mark.parametrize("name", ["continuous", "discrete"])
def test_the_loss_and_four_updates_of_fitted_q_evaluation_are_those_of_d3rlpy(lane: Path, name: str) -> None:
    """Of discrete actions theirs is half of ours, where temporal differences are below 1: so are these weights."""
    theirs, made, rows = rival_answers.answer(lane, STORED, name), learner(name), batch(name, asked.fqe(name)[1])
    rows["weights"] /= 2 if name == "discrete" else 1
    (loss,) = made.groups[0].loss(rows).values()
    assert loss.item() == pytest.approx(float(theirs["loss"]), rel=1e-5)
    update = Update(made, rows, lr=asked.LR)
    for number in range(asked.UPDATES):
        update(number)
    for module in (CRITICS, TARGETS):
        for part, parameter in layers(made, module).items():
            np.testing.assert_allclose(parameter.detach().numpy(), theirs[f"after {part}"], rtol=1e-5, atol=1e-5, err_msg=part)


def test_fitted_q_evaluation_finds_the_mean_of_rare_large_rewards_where_d3rlpy_does_not(lane: Path) -> None:
    """10 once in 10 times is worth 1. Theirs, of discrete actions, minimises Huber's loss: 9 v = 1, v = 1/9."""
    theirs, made = rival_answers.answer(lane, STORED, "discrete"), learner("discrete")
    rows = batch("discrete", asked.lottery())
    update = Update(made, rows, lr=0.01)
    for number in range(300):
        update(number)
    assert theirs["value of the lottery"] == pytest.approx(1 / 9, abs=1e-5)
    assert made.modules[CRITICS][0](rows["obs"])[0, 0].item() == pytest.approx(1, abs=1e-3)


def test_a_critic_does_not_learn_from_its_fold() -> None:
    made, rows = learner("continuous"), batch("continuous", asked.fqe("continuous")[1])
    rows["fold"][:12] = 0
    (loss,) = made.groups[0].loss(rows).values()
    (of_others,) = made.groups[0].loss({name: column[12:] for name, column in rows.items()}).values()
    assert loss.item() == pytest.approx(of_others.item(), rel=1e-6)


@pytest.mark.parametrize(("explore", "expected"), [(False, 0.0), (True, 1.0)])
def test_continuous_actions_are_drawn_where_the_policy_explores(explore: bool, expected: float) -> None:
    """Actions drawn from a standard normal distribution have a mean square of 1; the likeliest has 0."""
    head = build_head(spaces.Box(-1.0, 1.0, (1,)), action_scale="env")
    squares = values_of(lambda _, actions: actions**2, head, None, torch.zeros(4000, 1), torch.zeros(4000, 2), explore=explore)  # type: ignore[arg-type]
    assert squares.mean().item() == pytest.approx(expected, abs=0.2)
