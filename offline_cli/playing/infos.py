"""Infos of environments as they are kept until they are written; refuses values that cannot be written, while it is known whose
they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from offline_cli.episodes.codec.plain_values import plain_mapping
from offline_cli.errors import BadData
from offline_cli.tally import Tally

__all__ = ["copied", "owned", "unchecked"]

PLAIN: Final = frozenset({bool, float, type(None), np.bool_, np.float32, np.float64, np.int32, np.int64})


def owned(info: Mapping[str, Any]) -> dict[str, Any]:
    """A copy whose arrays, dicts and lists nobody else writes to: some environments fill the same ones at every step.

    Raises ValueError, naming the key, for a value that no dataset can hold.
    """
    return {key: value if type(value) in PLAIN else _checked(key, value) for key, value in info.items()}


def unchecked(info: Any) -> dict[str, Any]:
    """The info, for pieces to look at; empty where it is no mapping."""
    return dict(info) if isinstance(info, Mapping) else {}


def _checked(key: str, value: Any) -> Any:
    try:
        plain_mapping({key: value}, tally=Tally(), where="info")
    except BadData as err:
        raise ValueError(f"an {err.where} with {err.what}; {err.fix}") from err
    return copied(value)


def copied(value: Any) -> Any:
    """The same value with arrays, dicts and lists of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if type(value) is list else value
