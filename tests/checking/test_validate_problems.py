"""Every problem that validate knows has data that has it, and no other."""

from __future__ import annotations

import faulty_folders
import faulty_recordings
import faulty_values
import pytest
from faulty import MADE, Make

from offline_cli.checking.validate import CODES, validate

MAKERS = (faulty_recordings, faulty_values, faulty_folders)  # importing them fills the list
ALWAYS = {"spaces-inferred", "assumption"}
"""Notes that recordings without spaces have anyway; where they are listed, they must be there."""


@pytest.mark.parametrize("name", MADE)
def test_data_has_exactly_the_problems_that_it_was_made_with(name: str, make: Make) -> None:
    maker, expected, options = MADE[name]
    data = maker(make)
    found = validate([str(path) for path in data] if isinstance(data, list) else str(data), **options)
    have = {problem.code: 0 for problem in found.problems}
    for problem in found.problems:
        have[problem.code] += problem.count
    assert {code: count for code, count in have.items() if code not in ALWAYS - expected.keys()} == expected


def test_every_problem_has_data_that_has_it() -> None:
    assert {code for _, expected, _ in MADE.values() for code in expected} == set(CODES)
