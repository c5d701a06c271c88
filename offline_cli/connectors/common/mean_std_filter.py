"""Normalizes observations to mean 0 and standard deviation 1, by the observations seen so far.

Its state is the moments of every Box leaf: `shared`, which came by `set_state`, and `own`, seen since then. Parallel runners
start from one state and send theirs; merging adds up their own parts, so that no observation counts twice. (RLlib 2.60 takes
the total mean for that of the new part, and merges something else.)

Source: Chan, Golub, LeVeque 1979 (updating formulae for sums of squares about the mean). All in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.observation_transform import ObservationTransform, changed_leaves
from offline_cli.connectors.connector_v2 import same_state, shown_names
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.errors import BadPiece, UnsafeData
from offline_cli.space_bounds import BoundReader
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["SMALL", "MeanStdFilter", "Moments"]

SMALL: Final = 1e-6  # RLlib's: keeps a dimension that never changes from dividing by zero
NAMES: Final = {"shared", "own"}
OPTIONS: Final = ("de_mean_to_zero", "de_std_to_one", "clip_by_value")
PLACE: Final = "state of RLlib's MeanStdFilter"
MALFORMED: Final = (AttributeError, LookupError, TypeError, ValueError, OverflowError, UnsafeData)  # states come from files


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Of `count` rows of one shape: their mean, and the sum of squared distances from it."""

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """Of no rows yet."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Of rows (N, *shape), in two passes."""
        if not len(rows):
            return cls.none(rows.shape[1:])
        mean = np.add.reduce(rows, 0, dtype=np.float64) / len(rows)
        return cls(len(rows), mean, np.add.reduce(np.square(rows - mean), 0))

    def with_(self, other: Moments) -> Moments:
        """Of the rows of both."""
        if not other.count or not self.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + np.square(apart) * (self.count * other.count / count))

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation of a sample (N - 1); zeros for fewer than two rows."""
        return np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.zeros_like(self.m2)

    def state(self) -> dict[str, Any]:
        """As plain values and arrays."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self.m2.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Moments:
        """What `state` gave. Raises one of MALFORMED for what is none."""
        count = int(state["count"])
        mean, m2 = np.array(state["mean"], np.float64), np.array(state["m2"], np.float64)
        if count < 0 or np.any(m2 < 0):
            raise ValueError(f"a count of {count}, or squares, below zero")
        return cls(count, mean, m2)


ByLeaf = dict[str, Moments]


class MeanStdFilter(ObservationTransform):
    """(x - mean) / std of each Box leaf, clipped; choices (Discrete, MultiDiscrete, MultiBinary) stay. Integers become float32.

    Beside an environment each new observation is counted first, then changed by all so far, itself included. In a learner
    pipeline (`as_learner_connector`) the observations that were acted on are counted, all episodes of a call, and then all are
    changed by the result: call `freeze` before held-out data come through. Training freezes it after one pass.

    Args:
        de_mean_to_zero, de_std_to_one: Subtract the mean; divide by the standard deviation (of a sample, plus 1e-6).
        clip_by_value: Limit to [-c, c]; None: no limit.
        update_stats: Whether observations are counted at all.
    """

    def __init__(
        self,
        *spaces: Space | None,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        self.de_mean_to_zero, self.de_std_to_one = de_mean_to_zero, de_std_to_one
        self.clip_by_value, self.update_stats = clip_by_value, update_stats
        self._shared: ByLeaf = {}
        self._own: ByLeaf = {}
        super().__init__(*spaces, **kwargs)

    # ---- spaces ----

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Every Box with the bounds of the clipping."""
        return changed_leaves(observations, self._leaf_space)

    def _leaf_space(self, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box):
            return leaf
        bound = self.clip_by_value or np.inf
        return spaces.Box(-bound, bound, leaf.shape, leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.float32)  # type: ignore[arg-type]

    # ---- observations ----

    @property
    def counts(self) -> bool:
        """Whether observations are counted."""
        return self.update_stats and not self.frozen

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Leaves (N, ...), all by what is known now."""
        return self._each_box(rows, space, agent_id, self._filtered)

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Count the last observation of each, one after the other, and overwrite it before the next is counted."""
        if not self.counts:
            super().change_last(episodes, agent_id)
            return
        space = self.space_before(agent_id)
        for episode in episodes:
            self._count(stack([episode.get_observations(-1)], space), space, agent_id)
            super().change_last([episode], agent_id)

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Count all observations that were acted on, then write over all."""
        space = self.space_before(agent_id)
        for episode in episodes if self.counts else []:
            if len(episode):
                seen = episode.get_observations(slice(0, len(episode)))
                self._count(stack(seen, space) if isinstance(seen, list) else seen, space, agent_id)
        super().change_all(episodes, agent_id)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Leaves (N+E, ...); those acted on are counted first."""
        if self.counts:
            self._count(episodes.acted_obs(), self.space_before(None), None)
        return super().transformed_batch(episodes)

    def _filtered(self, path: str, leaf: NDArray[Any]) -> NDArray[Any]:
        none = Moments.none(leaf.shape[1:])
        known = self._shared.get(path, none).with_(self._own.get(path, none))
        dtype = leaf.dtype if leaf.dtype.kind == "f" else np.float32
        if not known.count:
            return leaf.astype(dtype, copy=False)
        values = leaf - known.mean if self.de_mean_to_zero else leaf
        values = values / (known.std + SMALL) if self.de_std_to_one else values
        bound = self.clip_by_value  # at every step of playing, where np.clip takes longer than both of these
        return (np.minimum(np.maximum(values, -bound), bound) if bound else values).astype(dtype, copy=False)

    def _count(self, rows: Tree, space: Space, agent_id: Any) -> None:
        def counted(path: str, leaf: NDArray[Any]) -> NDArray[Any]:
            own = self._own.get(path) or Moments.none(leaf.shape[1:])
            self._own[path] = own.with_(Moments.of(leaf))
            return leaf

        self._each_box(rows, space, agent_id, counted)

    def _each_box(self, rows: Tree, space: Space, agent_id: Any, change: Callable[[str, NDArray[Any]], NDArray[Any]]) -> Tree:
        """`rows` with `change(path, leaf)` in the place of each leaf of a Box."""
        parts = leaf_spaces(space, self._prefix(agent_id))
        changed = [
            change(path, leaf) if isinstance(parts[path], spaces.Box) else leaf
            for path, leaf in flatten(rows, self._prefix(agent_id))
        ]
        return unflatten_like(rows, changed)

    def _prefix(self, agent_id: Any) -> str:
        return str(agent_id) if self._multi_agent else "obs"

    # ---- state ----

    def moments(self) -> ByLeaf:
        """Of every leaf that was counted, by name: what observations are changed by."""
        return _sums([self._shared, self._own])

    def get_state(self, components: Any = None, *, not_components: Any = None, **_: Any) -> dict[str, Any]:
        """Moments by leaf (`obs`, `obs.camera`, with several agents `agent.camera`), `shared` and `own`; empty before any."""
        return {"shared": _states(self._shared), "own": _states(self._own)} if self._shared or self._own else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over all of a state as `shared`, and begin `own` anew.

        The `get_state()` of RLlib's connector is taken as well, to the last bit. Raises BadPiece for another piece's state, and
        for one of RLlib's filters that had other options.
        """
        parts = [self._of_rllib(state)] if _is_from_rllib(state) else list(_parts(state))
        for part in parts:
            self._check_shapes(part)
        self._shared, self._own = _sums(parts), {}

    def _check_shapes(self, parts: ByLeaf) -> None:
        """Raise BadPiece for moments of observations of another shape: numpy would stretch one to the other."""
        space = self.input_observation_space
        leaves = {} if space is None else leaf_spaces(space, "" if self._multi_agent else "obs")
        for name, part in parts.items():
            wanted = leaves[name].shape if name in leaves else part.mean.shape
            if not part.mean.shape == part.m2.shape == wanted:
                what = f"a state of shapes {part.mean.shape} and {part.m2.shape} for {name[:80]}, which has shape {wanted}"
                raise BadPiece(what, where="MeanStdFilter", fix="the state that was learned from these observations")

    def reset_state(self) -> None:
        """Forget all that was seen."""
        self._shared, self._own = {}, {}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What they shared, with all that each saw on its own. Raises BadPiece where they did not start from one state."""
        parts = [_parts(state) for state in states if state]
        if not parts:
            return {}
        if any(not same_state(_states(parts[0][0]), _states(shared)) for shared, _ in parts[1:]):
            what = "states of runners that did not start from the same one"
            raise BadPiece(what, where="MeanStdFilter", fix="set_state of every runner before it goes on")
        return {"shared": _states(_sums([parts[0][0], *(own for _, own in parts)])), "own": {}}

    # ---- states of RLlib's filter ----

    def _of_rllib(self, state: Mapping[Any, Mapping[str, Any]]) -> ByLeaf:
        """By leaf what RLlib's filters counted. Raises BadPiece for filters that change observations in another way."""
        found: ByLeaf = {}
        for agent_id, told in state.items():
            differing = {name: told[name] for name in OPTIONS if name in told and told[name] != getattr(self, name)}
            if differing:
                theirs = ", ".join(f"{name}={value!r}" for name, value in differing.items())
                mine = ", ".join(f"{name}={getattr(self, name)!r}" for name in differing)
                what = f"a state of RLlib's filter with {theirs}, here {mine}"
                raise BadPiece(what, where=PLACE, fix=f"MeanStdFilter({theirs})")
            if (agent_id is not None) != self._multi_agent:
                what = f"a state of RLlib's filter for agent {agent_id!r}, and multi_agent={self._multi_agent} here"
                raise BadPiece(what, where=PLACE, fix=f"MeanStdFilter(multi_agent={not self._multi_agent})")
            prefix = self._prefix(agent_id)
            names = [prefix] if self.input_observation_space is None else list(_boxes(self.space_before(agent_id), prefix))
            try:
                parts = [_moments_of_rllib(stat) for stat in _in_dm_tree_order(told["running_stats"])]
            except MALFORMED as err:
                what = f"not a state of RLlib's MeanStdFilter: {err!r}"[:300]
                raise BadPiece(what, where=PLACE, fix="the get_state() of RLlib's connector") from err
            if len(names) != len(parts):
                what = f"a state of RLlib's filter with {len(parts)} leaves for agent {agent_id!r}, and here are {names}"
                raise BadPiece(what, where=PLACE, fix="the state that was learned from these observations")
            found |= {name: part for name, part in zip(names, parts, strict=True) if part.count}
        return found


def _is_from_rllib(state: Any) -> bool:
    """RLlib's connector has a dict for each agent (None: there is one)."""
    parts = list(state.values()) if isinstance(state, Mapping) else []
    return bool(parts) and all(isinstance(part, Mapping) and "running_stats" in part for part in parts)


def _in_dm_tree_order(tree: Any) -> list[Any]:
    """The states of RLlib's `RunningStat`s: Dict leaves by sorted key."""
    if isinstance(tree, Mapping) and "num_pushes" not in tree:
        return [stat for key in sorted(tree) for stat in _in_dm_tree_order(tree[key])]
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [stat for part in tree for stat in _in_dm_tree_order(part)]
    return [tree]


def _boxes(space: Any, path: str) -> Iterator[str]:
    """Our names of the leaves that RLlib's filter has counted, in the same order."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _boxes(space[key], f"{path}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _boxes(part, f"{path}.{index}")
    elif isinstance(space, spaces.Box):
        yield path


def _moments_of_rllib(stat: Mapping[str, Any]) -> Moments:
    """Sums of squares are called `std_array` before RLlib 2.48. Arrays that are text are read without pickle."""
    squares = "sum_sq_diff_array" if "sum_sq_diff_array" in stat else "std_array"
    read = BoundReader(PLACE).read
    mean, m2 = (read(array) if isinstance(array, str) else array for array in (stat["mean_array"], stat[squares]))
    return Moments.from_state({"count": stat["num_pushes"], "mean": mean, "m2": m2})


# ---- parts of states ----


def _sums(parts: Sequence[ByLeaf]) -> ByLeaf:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: reduce(Moments.with_, [part[name] for part in parts if name in part]) for name in names}


def _states(moments: ByLeaf) -> dict[str, Any]:
    return {name: part.state() for name, part in moments.items()}


def _parts(state: Mapping[str, Any]) -> tuple[ByLeaf, ByLeaf]:
    """(shared, own) of a state; an empty one has neither."""
    fix = "the state of a MeanStdFilter"
    if not isinstance(state, Mapping) or (state and set(state) != NAMES):
        raise BadPiece(f"a state with {shown_names(state)}, not {sorted(NAMES)}", where="MeanStdFilter", fix=fix)
    try:
        shared, own = (
            {str(name): Moments.from_state(part) for name, part in state.get(key, {}).items()} for key in ("shared", "own")
        )
    except MALFORMED as err:
        what = f"not a state of means and standard deviations: {err!r}"[:300]
        raise BadPiece(what, where="MeanStdFilter", fix=fix) from err
    return shared, own
