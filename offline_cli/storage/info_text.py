"""Infos as JSON text, one per step, and back; refuses values that JSON has no word for (bytes, complex numbers).

Arrays become lists and numpy scalars plain numbers, counted as `info-array-to-list`. NaN and infinities are written as Python's
json module writes and reads them: a null would lose them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from offline_cli.episodes.codec.plain_values import plain_mapping
from offline_cli.errors import BadData
from offline_cli.json_documents import from_json
from offline_cli.tally import Tally

__all__ = ["info_from_text", "info_to_text"]


def info_to_text(info: Mapping[str, Any], *, tally: Tally, where: str) -> str | None:
    """`info` as JSON text, None for an empty one. `where` names episode and step. Raises BadData, naming them."""
    if not info:
        return None

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
            tally.assume("info-array-to-list")
            return value.tolist()
        raise TypeError(f"values of type {_name(value)} have no JSON text")

    try:
        return json.dumps(
            plain_mapping(info, tally=tally, where=where), separators=(",", ":"), default=plain, ensure_ascii=False
        )
    except TypeError as err:
        fix = "use the episodes format, which keeps bytes and complex numbers"
        raise BadData(f"infos cannot be written: {err}", where=where, fix=fix) from err


def info_from_text(text: str, *, where: str) -> dict[str, Any]:
    """The info that `text` stands for. Raises BadData where it is no JSON object."""
    try:
        info = from_json(text)
    except ValueError as err:
        raise BadData(f"infos that are no JSON: {err}", where=where, fix="write the dataset again from its source") from err
    if not isinstance(info, dict):
        raise BadData("infos that are no JSON object", where=where, fix="write the dataset again from its source")
    return info


def _name(value: Any) -> str:
    return f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
