"""Packed cells: everything numpy pickles comes back equal, nothing else is built, and hostile bytes are refused by name."""

from __future__ import annotations

import base64
import collections
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from offline_cli.errors import BadData, UnsafeData
from offline_cli.formats.rllib.packed import unpack, unpack_cells
from offline_cli.formats.rllib.pickles import unpickle

PROTOCOLS = (4, 5)


def packed(value: Any, protocol: int = 5) -> str:
    return packed_bytes(pickle.dumps(value, protocol))


def packed_bytes(pickled: bytes, **options: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickled, **options)).decode("ascii")


def row(number: int) -> str:
    return f"file row {number}"


# ---- what is read ----

VALUES: dict[str, Any] = {
    "vector": np.arange(4, dtype=np.float32),
    "fortran": np.arange(6.0).reshape(2, 3).T,
    "other axis order": np.transpose(np.arange(24.0).reshape(2, 3, 4), (1, 0, 2)),
    "reversed": np.arange(24, dtype=np.uint8).reshape(2, 3, 4)[::-1],
    "big endian": np.arange(4, dtype=">i2"),
    "bool": np.array([True, False]),
    "half": np.arange(3, dtype=np.float16),
    "complex": np.array([1 + 2j]),
    "text": np.array(["ab", "c"]),
    "bytes": np.array([b"ab", b"c"]),
    "empty": np.zeros((0, 4), np.float32),
    "no rank": np.array(3.5),
    "scalar": np.float32(2.5),
    "text scalar": np.str_("a"),
    "empty text scalar": np.str_(""),
    "number": 3,
    "large number": -(2**80),
    "ordered dict": collections.OrderedDict(a=np.arange(3), b=(np.int64(1),)),
    "containers": {"a": [1, 2.5, None, True, "x", b"y"], "b": ({1, 2}, frozenset([3]), 2 + 3j), 5: [[], {}, ()]},
    "shared parts": [[{}] * 3, [np.arange(3)] * 2],
}


def test_whatever_numpy_pickles_comes_back_equal() -> None:
    for name, value in VALUES.items():
        for protocol in PROTOCOLS:
            found = unpack(packed(value, protocol), where="test")
            np.testing.assert_equal(found, value, err_msg=name)
            if isinstance(value, (np.ndarray, np.generic)):
                assert (type(found), found.dtype) == (type(value), value.dtype), name


@pytest.mark.parametrize("options", [{"store_size": False}, {"block_checksum": True}])
def test_lz4_frames_of_every_kind_are_read(options: dict[str, Any]) -> None:
    value = np.arange(100_000.0)
    np.testing.assert_array_equal(unpack(packed_bytes(pickle.dumps(value), **options), where="test"), value)


def test_object_arrays_come_back_as_lists_of_plain_values_only_when_asked_for() -> None:
    infos = np.empty(2, object)
    infos[:] = [{}, {"a": np.float32(1)}]
    assert unpack(packed(infos), where="test", object_lists=True) == [{}, {"a": np.float32(1)}]
    with pytest.raises(UnsafeData):
        unpack(packed(infos), where="test")


# ---- what is refused ----


class Runs:
    """Its pickle calls a function with one argument."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def global_(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


NDARRAY = global_("numpy", "ndarray")
RECONSTRUCT = global_("numpy.core.multiarray", "_reconstruct") + b"(" + NDARRAY + b"K\x00\x85C\x01btR"
DTYPE = global_("numpy", "dtype")


def dtype(name: bytes, state: bytes = b"") -> bytes:
    return DTYPE + b"(X" + struct.pack("<I", len(name)) + name + b"\x89\x88tR" + state


def array_state(shape: bytes, dtype_: bytes, data: bytes) -> bytes:
    return RECONSTRUCT + b"(K\x01" + shape + dtype_ + b"\x89" + data + b"tb."


EIGHT = b"C\x08\x01\x02\x03\x04\x05\x06\x07\x08"
F8 = dtype(b"f8")

HOSTILE: dict[str, bytes] = {
    "a function": pickle.dumps(Runs(os.system, "echo run > /dev/null")),
    "eval": pickle.dumps(Runs(eval, "1")),
    "numpy's own loader": global_("numpy", "load") + b"(X\x01\x00\x00\x00atR.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
    "a built class": b"(" + NDARRAY + b"o.",
    "a new object": b"\x80\x02" + NDARRAY + b")\x81.",
    "a persistent id": b"Pid\n.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "state for a name": NDARRAY + b"}b.",
    "state for an array": array_state(b"K\x01\x85", F8, EIGHT)[:-1] + b"(K\x01K\x01\x85" + F8 + b"\x89" + EIGHT + b"tb.",
    "an object dtype": array_state(b"K\x01\x85", dtype(b"O8"), EIGHT),
    "a structured dtype by name": array_state(b"K\x01\x85", dtype(b"f8,O"), EIGHT),
    "a structured dtype as a list": DTYPE + b"(](" + b"(X\x01\x00\x00\x00aX\x01\x00\x00\x00Ote\x89\x88tR.",
    "a structured dtype by state": array_state(
        b"K\x01\x85", dtype(b"V8", b"(K\x03X\x01\x00\x00\x00|N(X\x01\x00\x00\x00at}K\x08K\x01K\x10tb"), EIGHT
    ),
    "fields set on a plain dtype": array_state(
        b"K\x01\x85", dtype(b"f8", b"(K\x03X\x01\x00\x00\x00<N(X\x01\x00\x00\x00at}K\x08K\x01K\x10tb"), EIGHT
    ),
    "an item size set on a plain dtype": array_state(
        b"K\x01\x85", dtype(b"f8", b"(K\x03X\x01\x00\x00\x00<NNNK\x40K\x01K\x10tb"), EIGHT
    ),
    "a datetime": pickle.dumps(np.array(["2026-01-01"], "M8[D]")),
    "a subclass": pickle.dumps(np.ma.array([1])),
    "a name left over": NDARRAY + b".",
    "an array never filled": RECONSTRUCT + b".",
    "a list in itself": b"]q\x00h\x00a.",
    "tuples that Python would hash by recursion without end": b"\x80\x02)" + b"\x85" * 200_000 + b"N}s.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name: str) -> None:
    with pytest.raises(UnsafeData) as caught:
        unpack(packed_bytes(HOSTILE[name]), where="file line 3")
    assert caught.value.where == "file line 3"


def test_a_value_that_unfolds_by_sharing_is_refused_before_it_is_followed() -> None:
    levels = b"]q\x00" + b"".join(b"0]q" + bytes([n]) + b"(" + (b"h" + bytes([n - 1])) * 30 + b"e" for n in range(1, 20))
    with pytest.raises(UnsafeData):
        unpickle(levels + b".", where="test")


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    with pytest.raises(UnsafeData):
        unpack(packed(Runs(os.mkdir, str(witness))), where="test")
    assert not witness.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02r\xff\xff\xff\xffN.",  # a memo entry of the highest number
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"a.",  # a bytearray of a tebibyte
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"a.",  # bytes of 4 exbibytes
        b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"a.",  # a number of a gibibyte
        array_state(b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", F8, EIGHT),  # a shape of 2**62 numbers
        array_state(b"K\x00J\xff\xff\xff\x7f\x86", F8, EIGHT),
        array_state(b"J\xff\xff\xff\xff\x85", F8, EIGHT),  # a negative one
        array_state(b"K\x01" * 40 + b"t", F8, EIGHT),
    ],
)
def test_declared_sizes_take_no_memory(pickled: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadData):
            unpickle(pickled, where="test")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# ---- columns of cells ----


def cells_of(vectors: Any) -> list[str]:
    return [packed(vector) for vector in vectors]


@given(
    hnp.arrays(
        st.sampled_from(["f4", "f8", "i8", "u1", "?"]),
        st.tuples(st.integers(33, 70), st.integers(0, 6)),
        elements=None,
        fill=st.nothing(),
    )
)
@settings(max_examples=20, deadline=None)
def test_a_column_equals_its_cells_read_one_by_one(vectors: Any) -> None:
    np.testing.assert_array_equal(unpack_cells(cells_of(vectors), where=row), vectors, strict=True)


SHAPES = {
    "null": None,
    "cut": packed(np.zeros(3))[:-20],
    "one character wrong": "".join("?" if i == 90 else c for i, c in enumerate(packed(np.arange(3.0)))),
    "another shape": packed(np.zeros(4)),
    "another dtype": packed(np.zeros(3, np.float32)),
    "hostile": packed(Runs(os.system, "true")),
    "text": packed("x"),
    "a tree": packed({"c": np.zeros(3)}),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_bad_cell_is_refused_by_row(kind: str) -> None:
    cells: list[Any] = cells_of(np.random.default_rng(4).standard_normal((100, 3)))
    cells[70] = SHAPES[kind]
    with pytest.raises(BadData) as caught:
        unpack_cells(cells, where=row)
    assert caught.value.where == "file row 70"


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_a_cell_that_differs_from_the_others_anywhere_is_read_with_care(data: st.DataObject) -> None:
    known = pickle.dumps(np.arange(6, dtype=np.int16).reshape(2, 3), 5)
    place, byte = data.draw(st.integers(0, len(known) - 1)), data.draw(st.integers(0, 255))
    text = packed_bytes(known[:place] + bytes([byte]) + known[place + 1 :])
    cells = [packed_bytes(known)] * 9 + [text]
    try:
        expected = np.asarray(unpack(text, where="test"))
    except BadData as error:
        with pytest.raises(type(error)):
            unpack_cells(cells, where=row)
    else:
        if (expected.dtype, expected.shape) == (np.dtype(np.int16), (2, 3)):
            np.testing.assert_array_equal(unpack_cells(cells, where=row)[9], expected)
        else:
            with pytest.raises(BadData):
                unpack_cells(cells, where=row)
