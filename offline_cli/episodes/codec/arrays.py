"""Safe encoding and decoding of msgpack-numpy's arrays; data that would build objects or run code is rejected.

msgpack-numpy's own `decode` unpickles object arrays, and numpy trusts a node's `type` over its `kind`, so untrusted bytes
never reach it. Here a dtype must match `NUMERIC_TYPE` (numbers, bools, strings), the shape must account for every byte, and
declared sizes can never exceed the input. One byte of msgpack can be an empty map or list of about 70 bytes in memory, and
Parquet compresses a gigabyte of such bytes to kilobytes, so an item may hold at most `MAX_CONTAINERS` of them. Python does not
salt hashes of numbers, so an attacker can make keys collide: a map may have at most `MAX_NUMBER_KEYS` of them.

Only maps with the *bytes* key `nd` are arrays, as msgpack-numpy writes them; a user's `{"nd": 1}` stays a map.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode, UnsafeData

# RLlib may call msgpack-numpy's `patch`, which replaces these names in `msgpack` by versions that unpickle.
try:
    from msgpack._cmsgpack import Packer, Unpacker, unpackb
except ImportError:
    from msgpack.fallback import Packer, Unpacker, unpackb

__all__ = [
    "array_from_node",
    "bin_header",
    "check_values",
    "dtype_from_type",
    "list_header",
    "map_header",
    "pack",
    "shape_from_node",
    "unpack",
    "unpack_first",
    "unpack_raw",
]

NUMERIC_TYPE = re.compile(r"[<>=|]?[biufcSU][0-9]{1,9}")
MAX_RANK = 32
MAX_COMPLEX_TEXT = 128
MAX_CONTAINERS = 1 << 24  # maps and lists in one item: the infos of 16 million steps
SMALL_MEMORY = 128 << 20  # bytes of memory that they may take in an item of any size
MAX_GROWTH = 8  # memory limit of a larger item, as a multiple of its size; RLlib's lists of steps need 2 to 6
EMPTY_MAP, FULL_MAP, ENTRY, EMPTY_LIST, ITEM, ARRAY = 64, 232, 40, 64, 24, 128  # approximate bytes in memory
MAX_NUMBER_KEYS = 1 << 16  # in one map
LAST_CODE_POINT = 0x10FFFF
FIX = "write the file again from its source"
TIMESTAMP_AS_SECONDS = 1  # msgpack's timestamp extension becomes a float; other extensions are rejected
FIRST_BUFFER = 256  # initial buffer of the unpacker; its default is 1 MiB for every value

Pairs = list[tuple[Any, Any]]


# ---- writing ----


def pack(value: Any) -> bytes:
    """Pack `value` as msgpack, with numpy arrays and scalars as msgpack-numpy nodes. Raises TypeError for other objects."""
    packed: bytes = Packer(default=_node).pack(value)
    return packed


def _node(value: Any) -> dict[bytes, Any]:
    if isinstance(value, complex):  # np.complex128 is a complex too, and msgpack-numpy treats it the same
        return {b"complex": True, b"data": repr(complex(value))}
    if not isinstance(value, (np.ndarray, np.generic)) or not NUMERIC_TYPE.fullmatch(value.dtype.str):
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise TypeError(f"{kind} cannot be packed: only numbers, bools and strings can")
    if isinstance(value, np.ndarray):
        node = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return {**node, b"data": value.tobytes()}
    return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}


# ---- reading ----


def unpack(data: bytes, *, where: str) -> Any:
    """Unpack `data`; arrays are read-only views of it.

    Raises UnsafeData for object arrays in any disguise, extension types, and excessive nesting or sizes; BadEpisode for
    truncated or trailing bytes, duplicate keys, invalid text, and arrays whose shape and bytes disagree.
    """
    return _guarded(lambda: unpackb(data, **_hooks(where, len(data)), **_limits(data)), data, where)


def unpack_raw(data: bytes, *, where: str) -> Any:
    """As `unpack`, but array nodes stay plain maps: for code that inspects the layout of a value."""
    return _guarded(lambda: unpackb(data, **_hooks(where, len(data), raw=True), **_limits(data)), data, where)


def unpack_first(data: bytes, start: int, *, where: str, raw: bool = False) -> tuple[Any, int]:
    """The value at byte `start`, and the offset after it. Raises as `unpack` does, but allows trailing bytes."""

    def read() -> tuple[Any, int]:
        size = max(len(data), FIRST_BUFFER)
        buffers = {"read_size": FIRST_BUFFER, "max_buffer_size": size}
        unpacker = Unpacker(**_hooks(where, len(data), raw=raw), **buffers, **_limits(data))
        unpacker.feed(memoryview(data)[start:])
        return unpacker.unpack(), start + unpacker.tell()

    value: tuple[Any, int] = _guarded(read, data, where)
    return value


def _limits(data: bytes) -> dict[str, Any]:
    size = max(len(data), 1)
    return {
        "strict_map_key": False,  # RLlib writes int keys in infos
        "raw": False,
        "timestamp": TIMESTAMP_AS_SECONDS,
        "ext_hook": _refuse_extension,
        "max_array_len": size,
        "max_map_len": size // 2 + 1,
    }


def _guarded(read: Callable[[], Any], data: bytes, where: str) -> Any:
    """Call `read`; convert msgpack's exceptions to ours."""
    try:
        return read()
    except (BadEpisode, UnsafeData):
        raise
    except _Extension as err:
        raise UnsafeData(f"msgpack extension type {err}", where=where, fix="store numbers, text, lists and maps only") from err
    except msgpack.exceptions.StackError as err:
        raise UnsafeData("values nested too deeply", where=where, fix=FIX) from err
    except MemoryError as err:
        raise UnsafeData("declared sizes exceed the available memory", where=where, fix=FIX) from err
    except msgpack.exceptions.ExtraData as err:
        raise BadEpisode("trailing bytes after the value", where=where, fix=FIX) from err
    except UnicodeDecodeError as err:
        raise BadEpisode(f"text is not UTF-8: {err.reason} at byte {err.start}", where=where, fix=FIX) from err
    except (msgpack.exceptions.OutOfData, msgpack.exceptions.FormatError, ValueError) as err:
        raise _unreadable(err, data, where) from err


def _unreadable(err: Exception, data: bytes, where: str) -> BadEpisode | UnsafeData:
    text = str(err)
    if "exceeds max_" in text:
        return UnsafeData(f"a declared size exceeds the {len(data)} bytes of the item: {text}", where=where, fix=FIX)
    if isinstance(err, msgpack.exceptions.OutOfData) or "incomplete" in text:
        return BadEpisode(f"cut off after {len(data)} bytes", where=where, fix=FIX)
    return BadEpisode(f"not msgpack: {text or type(err).__name__}", where=where, fix=FIX)


class _Extension(Exception):
    """Carries an extension code out of msgpack's callback."""


def _refuse_extension(code: int, _: bytes) -> Any:
    raise _Extension(str(code))


def _hooks(where: str, size: int, *, raw: bool = False) -> dict[str, Callable[[Any], Any]]:
    """Msgpack callbacks for maps and lists, which enforce the limits. With `raw`, array nodes stay maps."""
    room, memory = MAX_CONTAINERS, max(SMALL_MEMORY, MAX_GROWTH * size)
    fix = "split the episode into chunks"

    def count(nbytes: int) -> None:
        nonlocal room, memory
        room, memory = room - 1, memory - nbytes
        if room < 0:
            raise UnsafeData(f"more than {MAX_CONTAINERS} maps and lists", where=where, fix=fix)
        if memory < 0:
            raise UnsafeData(f"maps and lists need far more memory than the item's {size} bytes", where=where, fix=fix)

    def plain_map(pairs: Pairs) -> dict[Any, Any]:
        count(FULL_MAP + ENTRY * len(pairs) if pairs else EMPTY_MAP)
        return _map_of(pairs, where) if pairs else {}

    def any_map(pairs: Pairs) -> Any:
        if not pairs:
            return plain_map(pairs)
        built = _map_of(pairs, where)
        if b"nd" in built:
            count(ARRAY)
            return array_from_node(built, where=where)
        count(FULL_MAP + ENTRY * len(pairs))
        if b"complex" in built:
            return _complex_from_node(built, where=where)
        return built

    def any_list(values: list[Any]) -> list[Any]:
        count(EMPTY_LIST + ITEM * len(values))
        return values

    return {"object_pairs_hook": plain_map if raw else any_map, "list_hook": any_list}


def _map_of(pairs: Pairs, where: str) -> dict[Any, Any]:
    if len(pairs) > MAX_NUMBER_KEYS and sum(not isinstance(key, (str, bytes)) for key, _ in pairs) > MAX_NUMBER_KEYS:
        raise UnsafeData(f"a map with more than {MAX_NUMBER_KEYS} numeric keys", where=where, fix="use strings as keys")
    try:
        built = dict(pairs)
    except TypeError as err:
        raise BadEpisode(f"a map with a list or map as a key: {err}", where=where, fix=FIX) from err
    if len(built) != len(pairs):
        raise BadEpisode("a map with a duplicate key", where=where, fix=FIX)
    return built


# ---- nodes ----


def array_from_node(node: Mapping[Any, Any], *, where: str) -> Any:
    """Build the array (`nd` true) or numpy scalar (`nd` false) of a msgpack-numpy node.

    Raises UnsafeData unless its type is numeric, bool or string; BadEpisode if shape and bytes disagree.
    """
    dtype = dtype_from_type(node.get(b"type"), kind=node.get(b"kind", b""), where=where)
    data = node.get(b"data")
    if not isinstance(data, bytes):
        raise BadEpisode("an array without bytes", where=where, fix=FIX)
    flag = node[b"nd"]
    if flag is not True and flag is not False:
        raise BadEpisode(f"an array marked nd={flag!r}", where=where, fix=FIX)
    shape = shape_from_node(node, where=where) if flag else ()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise BadEpisode(f"an array of {dtype}{shape} in {len(data)} bytes", where=where, fix=FIX)
    try:
        array = np.frombuffer(data, dtype).reshape(shape)
    except ValueError as err:  # numpy limits the axes of empty arrays
        raise BadEpisode(f"an array of {dtype}{shape}: {err}", where=where, fix=FIX) from err
    check_values(array, where=where)
    return array if flag else array[()]


def dtype_from_type(kind_of: Any, *, kind: Any = b"", where: str) -> np.dtype[Any]:
    """Parse a node's `type`. Raises UnsafeData for all dtypes but numbers, bools and strings."""
    if kind not in (b"", ""):
        raise UnsafeData(f"an array of kind {kind!r}", where=where, fix="store numbers, or JSON text")
    name = kind_of.decode("ascii", "replace") if isinstance(kind_of, bytes) else kind_of
    if not isinstance(name, str) or not NUMERIC_TYPE.fullmatch(name):
        raise UnsafeData(f"an array of type {str(kind_of)[:60]!r}", where=where, fix="store numbers, or JSON text")
    try:
        dtype = np.dtype(name)
    except TypeError as err:
        raise BadEpisode(f"an array of the unknown type {name!r}", where=where, fix=FIX) from err
    if dtype.hasobject or dtype.kind not in "biufcSU" or dtype.itemsize == 0:
        raise UnsafeData(f"an array of {dtype}", where=where, fix="store numbers, or JSON text")
    return dtype


def shape_from_node(node: Mapping[Any, Any], *, where: str) -> tuple[int, ...]:
    """A node's shape. Raises BadEpisode unless it is a short list of non-negative ints."""
    shape = node.get(b"shape")
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise BadEpisode(f"an array of shape {str(shape)[:60]}", where=where, fix=FIX)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise BadEpisode(f"an array of shape {str(shape)[:60]}", where=where, fix=FIX)
    return tuple(shape)


def check_values(array: NDArray[Any], *, where: str) -> None:
    """Raise BadEpisode for bit patterns that numpy does not check: bools other than 0 and 1, invalid code points."""
    if array.dtype.kind == "b" and array.size and int(np.ascontiguousarray(array).view(np.uint8).max()) > 1:
        raise BadEpisode("a bool that is neither 0 nor 1", where=where, fix=FIX)
    if array.dtype.kind == "U" and array.size:
        points = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if int(points.max()) > LAST_CODE_POINT:
            raise BadEpisode("a string array with invalid characters", where=where, fix=FIX)


def _complex_from_node(node: Mapping[Any, Any], *, where: str) -> complex:
    text = node.get(b"data")
    name = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    try:
        if not isinstance(name, str) or len(name) > MAX_COMPLEX_TEXT:
            raise ValueError("too long for a number")
        return complex(name)
    except ValueError as err:
        raise BadEpisode(f"an invalid complex number: {err}", where=where, fix=FIX) from err


# ---- msgpack headers, for callers that pack the rest themselves ----


def map_header(size: int) -> bytes:
    """The header of a map of `size` pairs."""
    return _header(size, 0x80, b"\xde", b"\xdf")


def list_header(size: int) -> bytes:
    """The header of a list of `size` values."""
    return _header(size, 0x90, b"\xdc", b"\xdd")


def bin_header(size: int) -> bytes:
    """The header of `size` raw bytes."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")


def _header(size: int, fix: int, short: bytes, long: bytes) -> bytes:
    if size < 16:
        return bytes([fix | size])
    return short + size.to_bytes(2, "big") if size < 1 << 16 else long + size.to_bytes(4, "big")
