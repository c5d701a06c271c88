"""Fragments become whole episodes, each once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.source import Fragments, Origins, StartKind
from offline_cli.tally import Lost, OnError, Rejects, Tally

AT_T, UNKNOWN, CONTINUES = StartKind.AT_T, StartKind.UNKNOWN, StartKind.CONTINUES


def fragment(name: str, first: int, steps: int, *, start: StartKind = AT_T, end: str = "", shift: float = 0.0) -> EpisodeBatch:
    """Steps `first` ... of an endless episode whose observation at t is t + shift; `start`: what the source says."""
    t = np.arange(first, first + steps + 1, dtype=np.float32) + shift
    return EpisodeBatch(
        ids=(name,),
        starts=np.array([0, steps]),
        obs=np.stack([t, -t], axis=1),
        actions=np.arange(first, first + steps) % 3,
        rewards=np.full(steps, 0.5),
        terminated=np.array([end == "terminated"]),
        truncated=np.array([end == "truncated"]),
        t_started=np.array([0 if start else first]),
        start_kind=np.array([start], np.uint8),
    )


def stitch(*batches: EpisodeBatch, on_error: str = "fail") -> tuple[list[EpisodeBatch], Stitcher]:
    stitcher = Stitcher(Tally(), Rejects(OnError(on_error)))
    whole = [out for n, batch in enumerate(batches) for out in stitcher.feed(Fragments(batch), f"file-{n}")]
    return [*whole, *stitcher.finish()], stitcher


def episodes(batches: list[EpisodeBatch]) -> dict[str, EpisodeBatch]:
    return {name: batch.select([e]) for batch in batches for e, name in enumerate(batch.ids)}


def assert_whole(batch: EpisodeBatch, steps: int) -> None:
    np.testing.assert_array_equal(batch.obs[:, 0], np.arange(steps + 1))
    np.testing.assert_array_equal(batch.actions, np.arange(steps) % 3)
    assert batch.t_started is None or not batch.t_started.any()


def test_a_batch_of_whole_new_episodes_passes_as_it_is() -> None:
    batch = EpisodeBatch.concat([fragment(name, 0, 3, end="terminated") for name in "abc"])
    whole, _ = stitch(batch)
    assert len(whole) == 1
    assert whole[0].obs is batch.obs


def test_an_episode_without_steps_is_counted_and_left_out_even_where_it_has_an_end() -> None:
    whole, stitcher = stitch(fragment("a", 0, 0, end="terminated"), fragment("b", 0, 2, end="terminated"))
    assert [batch.ids for batch in whole] == [("b",)]
    assert stitcher.tally.assumptions["zero-length-episode"] == 1


def test_fragments_with_timesteps_are_joined_in_their_order_whatever_order_they_come_in() -> None:
    whole, stitcher = stitch(
        fragment("a", 4, 2, end="terminated"), fragment("b", 0, 1, end="truncated"), fragment("a", 2, 2), fragment("a", 0, 2)
    )
    found = episodes(whole)
    assert_whole(found["a"], 6)
    assert found["a"].terminated[0]
    assert stitcher.tally.fragments_stitched == 2


def test_fragments_that_overlap_and_wait_for_the_first_one_in_any_order_are_joined() -> None:
    waiting = [fragment("a", 2, 3), fragment("a", 3, 1), fragment("a", 4, 2), fragment("a", 5, 3, end="terminated")]
    for order in itertools.permutations(waiting):
        whole, stitcher = stitch(*order, fragment("a", 0, 4))
        assert_whole(episodes(whole)["a"], 8)
        assert stitcher.tally.assumptions["repeated-steps"] == 5


def test_infos_of_fragments_are_joined_and_a_fragment_does_not_know_its_first_one() -> None:
    pieces = [fragment("a", first, 2, end="terminated" if first == 4 else "") for first in (0, 2, 4)]
    infos: list[list[dict[str, int]]] = [[{"t": 0}, {"t": 1}, {"t": 2}], [{}, {"t": 3}, {"t": 4}], [{}, {"t": 5}, {"t": 6}]]
    whole, _ = stitch(*(replace(piece, infos=known) for piece, known in zip(pieces, infos, strict=True)))
    assert episodes(whole)["a"].infos == [{"t": t} for t in range(7)]


def test_fragments_without_timesteps_are_joined_where_observations_chain() -> None:
    whole, stitcher = stitch(
        fragment("a", 0, 2, start=UNKNOWN),
        fragment("b", 0, 2, start=UNKNOWN, end="terminated"),
        fragment("a", 2, 3, start=UNKNOWN, end="truncated"),
    )
    assert_whole(episodes(whole)["a"], 5)
    assert not stitcher.tally.assumptions


def test_rows_that_follow_directly_are_joined_over_a_broken_chain_and_it_is_counted() -> None:
    whole, stitcher = stitch(fragment("a", 0, 2, start=UNKNOWN), fragment("a", 7, 1, start=CONTINUES, end="terminated"))
    assert episodes(whole)["a"].num_steps == 3
    assert stitcher.tally.assumptions["broken-chain"] == 1


def test_rows_that_neither_chain_nor_follow_are_refused_by_both_places() -> None:
    with pytest.raises(BadEpisode, match="file-0") as caught:
        stitch(fragment("a", 0, 2, start=UNKNOWN), fragment("a", 7, 1, start=UNKNOWN, end="terminated"))
    assert caught.value.where == "file-1"


def test_a_whole_copy_beside_its_own_beginning_in_one_batch_is_one_episode() -> None:
    both = [fragment("a", 0, 2), fragment("a", 0, 4, end="terminated"), fragment("b", 0, 1, end="truncated")]
    for order in (both, both[::-1]):
        whole, _ = stitch(EpisodeBatch.concat(order), on_error="skip")
        assert_whole(episodes(whole)["a"], 4)
        assert sorted(episodes(whole)) == ["a", "b"]


def test_a_duplicate_that_comes_in_fragments_is_dropped() -> None:
    whole, stitcher = stitch(fragment("a", 0, 4, end="terminated"), fragment("a", 0, 2), fragment("a", 2, 2, end="terminated"))
    assert [out.num_steps for out in whole] == [4]
    assert stitcher.tally.duplicates_dropped == 1


@pytest.mark.parametrize("start", [AT_T, UNKNOWN])
def test_a_recorder_that_writes_an_episode_again_from_its_start_makes_one_episode(start: int) -> None:
    whole, stitcher = stitch(fragment("a", 0, 2, start=start), fragment("a", 0, 5, start=start, end="truncated"))
    assert_whole(episodes(whole)["a"], 5)
    assert stitcher.tally.assumptions["repeated-steps"] == 2


def test_two_different_episodes_with_one_id_are_refused_by_both_places() -> None:
    places = Origins(("one.parquet", "two.parquet"), np.array([0, 1]), np.array([5, 7]))
    batch = EpisodeBatch.concat([fragment("a", 0, 3, end="terminated"), fragment("a", 0, 3, end="terminated", shift=1)])
    with pytest.raises(BadEpisode) as caught:
        list(Stitcher(Tally(), Rejects()).feed(Fragments(batch, places), "folder"))
    assert caught.value.where == "one.parquet row 5 and two.parquet row 7"


def test_fragments_that_overlap_and_disagree_are_refused() -> None:
    other = fragment("a", 2, 3, end="terminated")
    for late in (fragment("a", 2, 3, end="terminated", shift=0.25), replace(other, rewards=other.rewards + 1)):
        with pytest.raises(BadEpisode):
            stitch(fragment("a", 0, 3), late)


def test_a_late_part_of_an_episode_that_was_whole_before_is_refused_and_says_so() -> None:
    with pytest.raises(BadEpisode) as caught:
        stitch(fragment("a", 0, 4, end="terminated"), fragment("a", 2, 2, end="terminated"))
    assert caught.value.where == "file-1"


def test_an_unfinished_episode_becomes_a_truncated_one_and_is_counted() -> None:
    whole, stitcher = stitch(fragment("a", 0, 3), fragment("b", 0, 1, end="terminated"))
    last = episodes(whole)["a"]
    assert last.truncated[0]
    assert not last.terminated[0]
    assert stitcher.tally.assumptions["unfinished-episode"] == 1


def test_a_gap_names_the_episode_and_the_timesteps() -> None:
    with pytest.raises(BadEpisode, match=r"episode a.* 2 to 3"):
        stitch(fragment("a", 0, 2), fragment("a", 4, 1, end="terminated"))


def test_under_quarantine_what_is_set_aside_is_kept_as_text_with_its_place() -> None:
    _, stitcher = stitch(fragment("a", 0, 1), fragment("a", 3, 1, end="terminated"), on_error="quarantine")
    assert [kept.code for kept in stitcher.rejects.kept] == ["bad-episode"] * 2
    assert b'"eps_id": "a"' in stitcher.rejects.kept[0].raw


def without_final(piece: EpisodeBatch) -> EpisodeBatch:
    """As of a source without next observations."""
    piece.obs[-1] = piece.obs[-2]
    return replace(piece, final_missing=np.ones(1, np.bool_))


def test_a_missing_final_observation_is_the_next_first_one_and_only_that_of_the_whole_episode_is_counted() -> None:
    whole, stitcher = stitch(without_final(fragment("a", 0, 2)), without_final(fragment("a", 2, 2, end="terminated")))
    np.testing.assert_array_equal(whole[0].obs[:, 0], [0, 1, 2, 3, 3])
    assert dict(stitcher.tally.assumptions) == {"missing-final-observation": 1}
    assert whole[0].final_missing is None


def test_the_clock_of_a_joined_episode_runs_from_its_first_piece_to_its_last() -> None:
    first, last = fragment("a", 0, 1), fragment("a", 1, 1, end="terminated")
    whole, _ = stitch(replace(first, clock=np.array([[1.0, 2.0]])), replace(last, clock=np.array([[3.0, 4.0]])))
    assert whole[0].clock is not None
    assert whole[0].clock.tolist() == [[1.0, 4.0]]


def test_infos_at_a_joint_keep_what_the_step_before_said() -> None:
    parts = [fragment("a", 0, 1), fragment("a", 1, 1, end="terminated")]
    object.__setattr__(parts[0], "infos", [{"reset": 1}, {"step": 1}])
    object.__setattr__(parts[1], "infos", [{}, {"step": 2}])
    whole, _ = stitch(*parts)
    assert whole[0].infos == [{"reset": 1}, {"step": 1}, {"step": 2}]


def test_a_later_part_of_wider_numbers_makes_the_episode_wider_and_rounds_nothing() -> None:
    wide = fragment("a", 2, 2, end="terminated")
    wide = replace(wide, obs=wide.obs.astype(np.float64) + 0.1, actions=wide.actions.astype(np.float64))
    whole, stitcher = stitch(fragment("a", 0, 2), wide)
    assert (whole[0].obs.dtype, whole[0].actions.dtype) == (np.float64, np.float64)
    np.testing.assert_array_equal(whole[0].obs[:, 0], [0, 1, 2.1, 3.1, 4.1])
    assert stitcher.tally.assumptions["broken-chain"] == 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_parts_of_different_structure_are_no_episode(on_error: str) -> None:
    other = fragment("a", 2, 2, end="terminated")
    other = replace(other, obs=other.obs[:, :1])
    parts = fragment("a", 0, 2), other, fragment("b", 0, 1, end="terminated")
    if on_error == "fail":
        with pytest.raises(BadEpisode, match="obs"):
            stitch(*parts)
    else:
        whole, stitcher = stitch(*parts, on_error="skip")
        assert [batch.ids for batch in whole] == [("b",)]
        assert stitcher.rejects.count == 4


def test_an_episode_that_lost_a_row_is_set_aside_even_where_it_looks_whole() -> None:
    rejects = Rejects(OnError.SKIP)
    rejects.lose("a", "file-9 row 3")
    stitcher = Stitcher(Tally(), rejects)
    batch = EpisodeBatch.concat([fragment(name, 0, 3, end="terminated") for name in "ab"])
    assert [out.ids for out in stitcher.feed(Fragments(batch), "f")] == [("b",)]
    assert rejects.count == 3


def test_a_copy_that_lost_a_row_does_not_count_against_the_whole_one_before_it() -> None:
    rejects = Rejects(OnError.QUARANTINE)
    stitcher = Stitcher(Tally(), rejects)
    whole = list(stitcher.feed(Fragments(fragment("a", 0, 3, end="terminated")), "f"))
    rejects.lose("a", "g row 1")
    assert [out.ids for out in whole] == [("a",)]
    assert list(stitcher.feed(Fragments(fragment("a", 1, 2, end="terminated")), "g")) == []
    assert "lost at g row 1" in rejects.kept[0].reason


def test_steps_that_follow_an_end_of_their_id_are_lost_as_such_and_not_as_another_episode() -> None:
    after = fragment("a", 3, 2, start=StartKind.AFTER_END, end="terminated", shift=9.0)
    _, stitcher = stitch(fragment("a", 0, 3, end="terminated"), after, on_error="skip")
    assert dict(stitcher.rejects.lost) == {Lost.STEPS_AFTER_END: 1}


def test_what_an_unfinished_episode_lost_is_found_at_the_end() -> None:
    rejects = Rejects(OnError.SKIP)
    stitcher = Stitcher(Tally(), rejects)
    assert list(stitcher.feed(Fragments(fragment("a", 0, 3)), "f")) == []
    rejects.lose("a", "f row 3")
    assert list(stitcher.finish()) == []
    assert (rejects.count, dict(stitcher.tally.assumptions)) == (3, {})
