"""Columns of a batch: one row for each step of episodes, and tensors of arrays and back."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.stacking import unstack
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import is_multi
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AddObservationsFromEpisodesToBatch", "NumpyToTensor", "StepColumns", "TensorToNumpy", "as_tensors"]

CPU: Final = torch.device("cpu")


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
            return batch | {name: rows for name, rows in self.columns(episodes, batch).items() if name not in batch}
        there = frozenset(batch)
        for episode in self.single_agent_episode_iterator(episodes, False):
            found = self.columns(EpisodeBatch.from_episodes([episode]), batch) if len(episode) else {}
            for name, rows in found.items():
                if name not in there:
                    items = rows if episode.is_numpy or isinstance(rows, list) else unstack(rows)
                    self.add_n_batch_items(batch, name, items, len(episode), episode)
        return batch


class AddObservationsFromEpisodesToBatch(StepColumns, TwoSidedPiece):
    """Adds `obs`: the T observations acted on in a learner pipeline, the last one of each episode elsewhere."""

    column = Columns.OBS

    def columns(self, episodes: EpisodeBatch, batch: Batch) -> dict[str, Tree]:
        return {Columns.OBS: episodes.acted_obs()}

    def __call__(self, *, batch: Batch, episodes: Episodes, **call: Any) -> Batch:
        """`obs` with N rows in a learner pipeline, one per episode otherwise."""
        if self._as_learner_connector or Columns.OBS in batch:
            return super().__call__(batch=batch, episodes=episodes, **call)
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
        return batch


class NumpyToTensor(ConnectorV2):
    """Turns arrays into tensors on `device` (None: the CPU), float64 into float32; `infos` stay lists.

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
        found = found.pin_memory() if pin else found
        return found if found.device == device else found.to(device, non_blocking=pin)

    try:
        return map_leaves(tensor, tree)
    except TypeError as err:
        fix = "leave the column out, or encode it as numbers"
        raise BadPiece(f"column {column!r}: {err}", where="NumpyToTensor", fix=fix) from err


def _from_array(array: np.ndarray[Any, Any]) -> Tensor:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf":
        raise TypeError(f"no tensor type for {array.dtype}")
    if kind == "f" and size > 4:
        array = array.astype(np.float32)
    elif kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class TensorToNumpy(ConnectorV2):
    """Turns tensors into arrays; arrays of CPU tensors share their memory."""

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
    return type(value)(map(_converted, value)) if isinstance(value, (list, tuple)) else value
