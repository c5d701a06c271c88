"""Pickles of numpy arrays, numpy scalars and plain containers, as data; a pickle that names anything else is refused.

`pickletools.genops`, which only parses, first checks every instruction against an allow-list. Python's unpickler then carries
them out with stand-ins for the few names by which numpy and pickle write arrays, dtypes and scalars. numpy's own functions of
these names are never called: they take object dtypes, trust the sizes they are given, and set whatever state they are given. A
stand-in has no attributes to set, and only records what it was called with. The records become arrays at the end, where a dtype
is known by its name alone and a shape must agree with its bytes.

Arrays hold numbers, booleans or text (dtype kinds `biufcSU`). Object arrays are refused, unless the caller asks for them as
plain lists (for infos). What a pickle builds may not exceed its own bytes by more than a small factor, however often it refers
to the same part. Bytes as Python 2 and protocols 0 to 2 wrote them are not read.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode, UnsafeData

__all__ = ["FIX", "is_pickle", "numbers_of", "unpickle"]

FIX: Final = "read the file with the program that wrote it, and record numbers or JSON text"
MAGIC: Final = b"\x80"  # of protocol 2 and later
MAX_DEPTH: Final = 64  # of containers; RLlib's nest two or three deep
MAX_TUPLES: Final = 50_000  # Python hashes nested tuples by recursion in C; 100,000 levels end the process
MAX_NDIM: Final = 32
SHARING: Final = 16  # a value may be this much larger than its pickle, by referring to parts of itself again
LAST_CHARACTER: Final = 0x10FFFF
DTYPE_NAME: Final = re.compile(r"[<>=|]?(?:[biuf][1248]|f16|c(?:8|16|32)|[SU]\d{1,9})")
OBJECT: Final = "O8"

PUTS: Final = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
TUPLES: Final = frozenset(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"))
INSTRUCTIONS: Final = re.compile(
    "PROTO|FRAME|STOP|MARK|POP|POP_MARK|NONE|NEWTRUE|NEWFALSE|INT|BININT[12]?|LONG[14]?|(BIN)?FLOAT|UNICODE"
    "|(SHORT_)?BINUNICODE8?|SHORT_BINBYTES|BINBYTES8?|BYTEARRAY8|EMPTY_(LIST|DICT|SET|TUPLE)|LIST|DICT"
    "|TUPLE[123]?|FROZENSET|APPENDS?|ADDITEMS|SETITEMS?|MEMOIZE|(LONG_BIN|BIN)?(PUT|GET)|GLOBAL|STACK_GLOBAL|REDUCE|BUILD"
)
ALLOWED: Final = frozenset(one.name for one in pickletools.opcodes if INSTRUCTIONS.fullmatch(one.name))
"""Not among them: new objects, persistent ids, extension codes, buffers from elsewhere."""


def is_pickle(cell: Any) -> bool:
    """Whether a cell is a bare pickle: of protocol 2 or later, as all that Ray has written."""
    return isinstance(cell, bytes) and cell[:1] == MAGIC


def unpickle(data: bytes, *, where: str, object_lists: bool = False) -> Any:
    """The value that `data` (pickle, protocol 0 to 5) holds: array, numpy scalar, or plain containers of these.

    `object_lists`: give object arrays as lists instead of refusing them. Raises UnsafeData where the pickle names or does
    anything beyond arrays and plain containers, or exceeds its bytes; BadEpisode where it is cut or inconsistent.
    """
    unpickler = _Unpickler(data, _Maker(where, SHARING * len(data) + 1024, object_lists))
    try:
        _check(data, where)
        return unpickler.maker.plain(unpickler.load(), 0)
    except (
        pickle.UnpicklingError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        EOFError,
        MemoryError,
        RecursionError,
    ) as error:
        fix = "write the file again from its source"
        raise BadEpisode(f"not a whole pickle: {error or type(error).__name__}", where=where, fix=fix) from error


def _check(data: bytes, where: str) -> None:
    """Raise UnsafeData for an instruction that is not allowed, ValueError for a cut pickle."""
    tuples = 0
    for instruction, arg, _ in pickletools.genops(data):
        name = instruction.name
        tuples += name in TUPLES
        if name not in ALLOWED or tuples > MAX_TUPLES:
            raise UnsafeData(f"a pickle that uses {name} is not read", where=where, fix=FIX)
        if name in PUTS and (arg or 0) > len(data):  # the unpickler makes room for all numbers up to it
            raise ValueError(f"entry {arg} of a memo")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, maker: _Maker) -> None:
        super().__init__(io.BytesIO(data))
        self.maker = maker

    def find_class(self, module: str, name: str) -> _StandIn:
        kind = NAMES.get(f"{module} {name}")
        if kind is None:
            self.maker.refuse(f"a pickle that calls for {module}.{name}")
        return _StandIn(kind, self.maker)


NAMES: Final = {
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "collections OrderedDict": "dict",
    "builtins complex": "complex",
    **{f"numpy.{core}.multiarray _reconstruct": "blank" for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray scalar": "scalar" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": "array" for core in ("core", "_core")},
}
"""What a pickle may name ("module name"), and the method of `_Maker` that it calls."""


class _StandIn:
    """A name that a pickle may call."""

    __slots__ = ("kind", "maker")

    def __init__(self, kind: str, maker: _Maker) -> None:
        self.kind, self.maker = kind, maker

    def __call__(self, *args: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self.maker, f"make_{self.kind}", None)
        if call is None:
            self.maker.refuse(f"a pickle that calls {self.kind}")
        return call(*args)

    def __setstate__(self, state: Any) -> None:
        self.maker.refuse("a pickle that sets the state of a function")


@dataclass(slots=True, eq=False)
class _DType:
    """A dtype whose name has been checked; its byte order may follow as state."""

    maker: _Maker
    name: str
    order: str = "="

    def __setstate__(self, state: Any) -> None:
        """State is (version, byte order, subdtype, names, fields, itemsize, alignment, flags, ...)."""
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            self.maker.refuse("an array of structured dtype")
        order = state[1]
        itemsize = state[5] if len(state) > 5 else -1
        if order not in ("<", ">", "=", "|") or itemsize not in (-1, 8 if self.name == OBJECT else self.plain().itemsize):
            self.maker.refuse(f"a dtype {self.name!r} of another byte order or size")
        self.order = order

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]  # one of <>=|


@dataclass(slots=True, eq=False)
class _Array:
    """An array, or a scalar: what numpy was asked to make it from."""

    maker: _Maker
    data: Any = None
    dtype: Any = None
    shape: Any = None  # of the bytes as they lie in memory
    axes: Any = None  # by which they are transposed; None: not
    is_scalar: bool = False

    def __setstate__(self, state: Any) -> None:
        """State is (version, shape, dtype, Fortran order, data)."""
        if self.dtype is not None or not isinstance(state, tuple) or len(state) != 5:
            self.maker.refuse("an array state of unknown form")
        _, shape, self.dtype, fortran, self.data = state
        self.shape, self.axes = _as_stored(shape, fortran=bool(fortran))


def _as_stored(shape: Any, *, fortran: bool) -> tuple[Any, Any]:
    """The shape of the bytes, and the axes of the array among theirs."""
    return (tuple(reversed(shape)), tuple(reversed(range(len(shape))))) if fortran else (shape, None)


@dataclass(slots=True)
class _Maker:
    """Makes what pickles call for, and counts the memory that it takes."""

    where: str
    budget: int  # bytes and parts of containers that may still be made
    object_lists: bool

    def refuse(self, what: str) -> NoReturn:
        """Raise UnsafeData."""
        raise UnsafeData(f"{what} is not read", where=self.where, fix=FIX)

    def spend(self, size: int) -> None:
        """Take from the budget. Raises UnsafeData when it is used up."""
        self.budget -= size
        if self.budget < 0:
            self.refuse("a pickle that unfolds to far more than its own bytes")

    def plain(self, node: Any, depth: int) -> Any:
        """`node` with arrays in place of records; without cycles, because these would use up the budget."""
        self.spend(1)
        if depth > MAX_DEPTH:
            self.refuse("a pickle of containers in containers without end")
        if isinstance(node, _Array):
            return self._array(node, depth)
        if isinstance(node, dict):
            return {self.plain(key, depth + 1): self.plain(part, depth + 1) for key, part in node.items()}
        if isinstance(node, (list, tuple, set, frozenset)):
            return type(node)(self.plain(part, depth + 1) for part in node)
        if isinstance(node, (_StandIn, _DType)):
            self.refuse("a pickle of anything but numbers")
        return node

    def _array(self, record: _Array, depth: int) -> Any:
        dtype, shape = record.dtype, record.shape
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple) or len(shape) > MAX_NDIM:
            self.refuse("an array without dtype or shape")
        if dtype.name == OBJECT:
            if not isinstance(record.data, list) or shape != (len(record.data),):
                self.refuse("an object array that is not one row of plain values")
            return [self.plain(item, depth + 1) for item in record.data]
        if record.is_scalar and dtype.name in ("S0", "U0"):
            return dtype.plain().type()
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of shape {shape}")
        raw, plain = record.data, dtype.plain()
        if not isinstance(raw, (bytes, bytearray)):
            raise ValueError(f"{type(raw).__name__} where bytes belong")
        if math.prod(shape) * plain.itemsize != len(raw):
            raise ValueError(f"shape {shape} of {plain} against {len(raw)} bytes")
        self.spend(len(raw))
        array = numbers_of(raw, plain).reshape(shape)
        if record.is_scalar:
            return array[()]
        return array if record.axes is None else array.transpose(record.axes)

    # ---- what the names make ----

    def make_dtype(self, name: Any, *_: Any) -> _DType:
        if not isinstance(name, str):
            self.refuse("a dtype without a name")
        if not DTYPE_NAME.fullmatch(name) and not (name == OBJECT and self.object_lists):
            self.refuse("an array of Python objects" if "O" in name else f"an array of dtype {name[:40]!r}")
        return _DType(self, name.lstrip("<>=|"), name[0] if name[0] in "<>=|" else "=")

    def make_blank(self, cls: Any, *_: Any) -> _Array:
        """An array whose state follows."""
        if not isinstance(cls, _StandIn) or cls.kind != "ndarray":
            self.refuse("an array class other than numpy.ndarray")
        return _Array(self)

    def make_array(self, data: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None) -> _Array:
        if order == "K" and axes is not None:
            return _Array(self, data, dtype, shape, axes)
        return _Array(self, data, dtype, *_as_stored(shape, fortran=order == "F"))

    def make_scalar(self, dtype: Any, data: Any = b"") -> _Array:
        return _Array(self, data, dtype, (), is_scalar=True)

    def make_dict(self, items: Any = ()) -> dict[Any, Any]:
        if not isinstance(items, (list, tuple)):
            self.refuse("a dict that is not made from a list")
        self.spend(len(items))
        return dict(items)

    def make_complex(self, real: Any, imaginary: Any = 0.0) -> complex:
        return complex(float(real), float(imaginary))


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
