"""Keys and ids keep their numbers, as a dictionary would give them, however many there come to be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.episodes.known_episodes import KnownIds
from offline_cli.key_index import KeyHashes, KeyIndex, key_hashes

NAMES = st.text(st.sampled_from("ab\0ä\udc80"), max_size=20)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), unique=True)))
def test_keys_have_the_numbers_of_a_dictionary(chunks: list[list[int]]) -> None:
    index, known = KeyIndex(), dict[int, int]()
    for chunk in chunks:
        want = [known.setdefault(key, len(known)) for key in chunk]
        assert index.numbers(key_hashes([pa.array(chunk, pa.int64())])).tolist() == want
    assert len(index) == len(known)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True), max_size=20))
def test_keys_that_share_half_a_hash_are_told_apart(chunks: list[list[tuple[int, int]]]) -> None:
    index, known = KeyIndex(), dict[tuple[int, int], int]()
    for chunk in chunks:
        low, high = np.array([key[0] for key in chunk], np.uint64), np.array([key[1] for key in chunk], np.uint32)
        want = [known.setdefault(key, len(known)) for key in chunk]
        assert index.numbers(KeyHashes(low, high)).tolist() == want


@settings(deadline=None)
@given(st.lists(st.sets(NAMES)), st.lists(NAMES), st.sampled_from([0, 3, 1000]))
def test_ids_are_known_as_in_a_dictionary(batches: list[set[str]], asked: list[str], recent: int) -> None:
    ids, known = KnownIds(recent), dict[str, int]()
    for batch in batches:
        new = [name for name in batch if name not in known]
        assert ids.met(batch) == batch - set(new)
        ids.add(new)
        known.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
    assert len(ids) == len(known)
    assert [name in ids for name in asked] == [name in known for name in asked]
    assert [ids.number(name) for name in known] == list(known.values())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_text_has_one_hash_whatever_its_type_and_its_neighbours(kind: pa.DataType) -> None:
    alone = key_hashes([pa.array(["ride"])])
    among = key_hashes([pa.array(["", "ride", None, "x" * 1000], kind)])
    assert (among.low[1], among.high[1]) == (alone.low[0], alone.high[0])


def test_hashes_are_the_same_on_every_machine() -> None:
    hashes = key_hashes([pa.array(["ride-17", None]), pa.array([3, 4])])
    assert [f"{half:x}" for half in (*hashes.low, *hashes.high)] == [
        "c5516a03cf65eaf",
        "bc3cd9f2c6a580f6",
        "bdffa44f",
        "85ee51cb",
    ]


def test_a_million_ids_take_little_memory() -> None:
    ids = KnownIds()
    for first in range(0, 1_000_000, 10_000):
        ids.add([f"a-rather-long-prefix-{number}" for number in range(first, first + 10_000)])
    levels = ids._before._levels
    size = sum(level.hashes.low.nbytes + level.hashes.high.nbytes + level.numbers.nbytes for level in levels)
    assert size <= 16 * len(ids)
    assert ids.number("a-rather-long-prefix-654321") == 654321
