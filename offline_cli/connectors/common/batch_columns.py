"""Observations of episodes into a batch, and the columns of a batch to tensors and back.

* `AddObservationsFromEpisodesToBatch`: puts observations into a batch; one that has them already stays as it is.
* `NumpyToTensor`: turns arrays into tensors on a device. Arrays that have no tensor type (text, objects) raise BadPiece.
* `TensorToNumpy`: turns tensors into arrays; everything else stays as it is.
* `first_rows`: the rows of one episode without the cost of general indices; a lookback buffer is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import filed_rows, key_of
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.lookback_buffer import InfiniteLookbackBuffer
from offline_cli.errors import BadPiece
from offline_cli.modules.rl_module import is_multi
from offline_cli.spaces import Space
from offline_cli.trees import Tree, map_leaves

__all__ = ["AddObservationsFromEpisodesToBatch", "NumpyToTensor", "TensorToNumpy", "as_tensors", "first_rows"]

KINDS = "biuf"
CPU = torch.device("cpu")


def first_rows(buffer: InfiniteLookbackBuffer, count: int) -> Any:
    """The first `count` records after the lookback buffer: leaves (count, ...), views, or a list where not numpy'ized."""
    if buffer.finalized and type(buffer.data) is np.ndarray:
        return buffer.data[buffer.lookback : buffer.lookback + count]
    return buffer.get(slice(0, count))


class AddObservationsFromEpisodesToBatch(TwoSidedPiece):
    """`obs`: in a learner pipeline the T observations that were acted on, else the last one of each episode."""

    whole_arrays = True
    fills_obs = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """`obs` with N rows in a learner pipeline, one per episode otherwise."""
        if Columns.OBS in batch:
            return batch
        if self._as_learner_connector and isinstance(episodes, EpisodeBatch):
            batch[Columns.OBS] = episodes.acted_obs()
            return batch
        singles = self.single_agent_episode_iterator(episodes, not self._as_learner_connector)
        if not self._as_learner_connector:
            for episode in singles:
                self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
            return batch
        moved = [(key_of(episode), episode.observations, len(episode)) for episode in singles if len(episode)]
        if moved:
            rows = (first_rows(held, count) for _, held, count in moved)
            batch[Columns.OBS] = filed_rows((key for key, *_ in moved), rows, (count for *_, count in moved))
        return batch


class NumpyToTensor(ConnectorV2):
    """Every array becomes a tensor on `device` (None: the CPU): float64 as float32, other numbers as they are, `infos` stay.

    Memory is shared with the array where nothing has to change and the array may be written to. Unsigned integers above
    uint8, which torch can hardly count with, become int64. `pin_memory` is for a device that is not the CPU.
    """

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        pin_memory: bool = False,
        device: str | torch.device | None = "cpu",
        **kwargs: Any,
    ) -> None:
        self._device = torch.device("cpu" if device is None else device)
        self._pin = pin_memory and self._device.type != "cpu"
        super().__init__(input_observation_space, input_action_space, **kwargs)

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
    if kind not in KINDS:
        raise TypeError(f"no tensor type for {array.dtype}")
    if kind == "f" and size > 4:
        array = array.astype(np.float32)
    elif kind == "u" and size > 1:
        array = array.astype(np.int64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class TensorToNumpy(ConnectorV2):
    """Every tensor of the batch becomes an array in main memory; those on the CPU share it."""

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
