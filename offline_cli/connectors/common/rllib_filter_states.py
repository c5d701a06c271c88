"""Converts states of RLlib's MeanStdFilter to ours: the same counts, means and sums of squares, to the last bit.

Accepted are `get_state()` of RLlib's connector; by agent, or alone, its filter objects
(`ray.rllib.utils.filter.MeanStdFilter`), their `RunningStat`s, and what those return from `to_state()`. Texts in them are read
without pickle. The sums of squares are called `std_array` before RLlib 2.48.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from offline_cli.errors import BadPiece, UnsafeData
from offline_cli.space_bounds import BoundReader

__all__ = ["OPTIONS", "is_from_rllib", "moments_from_rllib", "options_from_rllib"]

T = TypeVar("T")
PLACE: Final = "state of RLlib's MeanStdFilter"
OPTIONS: Final = ("de_mean_to_zero", "de_std_to_one", "clip_by_value")
SQUARES: Final = ("sum_sq_diff_array", "std_array")  # since 2.48, and before
OF_FILTERS: Final = {"demean": "de_mean_to_zero", "destd": "de_std_to_one", "clip": "clip_by_value"}


def is_from_rllib(state: Any) -> bool:
    """Whether this comes from RLlib; states of our own piece do not."""
    if _is_part(state):
        return True
    return isinstance(state, Mapping) and bool(state) and all(map(_is_part, state.values()))


def _is_part(part: Any) -> bool:
    """Whether this is what RLlib has for one agent."""
    if isinstance(part, Mapping):
        return "running_stats" in part or "num_pushes" in part
    return any(hasattr(part, name) for name in ("running_stats", *SQUARES))


def _by_agent(state: Any) -> dict[Any, Any]:
    return {None: state} if _is_part(state) else dict(state)


def options_from_rllib(state: Any) -> Iterator[tuple[str, Any]]:
    """Each (option of ours, value) that RLlib's filters had, as far as the state says."""
    for part in _by_agent(state).values():
        if isinstance(part, Mapping):
            yield from ((name, part[name]) for name in OPTIONS if name in part)
        else:
            yield from ((name, getattr(part, theirs)) for theirs, name in OF_FILTERS.items() if hasattr(part, theirs))


def moments_from_rllib(state: Any, made: Callable[[Mapping[str, Any]], T]) -> dict[Any, list[T]]:
    """By agent (None: there is one), in the order of dm_tree: Dict leaves by sorted key. Raises BadPiece for what is none.

    `made`: from a mapping of `count`, `mean` and `m2`.
    """
    try:
        return {agent: [made(_moments(stat)) for stat in _stats(part)] for agent, part in _by_agent(state).items()}
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError, UnsafeData) as err:
        what = f"not a state of RLlib's MeanStdFilter: {err!r}"[:300]
        raise BadPiece(what, where=PLACE, fix="the get_state() of RLlib's connector") from err


def _stats(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return _flat(part["running_stats"]) if "running_stats" in part else [part]
    return _flat(part.running_stats) if hasattr(part, "running_stats") else [part]


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping) and "num_pushes" not in tree:
        return [stat for key in sorted(tree) for stat in _flat(tree[key])]
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [stat for part in tree for stat in _flat(part)]
    return [tree]


def _moments(stat: Any) -> dict[str, Any]:
    named = stat if isinstance(stat, Mapping) else stat.to_state()
    squares = next((name for name in SQUARES if name in named), SQUARES[0])
    count, mean, m2 = (named[name] for name in ("num_pushes", "mean_array", squares))
    read = BoundReader(PLACE).read
    mean, m2 = (read(array) if isinstance(array, str) else array for array in (mean, m2))
    return {"count": count, "mean": mean, "m2": m2}
