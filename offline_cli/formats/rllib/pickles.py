"""Safely unpickle NumPy arrays, NumPy scalars and plain containers; pickles that name anything else are refused.

A pickle of a single array, as NumPy writes it, is recognized by its bytes and not executed. For any other pickle, every
instruction is first checked against an allow-list, using `pickletools.genops`, which only parses. Python's unpickler then runs
it with stand-ins for the few names that NumPy and pickle use for arrays, dtypes and scalars. NumPy's own functions are never
called: they accept object dtypes, and trust any sizes and state. A stand-in has no attributes to set, and only records its
arguments. Records become arrays at the end, when dtypes must have known names and shapes must match the bytes.

Arrays hold numbers, booleans or text (dtype kinds `biufcSU`). Object arrays are refused, unless the caller asks for them as
plain lists (for infos). The result may exceed the size of the pickle only by a small factor, even with repeated references.
Bytes as written by Python 2 and protocols 0 to 2 are not supported.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode, UnsafeData

FIX: Final = "read the file with the program that wrote it, and record numbers or JSON text"
MAGIC: Final = b"\x80"  # protocol 2 and later
MAX_DEPTH: Final = 64  # nesting of containers; RLlib's is two or three
MAX_TUPLES: Final = 50_000  # Python hashes nested tuples recursively in C; 100,000 levels crash the process
MAX_NDIM: Final = 32
SHARING: Final = 16  # limit of a value's size as a multiple of its pickle: repeated references can multiply it
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
"""Excludes creating objects, persistent ids, extension codes, and out-of-band buffers."""
ERRORS: Final = (
    pickle.UnpicklingError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RecursionError,
)
"""Exceptions of Python's unpickler for truncated or inconsistent pickles."""

FRAME: Final = rb"(?:\x95.{8})?"
BEFORE_NUMBERS: Final = re.compile(
    rb"\x80\x05" + FRAME + rb"\x8c.numpy\._?core\.numeric\x94\x8c\x0b_frombuffer\x94\x93\x94\(\x96(.{8})", re.DOTALL
)
AFTER_NUMBERS: Final = re.compile(
    FRAME + rb"\x94\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94\x8c\x02(b1|[iu][1248]|f[248])\x94\x89\x88\x87\x94R\x94"
    rb"\(K\x03\x8c\x01([<>|])\x94NNNJ\xff{4}J\xff{4}K\x00t\x94b\(?((?:K.|M..|J.{4})+)[\x85\x86\x87t]\x94\x8c\x01C\x94t\x94R\x94\.",
    re.DOTALL,
)
SIZE: Final = re.compile(rb"K(.)|M(..)|J(.{4})", re.DOTALL)
"""A contiguous array pickled by NumPy 1.26 to 2.x, protocol 5: a call of `_frombuffer` with bytes, dtype, shape and order."""


def is_pickle(cell: Any) -> bool:
    """Whether a cell is a bare pickle of protocol 2 or later, which Ray always uses."""
    return isinstance(cell, bytes) and cell[:1] == MAGIC


def unpickle(data: bytes, *, where: str, object_lists: bool = False) -> Any:
    """Unpickle `data` (protocol 0 to 5): an array, a NumPy scalar, or plain containers of these.

    `object_lists`: return object arrays as lists instead of refusing them. Raises UnsafeData if the pickle names or does
    anything else, or its value is too large; BadEpisode if it is truncated or inconsistent.
    """
    try:
        lone = _lone_array(data)
        if lone is not None:
            return lone
        _check(data)
        return _Plain(SHARING * len(data) + 1024, object_lists).of(_Unpickler(io.BytesIO(data)).load(), 0)
    except _Refused as error:
        raise UnsafeData(f"a pickle {error}: it is not read", where=where, fix=FIX) from error
    except ERRORS as error:
        fix = "write the file again from its source"
        raise BadEpisode(f"not a complete pickle: {error or type(error).__name__}", where=where, fix=fix) from error


def _lone_array(data: bytes) -> NDArray[Any] | None:
    """The array in a pickle of a single array; None for any other pickle."""
    before = BEFORE_NUMBERS.match(data)
    if before is None:
        return None
    start, size = before.end(), int.from_bytes(before[1], "little")
    after = AFTER_NUMBERS.fullmatch(data, start + size) if size <= len(data) else None
    if after is None:
        return None
    dtype = np.dtype(f"{after[2].decode()}{after[1].decode()}")
    shape = [int.from_bytes(one[0][1:], "little") for one in SIZE.finditer(after[3])]
    if math.prod(shape) * dtype.itemsize != size or len(shape) > MAX_NDIM:
        return None
    return numbers_of(memoryview(data)[start : start + size], dtype).reshape(shape)


def numbers_of(raw: bytes | bytearray | memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A flat array over `raw`; any nonzero byte of a boolean is true.

    Raises ValueError for text with invalid code points: NumPy accepts them, and fails later when they are read.
    """
    if not raw:
        return np.zeros(0, dtype)
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(raw, np.uint8) != 0)
    if dtype.kind == "U" and int(np.frombuffer(raw, np.dtype(np.uint32).newbyteorder(dtype.byteorder)).max()) > LAST_CHARACTER:
        raise ValueError("text has invalid code points")
    return np.frombuffer(raw, dtype)


# ---- instructions, and names they may call ----


class _Refused(Exception):
    """A forbidden action of a pickle; the message continues `a pickle ...`."""


def _check(data: bytes) -> None:
    """Raise _Refused for a forbidden instruction, ValueError for a truncated pickle."""
    tuples = 0
    for instruction, arg, _ in pickletools.genops(data):
        name = instruction.name
        tuples += name in TUPLES
        if name not in ALLOWED or tuples > MAX_TUPLES:
            raise _Refused(f"that uses {name}")
        if name in PUTS and (arg or 0) > len(data):  # the unpickler allocates memory for all entries up to it
            raise ValueError(f"entry {arg} of a memo")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _StandIn:
        call = NAMES.get(f"{module} {name}")
        if call is None:
            raise _Refused(f"that calls for {module}.{name}")
        return _StandIn(call)


class _StandIn:
    """Stand-in for a callable that a pickle may name: it records its arguments and runs nothing."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("that sets the state of a function")


@dataclass(slots=True, eq=False)
class _DType:
    """A dtype with a checked name; its byte order may be set as state."""

    name: str
    order: str = "="

    def __setstate__(self, state: Any) -> None:
        """State is (version, byte order, subdtype, names, fields, itemsize, alignment, flags, ...)."""
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("of structured dtype")
        order = state[1]
        itemsize = state[5] if len(state) > 5 else -1
        if order not in ("<", ">", "=", "|") or itemsize not in (-1, 8 if self.name == OBJECT else self.plain().itemsize):
            raise _Refused(f"of a dtype {self.name!r} of another byte order or size")
        self.order = order

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]  # one of <>=|


@dataclass(slots=True, eq=False)
class _Array:
    """Arguments for creating an array or scalar."""

    data: Any = None
    dtype: Any = None
    shape: Any = None  # in memory order
    axes: Any = None  # transposition, or None
    is_scalar: bool = False

    def __setstate__(self, state: Any) -> None:
        """State is (version, shape, dtype, Fortran order, data)."""
        if self.dtype is not None or not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("with an array state of unknown form")
        _, shape, dtype, fortran, data = state
        given = _array(data, dtype, shape, "F" if fortran else "C")
        self.data, self.dtype, self.shape, self.axes = given.data, given.dtype, given.shape, given.axes


def _dtype(name: Any, *_: Any) -> _DType:
    if not isinstance(name, str) or not (DTYPE_NAME.fullmatch(name) or name == OBJECT):
        raise _Refused(f"of dtype {str(name)[:40]!r}")
    return _DType(name.lstrip("<>=|"), name[0] if name[0] in "<>=|" else "=")


def _ndarray(*_: Any) -> None:
    raise _Refused("that calls numpy.ndarray")


def _reconstruct(cls: Any, *_: Any) -> _Array:
    """An array whose state is set later."""
    if not isinstance(cls, _StandIn) or cls.call is not _ndarray:
        raise _Refused("of an array class other than numpy.ndarray")
    return _Array()


def _array(data: Any, dtype: Any, shape: Any, order: Any = "C", axes: Any = None) -> _Array:
    if order == "K" and axes is not None:
        return _Array(data, dtype, shape, axes)
    if order == "F":
        return _Array(data, dtype, tuple(reversed(shape)), tuple(reversed(range(len(shape)))))
    return _Array(data, dtype, shape)


def _scalar(dtype: Any, data: Any = b"") -> _Array:
    return _Array(data, dtype, (), is_scalar=True)


def _dict(items: Any = ()) -> dict[Any, Any]:
    if not isinstance(items, (list, tuple)):
        raise _Refused("of a dict that is not made from a list")
    return dict(items)


NAMES: Final[dict[str, Callable[..., Any]]] = {
    "numpy ndarray": _ndarray,
    "numpy dtype": _dtype,
    "collections OrderedDict": _dict,
    "builtins complex": lambda real, imaginary=0.0: complex(float(real), float(imaginary)),
    **{f"numpy.{core}.multiarray _reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _array for core in ("core", "_core")},
}
"""Names that a pickle may call ("module name"), and their stand-ins."""


# ---- records to values ----


@dataclass(slots=True)
class _Plain:
    """Converts records to values, and limits their memory."""

    budget: int  # remaining limit of bytes and container items
    object_lists: bool

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise _Refused("that expands to far more than its own size")

    def of(self, node: Any, depth: int) -> Any:
        """Replace records in `node` by arrays. Cycles exhaust the budget."""
        self.spend(1)
        if depth > MAX_DEPTH:
            raise _Refused("with containers nested too deep")
        if isinstance(node, _Array):
            return self._array(node, depth)
        if isinstance(node, dict):
            return {self.of(key, depth + 1): self.of(part, depth + 1) for key, part in node.items()}
        if isinstance(node, (list, tuple, set, frozenset)):
            return type(node)(self.of(part, depth + 1) for part in node)
        if isinstance(node, (_StandIn, _DType)):
            raise _Refused("of anything but numbers")
        return node

    def _array(self, record: _Array, depth: int) -> Any:
        dtype, shape, raw = record.dtype, record.shape, record.data
        if not isinstance(dtype, _DType) or not isinstance(shape, tuple) or len(shape) > MAX_NDIM:
            raise _Refused("of an array without dtype or shape")
        if dtype.name == OBJECT:
            if not self.object_lists:
                raise _Refused("of an array of Python objects")
            if not isinstance(raw, list) or shape != (len(raw),):
                raise _Refused("of an object array that is not one row of plain values")
            return [self.of(item, depth + 1) for item in raw]
        if record.is_scalar and dtype.name in ("S0", "U0"):
            return dtype.plain().type()
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"an array of shape {shape}")
        plain = dtype.plain()
        if not isinstance(raw, (bytes, bytearray)) or math.prod(shape) * plain.itemsize != len(raw):
            raise ValueError(f"shape {shape} of {plain} against other bytes")
        self.spend(len(raw))
        array = numbers_of(raw, plain).reshape(shape)
        if record.is_scalar:
            return array[()]
        return array if record.axes is None else array.transpose(record.axes)
