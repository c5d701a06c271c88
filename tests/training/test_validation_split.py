"""Which episodes are held out: by seed and id alone, some and never all."""

from __future__ import annotations

import pytest

from offline_cli.training.loader import ValidationSplit


def held_out(ids: list[str], fraction: float, seed: int = 0) -> list[str]:
    split = ValidationSplit(fraction, seed)
    for id_ in ids:
        split.see([id_])
    split.settle()
    chosen = [id_ for id_, is_chosen in zip(ids, split.chosen(ids), strict=True) if is_chosen]
    assert len(chosen) == split.count
    return chosen


IDS = [f"e{i}" for i in range(40)]


def test_as_many_as_the_fraction_says_are_held_out_whatever_their_order() -> None:
    chosen = held_out(IDS, 0.25)
    assert len(chosen) == 10
    assert sorted(held_out(IDS[::-1], 0.25)) == sorted(chosen)


def test_another_seed_holds_out_others() -> None:
    assert held_out(IDS, 0.25, seed=1) != held_out(IDS, 0.25)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_at_least_one_episode_is_held_out_and_never_all(fraction: float) -> None:
    assert len(held_out(IDS[:2], fraction)) == 1


def test_one_episode_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="fewer than two"):
        held_out(IDS[:1], 0.5)
