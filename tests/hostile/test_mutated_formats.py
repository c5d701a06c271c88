"""A thousand mutated inputs for each reader of a foreign format: data, or an error of exit 3 or 4 with place and remedy."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fuzz_mutations import MUTATORS, any_bytes
from fuzz_seeds import seeds_of
from fuzz_targets import TARGETS, check

FORMATS = ("npz", "lerobot", "imitation")
QUICK, ALL = 60, 1000


def answers(target: str, first: int, stop: int) -> Counter[str]:
    seeds, found = seeds_of(target), Counter[str]()
    for number in range(first, stop):
        rng = random.Random(number)
        edit = MUTATORS[target] if number % 2 else any_bytes
        found[check(TARGETS[target], edit(rng.choice(seeds), rng)) or "read"] += 1
    return found


@pytest.mark.parametrize("target", FORMATS)
def test_a_mutated_input_is_read_or_refused_by_name(target: str) -> None:
    found = answers(target, 0, QUICK)
    assert len(found) > 1  # not one answer to all


@pytest.mark.nightly
@pytest.mark.parametrize("target", FORMATS)
def test_a_thousand_mutated_inputs_are_read_or_refused_by_name(target: str) -> None:
    found = answers(target, QUICK, ALL)
    assert found["read"]
    assert found.total() > found["read"]
