"""Remote files by ranges: the same bytes in any order of reading, in few requests, and few more bytes than asked for."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offline_cli.files.remote_files import FIRST_AHEAD, SMALL_FILE, buffered_reader
from offline_cli.files.timeouts import REQUEST_BYTES

MIB = 1 << 20
DATA = np.random.default_rng(0).bytes(40 * MIB)


class Store:
    """Gives ranges of bytes, and remembers which."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        return self.data[start:end]


@given(
    size=st.sampled_from([0, 1, 1000, SMALL_FILE, SMALL_FILE + 1, 5 * MIB]),
    moves=st.lists(st.tuples(st.integers(0, 5 * MIB), st.integers(0, 3 * MIB)), max_size=8),
)
def test_any_order_of_reading_gives_the_bytes_of_the_file(size: int, moves: list[tuple[int, int]]) -> None:
    file, plain = buffered_reader(Store(DATA[:size]).fetch, size), io.BytesIO(DATA[:size])
    for position, length in moves:
        for one in (file, plain):
            one.seek(position)
        assert file.read(length) == plain.read(length)
    assert file.seek(0, io.SEEK_END) == size


def test_a_small_file_comes_in_one_request() -> None:
    store = Store(DATA[:SMALL_FILE])
    with buffered_reader(store.fetch, SMALL_FILE) as file:
        file.seek(-100, io.SEEK_END)
        file.read()
        file.seek(0)
        file.read(1000)
    assert store.asked == [(0, SMALL_FILE)]


def test_lines_stream_in_requests_that_grow() -> None:
    text = b"a line of some forty characters, and so on\n" * MIB
    store = Store(text)
    assert sum(len(line) for line in buffered_reader(store.fetch, len(text))) == len(text)
    sizes = [end - start for start, end in store.asked]
    assert len(sizes) <= 10
    assert sizes[:3] == [FIRST_AHEAD, 2 * FIRST_AHEAD, 4 * FIRST_AHEAD]
    assert max(sizes) == REQUEST_BYTES


def test_a_position_before_the_file_is_refused() -> None:
    with pytest.raises((ValueError, OSError)):
        buffered_reader(Store(DATA).fetch, len(DATA)).seek(-1)
