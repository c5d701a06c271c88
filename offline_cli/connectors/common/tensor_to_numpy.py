"""Turns tensors into arrays; refuses nothing: what is no tensor stays as it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from offline_cli.connectors.connector_v2 import Batch, ConnectorV2

__all__ = ["TensorToNumpy"]


class TensorToNumpy(ConnectorV2):
    """Every tensor of the batch becomes an array in main memory; those on the CPU share it."""

    whole_arrays = True
    slots_too = True

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
