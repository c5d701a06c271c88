"""What is told of an object of an HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

__all__ = ["Form", "Node"]

Form = tuple[str, tuple[int, ...]]
"""dtype of one value (or TEXT, FRAMES) and shape of a dataset."""


@dataclass(frozen=True, slots=True)
class Node:
    """A group or a dataset, and the datasets below it by their path from here; of a dataset, itself under ''."""

    attributes: Mapping[str, Any]  # JSON values
    left_out: tuple[str, ...]  # attributes that are neither numbers nor texts
    datasets: Mapping[str, Form]
    groups: tuple[str, ...]
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of datasets, as far as they were loaded
