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
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.connectors.common.observation_transform import ObservationTransform, changed_leaves
from offline_cli.connectors.common.rllib_filter_states import PLACE, is_from_rllib, moments_from_rllib, options_from_rllib
from offline_cli.connectors.connector_v2 import same_state, shown_names
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["MeanStdFilter", "Moments"]

SMALL = 1e-6  # RLlib's: keeps a dimension that never changes from dividing by zero
NAMES = {"shared", "own"}


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

    def along(self, rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(N, *shape) each: mean and std after each of `rows` (N, *shape) in turn, as if they came one by one."""
        counts = np.arange(self.count + 1.0, self.count + 1.0 + len(rows)).reshape(-1, *[1] * self.mean.ndim)
        from_start = rows - self.mean
        means = self.mean + np.add.accumulate(from_start, 0) / counts
        from_last = from_start  # each row's distance from the mean before it
        np.subtract(rows[1:], means[:-1], out=from_last[1:])
        m2 = self.m2 + np.add.accumulate(from_last * (rows - means), 0)
        fewer = counts - 1 if self.count else np.maximum(counts - 1, 1)
        return means, np.sqrt(np.maximum(m2, 0) / fewer)

    def state(self) -> dict[str, Any]:
        """As plain values and arrays."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self.m2.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Moments:
        """What `state` gave. Raises KeyError, TypeError, ValueError, OverflowError for what is none."""
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
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool = False,
        as_learner_connector: bool = False,
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
        self._names_of_boxes: dict[Any, tuple[Space, set[str]]] = {}  # by agent, with the space that they are of
        super().__init__(
            input_observation_space,
            input_action_space,
            multi_agent=multi_agent,
            as_learner_connector=as_learner_connector,
            **kwargs,
        )

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

        def filtered(leaf: NDArray[Any], known: Moments) -> NDArray[Any]:
            return self._filtered(leaf, known.mean, known.std) if known.count else leaf

        return self._each(rows, space, agent_id, filtered)

    def transform_last(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Leaves (E, ...), each row counted and changed before the next one is."""
        if not self.counts:
            return self.transform(rows, space, agent_id)
        changed = self._each(rows, space, agent_id, lambda leaf, known: self._filtered(leaf, *known.along(leaf)))
        self._count(rows, space, agent_id)
        return changed

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

    def _filtered(self, leaf: NDArray[Any], mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[Any]:
        values = leaf - mean if self.de_mean_to_zero else leaf
        values = values / (std + SMALL) if self.de_std_to_one else values
        bound = self.clip_by_value  # at every step of playing, where np.clip takes longer than both of these
        return np.minimum(np.maximum(values, -bound), bound) if bound else values

    def _each(self, rows: Tree, space: Space, agent_id: Any, change: Callable[[NDArray[Any], Moments], NDArray[Any]]) -> Tree:
        changed = []
        boxes = self._boxes(space, agent_id)
        for path, leaf in flatten(rows, self._prefix(agent_id)):
            if path in boxes:
                dtype = leaf.dtype if leaf.dtype.kind == "f" else np.float32
                leaf = change(leaf, self._known(path, leaf.shape[1:])).astype(dtype, copy=False)
            changed.append(leaf)
        return unflatten_like(rows, changed)

    def _count(self, rows: Tree, space: Space, agent_id: Any) -> None:
        boxes = self._boxes(space, agent_id)
        for path, leaf in flatten(rows, self._prefix(agent_id)):
            if path in boxes:
                own = self._own.get(path) or Moments.none(leaf.shape[1:])
                self._own[path] = own.with_(Moments.of(leaf))

    def _known(self, path: str, shape: tuple[int, ...]) -> Moments:
        none = Moments.none(shape)
        return self._shared.get(path, none).with_(self._own.get(path, none))

    def _boxes(self, space: Space, agent_id: Any) -> set[str]:
        """The names of leaves that are filtered."""
        known = self._names_of_boxes.get(agent_id)
        if known is None or known[0] is not space:
            named = leaf_spaces(space, self._prefix(agent_id)).items()
            known = self._names_of_boxes[agent_id] = space, {path for path, part in named if isinstance(part, spaces.Box)}
        return known[1]

    def _prefix(self, agent_id: Any) -> str:
        return str(agent_id) if self._multi_agent else "obs"

    # ---- state ----

    def moments(self) -> ByLeaf:
        """Of every leaf that was counted, by name: what observations are changed by."""
        every = [*self._shared, *self._own]
        return {name: _sum([part[name] for part in (self._shared, self._own) if name in part]) for name in dict.fromkeys(every)}

    def get_state(self, components: Any = None, *, not_components: Any = None, **_: Any) -> dict[str, Any]:
        """Moments by leaf (`obs`, `obs.camera`, with several agents `agent.camera`), `shared` and `own`; empty before any."""
        if not (self._shared or self._own):
            return {}
        return {"shared": _states(self._shared), "own": _states(self._own)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over all of a state as `shared`, and begin `own` anew.

        States of RLlib's MeanStdFilter are taken as well (see `rllib_filter_states`). Raises BadPiece for another piece's
        state, and for one of RLlib's filters that had other options.
        """
        shared, own = (self._of_rllib(state), ByLeaf()) if is_from_rllib(state) else _parts(state)
        names = dict.fromkeys((*shared, *own))
        self._check_shapes([*shared.items(), *own.items()])
        self._own = {}
        self._shared = {name: _sum([part[name] for part in (shared, own) if name in part]) for name in names}

    def _of_rllib(self, state: Any) -> ByLeaf:
        """By leaf what RLlib's filters counted. Raises BadPiece for filters that change observations in another way."""
        differing = {name: value for name, value in options_from_rllib(state) if getattr(self, name) != value}
        if differing:
            theirs = ", ".join(f"{name}={value!r}" for name, value in differing.items())
            mine = ", ".join(f"{name}={getattr(self, name)!r}" for name in differing)
            raise BadPiece(f"a state of RLlib's filter with {theirs}, here {mine}", where=PLACE, fix=f"MeanStdFilter({theirs})")
        found: ByLeaf = {}
        for agent_id, parts in moments_from_rllib(state, Moments.from_state).items():
            names = self._names_as_rllib(agent_id)
            if len(names) != len(parts):
                what = f"a state of RLlib's filter with {len(parts)} leaves for agent {agent_id!r}, and here are {names}"
                raise BadPiece(what, where=PLACE, fix="the state that was learned from these observations")
            found |= zip(names, parts, strict=True)
        return {name: part for name, part in found.items() if part.count}

    def _names_as_rllib(self, agent_id: Any) -> list[str]:
        """Our names of the leaves that RLlib's filter of an agent has counted, in RLlib's order."""
        if (agent_id is not None) != self._multi_agent:
            what = f"a state of RLlib's filter for agent {agent_id!r}, and multi_agent={self._multi_agent} here"
            raise BadPiece(what, where=PLACE, fix=f"MeanStdFilter(multi_agent={not self._multi_agent})")
        if self.input_observation_space is None:
            return [self._prefix(agent_id)]
        return list(_sorted_boxes(self.space_before(agent_id), self._prefix(agent_id)))

    def _check_shapes(self, parts: Sequence[tuple[str, Moments]]) -> None:
        """Raise BadPiece for moments of observations of another shape: numpy would stretch one to the other."""
        space = self.input_observation_space
        leaves = {} if space is None else leaf_spaces(space, "" if self._multi_agent else "obs")
        for name, part in parts:
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
        every = [part for pair in (parts[0], *((ByLeaf(), own) for _, own in parts[1:])) for part in pair]
        names = dict.fromkeys(name for part in every for name in part)
        return {"shared": _states({name: _sum([part[name] for part in every if name in part]) for name in names}), "own": {}}


def _sorted_boxes(space: Any, path: str) -> Iterator[str]:
    """The paths of Box leaves, Dict parts by sorted key."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from _sorted_boxes(space[key], f"{path}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _sorted_boxes(part, f"{path}.{index}")
    elif isinstance(space, spaces.Box):
        yield path


def _sum(parts: Sequence[Moments]) -> Moments:
    return reduce(Moments.with_, parts)


def _states(moments: ByLeaf) -> dict[str, Any]:
    return {name: part.state() for name, part in moments.items()}


def _parts(state: Mapping[str, Any]) -> tuple[ByLeaf, ByLeaf]:
    """(shared, own) of a state; an empty one has neither."""
    if not isinstance(state, Mapping) or (state and set(state) != NAMES):
        what = f"a state with {shown_names(state)}, not {sorted(NAMES)}"
        raise BadPiece(what, where="MeanStdFilter", fix="the state of a MeanStdFilter")
    try:
        shared, own = (
            {str(name): Moments.from_state(part) for name, part in state.get(key, {}).items()} for key in ("shared", "own")
        )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as err:  # a state may come from a file
        what = f"not a state of means and standard deviations: {err!r}"[:300]
        raise BadPiece(what, where="MeanStdFilter", fix="the state of a MeanStdFilter") from err
    return shared, own
