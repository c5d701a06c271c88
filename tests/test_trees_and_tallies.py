"""Nested arrays, and the counts of what had to be assumed or set aside."""

from __future__ import annotations

import pytest

from offline_cli.errors import BadData, UnsupportedSpace
from offline_cli.tally import Lost, OnError, Rejects, RejectsAhead, Tally
from offline_cli.trees import flatten, map_leaves, paths

TREE = {"b": (1, {"c": 2}), "a": 3}


def test_leaves_have_dotted_paths_in_the_order_of_the_keys() -> None:
    assert list(flatten(TREE)) == [("b.0", 1), ("b.1.c", 2), ("a", 3)]
    assert paths(TREE, "obs") == ["obs.b.0", "obs.b.1.c", "obs.a"]
    assert list(flatten([1, 2], "obs")) == [("obs", [1, 2])]  # a list is data


def test_trees_are_mapped_together_by_key_not_by_order() -> None:
    assert map_leaves(lambda x, y: x - y, TREE, {"a": 1, "b": (1, {"c": 1})}) == {"b": (0, {"c": 1}), "a": 2}


@pytest.mark.parametrize("other", [3, {"b": 1, "a": 3}, {"b": (1,), "a": 3}, {"a": 3}, {"b": (1, {"c": 2}), "a": {}}], ids=str)
def test_another_structure_is_refused(other: object) -> None:
    with pytest.raises(ValueError, match="against"):
        map_leaves(lambda x, y: x, TREE, other)


def test_no_assumption_is_ever_taken_back_and_none_of_a_kind_is_not_listed() -> None:
    tally = Tally()
    tally.assume("other", 0)
    assert dict(tally.assumptions) == {}
    with pytest.raises(ValueError, match="unfinished-episode"):
        tally.assume("unfinished-episode", -2)


def test_a_bad_row_stops_everything_is_counted_or_is_kept() -> None:
    error = BadData("no number", where="part-0 row 3", fix="mend it")
    with pytest.raises(BadData) as caught:
        Rejects(OnError.FAIL).add(error, raw="text")
    assert caught.value is error
    skipped, kept = Rejects(OnError.SKIP), Rejects(OnError.QUARANTINE)
    for rejects in (skipped, kept):
        rejects.add(error, raw="\ud800text", rows=3)
        rejects.add(UnsupportedSpace("a Text space", where="row 4", fix="none"), raw=b"\x00")
        assert rejects.count == 4
    assert skipped.kept == []
    assert [(row.where, row.code, row.raw) for row in kept.kept] == [
        ("part-0 row 3", "bad-data", "\ud800text".encode("utf-8", "surrogatepass")),
        ("row 4", "unsupported-space", b"\x00"),
    ]


def test_a_reader_that_is_ahead_passes_on_the_episodes_that_it_lost_too() -> None:
    ahead, later, told = RejectsAhead(), RejectsAhead(), Rejects(OnError.SKIP)
    ahead.lose_episodes(Lost.UNREADABLE, 2)
    ahead.lose("e", "file row 3")
    ahead.pass_on(later)
    later.tell(told)
    later.tell(told)  # nothing is told twice
    assert (told.lost, told.incomplete) == ({Lost.UNREADABLE: 2}, {"e": "file row 3"})
