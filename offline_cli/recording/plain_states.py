"""States of connector pieces as JSON values, and back, every number exactly; refuses whatever is no value and no array.

JSON has no arrays of a type, no numbers that are not finite and no tuples: an array is `{"dtype", "shape", "values"}`, an
infinity or NaN its name in such an array or in `{"float": "nan"}`, and tuples come back as lists. A dict that has those keys
itself could not be told from them, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadPiece

__all__ = ["from_plain", "to_plain"]

ARRAY: Final = frozenset({"dtype", "shape", "values"})
FLOAT: Final = frozenset({"float"})
KINDS: Final = "biuf"
MAX_INT: Final = 1 << 63
MAX_DEPTH: Final = 50  # a manifest's own limit is not far
FIX: Final = "give numbers, text, lists, dicts with text as keys, and arrays of numbers in its get_state"


def to_plain(state: Any, *, where: str, depth: int = MAX_DEPTH) -> Any:
    """JSON values. Raises BadPiece, with `where` and the keys down to the value that has no such form."""
    if isinstance(state, torch.Tensor):
        state = state.detach().cpu().numpy()
    if isinstance(state, (np.ndarray, np.generic)) and state.dtype.kind in KINDS:
        return _array(np.asarray(state))
    if isinstance(state, (list, tuple)) and depth:
        return [to_plain(item, where=f"{where}, {index}", depth=depth - 1) for index, item in enumerate(state)]
    if isinstance(state, Mapping) and depth and all(map(_is_text, state)) and state.keys() not in (ARRAY, FLOAT):
        return {key: to_plain(value, where=f"{where}, {key}", depth=depth - 1) for key, value in state.items()}
    if isinstance(state, float):
        return state if math.isfinite(state) else {"float": repr(state)}
    if state is None or isinstance(state, bool) or _is_text(state) or (isinstance(state, int) and -MAX_INT <= state < MAX_INT):
        return state
    raise BadPiece(f"{type(state).__name__} has no form in JSON", where=where, fix=FIX)


def _is_text(value: Any) -> bool:
    """Whether it is text that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array(array: NDArray[Any]) -> dict[str, Any]:
    values = array.ravel().tolist()
    if array.dtype.kind == "f":
        values = [value if math.isfinite(value) else repr(value) for value in values]
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": values}


def from_plain(plain: Any, *, where: str) -> Any:
    """What `to_plain` made them of, with arrays for tensors and for numpy's scalars. Raises BadData for what it never makes."""
    if isinstance(plain, list):
        return [from_plain(item, where=where) for item in plain]
    if not isinstance(plain, Mapping):
        return plain
    try:
        if plain.keys() == FLOAT:
            return float(plain["float"])
        if plain.keys() == ARRAY:
            dtype = np.dtype(str(plain["dtype"]))
            if dtype.kind not in KINDS:
                raise ValueError(f"an array of {dtype}")
            return np.array([_value(value, dtype) for value in plain["values"]], dtype).reshape(plain["shape"])
    except (TypeError, ValueError, OverflowError) as err:
        fix = "record again, or leave the state aside"
        raise BadData(f"the state of a piece cannot be read: {err}", where=where, fix=fix) from err
    return {key: from_plain(value, where=where) for key, value in plain.items()}


def _value(value: Any, dtype: np.dtype[Any]) -> Any:
    return float(value) if dtype.kind == "f" else value
