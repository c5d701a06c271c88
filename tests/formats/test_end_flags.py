"""Ends of episodes by the flags that a source has."""

from __future__ import annotations

import numpy as np
import pytest

from offline_cli.formats.step_rows import end_flags
from offline_cli.tally import Tally

YES, NO = np.array([True]), np.array([False])


@pytest.mark.parametrize(
    ("columns", "terminated", "truncated", "counted"),
    [
        ({}, False, False, {}),
        ({"terminateds": YES}, True, False, {}),
        ({"truncateds": YES}, False, True, {}),
        ({"terminateds": np.array([1.0]), "truncateds": NO}, True, False, {}),
        ({"dones": YES}, True, False, {"dones-as-terminateds": 1}),
        ({"done": YES}, True, False, {"dones-as-terminateds": 1}),
        ({"dones": YES, "truncateds": YES}, False, True, {}),
        ({"dones": YES, "truncateds": NO}, True, False, {"dones-as-terminateds": 1}),
        ({"dones": NO, "truncateds": YES}, False, True, {"dones-disagree": 1}),
        ({"dones": YES, "terminateds": YES}, True, False, {}),
        ({"dones": NO, "terminateds": YES}, True, False, {"dones-disagree": 1}),
        ({"dones": YES, "terminateds": NO}, False, False, {"dones-disagree": 1}),
        ({"dones": YES, "terminateds": NO, "truncateds": YES}, False, True, {}),
        ({"dones": YES, "done": NO}, True, False, {"dones-as-terminateds": 1, "dones-disagree": 1}),
    ],
)
def test_flags_are_read_and_what_they_leave_open_is_counted(
    columns: dict[str, np.ndarray], terminated: bool, truncated: bool, counted: dict[str, int]
) -> None:
    tally = Tally()
    terminateds, truncateds = end_flags(columns, 1, tally)
    assert (terminateds.tolist(), truncateds.tolist()) == ([terminated], [truncated])
    assert dict(tally.assumptions) == counted
