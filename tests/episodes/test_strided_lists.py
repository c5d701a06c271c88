"""A list of one value per step is read as one array where all values have the layout of the first."""

from __future__ import annotations

from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from offline_cli.episodes.codec.strided_lists import ItemTemplate, learn_template
from offline_cli.episodes.stacking import stack
from offline_cli.testing import assert_same_tree

STEPS = 5
ALIKE: dict[str, list[Any]] = {
    "numbers of one byte": [0, 1, 127, -1, -32],
    "numbers of a byte more": [128, 129, 200, 254, 255],
    "numbers of two bytes more": [256, 300, 1000, 65_534, 65_535],
    "numbers of four bytes more": [65_536, 70_000, 2**31, 2**32 - 2, 2**32 - 1],
    "negative numbers of a byte more": [-33, -34, -100, -127, -128],
    "negative numbers of two bytes more": [-129, -130, -1000, -32_767, -32_768],
    "negative numbers of four bytes more": [-32_769, -40_000, -(2**30), -(2**31) + 1, -(2**31)],
    "negative numbers of eight bytes more": [-(2**31) - 1, -(2**40), -(2**50), -(2**62), -(2**63)],
    "floats": [0.0, -1.5, 1e300, float("inf"), 0.1],
    "scalars": [np.float32(step) for step in range(STEPS)],
    "bools of numpy": [np.bool_(step % 2) for step in range(STEPS)],
    "vectors": [np.full(3, step, np.float32) for step in range(STEPS)],
    "bools": [np.array([step % 2, 1], np.bool_) for step in range(STEPS)],
    "matrices": [np.full((2, 3), step, np.uint8) for step in range(STEPS)],
    "long vectors": [np.full(70_000, step, np.uint8) for step in range(STEPS)],
    "vectors of 300 bytes": [np.full(300, step, np.uint8) for step in range(STEPS)],
    "no elements": [np.zeros((0, 2), np.int64) for _ in range(STEPS)],
    "parts by name": [{"a": np.full(2, step, np.int8), "b": {"n": step, "x": float(step)}} for step in range(STEPS)],
    "parts in order": [(np.full(2, step, np.int8), step) for step in range(STEPS)],
    "parts in order within a name": [{"a": (np.float64(step), np.full(1, step))} for step in range(STEPS)],
    "many parts": [{f"part {n}": step + n for n in range(20)} for step in range(STEPS)],
}
UNSTEADY: dict[str, Any] = {
    "text": "a",
    "nothing": None,
    "a bool": True,
    "a number of nine bytes": 2**63,
    "a plain vector": [1.0, 2.0],
    "an array of text": np.array(["a"]),
    "a name that is a number": {1: np.zeros(2)},
    "text within a part": {"a": np.zeros(2), "b": "text"},
    "a complex number": 1 + 2j,
}


def packed(value: Any) -> bytes:
    found: bytes = msgpack.packb(value, default=msgpack_numpy.encode)
    return found


def learned(value: Any) -> ItemTemplate:
    template = learn_template(packed(value), 0, where="test")
    assert template is not None
    return template


@pytest.mark.parametrize("kind", ALIKE)
def test_values_of_one_layout_are_read_as_arrays(kind: str) -> None:
    values = ALIKE[kind]
    template = learned(values[0])
    found = template.read(b"before" + b"".join(map(packed, values)) + b"after", len(b"before"), STEPS)
    assert found is not None
    assert_same_tree(found, stack(values, None))


@pytest.mark.parametrize("kind", UNSTEADY)
def test_values_whose_size_may_change_have_no_layout(kind: str) -> None:
    assert learn_template(packed(UNSTEADY[kind]), 0, where="test") is None


def test_bytes_that_another_packer_wrote_have_no_layout() -> None:
    assert learn_template(b"\xcc\x05", 0, where="test") is None  # 5, in two bytes


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.zeros(2), np.zeros(2, np.int64)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ({"a": np.zeros(2)}, {"b": np.zeros(2)}),
        (300, 70_000),
        (0.5, 5),
        (5, None),
        (5, False),
    ],
)
def test_a_value_of_another_layout_is_noticed(first: Any, second: Any) -> None:
    rows = packed(first) + packed(second).ljust(len(packed(first)), b"\x00")
    assert learned(first).read(rows, 0, 2) is None


def test_a_bool_that_is_neither_true_nor_false_is_noticed() -> None:
    one = packed(np.zeros(3, np.bool_))
    assert learned(np.zeros(3, np.bool_)).read(one + one[:-1] + b"\x02", 0, 2) is None


@pytest.mark.parametrize("missing", [1, 3])
def test_a_list_that_is_cut_off_is_noticed(missing: int) -> None:
    rows = packed(np.zeros(2)) * 3
    template = learned(np.zeros(2))
    assert template.read(rows, 0, 3) is not None
    assert template.read(rows[:-missing], 0, 3) is None
