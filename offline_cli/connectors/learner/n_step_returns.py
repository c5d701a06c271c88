"""Rewards over several steps, and where they lead; refuses to look past the end of an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.buffers.stacking import stack
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space
from offline_cli.trees import map_leaves

__all__ = ["NStepReturns"]


class NStepReturns(ConnectorV2):
    """With k = min(n_step, steps left): `rewards` r[t] + ... + gamma^(k-1) r[t+k-1], `new_obs` o[t+k], `n_step` k, end flags.

    `terminateds` and `truncateds` are those of the last of the k steps. Bootstrap with gamma^`n_step` * value(`new_obs`).
    """

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        n_step: int,
        gamma: float,
        **kwargs: Any,
    ) -> None:
        if n_step < 1:
            raise BadPiece(f"n_step={n_step}", where="NStepReturns", fix="a number from 1 on")
        self.n_step, self.gamma = int(n_step), float(gamma)
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with these columns. Raises BadPiece where one of them is there already."""
        names = [Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.N_STEP]
        there = [name for name in names if name in batch]
        if there:
            raise BadPiece(
                f"{there} are in the batch already", where="NStepReturns", fix="put it before the pieces that add them"
            )
        if isinstance(episodes, EpisodeBatch):
            return batch | self._columns(episodes)
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                for column, rows in self._columns(_as_batch(episode)).items():
                    self.add_n_batch_items(batch, column, rows, len(episode), episode)
        return batch

    def _columns(self, episodes: EpisodeBatch) -> dict[str, Any]:
        ends = np.repeat(episodes.starts[1:], episodes.lengths)
        steps = np.arange(episodes.num_steps)
        count = np.minimum(self.n_step, ends - steps)
        rows = episodes.step_rows() + count
        terminateds, truncateds = episodes.step_flags()
        last = steps + count - 1
        return {
            Columns.REWARDS: self._sums(episodes.rewards, count),
            Columns.NEXT_OBS: map_leaves(lambda leaf: leaf.take(rows, axis=0), episodes.obs),
            Columns.TERMINATEDS: terminateds[last],
            Columns.TRUNCATEDS: truncateds[last],
            Columns.N_STEP: count,
        }

    def _sums(self, rewards: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
        sums = rewards.astype(np.float64)
        for k in range(1, min(self.n_step, len(rewards))):
            sums[:-k] += np.where(count[:-k] > k, self.gamma**k * rewards[k:], 0.0)
        return sums


def _as_batch(episode: SingleAgentEpisode) -> EpisodeBatch:
    """One episode as a batch, of what is needed here."""
    seen = episode.get_observations()
    return EpisodeBatch(
        ids=(episode.id_,),
        starts=np.array([0, len(episode)]),
        obs=stack(seen, episode.observations.space) if isinstance(seen, list) else seen,
        actions=np.zeros(len(episode)),
        rewards=np.asarray(episode.get_rewards(), np.float64),
        terminated=np.array([episode.is_terminated]),
        truncated=np.array([episode.is_truncated]),
    )
