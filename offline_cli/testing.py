"""Help for tests of code that handles episodes: strategies for hypothesis, and comparisons that are strict about dtypes.

```python
@given(episodes())
def test_an_episode_written_and_read_again_is_equal_leaf_by_leaf(episode):
    assert_same_episode(decode(encode(episode), where="test"), episode)
```

The strategies cover every kind of space that episodes can have, lengths from 0, infos, nested extra model outputs, flags,
names, clocks and custom data. They need the package hypothesis; the comparisons need nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import MissingPackage
from offline_cli.spaces import Space, describe, same_space
from offline_cli.trees import Tree, flatten

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["assert_same_batch", "assert_same_episode", "assert_same_tree", "episode_batches", "episodes", "spaces"]


# ---- comparisons ----


def assert_same_episode(left: SingleAgentEpisode, right: SingleAgentEpisode) -> None:
    """AssertionError, naming the part, unless both hold the same: values, dtypes, structure, lookback, names, flags, spaces.

    An episode and its numpy'ized form are the same; so are NaN and NaN.
    """
    ours, theirs = _numpyized(left).get_state(), _numpyized(right).get_state()
    for name in ("observations", "actions", "rewards"):
        _assert_same_buffer(ours[name], theirs[name], name)
    extra = ours["extra_model_outputs"] or {}, theirs["extra_model_outputs"] or {}
    assert extra[0].keys() == extra[1].keys(), f"extra model outputs: {sorted(extra[0])} against {sorted(extra[1])}"
    for name in extra[0]:
        _assert_same_buffer(extra[0][name], extra[1][name], name)
    for name in ("observation_space", "action_space"):
        _assert_same_space(getattr(left, name), getattr(right, name), name)
    compared = {"observations", "actions", "rewards", "extra_model_outputs", "_observation_space", "_action_space"}
    for name in ours.keys() - compared:
        _assert_same_value(ours[name], theirs[name], name)


def _numpyized(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    return episode if episode.is_numpy else SingleAgentEpisode.from_state(episode.get_state()).to_numpy()


def _assert_same_buffer(left: Mapping[str, Any], right: Mapping[str, Any], name: str) -> None:
    assert left["lookback"] == right["lookback"], f"{name}: lookback {left['lookback']} against {right['lookback']}"
    if _is_empty(left["data"]) and _is_empty(right["data"]):
        return  # an episode of no steps has no dtype to speak of unless it was numpy'ized
    assert_same_tree(left["data"], right["data"], name)


def _is_empty(data: Any) -> bool:
    return not len(data) if isinstance(data, (list, np.ndarray)) else all(not len(leaf) for _, leaf in flatten(data))


def assert_same_batch(left: EpisodeBatch, right: EpisodeBatch) -> None:
    """AssertionError, naming the field, unless both hold the same; None and all-empty are the same."""
    assert left.ids == right.ids, f"ids: {left.ids[:5]} against {right.ids[:5]}"
    for name in ("starts", "obs", "actions", "rewards", "terminated", "truncated"):
        assert_same_tree(getattr(left, name), getattr(right, name), name)
    assert left.extra.keys() == right.extra.keys(), f"extra: {sorted(left.extra)} against {sorted(right.extra)}"
    for name, tree in left.extra.items():
        assert_same_tree(tree, right.extra[name], name)
    for name, missing in _optional_fields(left).items():
        ours, theirs = getattr(left, name), getattr(right, name)
        _assert_same_value(missing if ours is None else ours, missing if theirs is None else theirs, name)
    for name in ("observation_space", "action_space"):
        _assert_same_space(getattr(left, name), getattr(right, name), name)


def _optional_fields(batch: EpisodeBatch) -> dict[str, Any]:
    """What None stands for, by field."""
    count = len(batch)
    names = dict.fromkeys(("agent_ids", "module_ids", "multi_agent_ids"), (None,) * count)
    return {
        **names,
        "infos": [{}] * (batch.num_steps + count),
        "t_started": np.zeros(count, np.int64),
        "custom_data": ({},) * count,
        "clock": np.full((count, 2), np.nan),
    }


def assert_same_tree(left: Tree, right: Tree, name: str = "tree") -> None:
    """AssertionError, naming the leaf, unless both have the same structure, dtypes, shapes and values."""
    if isinstance(left, (dict, tuple)) or isinstance(right, (dict, tuple)):
        assert type(left) is type(right), f"{name}: a {type(left).__name__} against a {type(right).__name__}"
        ours, theirs = (dict(enumerate(tree)) if isinstance(tree, tuple) else tree for tree in (left, right))
        assert ours.keys() == theirs.keys(), f"{name}: {list(ours)} against {list(theirs)}"
        for key in ours:
            assert_same_tree(ours[key], theirs[key], f"{name}.{key}")
        return
    _assert_same_array(left, right, name)


def _assert_same_array(left: NDArray[Any], right: NDArray[Any], name: str) -> None:
    for array in (left, right):
        assert isinstance(array, np.ndarray), f"{name}: a {type(array).__name__} where an array belongs"
    assert left.dtype == right.dtype, f"{name}: {left.dtype} against {right.dtype}"
    assert left.shape == right.shape, f"{name}: shape {left.shape} against {right.shape}"
    equal = (left == right) | ((left != left) & (right != right))
    assert np.all(equal), f"{name}: {int(np.size(equal) - np.count_nonzero(equal))} values differ"


def _assert_same_value(left: Any, right: Any, name: str) -> None:
    """Infos and custom data: dicts, lists, arrays, numbers, text; numpy's float64 is a float and counts as one."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        _assert_same_array(left, right, name)
    elif isinstance(left, Mapping) and isinstance(right, Mapping):
        assert left.keys() == right.keys(), f"{name}: {list(left)} against {list(right)}"
        for key in left:
            _assert_same_value(left[key], right[key], f"{name}.{key}")
    elif _is_listed(left) and _is_listed(right):
        assert len(left) == len(right), f"{name}: {len(left)} items against {len(right)}"
        for index, (ours, theirs) in enumerate(zip(left, right, strict=True)):
            _assert_same_value(ours, theirs, f"{name}.{index}")
    else:
        kinds = [float if isinstance(value, float) else type(value) for value in (left, right)]
        assert kinds[0] is kinds[1], f"{name}: {left!r} against {right!r}"
        assert left == right or (left != left and right != right), f"{name}: {left!r} against {right!r}"


def _is_listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _assert_same_space(left: Space | None, right: Space | None, name: str) -> None:
    assert same_space(left, right), f"{name}: {describe(left)} against {describe(right)}"


# ---- strategies ----


def spaces(*, max_depth: int = 2) -> SearchStrategy[Space]:
    """Box of any dtype and rank, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple nested up to `max_depth`."""
    drawn: SearchStrategy[Space] = _strategies().any_space(max_depth)
    return drawn


def episode_batches(
    *, observation_space: Space | None = None, action_space: Space | None = None
) -> SearchStrategy[EpisodeBatch]:
    """Batches of 1 to 4 episodes of 0 to 6 steps, with values inside the spaces (drawn unless given)."""
    drawn: SearchStrategy[EpisodeBatch] = _strategies().any_batch(observation_space, action_space)
    return drawn


def episodes(
    *, observation_space: Space | None = None, action_space: Space | None = None
) -> SearchStrategy[SingleAgentEpisode]:
    """Episodes of 0 to 6 steps, numpy'ized or still growing, whole or a chunk with a lookback buffer."""
    drawn: SearchStrategy[SingleAgentEpisode] = _strategies().any_episode(observation_space, action_space)
    return drawn


def _strategies() -> ModuleType:
    try:
        from offline_cli import _strategies as found
    except ImportError as err:
        raise MissingPackage(
            "the strategies of offline_cli.testing need the package hypothesis",
            where="offline_cli.testing",
            fix="pip install hypothesis",
        ) from err
    return found
