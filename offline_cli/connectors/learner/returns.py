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
from offline_cli.connectors.common.batching import StepColumns
from offline_cli.connectors.common.states_and_time import Cut
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules.rl_module import is_multi, module_of
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["ClipRewards", "ComputeReturnsToGo", "GeneralAdvantageEstimation", "NStepReturns", "discounted", "factors"]

Rows = Literal["all", "real", "none"]
ENDS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


def discounted(values: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Discounted sums from the end: y[t] = values[t] + factors[t] * y[t + 1], all (N,); the last factor counts as 0."""
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
    """Discount factors (N,): `gamma`, but 0 at the last step of each episode."""
    steps = np.full(int(lengths.sum()), float(gamma))
    steps[np.cumsum(lengths)[lengths > 0] - 1] = 0.0
    return steps


class ComputeReturnsToGo(StepColumns):
    """Adds `returns_to_go` (N,) float64, in units of rewards: r[t] + gamma * r[t+1] + ... to the end of the chunk."""

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
            raise self.bad(f"n_step={n_step}", fix="a number from 1 on")
        self.n_step, self.gamma = int(n_step), float(gamma)
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """The batch with these columns. Raises BadPiece where one of them is there already."""
        names = [Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.N_STEP]
        if there := [name for name in names if name in batch]:
            raise self.bad(f"{there} are in the batch already", fix="put it before the pieces that add them")
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
    """Adds `advantages` and `value_targets`, float32 and shaped as `rewards`, for modules that have `compute_values`.

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
        by_module = is_multi(rl_module)
        parts = [(name, part) for name, part in batch.items() if name in rl_module] if by_module else [(None, batch)]
        asked = [
            (name, module, part) for name, part in parts if hasattr(module := module_of(rl_module, name), "compute_values")
        ]
        if not asked:
            fix = "a module with compute_values(batch) -> (B,) or (B, T)"
            raise self.bad("no module here has values", fix=fix)
        for name, module, part in asked:
            part.update(self._columns(module, part, self._lengths(episodes, name)))
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
        rewards, terminateds, truncateds = map(flat, (part[name] for name in (Columns.REWARDS, *ENDS)))
        real = flat(part[Columns.LOSS_MASK]) if Columns.LOSS_MASK in part else np.ones(len(values), np.bool_)
        ends = np.cumsum(lengths)[lengths > 0] - 1
        if len(values) != int(lengths.sum()) or not (terminateds[ends].astype(np.bool_) | ~real[ends]).all():
            what = "episodes without the artificial step that the value of their last observation is computed at"
            raise self.bad(what, fix="put AddOneTsToEpisodesAndTruncate first in the pipeline")
        goes_on = 1.0 - terminateds  # the value after a terminated step is 0, that after a truncated one counts
        residuals = rewards + self.gamma * goes_on * np.append(values[1:], 0.0) - values
        reach = self.gamma * self.lambda_ * goes_on * (1.0 - truncateds)
        targets = (discounted(residuals, reach) + values).astype(np.float32)
        advantages = targets - values.astype(np.float32)
        if self.standardize != "none":
            rows = advantages if self.standardize == "all" else advantages[real]
            advantages = np.asarray((advantages - rows.mean()) / max(1e-4, float(rows.std())), np.float32)
        found = {Columns.ADVANTAGES: advantages, Columns.VALUE_TARGETS: targets}
        padded = found if cut is None else {name: cut.pad(name, one) for name, one in found.items()}
        return {name: torch.from_numpy(np.ascontiguousarray(one)).to(values_in.device) for name, one in padded.items()}


class ClipRewards(ConnectorV2):
    """Clips rewards of the episodes to [-bound, bound]. Source: Mnih et al. 2015, Methods."""

    whole_arrays = True
    writes_episodes = True

    def __init__(self, *spaces: Space | None, bound: float = 1.0, **kwargs: Any) -> None:
        if not bound > 0:
            raise self.bad(f"bound={bound}", fix="a number above 0")
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
