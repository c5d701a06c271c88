"""The arrays, dtypes, scalars and containers that a pickle may ask for by name.

numpy's own functions of these names are never called: they take structured and object dtypes, trust the sizes they are given,
and set whatever state they are given. Here a dtype is known by its name alone, an array's shape must agree with its bytes, and
everything that takes memory is paid from a budget that the pickle's own length sets. Object arrays are refused, however
disguised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import UnsafeData

__all__ = ["FIX", "MAKERS", "NAMES", "Blank", "Builder", "DType", "Name", "array_of_state", "numbers_of", "set_dtype_state"]

MAX_NDIM: Final = 32
DTYPE_NAME: Final = re.compile(r"[<>=|]?(?:[biuf][1248]|f16|c(?:8|16|32)|[SU]\d{1,9})")
FIX: Final = "read the file with the program that wrote it, and record numbers or JSON text"

NAMES: Final = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
    "collections OrderedDict": "dict",
    **{f"numpy.{core}.multiarray {name}": name for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
    **{f"numpy.{core}.numeric _frombuffer": "_frombuffer" for core in ("core", "_core")},
    **{
        f"{module} {name}": name
        for module in ("builtins", "__builtin__")
        for name in ("bytes", "bytearray", "set", "frozenset", "complex")
    },
}
"""What a pickle may name ("module name"), and the kind of token that it becomes."""

LAST_CHARACTER: Final = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Name:
    """A name that the pickle may call; it has no state to set."""

    kind: str


@dataclass(slots=True)
class DType:
    """A dtype under construction; its name has been checked, its byte order may follow."""

    name: str
    order: str = "="

    def build(self) -> np.dtype[Any]:
        return np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]  # one of <>=| by set_dtype_state


@dataclass(slots=True)
class Blank:
    """An array that `_reconstruct` announced and BUILD will fill; `keys` are the memo entries to fill then."""

    keys: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Builder:
    """Makes arrays, and counts the memory that they take."""

    where: str
    budget: int  # bytes that arrays, scalars and copies may still take
    object_lists: bool  # give object arrays as lists of plain values instead of refusing them

    def refuse(self, what: str) -> NoReturn:
        """Raise UnsafeData."""
        raise UnsafeData(f"{what} is not read", where=self.where, fix=FIX)

    def spend(self, nbytes: int) -> None:
        """Take from the budget; raises UnsafeData when it is used up."""
        self.budget -= nbytes
        if self.budget < 0:
            self.refuse("a pickle that unfolds to far more than its own bytes")

    def array(self, data: Any, dtype: Any, shape: Any) -> NDArray[Any]:
        """The array (*shape) over `data`; shape and bytes must agree."""
        if not isinstance(dtype, DType) or not isinstance(shape, tuple) or len(shape) > MAX_NDIM:
            raise ValueError("an array without dtype or shape")
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of shape {shape}")
        raw, plain = _bytes_of(data), dtype.build()
        if math.prod(shape) * plain.itemsize != len(raw):
            raise ValueError(f"shape {shape} of {plain} against {len(raw)} bytes")
        self.spend(len(raw))
        return numbers_of(raw, plain).reshape(shape)


def numbers_of(raw: bytes | bytearray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The flat array over `raw`; a boolean that is neither 0 nor 1 in the bytes is true.

    Raises ValueError for text of numbers that are not characters: numpy would take them, and fail wherever they are read.
    """
    if not raw:
        return np.zeros(0, dtype)
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(raw, np.uint8) != 0)
    if dtype.kind == "U" and int(np.frombuffer(raw, np.dtype(np.uint32).newbyteorder(dtype.byteorder)).max()) > LAST_CHARACTER:
        raise ValueError("text of numbers that are no characters")
    return np.frombuffer(raw, dtype)


# ---- what the names make ----


def _make_dtype(builder: Builder, name: Any, *_: Any) -> DType:
    text = name.decode("latin-1") if isinstance(name, (bytes, bytearray)) else name
    if not isinstance(text, str):
        builder.refuse("a dtype without a name")
    if text == "O8" and builder.object_lists:
        return DType(text)
    if not DTYPE_NAME.fullmatch(text):
        builder.refuse("an array of Python objects" if "O" in text else f"an array of dtype {text[:40]!r}")
    return DType(text.lstrip("<>=|"), text[0] if text[0] in "<>=|" else "=")


def set_dtype_state(builder: Builder, dtype: DType, state: Any) -> None:
    """State is (version, byte order, subdtype, names, fields, itemsize, alignment, flags, ...)."""
    if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
        builder.refuse("an array of structured dtype")
    order = state[1].decode("latin-1") if isinstance(state[1], (bytes, bytearray)) else state[1]
    if order not in ("<", ">", "=", "|"):
        builder.refuse("a dtype of unknown byte order")
    itemsize = state[5] if len(state) > 5 else -1
    if dtype.name != "O8" and itemsize not in (-1, np.dtype(dtype.name).itemsize):
        builder.refuse(f"a dtype {dtype.name!r} of {itemsize} bytes")
    dtype.order = order


def _make_blank(builder: Builder, cls: Any, shape: Any = (), typecode: Any = b"b") -> Blank:
    if cls != Name("ndarray"):
        builder.refuse("an array class other than numpy.ndarray")
    return Blank()


def array_of_state(builder: Builder, state: Any) -> Any:
    """State is (version, shape, dtype, Fortran order, data), in oldest numpy without the version."""
    if not isinstance(state, tuple) or len(state) not in (4, 5):
        raise ValueError("an array state of unknown form")
    shape, dtype, fortran, data = state[-4:]
    if isinstance(dtype, DType) and dtype.name == "O8":
        return _nested(builder, data, shape)
    return _in_order(builder, data, dtype, shape, fortran=bool(fortran))


def _nested(builder: Builder, items: Any, shape: Any) -> Any:
    """The object array's elements as lists nested by `shape`; elements are plain values of this builder."""
    if not isinstance(items, list) or not isinstance(shape, tuple) or len(shape) != 1 or shape[0] != len(items):
        builder.refuse("an object array that is not one row of plain values")
    return items


def _in_order(builder: Builder, data: Any, dtype: Any, shape: Any, *, fortran: bool) -> NDArray[Any]:
    if not fortran:
        return builder.array(data, dtype, shape)
    return builder.array(data, dtype, tuple(reversed(shape))).transpose()


def _make_array(builder: Builder, data: Any, dtype: Any, shape: Any, order: Any = "C", axis_order: Any = None) -> NDArray[Any]:
    if order == "K" and axis_order is not None:
        return builder.array(data, dtype, shape).transpose(axis_order)
    return _in_order(builder, data, dtype, shape, fortran=order == "F")


def _make_scalar(builder: Builder, dtype: Any, data: Any = b"") -> Any:
    if isinstance(dtype, DType) and dtype.name in ("S0", "U0"):
        return dtype.build().type()
    return builder.array(data, dtype, ())[()]


def _make_encoded(builder: Builder, text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        builder.refuse(f"a pickle that encodes as {encoding!r}")
    builder.spend(len(text))
    return text.encode("latin-1")


def _make_bytes(builder: Builder, data: Any = b"", encoding: Any = "latin-1") -> bytes:
    raw = _make_encoded(builder, data, encoding) if isinstance(data, str) else _bytes_of(data)
    builder.spend(len(raw))
    return bytes(raw)


def _make_set(builder: Builder, items: Any = ()) -> set[Any]:
    if not isinstance(items, (list, tuple)):
        builder.refuse("a set that is not made from a list")
    return set(items)


def _make_dict(builder: Builder, items: Any = ()) -> dict[Any, Any]:
    if not isinstance(items, (list, tuple)):
        builder.refuse("a dict that is not made from pairs")
    return dict(items)


def _make_complex(builder: Builder, real: Any, imaginary: Any = 0.0) -> complex:
    return complex(float(real), float(imaginary))


def _bytes_of(data: Any) -> bytes | bytearray:
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, str):  # Python 2 wrote bytes as text; genops reads it as latin-1
        return data.encode("latin-1")
    raise ValueError(f"{type(data).__name__} where bytes belong")


MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "dtype": _make_dtype,
    "_reconstruct": _make_blank,
    "_frombuffer": _make_array,
    "scalar": _make_scalar,
    "encode": _make_encoded,
    "bytes": _make_bytes,
    "bytearray": _make_bytes,
    "set": _make_set,
    "frozenset": lambda builder, items=(): frozenset(_make_set(builder, items)),
    "complex": _make_complex,
    "dict": _make_dict,
}
