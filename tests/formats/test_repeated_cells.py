"""RLlib's next observations, most of which are the text of the next row's observation: read as if they were not."""

from __future__ import annotations

import base64
import pickle

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.errors import BadEpisode
from offline_cli.formats.arrow_leaves import tree_of, tree_of_following

TEXT = pa.field("new_obs", pa.string())


def packed(number: int) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(np.full(4, number, np.float32)))).decode()


def column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([texts[: len(texts) // 2], texts[len(texts) // 2 :]], pa.string())


def where(row: int) -> str:
    return f"row {row}"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=80))
def test_values_are_those_of_each_cell_itself(steps: list[tuple[int, bool]]) -> None:
    obs = [packed(number) for number, _ in steps]
    following = [packed(7) if end else text for text, (_, end) in zip([*obs[1:], packed(9)], steps, strict=True)]
    values = tree_of(column(obs), TEXT, where=where)
    read = tree_of_following(column(following), TEXT, column(obs), values, where=where)
    np.testing.assert_array_equal(read, tree_of(column(following), TEXT, where=where), strict=True)


def test_a_broken_cell_among_repeated_ones_is_named() -> None:
    obs = [packed(number) for number in range(9)]
    following = [*obs[1:5], "BCJN", *obs[6:], packed(9)]
    with pytest.raises(BadEpisode) as caught:
        tree_of_following(column(following), TEXT, column(obs), tree_of(column(obs), TEXT, where=where), where=where)
    assert caught.value.where == "row 4, column new_obs"
