"""FrameStacking: stack the last N observations into one; observations must be Box.

Episodes keep single observations, so both sides need the piece: the env-to-module pipeline, and the learner pipeline with
`as_learner_connector=True`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, Episodes, TwoSidedPiece
from offline_cli.connectors.torch_forms import Stack
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.stacking import row_count, stack
from offline_cli.spaces import Space, map_space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AGES", "FRAMES", "FrameStacking", "FrameStackingEnvToModule", "FrameStackingLearner", "taken", "windows"]

FRAMES: Final = "obs_frames"
AGES: Final = "obs_ages"


class FrameStacking(TwoSidedPiece):
    """Stack observations (..., C) to (..., N * C), oldest first: images (H, W, 1) to (H, W, N), vectors (C,) to (N * C,).

    `add_channel_axis`: treat images (H, W) as (H, W, 1), so that they become (H, W, N) and not (H, N * W).

    Zeros stand in before the first observation; frames in the lookback buffer are used. Leaves of Dict and Tuple are stacked
    separately. `multi_agent`: the spaces are Dicts by agent.

    `by_rows`, set by a learner that gathers stacks itself (`applying/learner_batches.py`): for an `EpisodeBatch`, `obs` (T,) is
    the row in FRAMES of each step's newest frame, and AGES (T,) the number of frames before it in its episode, at most N - 1.
    """

    whole_arrays = True
    by_rows = False

    def __init__(
        self,
        *spaces: Space | None,
        num_frames: int = 1,
        add_channel_axis: bool = False,
        multi_agent: bool = False,
        **kwargs: Any,
    ) -> None:
        if num_frames < 1:
            raise self.bad(f"num_frames is {num_frames}", fix="set num_frames to at least 1")
        self.num_frames = num_frames
        self._add_channel_axis = add_channel_axis
        self._multi_agent = multi_agent
        super().__init__(*spaces, **kwargs)

    @property
    def looks_back(self) -> int:
        return self.num_frames - 1

    def to_torch(self) -> Any:
        return Stack(self.input_observation_space, self.num_frames) if self.input_observation_space is not None else None

    @property
    def may_give_rows(self) -> bool:
        """Whether `by_rows` is possible: in single-agent learner pipelines."""
        return self._as_learner_connector and not self._multi_agent

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """The same space with N times as many entries on the last axis. Raises SpaceMismatch for leaves other than Box."""
        return map_space(self._leaf_space, input_observation_space)

    def _leaf_space(self, space: Space) -> Space:
        if not isinstance(space, spaces.Box):
            raise self.misfit(f"observations of {space}", "Box, or Dict and Tuple of Box", fix="put OneHot before it")

        def tiled(bound: NDArray[Any]) -> NDArray[Any]:
            frame = np.atleast_1d(self._with_channel(bound[None])[0].astype(space.dtype))
            return np.concatenate([frame] * self.num_frames, axis=-1)

        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)  # zeros fill the time before the first observation
        return spaces.Box(tiled(low), tiled(high), dtype=space.dtype)  # type: ignore[arg-type]

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """Add `obs` with N rows in a learner pipeline, else one per episode. Raises BadPiece if the batch already has `obs`."""
        if Columns.OBS in batch:
            fix = "put it once, before other pieces that add obs"
            raise self.bad("the batch already has obs", fix=fix)
        if self._as_learner_connector and isinstance(episodes, EpisodeBatch):
            return batch | self._of_arrays(episodes)
        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            held, count = episode.observations, len(episode)
            if self._as_learner_connector:  # one stack for each observation acted on
                rows = held.data if held.finalized else stack(held.data, held.space)
                found = self._stacked(rows, held.lookback + np.arange(count), 0)
                self.add_n_batch_items(batch, Columns.OBS, found, count, episode)
                continue
            recent = episode.get_observations(slice(-self.num_frames, None))
            rows = stack(recent, held.space) if isinstance(recent, list) else recent
            latest = self._stacked(rows, np.array([row_count(rows) - 1]), 0)
            self.add_batch_item(batch, Columns.OBS, map_leaves(lambda leaf: leaf[0], latest), episode)
        return batch

    def _of_arrays(self, episodes: EpisodeBatch) -> dict[str, Tree]:
        firsts, rows = np.repeat(episodes.obs_starts[:-1], episodes.lengths), episodes.step_rows()
        if not self.by_rows:
            return {Columns.OBS: self._stacked(episodes.obs, rows, firsts)}
        ages = np.minimum(rows - firsts, self.num_frames - 1).astype(np.uint8)
        return {Columns.OBS: rows, FRAMES: map_leaves(self._with_channel, episodes.obs), AGES: ages}

    def _stacked(self, rows: Tree, ends: NDArray[np.int64], firsts: NDArray[np.int64] | int) -> Tree:
        return map_leaves(_joined, windows(map_leaves(self._with_channel, rows), ends, firsts, self.num_frames))

    def _with_channel(self, leaf: NDArray[Any]) -> NDArray[Any]:
        """Values (N, *shape); with `add_channel_axis`, images (H, W) as (H, W, 1)."""
        return leaf[..., None] if self._add_channel_axis and leaf.ndim == 3 else leaf


FrameStackingEnvToModule = partial(FrameStacking, as_learner_connector=False)  # RLlib's names for the two sides
FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)


def _joined(frames: NDArray[Any]) -> NDArray[Any]:
    """(K, N, ..., C) -> (K, ..., N * C)."""
    if frames.ndim == 2:
        return frames
    return np.moveaxis(frames, 1, -2).reshape(len(frames), *frames.shape[2:-1], -1)


def windows(rows: Tree, ends: NDArray[np.int64], firsts: NDArray[np.int64] | int, size: int) -> Tree:
    """Windows (K, size, ...) over rows (R, ...): the rows up to `ends[k]`, oldest first, zeros before `firsts[k]`."""
    wanted = ends[:, None] + np.arange(1 - size, 1)
    there = wanted >= (firsts if isinstance(firsts, int) else firsts[:, None])
    safe = np.where(there, wanted, 0)
    return map_leaves(lambda leaf: taken(leaf, safe, there), rows)


def taken(leaf: NDArray[Any], rows: NDArray[np.int64], there: NDArray[np.bool_]) -> NDArray[Any]:
    """(*rows.shape, ...): the `rows` of `leaf` (R, ...), and zeros where `there` is False."""
    if not (len(leaf) and rows.size):
        return np.zeros((*rows.shape, *leaf.shape[1:]), leaf.dtype)
    found = leaf.take(rows, axis=0)
    found[~there] = np.zeros((), leaf.dtype)
    return found
