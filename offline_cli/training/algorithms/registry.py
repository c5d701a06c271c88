"""Algorithms by the name that an `[algorithm]` table gives: ours, and those of other packages (`offline_cli.algorithms`)."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Final

from offline_cli.plugins import ALGORITHMS, registered_class
from offline_cli.training.algorithms.algorithm import Algorithm

__all__ = ["BC", "algorithm_kind", "own_algorithms"]

BC: Final = "bc"
OURS: Final = {BC: ("offline_cli.training.algorithms.bc", "BC")}


def algorithm_kind(name: str, *, named: Collection[str] | None = None) -> type[Algorithm]:
    """The class of that name. `named`, and what is raised: see `registered_class`."""
    if name in OURS:
        return own_algorithms(name)[name]
    return registered_class(
        ALGORITHMS,
        name,
        Algorithm,  # type: ignore[type-abstract]  # what is abstract is refused
        ours=OURS,
        derive_from="offline_cli.training.algorithms.Algorithm",
        named=named,
    )


def own_algorithms(*names: str) -> dict[str, type[Algorithm]]:
    """Ours, by name; without `names` all of them."""
    return {name: getattr(importlib.import_module(OURS[name][0]), OURS[name][1]) for name in names or OURS}
