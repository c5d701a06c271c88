"""Returns, advantages and clipped rewards of many episodes at once.

Sums run from the right, y[t] = x[t] + factor[t] * y[t + 1], with a factor of 0 where an episode ends, in log2(longest run)
passes over whole arrays. Source: Hillis, Steele 1986 (data parallel algorithms), for a linear recurrence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.common.batch_columns import StepColumns
from offline_cli.connectors.common.states_and_time import Cut
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import is_multi, module_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["ClipRewards", "ComputeReturnsToGo", "GeneralAdvantageEstimation", "NStepReturns", "discounted", "factors"]

Rows = Literal["all", "real", "none"]


def discounted(values: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) of values and factors (N,); the last factor is taken for 0."""
    sums, reach = values.astype(np.float64), factor.astype(np.float64)
    if len(reach):
        reach[-1] = 0.0
    hop = 1
    while hop < len(sums) and reach.any():
        sums[:-hop] += reach[:-hop] * sums[hop:]
        reach[:-hop] *= reach[hop:]
        reach[-hop:] = 0.0
        hop *= 2
    return sums


def factors(lengths: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """(N,) `gamma` at every step of episodes of these lengths but their last, 0 there."""
    steps = np.full(int(lengths.sum()), float(gamma))
    steps[np.cumsum(lengths)[lengths > 0] - 1] = 0.0
    return steps


class ComputeReturnsToGo(StepColumns):
    """`returns_to_go` (N,) float64, in the units of rewards: r[t] + gamma * r[t+1] + ... up to the end of the chunk."""

    column = Columns.RETURNS_TO_GO

    def __init__(self, *spaces: Space | None, gamma: float, **kwargs: Any) -> None:
        self.gamma = gamma
        super().__init__(*spaces, **kwargs)

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        """`returns_to_go`."""
        return {Columns.RETURNS_TO_GO: discounted(episodes.rewards, factors(episodes.lengths, self.gamma))}


class NStepReturns(StepColumns):
    """With k = min(n_step, steps left): `rewards` r[t] + ... + gamma^(k-1) r[t+k-1], `new_obs` o[t+k], `n_step` k, end flags.

    `terminateds` and `truncateds` are those of the last of the k steps. Bootstrap with gamma^`n_step` * value(`new_obs`).
    """

    def __init__(self, *spaces: Space | None, n_step: int, gamma: float, **kwargs: Any) -> None:
        if n_step < 1:
            raise BadPiece(f"n_step={n_step}", where="NStepReturns", fix="a number from 1 on")
        self.n_step, self.gamma = int(n_step), float(gamma)
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """The batch with these columns. Raises BadPiece where one of them is there already."""
        names = [Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.N_STEP]
        there = [name for name in names if name in batch]
        if there:
            fix = "put it before the pieces that add them"
            raise BadPiece(f"{there} are in the batch already", where="NStepReturns", fix=fix)
        return super().__call__(batch=batch, episodes=episodes, **call)

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        """All five."""
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


class GeneralAdvantageEstimation(ConnectorV2):
    """`advantages` and `value_targets`, float32 tensors shaped as `rewards`, for every module that has `compute_values`.

    It comes after the default pieces, and needs AddOneTsToEpisodesAndTruncate before them: at that step the value of the last
    observation is computed. Source: Schulman et al. 2016 (high-dimensional continuous control using GAE).

    Args:
        gamma, lambda_: Discount, and how far rewards count before values do.
        standardize: Which rows' mean and spread the advantages are standardised by: "all" as RLlib does, artificial steps
            included; "real": those that the loss counts; "none": left as they are.
    """

    whole_arrays = True

    def __init__(self, *spaces: Space | None, gamma: float, lambda_: float, standardize: Rows = "all", **kwargs: Any) -> None:
        self.gamma, self.lambda_, self.standardize = gamma, lambda_, standardize
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with both columns. Raises BadPiece where no module has values, or episodes lack their artificial step."""
        asked = 0
        for module_id, part in _parts(rl_module, batch):
            module = module_of(rl_module, module_id)
            if hasattr(module, "compute_values"):
                asked += 1
                part.update(self._columns(module, part, self._lengths(episodes, module_id)))
        if not asked:
            fix = "a module with compute_values(batch) -> (B,) or (B, T); in apply --policy RUN, of a run by marwil"
            raise BadPiece("no module here has values", where="GeneralAdvantageEstimation", fix=fix)
        return batch

    def _lengths(self, episodes: Episodes, module_id: Any) -> NDArray[np.int64]:
        """Timesteps of each episode that the module's rows are from, in order."""
        if isinstance(episodes, EpisodeBatch):
            return episodes.lengths
        singles = self.single_agent_episode_iterator(episodes, False)
        return np.array([len(e) for e in singles if module_id is None or e.module_id in (None, module_id)], np.int64)

    def _columns(self, module: Any, part: Batch, lengths: NDArray[np.int64]) -> dict[str, Tensor]:
        with torch.no_grad():
            values_in = module.compute_values(part)
        cut = Cut.for_module(lengths, module) if values_in.ndim > 1 else None

        def flat(column: Any) -> NDArray[Any]:
            array: NDArray[Any] = column.detach().cpu().numpy() if isinstance(column, Tensor) else np.asarray(column)
            return cut.unpad(array) if cut is not None else array

        values = flat(values_in).astype(np.float64)
        names = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
        rewards, terminateds, truncateds = (flat(part[name]) for name in names)
        real = flat(part[Columns.LOSS_MASK]) if Columns.LOSS_MASK in part else np.ones(len(values), np.bool_)
        _check(lengths, values, terminateds, real)
        targets = self._targets(values, rewards, terminateds, truncateds)
        advantages = self._standardized(targets - values.astype(np.float32), real)
        found = {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets}
        return {name: _tensor(rows if cut is None else cut.pad(name, rows), values_in.device) for name, rows in found.items()}

    def _targets(
        self, values: NDArray[np.float64], rewards: NDArray[Any], terminateds: NDArray[Any], truncateds: NDArray[Any]
    ) -> NDArray[np.float32]:
        """(N,) values plus advantages. The value after a terminated step is 0, that after a truncated one counts."""
        goes_on = 1.0 - terminateds
        after = np.append(values[1:], 0.0)
        residuals = rewards + self.gamma * goes_on * after - values
        reach = self.gamma * self.lambda_ * goes_on * (1.0 - truncateds)
        return (discounted(residuals, reach) + values).astype(np.float32)

    def _standardized(self, advantages: NDArray[np.float32], real: NDArray[np.bool_]) -> NDArray[np.float32]:
        if self.standardize == "none":
            return advantages
        rows = advantages if self.standardize == "all" else advantages[real]
        return np.asarray((advantages - rows.mean()) / max(1e-4, float(rows.std())), np.float32)


def _parts(rl_module: Any, batch: Batch) -> list[tuple[Any, Batch]]:
    """(module id, its columns) of a batch by module; the id None for the whole batch of a single module."""
    if not is_multi(rl_module):
        return [(None, batch)]
    return [(module_id, part) for module_id, part in batch.items() if module_id in rl_module]


def _check(lengths: NDArray[np.int64], values: NDArray[Any], terminateds: NDArray[Any], real: NDArray[np.bool_]) -> None:
    """Raise BadPiece where an episode does not end with a terminated or an artificial step, or rows are not the episodes'."""
    ends = np.cumsum(lengths)[lengths > 0] - 1
    if len(values) == int(lengths.sum()) and (terminateds[ends].astype(np.bool_) | ~real[ends]).all():
        return
    what = "episodes without the artificial step that the value of their last observation is computed at"
    raise BadPiece(what, where="GeneralAdvantageEstimation", fix="put AddOneTsToEpisodesAndTruncate first in the pipeline")


def _tensor(rows: NDArray[Any], device: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)


class ClipRewards(ConnectorV2):
    """Each reward within [-bound, bound], in the same units; written into the episodes. Source: Mnih et al. 2015, Methods."""

    whole_arrays = True
    writes_episodes = True

    def __init__(self, *spaces: Space | None, bound: float = 1.0, **kwargs: Any) -> None:
        if not bound > 0:
            raise BadPiece(f"bound={bound}", where="ClipRewards", fix="a number above 0")
        self.bound = float(bound)
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch as it is; the episodes have other rewards."""
        for episode in self.single_agent_episode_iterator(episodes, False):
            if len(episode):
                clipped = np.clip(np.asarray(episode.get_rewards(), np.float64), -self.bound, self.bound)
                episode.set_rewards(new_data=clipped if episode.is_numpy else clipped.tolist())
        return batch

    def on_episode_batch(self, *, batch: Batch, episodes: EpisodeBatch, **_: Any) -> tuple[Batch, EpisodeBatch]:
        """The batch as it is, and the episodes with other rewards."""
        return batch, replace(episodes, rewards=np.clip(episodes.rewards, -self.bound, self.bound))
