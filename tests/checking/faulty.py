"""A list of data that has problems on purpose, and what validate must say of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Make = Any  # the fixture's class, which lives in conftest.py
Made = Path | list[Path]

MADE: dict[str, tuple[Callable[[Make], Made], dict[str, int], dict[str, Any]]] = {}
"""By name: what makes the data, how many of which problems it has, and how validate is called."""


def made(expected: dict[str, int], **options: Any) -> Callable[[Callable[[Make], Made]], Callable[[Make], Made]]:
    """Put a maker on the list."""

    def add(maker: Callable[[Make], Made]) -> Callable[[Make], Made]:
        MADE[maker.__name__] = maker, expected, options
        return maker

    return add
