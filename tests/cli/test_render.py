"""Results as JSON and as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_cli.cli.render import in_words, plain, show, to_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Holding:
    values: Mapping[str, Any]

    def as_dict(self) -> Mapping[str, Any]:
        return self.values


def test_json_is_one_line() -> None:
    assert to_json({"a": [1, 2], "b": "x\ny"}).count("\n") == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("inf")])
def test_numbers_that_json_cannot_hold_become_null(value: float) -> None:
    assert json.loads(to_json({"value": value, "inside": [value]})) == {"value": None, "inside": [None]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ((1, "a"), [1, "a"]),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        ({1: None}, {"1": None}),
    ],
)
def test_numpy_paths_enums_and_tuples_have_a_json_form(value: Any, expected: Any) -> None:
    assert json.loads(to_json(value)) == expected


def test_what_has_no_json_form_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no JSON form for object"):
        plain(object())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (46184, "46,184"),
        (461.84, "461.84"),
        (123456.7, "123,457"),
        (None, "-"),
        (True, "yes"),
        ([], "none"),
        (float("nan"), "-"),
    ],
)
def test_values_are_shown_for_people(value: Any, words: str) -> None:
    assert in_words(value) == words


def test_a_table_has_a_row_per_key_without_colours_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(Holding({"episodes": 100, "return_mean": 461.84, "assumptions": {"unfinished-episode": 1}}), as_json=False)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["episodes", "100"], ["return", "mean  461.84"], ["assumptions", "unfinished-episode 1"]]


def test_long_values_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/".join(["folder"] * 60)
    show(Holding({"out": path}), as_json=False)
    shown = "".join(line.split()[-1] for line in capsys.readouterr().out.splitlines())
    assert shown == path


def test_square_brackets_in_a_value_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show(Holding({"out": "[red]run[/red]"}), as_json=False)
    assert "[red]run[/red]" in capsys.readouterr().out
