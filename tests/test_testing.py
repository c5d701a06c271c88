"""The comparisons that `offline_cli.testing` ships see every difference that matters."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from offline_cli import testing
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MissingPackage
from offline_cli.testing import assert_same_batch, assert_same_episode


def batch_of(**changes: Any) -> EpisodeBatch:
    fields: dict[str, Any] = {
        "ids": ("a",),
        "starts": np.array([0, 2]),
        "obs": {"x": np.array([[0.0], [np.nan], [2.0]])},
        "actions": np.array([0, 1]),
        "rewards": np.array([0.5, 1.5]),
        "terminated": np.array([True]),
        "truncated": np.array([False]),
        "extra": {"logp": np.array([0.1, 0.2])},
        "infos": [{"k": [1, np.float32(2)]}, {}, {}],
        "custom_data": ({"seed": 1},),
        "action_space": gym_spaces.Discrete(2),
    }
    return EpisodeBatch(**{**fields, **changes})


DIFFERENCES: dict[str, dict[str, Any]] = {
    "a value": {"obs": {"x": np.array([[0.0], [np.nan], [3.0]])}},
    "NaN against a number": {"obs": {"x": np.array([[0.0], [1.0], [2.0]])}},
    "a dtype": {"actions": np.array([0, 1], np.int32)},
    "a shape": {"obs": {"x": np.zeros((3, 1, 1))}},
    "a key": {"obs": {"y": np.array([[0.0], [np.nan], [2.0]])}},
    "structure": {"obs": (np.array([[0.0], [np.nan], [2.0]]),)},
    "a flag": {"truncated": np.array([True])},
    "an id": {"ids": ("b",)},
    "an extra output": {"extra": {}},
    "an info": {"infos": [{"k": [1, np.float32(3)]}, {}, {}]},
    "the type of an info": {"infos": [{"k": [1.0, np.float32(2)]}, {}, {}]},
    "no infos": {"infos": None},
    "custom data": {"custom_data": None},
    "a start": {"t_started": np.array([1])},
    "an agent": {"agent_ids": ("x",)},
    "a space": {"action_space": gym_spaces.Discrete(3)},
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_difference_between_batches_and_their_episodes_is_seen(difference: str) -> None:
    with pytest.raises(AssertionError):
        assert_same_batch(batch_of(), batch_of(**DIFFERENCES[difference]))
    with pytest.raises(AssertionError):
        assert_same_episode(batch_of()[0], batch_of(**DIFFERENCES[difference])[0])


def test_equal_batches_and_episodes_pass() -> None:
    assert_same_batch(batch_of(), batch_of(t_started=np.array([0]), agent_ids=(None,)))
    assert_same_episode(batch_of()[0], batch_of()[0])


def test_strategies_without_hypothesis_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offline_cli._strategies", raising=False)
    monkeypatch.delattr("offline_cli._strategies", raising=False)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MissingPackage, match="hypothesis"):
        _ = testing.episodes
