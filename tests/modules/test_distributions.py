"""Each action head against a slow reference that follows the textbook one row and one component at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rllib_answers import Answers

from offline_cli.errors import BadConfig, UnsupportedSpace
from offline_cli.modules.distributions import ForEnvironment, build_head

ROWS = 7
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(3, start=3),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi-discrete grid from 1": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 1], [1, 1]]),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary grid": spaces.MultiBinary((2, 2)),
    "box": BOX,
    "box without bounds": spaces.Box(-np.inf, np.inf, (2, 2)),
    "scalar box": spaces.Box(-1.0, 1.0, ()),
    "dict": spaces.Dict({"move": spaces.Discrete(3), "aim": BOX, "pair": spaces.Tuple([spaces.MultiBinary(2), BOX])}),
}


def slow_logp(space: spaces.Space[Any], row: np.ndarray, action: Any) -> float:
    """Log-likelihood of one action under one row of network outputs."""
    match space:
        case spaces.Discrete():
            return float(row[int(action) - space.start] - np.log(np.exp(row).sum()))
        case spaces.MultiDiscrete():
            total, first = 0.0, 0
            for count, start, choice in zip(space.nvec.ravel(), space.start.ravel(), np.ravel(action), strict=True):
                total += slow_logp(spaces.Discrete(int(count), start=int(start)), row[first : first + count], choice)
                first += count
            return total
        case spaces.MultiBinary():
            p = 1 / (1 + np.exp(-row))
            return float(sum(np.log(q) if bit else np.log(1 - q) for q, bit in zip(p, np.ravel(action), strict=True)))
        case spaces.Box():
            n = math.prod(space.shape)
            total = 0.0
            for i, value in enumerate(np.ravel(action)):
                std = math.exp(row[n + i])
                total += -0.5 * ((value - row[i]) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
            return float(total)
    parts = list(space.items()) if isinstance(space, spaces.Dict) else list(enumerate(space))
    total, first = 0.0, 0
    for key, part in parts:
        size = build_head(part, action_scale="env").size
        total += slow_logp(part, row[first : first + size], action[key])
        first += size
    return total


def stacked(space: spaces.Space[Any], samples: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, [sample[key] for sample in samples]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [sample[i] for sample in samples]) for i, part in enumerate(space))
    return torch.as_tensor(np.stack(samples))


@pytest.mark.parametrize("name", SPACES)
def test_the_likelihood_is_that_of_the_textbook(name: str) -> None:
    space = SPACES[name]
    space.seed(0)
    head = build_head(space, action_scale="env")
    inputs = torch.randn(ROWS, head.size, generator=torch.Generator().manual_seed(1))
    samples = [space.sample() for _ in range(ROWS)]
    expected = [slow_logp(space, row, action) for row, action in zip(inputs.double().numpy(), samples, strict=True)]
    np.testing.assert_allclose(head.logp(inputs, stacked(space, samples)).numpy(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", SPACES)
def test_the_entropy_is_the_mean_surprise_of_drawn_actions(name: str) -> None:
    head = build_head(SPACES[name], action_scale="env")
    inputs = torch.randn(1, head.size, generator=torch.Generator().manual_seed(2)).expand(40_000, -1)
    drawn = head.sample(inputs, torch.Generator().manual_seed(3))
    assert -head.logp(inputs, drawn).mean().item() == pytest.approx(head.entropy(inputs)[0].item(), abs=0.04)


@pytest.mark.parametrize("name", SPACES)
def test_the_greedy_action_is_at_least_as_likely_as_any_drawn_one(name: str) -> None:
    head = build_head(SPACES[name], action_scale="env")
    inputs = torch.randn(ROWS, head.size, generator=torch.Generator().manual_seed(4))
    best = head.logp(inputs, head.greedy(inputs))
    for seed in range(20):
        assert (head.logp(inputs, head.sample(inputs, torch.Generator().manual_seed(seed))) <= best + 1e-5).all()


@pytest.mark.parametrize("name", SPACES)
def test_what_goes_to_the_environment_lies_in_its_space(name: str) -> None:
    space = SPACES[name]
    for scale in ("env", "normalized"):
        head = build_head(space, action_scale=scale)
        inputs = 3 * torch.randn(ROWS, head.size, generator=torch.Generator().manual_seed(5))
        fit = ForEnvironment(space, head.stretched_by(space))
        batch = fit(_arrays(head.sample(inputs, torch.Generator().manual_seed(6))))
        for row in range(ROWS):
            assert space.contains(_row(batch, row)), _row(batch, row)


def _arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _arrays(part) for key, part in tree.items()}
    return tuple(_arrays(part) for part in tree) if isinstance(tree, tuple) else tree.numpy()


def _row(tree: Any, row: int) -> Any:
    if isinstance(tree, dict):
        return {key: _row(part, row) for key, part in tree.items()}
    return tuple(_row(part, row) for part in tree) if isinstance(tree, tuple) else tree[row]


@pytest.mark.parametrize("scale", ["env", "normalized"])
def test_box_actions_are_stretched_to_the_bounds_for_the_environment_and_clipped_to_them(scale: str) -> None:
    head = build_head(BOX, action_scale=scale)
    fit = ForEnvironment(BOX, head.stretched_by(BOX))
    np.testing.assert_allclose(fit(np.array([[0.0, 0.0], [1.0, -1.0], [9.0, 0.5]])), [[0, 5], [2, 0], [2, 7.5]])


@pytest.mark.parametrize("name", SPACES)
def test_a_row_is_drawn_by_its_own_chance_and_as_often_as_its_likelihood_says(name: str) -> None:
    head = build_head(SPACES[name], action_scale="env")
    inputs = torch.randn(1, head.size, generator=torch.Generator().manual_seed(2)).expand(40_000, -1)
    chance = torch.rand(40_000, head.chance_size, generator=torch.Generator().manual_seed(3))
    drawn = head.drawn(inputs, chance)
    assert -head.logp(inputs, drawn).mean().item() == pytest.approx(head.entropy(inputs)[0].item(), abs=0.04)
    assert torch.equal(head.logp(inputs[:1], head.drawn(inputs[:1], chance[:1])), head.logp(inputs, drawn)[:1])


def test_a_box_of_unknown_scale_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadConfig) as caught:
        build_head(spaces.Dict({"a": BOX}), action_scale="unknown")
    assert "--action-scale env" in caught.value.fix


def test_text_actions_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSpace, match="Text"):
        build_head(spaces.Text(3), action_scale="env")


def test_an_output_above_its_limit_can_come_down_and_nothing_else_beyond_a_limit_is_learned() -> None:
    head = build_head(spaces.Box(-1.0, 1.0, (2,)), action_scale="normalized")
    outputs = torch.tensor([[0.0, 9.0, 5.0, -5.0], [0.0, 9.0, 5.0, -5.0], [0.0, 9.0, 1.0, -1.0]], requires_grad=True)
    wanted = torch.tensor([[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])
    limited = head.limited(outputs)
    assert limited[:, 2:].tolist() == [[2.0, -3.0], [2.0, -3.0], [1.0, -1.0]]
    limited.backward(wanted)
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [[1.0, 1.0, 1.0, 0.0], [-1.0, -1.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]]
    with torch.no_grad():
        assert head.limited(outputs).equal(limited)


@pytest.mark.parametrize("name", ["discrete", "multi-discrete", "box without bounds"])
def test_actions_are_drawn_and_weighed_as_rllib_does_it(answers: Answers, name: str) -> None:
    space = SPACES[name]
    head = build_head(space, action_scale="normalized")
    inputs = torch.randn(ROWS, head.size, generator=torch.Generator().manual_seed(7))

    def asked() -> Any:
        from ray.rllib.core.distribution.torch import torch_distribution as theirs

        if isinstance(space, spaces.MultiDiscrete):
            found = theirs.TorchMultiCategorical.from_logits(inputs, input_lens=space.nvec.tolist())
        else:
            kind = theirs.TorchCategorical if isinstance(space, spaces.Discrete) else theirs.TorchDiagGaussian
            found = kind.from_logits(inputs)
        torch.manual_seed(3)
        drawn = found.sample()
        return drawn, found.logp(drawn), found.entropy()

    drawn, logp, entropy = answers(asked)
    torch.manual_seed(3)
    for mine in (head.sample(inputs), head.sample(inputs, torch.Generator().manual_seed(3))):
        torch.testing.assert_close(mine.reshape(drawn.shape), drawn)
    torch.testing.assert_close(head.logp(inputs, drawn), logp)
    torch.testing.assert_close(head.entropy(inputs), entropy)
