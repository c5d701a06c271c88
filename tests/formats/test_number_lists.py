"""Lists of numbers of several lines, read at once: what numpy makes of each of them, or nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.formats.sample_batch.values import arrays_of

NUMBERS = st.one_of(st.floats(allow_nan=True), st.integers(-(2**65), 2**65), st.booleans())
VALUES = st.one_of(NUMBERS, st.none(), st.text(max_size=3), st.just([]), st.just({}), st.just({"a": 1}))
KINDS = [st.floats(), st.integers(-(2**62), 2**62), st.booleans(), NUMBERS, VALUES]


def lists_of(values: st.SearchStrategy[Any], shape: tuple[int, ...]) -> st.SearchStrategy[list[Any]]:
    for size in shape:
        values = st.lists(values, min_size=size, max_size=size)
    return st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=4)


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.sampled_from([(), (2,), (3, 2)]).flatmap(lambda s: lists_of(kind, s))))
@settings(max_examples=80, deadline=None)
def test_arrays_are_those_that_numpy_makes_of_each_list(lists: list[list[Any]]) -> None:
    for list_, array in zip(lists, arrays_of(lists, narrow=False) or (), strict=False):
        expected = np.asarray(list_)
        if expected.dtype == object:  # an integer beyond 64 bits among decimals
            expected = np.array(list_, np.float64)
        np.testing.assert_array_equal(array, expected, strict=True)


def test_decimals_become_float32_only_where_all_lists_keep_every_value() -> None:
    exact, inexact = [0.5, float("nan"), float("inf"), -0.0], [0.1, 1e300]
    for lists, dtype in (([exact], np.float32), ([exact, inexact], np.float64)):
        arrays = arrays_of(lists, narrow=True)
        assert arrays is not None
        for list_, array in zip(lists, arrays, strict=True):
            assert array.dtype == dtype
            np.testing.assert_array_equal(array.astype(np.float64), np.array(list_))
            np.testing.assert_array_equal(np.signbit(array), np.signbit(list_))
