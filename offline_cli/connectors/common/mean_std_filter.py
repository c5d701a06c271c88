"""MeanStdFilter: normalize observations by their running mean and standard deviation.

Its state holds the moments of every Box leaf, in float64: count, mean, and sum of squared deviations from the mean.

Source: Chan, Golub, LeVeque 1979 (updating formulae for sums of squares about the mean).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from offline_cli.connectors.common.flattening import ObservationTransform
from offline_cli.connectors.torch_forms import Standardized
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.spaces import Space, leaf_spaces, map_space
from offline_cli.trees import Tree, flatten, unflatten_like

__all__ = ["MeanStdFilter", "Moments"]

SMALL: Final = 1e-6  # RLlib's constant: avoids division by zero in constant dimensions


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Running moments of `count` rows of one shape: the mean, and the sum of squared deviations from it."""

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """The moments of rows (N, *shape), in two passes."""
        if not len(rows):
            return cls(0, np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:]))
        mean = np.add.reduce(rows, 0, dtype=np.float64) / len(rows)
        return cls(len(rows), mean, np.add.reduce(np.square(rows - mean), 0))

    def with_(self, other: Moments) -> Moments:
        """The moments of both sets of rows together."""
        if not other.count or not self.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + np.square(apart) * (self.count * other.count / count))

    @property
    def divisor(self) -> NDArray[np.float64]:
        """The sample standard deviation (N - 1) plus SMALL; only SMALL for fewer than two rows."""
        std: NDArray[np.float64] = np.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else np.zeros_like(self.m2)
        return std + SMALL


class MeanStdFilter(ObservationTransform):
    """Replace each Box leaf by (x - mean) / std, clipped. Integers become float32; Discrete, MultiDiscrete, MultiBinary stay.

    In an env-to-module pipeline each new observation updates the statistics, then is normalized by them. In a learner pipeline
    (`as_learner_connector`) the observations acted on, of all episodes of a call, update the statistics before all are
    normalized: call `freeze` before held-out data. Training freezes the filter after one pass.

    Args:
        de_mean_to_zero, de_std_to_one: Subtract the mean; divide by the sample standard deviation plus 1e-6.
        clip_by_value: Clip to [-c, c]; None: no clipping.
        update_stats: Whether observations update the statistics at all.
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
        self._moments: dict[str, Moments] = {}  # by leaf: `obs`, `obs.camera`; with several agents `agent.camera`
        super().__init__(*spaces, **kwargs)

    # ---- spaces ----

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """The space with every Box bounded by `clip_by_value`."""
        return map_space(self._leaf_space, observations)

    def _leaf_space(self, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box):
            return leaf
        bound = self.clip_by_value or np.inf
        return spaces.Box(-bound, bound, leaf.shape, leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.float32)  # type: ignore[arg-type]

    def _boxes(self, agent_id: Any) -> dict[str, Space]:
        """The Box leaves by name."""
        leaves = leaf_spaces(self.space_before(agent_id), self._prefix(agent_id))
        return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, spaces.Box)}

    def _prefix(self, agent_id: Any) -> str:
        return str(agent_id) if self._multi_agent else "obs"

    # ---- observations ----

    @property
    def counts(self) -> bool:
        """Whether observations update the statistics."""
        return self.update_stats and not self.frozen

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Leaves (N, ...), normalized by the current statistics."""
        boxes = self._boxes(agent_id)
        leaves = flatten(rows, self._prefix(agent_id))
        return unflatten_like(rows, [self._filtered(path, leaf) if path in boxes else leaf for path, leaf in leaves])

    def _filtered(self, path: str, leaf: NDArray[Any]) -> NDArray[Any]:
        moments, dtype = self._moments.get(path), leaf.dtype if leaf.dtype.kind == "f" else np.float32
        if moments is None or not moments.count:
            return leaf.astype(dtype, copy=False)
        values = leaf - moments.mean if self.de_mean_to_zero else leaf
        values = values / moments.divisor if self.de_std_to_one else values
        bound = self.clip_by_value  # np.clip is slower than minimum and maximum on the small arrays of playing
        return (np.minimum(np.maximum(values, -bound), bound) if bound else values).astype(dtype, copy=False)

    def change_last(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """For each episode in turn: count its last observation, then overwrite it."""
        if not self.counts:
            super().change_last(episodes, agent_id)
            return
        for episode in episodes:
            self._count([episode.get_observations(-1)], agent_id)
            super().change_last([episode], agent_id)

    def change_all(self, episodes: list[SingleAgentEpisode], agent_id: Any) -> None:
        """Count all observations acted on, then overwrite all."""
        for episode in episodes if self.counts else []:
            if len(episode):
                self._count(episode.get_observations(slice(0, len(episode))), agent_id)
        super().change_all(episodes, agent_id)

    def transformed_batch(self, episodes: EpisodeBatch) -> Tree:
        """Leaves (N+E, ...), after counting the observations acted on."""
        if self.counts:
            self._count(episodes.acted_obs(), None)
        return super().transformed_batch(episodes)

    def _count(self, rows: Tree | list[Any], agent_id: Any) -> None:
        rows = stack(rows, self.space_before(agent_id)) if isinstance(rows, list) else rows
        boxes = self._boxes(agent_id)
        for path, leaf in flatten(rows, self._prefix(agent_id)):
            if path in boxes:
                new = Moments.of(leaf)
                self._moments[path] = self._moments[path].with_(new) if path in self._moments else new

    def to_torch(self) -> nn.Module:
        parts: list[tuple[Any, Any, torch.dtype | None]] = []
        boxes = self._boxes(None)
        for path in leaf_spaces(self.space_before(None), "obs"):
            moments, after = self._moments.get(path), self._leaf_space(boxes[path]) if path in boxes else None
            mean = moments.mean if moments is not None and self.de_mean_to_zero else 0.0
            divisor = moments.divisor if moments is not None and self.de_std_to_one else 1.0
            parts.append((mean, divisor, None if after is None else getattr(torch, str(after.dtype))))
        return Standardized(parts, self.clip_by_value or np.inf)

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Moments by leaf, as numbers and arrays; empty before the first observation."""
        return {name: asdict(moments) for name, moments in self._moments.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`. Raises BadPiece for another piece's state."""
        try:
            self._moments = {
                name: Moments(int(part["count"]), np.array(part["mean"], np.float64), np.array(part["m2"], np.float64))
                for name, part in state.items()
            }
        except (AttributeError, LookupError, TypeError, ValueError) as err:
            fix = "use the state of a MeanStdFilter with the same observation space"
            raise self.bad(f"not the state of a MeanStdFilter: {err!r}"[:300], fix=fix) from err

    def reset_state(self) -> None:
        """Forget all statistics."""
        self._moments = {}
