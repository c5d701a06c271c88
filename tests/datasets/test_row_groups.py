"""Blocks and shards depend on the episodes alone, not on the batches that they came in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.datasets.row_groups import Block, BlockCutter, joined_batch, raw_bytes
from offline_cli.episodes.batch import EpisodeBatch

Make = Callable[..., EpisodeBatch]


def cut(batches: list[EpisodeBatch], **limits: Any) -> list[Block]:
    cutter = BlockCutter(**{"max_rows": None, "max_bytes": None, **limits})
    blocks = [block for batch in batches for block in cutter.push(batch, batch.lengths, raw_bytes(batch))]
    return [*blocks, *cutter.flush()]


def shards(blocks: list[Block]) -> list[list[tuple[str, ...]]]:
    found: list[list[tuple[str, ...]]] = []
    for block in blocks:
        if block.opens_shard:
            found.append([])
        found[-1].append(joined_batch(block).ids)
    return found


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    max_rows=st.none() | st.integers(1, 25),
    max_bytes=st.none() | st.integers(1, 3000),
    block_bytes=st.integers(1, 2000),
)
def test_the_same_episodes_give_the_same_blocks_however_they_were_batched(
    make_batch: Make, lengths: list[int], cuts: set[int], max_rows: int | None, max_bytes: int | None, block_bytes: int
) -> None:
    whole = make_batch(lengths)
    places = [0, *sorted(place for place in cuts if place < len(lengths)), len(lengths)]
    parts = [whole.select(slice(a, b)) for a, b in pairwise(places)]
    limits = {"max_rows": max_rows, "max_bytes": max_bytes, "block_bytes": block_bytes}
    one, many = cut([whole], **limits), cut(parts, **limits)
    assert shards(one) == shards(many)
    joined = EpisodeBatch.concat([*map(joined_batch, many)])
    assert joined.ids == whole.ids
    np.testing.assert_array_equal(joined.obs, whole.obs)


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), max_rows=st.integers(1, 25))
def test_a_shard_keeps_to_its_limit_unless_one_episode_is_larger(make_batch: Make, lengths: list[int], max_rows: int) -> None:
    blocks = cut([make_batch(lengths)], max_rows=max_rows, block_bytes=500)
    for ids in shards(blocks):
        rows = [lengths[int(name.removeprefix("episode-"))] for part in ids for name in part]
        assert sum(rows) <= max_rows or len(rows) == 1


def test_a_limit_of_bytes_counts_arrays_before_compression(make_batch: Make) -> None:
    batch = make_batch((5, 5, 5, 5))
    one = int(raw_bytes(batch)[0])
    assert [len(ids) for ids in shards(cut([batch], max_bytes=2 * one, block_bytes=1))] == [2, 2]
    assert [len(ids) for ids in shards(cut([batch], max_bytes=2 * one - 1, block_bytes=1))] == [1, 1, 1, 1]
