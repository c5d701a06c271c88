"""`act(..., names=True)`: categories in place of the numbers of an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import EpisodeBatch, load_policy, train_bc, write_dataset
from offline_cli.errors import BadConfig

Make = Callable[..., EpisodeBatch]
SEEN = np.array([[2.0, -1.0, 0.0], [-2.0, 1.0, 0.0]], np.float32)


@pytest.fixture
def run_of(make_batch: Make, tmp_path: Path) -> Callable[..., Path]:
    """A short run whose data has these actions (of its choices) and meanings."""

    def made(space: Any, actions: Callable[[Any], Any], meanings: dict[str, Any]) -> Path:
        batch = make_batch()
        batch = replace(batch, actions=actions(batch.actions), action_space=space)
        write_dataset(batch, tmp_path / "D", meanings=meanings, action_scale="env")
        train_bc(tmp_path / "D", tmp_path / "run", updates=60, hidden=(16,), batch_size=64, lr=0.01, device="cpu")
        return tmp_path / "run"

    return made


@pytest.mark.parametrize("start", [0, 3])
def test_a_choice_is_told_by_its_category_alone_and_in_a_batch(run_of: Callable[..., Path], start: int) -> None:
    space = spaces.Discrete(2, start=start)
    policy = load_policy(run_of(space, lambda right: right + start, {"actions": [{"categories": ["left", "right"]}]}))
    assert policy.act(SEEN).tolist() == [start + 1, start]
    assert policy.act(SEEN, names=True).tolist() == ["right", "left"]
    assert [policy.act(one, names=True) for one in SEEN] == ["right", "left"]
    assert policy.act(SEEN[:0], names=True).shape == (0,)


def test_elements_without_categories_and_choices_beyond_them_stay_numbers(run_of: Callable[..., Path]) -> None:
    several = spaces.MultiDiscrete([3, 2])
    known = {"actions": [{"name": "gear", "categories": ["one", "two"]}, {"name": "lamp"}]}
    policy = load_policy(run_of(several, lambda right: np.stack([right * 2, right], -1), known))
    assert policy.act(SEEN).tolist() == [[2, 1], [0, 0]]
    assert policy.act(SEEN, names=True).tolist() == [["2", 1], ["one", 0]]
    assert policy.act(SEEN[1], names=True).tolist() == ["one", 0]


def test_a_run_whose_data_names_no_choice_says_so(run_of: Callable[..., Path]) -> None:
    policy = load_policy(run_of(spaces.Discrete(2), lambda right: right, {"actions": [{"name": "lever"}]}))
    with pytest.raises(BadConfig) as caught:
        policy.act(SEEN, names=True)
    assert (caught.value.exit_code, caught.value.where) == (4, "act(names=True)")
    assert "categories" in caught.value.fix
    assert policy.act(SEEN).tolist() == [1, 0]
