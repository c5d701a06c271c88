"""Where episodes end in tables without ids, and in tables where a row is all there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.errors import BadMapping

Read = Callable[..., Any]
Write = Callable[..., Path]

COLUMNS = '[columns]\nobs = "x"\nactions = "a"\nrewards = "r"\n'


def test_without_ids_flags_or_an_option_the_table_is_refused_with_the_ways(read_table: Read, write_lines: Write) -> None:
    with pytest.raises(BadMapping) as caught:
        read_table(write_lines("a.csv", "x,a,r", "0.5,1,1"), COLUMNS)
    assert "eps_id" in caught.value.fix
    for way in ("--episode-ends t", "--episode-ends chain", "--rows-as-episodes"):
        assert way in caught.value.fix


def test_flags_divide_rows_with_ids_where_that_is_asked_for(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "run_id,x,a,r,d", "A,0,1,1,0", "B,1,1,1,1")
    _, batch = read_table(path, COLUMNS + 'terminateds = "d"\n', episode_ends="flags")
    assert batch.lengths.tolist() == [2]


def test_flags_are_used_unless_an_option_says_more(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "x,a,r,d,n", "0,1,1,0,0", "1,1,1,0,1", "2,1,1,1,2", "3,1,1,0,0", "4,1,1,0,0")
    mapping = COLUMNS + 'terminateds = "d"\nt = "n"\n'
    stream, batch = read_table(path, mapping)
    assert batch.lengths.tolist() == [3, 2]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([True, False], [False, True])
    assert stream.tally.assumptions["unfinished-episode"] == 1
    _, batch = read_table(path, mapping, episode_ends="t")
    assert batch.lengths.tolist() == [3, 1, 1]


def test_an_episode_without_ids_goes_on_in_the_next_file_where_obs_chain(read_table: Read, write_lines: Write) -> None:
    mapping = COLUMNS + 'new_obs = "y"\nterminateds = "d"\n'
    first = write_lines("a.csv", "x,a,r,d,y", "0,1,1,0,1", "1,1,1,0,2")
    write_lines("b.csv", "x,a,r,d,y", "2,1,1,1,3", "7,1,1,1,8")
    stream, batch = read_table(str(first.parent / "*.csv"), mapping)
    assert batch.lengths.tolist() == [3, 1]
    assert stream.tally.fragments_stitched == 1
    write_lines("b.csv", "x,a,r,d,y", "5,1,1,1,6", "7,1,1,1,8")
    stream, batch = read_table(str(first.parent / "*.csv"), mapping)
    assert batch.lengths.tolist() == [2, 1, 1]
    assert stream.tally.assumptions["unfinished-episode"] == 1


def test_flags_are_checked_by_the_chain_of_observations(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "x,a,r,d,y", "0,1,1,0,1", "5,1,1,1,6")
    stream, batch = read_table(path, COLUMNS + 'new_obs = "y"\nterminateds = "d"\n')
    assert batch.lengths.tolist() == [2]
    assert stream.tally.assumptions["broken-chain"] == 1


def test_each_row_is_an_episode_where_that_is_asked_for(read_table: Read, write_lines: Write) -> None:
    path = write_lines("a.csv", "e,x,a,r,d,y", "7,0,1,1,0,1", "7,1,1,1,1,2")
    mapping = COLUMNS + 'eps_id = "e"\nnew_obs = "y"\nterminateds = "d"\n'
    stream, batch = read_table(path, mapping, rows_as_episodes=True)
    assert batch.lengths.tolist() == [1, 1]
    assert batch.obs.tolist() == [0, 1, 1, 2]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False, True], [True, False])
    assert [name[9:] for name in batch.ids] == ["0", "1"]
    assert [data["source_id"] for data in batch.custom_data] == ["7", "7"]
    assert dict(stream.tally.assumptions) == {"unfinished-episode": 1}
    _, batch = read_table(path, COLUMNS, rows_as_episodes=True)
    assert batch.obs.tolist() == [0, 0, 1, 1]


def test_an_episode_that_stands_there_twice_is_a_duplicate(read_table: Read, write_lines: Write) -> None:
    rows = ["e,0,1,1,0", "e,1,1,1,1"]
    mapping = COLUMNS + 'eps_id = "e"\nterminateds = "d"\n'
    stream, batch = read_table(write_lines("a.csv", "e,x,a,r,d", *rows, *rows), mapping)
    assert batch.lengths.tolist() == [2]
    assert stream.tally.duplicates_dropped == 1
