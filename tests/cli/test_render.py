"""Results as JSON and as tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from offline_cli.cli.render import show, to_json


def test_json_is_one_line() -> None:
    assert to_json({"a": [1, 2], "b": "x\ny"}).count("\n") == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), np.float64("inf")])
def test_numbers_that_json_cannot_hold_become_null(value: float) -> None:
    assert json.loads(to_json({"value": value, "inside": [value]})) == {"value": None, "inside": [None]}


def test_long_values_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/".join(["folder"] * 60)
    show({"out": path})
    shown = "".join(line.split()[-1] for line in capsys.readouterr().out.splitlines())
    assert shown == path


def test_numbers_without_all_their_digits_are_shown_by_five_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    show({"large": 5.98e51, "thousands": 123456.0, "small": -2.5e-275})
    shown = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert shown == {"large": "5.98e+51", "thousands": "123,456", "small": "-2.5e-275"}


def test_what_is_nested_has_rows_of_its_own_and_what_is_empty_none(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"train": {"episodes": 1234, "lost": None}, "val": {"episodes": 1, "first": True}}
    show({"parts": parts, "rows": [{"at": "a"}, {"at": "b"}], "ids": {"a": []}, "space": {"low": [0]}, "space_text": "Box(1)"})
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "parts train episodes 1,234",
        "parts val episodes 1, first yes",
        "rows 1 at a",
        "rows 2 at b",
        "space Box(1)",
    ]
