"""Columns of a batch: one row for each step of episodes, and tensors of arrays and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import add_rows
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.episodes.single_agent_episode import SingleAgentEpisode
from offline_cli.episodes.stacking import stack
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import is_multi
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "NumpyToTensor",
    "StepColumns",
    "TensorToNumpy",
    "as_arrays",
    "as_tensors",
]

NUMBERS: Final = "biuf"
CPU: Final = torch.device("cpu")


def as_arrays(episodes: Sequence[SingleAgentEpisode]) -> EpisodeBatch:
    """Episodes of a step or more as arrays, lookback buffers left out. One that is numpy'ized gives views.

    Extra model outputs are those that all of them have.
    """

    def rows(buffers: Iterable[InfiniteLookbackBuffer]) -> Tree:
        parts = [stack(held, buffer.space) if isinstance(held := buffer.get(), list) else held for buffer in buffers]
        return map_leaves(lambda *leaves: np.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]

    names = [name for name in episodes[0].extra_model_outputs if all(name in one.extra_model_outputs for one in episodes)]
    infos = [info for one in episodes for info in one.get_infos()] if any(one.has_infos for one in episodes) else None
    return EpisodeBatch(
        ids=tuple(one.id_ for one in episodes),
        starts=np.cumsum([0, *map(len, episodes)]),
        obs=rows(one.observations for one in episodes),
        actions=rows(one.actions for one in episodes),
        rewards=np.asarray(rows(one.rewards for one in episodes), np.float64),
        terminated=np.array([one.is_terminated for one in episodes]),
        truncated=np.array([one.is_truncated for one in episodes]),
        extra={name: rows(one.extra_model_outputs[name] for one in episodes) for name in names},
        infos=infos,
    )


class StepColumns(ConnectorV2):
    """Adds columns with a row for each step of the episodes; those that are in the batch stay. Subclasses say once how arrays
    give these rows."""

    whole_arrays = True
    column: ClassVar[str] = ""  # with it in the batch there is nothing to do

    @abstractmethod
    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        """Leaves (N, ...) that nobody else holds, or lists of N items, by name of column, for N steps."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch with these columns."""
        if self.column in batch:
            return batch
        if isinstance(episodes, EpisodeBatch):
            found = self.columns(episodes, batch)
            return batch | {name: rows for name, rows in found.items() if name not in batch}
        there = frozenset(batch)
        moving = (episode for episode in self.single_agent_episode_iterator(episodes, False) if len(episode))
        for _, run in groupby(moving, lambda episode: episode.module_id):  # of one structure; columns keep the episodes' order
            own = list(run)
            found = self.columns(as_arrays(own), batch)
            add_rows(batch, {name: rows for name, rows in found.items() if name not in there}, own)
        return batch


class AddObservationsFromEpisodesToBatch(StepColumns, TwoSidedPiece):
    """`obs`: in a learner pipeline the T observations that were acted on, else the last one of each episode."""

    column = Columns.OBS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        """`obs`."""
        return {Columns.OBS: episodes.acted_obs()}

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """`obs` with N rows in a learner pipeline, one per episode otherwise."""
        if self._as_learner_connector or Columns.OBS in batch:
            return super().__call__(batch=batch, episodes=episodes, **call)
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
        return batch


class NumpyToTensor(ConnectorV2):
    """Every array becomes a tensor on `device` (None: the CPU): float64 as float32, other numbers as they are, `infos` stay.

    Memory is shared with the array where nothing has to change and the array may be written to. Unsigned integers above
    uint8, which torch can hardly count with, become int64. `pin_memory` is for a device that is not the CPU.
    """

    whole_arrays = True

    def __init__(
        self, *spaces: Space | None, pin_memory: bool = False, device: str | torch.device | None = "cpu", **kwargs: Any
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self._pin = pin_memory and self._device.type != "cpu"
        super().__init__(*spaces, **kwargs)

    def __call__(self, *, rl_module: Any = None, batch: Batch, **_: Any) -> Batch:
        """The batch with tensors; raises BadPiece, naming the column, for arrays of text or objects."""
        by_module = is_multi(rl_module) and bool(batch) and all(name in rl_module for name in batch)
        for part in batch.values() if by_module else [batch]:
            for column, tree in part.items():
                if column != Columns.INFOS:
                    part[column] = as_tensors(column, tree, self._device, pin=self._pin)
        return batch


def as_tensors(column: str, tree: Tree, device: torch.device = CPU, *, pin: bool = False) -> Tree:
    """The leaves of a column as tensors on `device`; `pin`: through pinned memory. Raises BadPiece for text and objects."""

    def tensor(leaf: Any) -> Tensor | None:
        if leaf is None:
            return None
        found = leaf if isinstance(leaf, Tensor) else _from_array(np.asarray(leaf, order="C"))
        return (found.pin_memory() if pin else found).to(device, non_blocking=pin)

    try:
        return map_leaves(tensor, tree)
    except TypeError as err:
        fix = "leave the column out, or encode it as numbers"
        raise BadPiece(f"column {column!r}: {err}", where="NumpyToTensor", fix=fix) from err


def _from_array(array: np.ndarray[Any, Any]) -> Tensor:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in NUMBERS:
        raise TypeError(f"no tensor type for {array.dtype}")
    if kind == "f" and size > 4:
        array = array.astype(np.float32)
    elif kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class TensorToNumpy(ConnectorV2):
    """Every tensor of the batch becomes an array in main memory, which those on the CPU share; the rest stays as it is."""

    whole_arrays = True

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch with arrays, in new dicts, lists and tuples."""
        converted: Batch = _converted(batch)
        return converted


def _converted(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {key: _converted(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_converted, value))
    return value
