"""Test helpers for code that handles episodes: hypothesis strategies, and comparisons that are strict about dtypes.

```python
@given(episodes())
def test_an_episode_written_and_read_again_is_equal_leaf_by_leaf(episode):
    assert_same_episode(decode(encode(episode), where="test"), episode)
```

The strategies cover every supported space, lengths from 0, infos, nested extra model outputs, flags, names, clocks and custom
data. They need the package hypothesis; the comparisons do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import MissingPackage
from offline_cli.spaces import describe, same_space
from offline_cli.trees import Tree, leaves

if TYPE_CHECKING:
    from offline_cli._strategies import episode_batches as episode_batches
    from offline_cli._strategies import episodes as episodes
    from offline_cli._strategies import spaces as spaces

STRATEGIES = ("spaces", "episode_batches", "episodes")

__all__ = ["assert_same_batch", "assert_same_episode", "assert_same_tree", "episode_batches", "episodes", "spaces"]


# ---- comparisons ----


def assert_same_episode(left: SingleAgentEpisode, right: SingleAgentEpisode) -> None:
    """Assert equal values, dtypes, structure, lookback, names, flags and spaces; the error names the part.

    An episode equals its numpy'ized form; NaN equals NaN.
    """
    assert_same_tree(_state(left), _state(right), "episode")


def _state(episode: SingleAgentEpisode) -> dict[str, Any]:
    whole = episode if episode.is_numpy else SingleAgentEpisode.from_state(episode.get_state()).to_numpy()
    state = whole.get_state()
    held = {name: state[name] for name in ("observations", "actions", "rewards")} | (state["extra_model_outputs"] or {})
    for buffer in held.values():  # without steps there is no dtype unless numpy'ized
        data = buffer["data"]
        empty = not len(data) if isinstance(data, list) else not any(map(len, leaves(data)))
        buffer.update({"space": None, "data": None if empty else data})
    of = {"_observation_space": episode.observation_space, "_action_space": episode.action_space}
    return {**state, **held, "extra_model_outputs": sorted(state["extra_model_outputs"] or ()), **of}


def assert_same_batch(left: EpisodeBatch, right: EpisodeBatch) -> None:
    """Assert that two batches are equal; the error names the field. None equals all-empty."""
    count = len(left)
    missing: dict[str, Any] = {
        **dict.fromkeys(("agent_ids", "module_ids", "multi_agent_ids"), (None,) * count),
        "infos": [{}] * (left.num_steps + count),
        "t_started": np.zeros(count, np.int64),
        "custom_data": ({},) * count,
        "clock": np.full((count, 2), np.nan),
    }
    for name in (one.name for one in fields(EpisodeBatch)):
        ours, theirs = (missing.get(name) if value is None else value for value in (getattr(left, name), getattr(right, name)))
        assert_same_tree(ours, theirs, name)


def assert_same_tree(left: Tree, right: Tree, name: str = "tree") -> None:
    """Assert that two trees have equal structure and leaves of equal dtypes, shapes and values; the error names the part.

    Works for infos and custom data too: dicts, lists, arrays, numbers, text; numpy's float64 counts as float.
    """
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        for array in (left, right):
            assert isinstance(array, np.ndarray), f"{name}: a {type(array).__name__} instead of an array"
        assert left.dtype == right.dtype, f"{name}: {left.dtype} against {right.dtype}"
        assert left.shape == right.shape, f"{name}: shape {left.shape} against {right.shape}"
        equal = (left == right) | ((left != left) & (right != right))
        assert np.all(equal), f"{name}: {int(np.size(equal) - np.count_nonzero(equal))} values differ"
    elif isinstance(left, gym.Space) or isinstance(right, gym.Space):
        assert same_space(left, right), f"{name}: {describe(left)} against {describe(right)}"
    elif isinstance(left, Mapping) and isinstance(right, Mapping):
        assert left.keys() == right.keys(), f"{name}: {list(left)} against {list(right)}"
        for key in left:
            assert_same_tree(left[key], right[key], f"{name}.{key}")
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        assert len(left) == len(right), f"{name}: {len(left)} items against {len(right)}"
        for index, (ours, theirs) in enumerate(zip(left, right, strict=True)):
            assert_same_tree(ours, theirs, f"{name}.{index}")
    else:
        kinds = [float if isinstance(value, float) else type(value) for value in (left, right)]
        assert kinds[0] is kinds[1], f"{name}: {left!r} against {right!r}"
        assert left == right or (left != left and right != right), f"{name}: {left!r} against {right!r}"


def __getattr__(name: str) -> Any:
    """Import the strategies `spaces`, `episode_batches` and `episodes` on first use."""
    if name not in STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from offline_cli import _strategies
    except ImportError as err:
        what = "the strategies of offline_cli.testing need the package hypothesis"
        raise MissingPackage(what, where="offline_cli.testing", fix="pip install hypothesis") from err
    return getattr(_strategies, name)
