"""Turns arrays into tensors on a device; refuses arrays that have no tensor type (text, objects)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_cli.connectors.connector_v2 import Batch, ConnectorV2
from offline_cli.spaces import Space
from offline_cli.trees import map_leaves

__all__ = ["NumpyToTensor"]


class NumpyToTensor(ConnectorV2):
    """Every array becomes a tensor on `device`, float64 as float32, integers as int64 except uint8 (images stay small).

    Memory is shared with the array where nothing has to change and the array may be written to.
    """

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        device: str | torch.device = "cpu",
        **kwargs: Any,
    ) -> None:
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._device = torch.device(device)

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """The batch with tensors; raises TypeError, naming the column, for arrays of text or objects."""
        for column, tree in batch.items():
            try:
                batch[column] = map_leaves(self._tensor, tree)
            except TypeError as err:
                raise TypeError(f"column {column!r}: {err}") from err
        return batch

    def _tensor(self, leaf: Any) -> Tensor:
        if isinstance(leaf, Tensor):
            return leaf.to(self._device)
        array = np.ascontiguousarray(leaf)
        if array.dtype.kind == "f":
            array = array.astype(np.float32, copy=False)
        elif array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64, copy=False)
        elif array.dtype.kind not in "biuf":
            raise TypeError(f"no tensor type for {array.dtype}")
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self._device)
