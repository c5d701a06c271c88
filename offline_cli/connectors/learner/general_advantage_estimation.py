"""Advantages and value targets from a module's values; refuses episodes whose end it would have to guess the value of.

Comes after the default pieces, and needs AddOneTsToEpisodesAndTruncate before them: the artificial last step is where the value
of the last observation is asked for. Source: Schulman et al. 2016 (high-dimensional continuous control using GAE).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.common.sequences import Cut
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.connectors.learner.discounting import discounted
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import is_multi, max_seq_len, module_of
from offline_cli.spaces import Space

__all__ = ["GeneralAdvantageEstimation"]

Rows = Literal["all", "real", "none"]


class GeneralAdvantageEstimation(ConnectorV2):
    """`advantages` and `value_targets`, float32 tensors shaped as `rewards`, for every module that has `compute_values`.

    Args:
        gamma, lambda_: Discount, and how far rewards count before values do.
        standardize: Which rows' mean and spread the advantages are standardised by: "all" as RLlib does, artificial steps
            included; "real": those that the loss counts; "none": left as they are.
    """

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        gamma: float,
        lambda_: float,
        standardize: Rows = "all",
        **kwargs: Any,
    ) -> None:
        self.gamma, self.lambda_, self.standardize = gamma, lambda_, standardize
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with both columns. Raises BadPiece where no module has values, or episodes lack their artificial step."""
        asked = 0
        for module_id, part in _parts(rl_module, batch):
            module = module_of(rl_module, module_id)
            if hasattr(module, "compute_values"):
                asked += 1
                part.update(self._columns(module, part, self._lengths(episodes, module_id)))
        if not asked:
            fix = "a module with compute_values(batch) -> (B,) or (B, T)"
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
        cut = Cut.of(lengths, max_seq_len(module)) if values_in.ndim > 1 else None

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
    what = "episodes without the artificial step that the value of their last observation is asked at"
    raise BadPiece(what, where="GeneralAdvantageEstimation", fix="put AddOneTsToEpisodesAndTruncate first in the pipeline")


def _tensor(rows: NDArray[Any], device: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)
