"""The quick check of a column's statistics never takes what the schema refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_cli.datasets.manifest import is_column
from offline_cli.datasets.statistics import ColumnStatistics
from offline_cli.json_documents import load_schema

jsonschema = pytest.importorskip("jsonschema")

VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63, 3.0, 0.5, "inf", "-inf", "nan", "", [], [1], [[0.5, None], ["inf"]]),
    *([True], [-1], ["x"], [[[{}]]], {}, {"a": 1}),
]


def column() -> dict[str, Any]:
    return ColumnStatistics.of(np.array([[1.0, np.nan], [np.inf, -2.0]])).as_json()


def schema_takes(value: Any) -> bool:
    schema = load_schema("manifest.v1.json")
    whole = {"$defs": schema["$defs"], "$ref": "#/$defs/column"}
    return bool(jsonschema.Draft202012Validator(whole).is_valid(value))


@pytest.mark.parametrize(
    "values", [np.zeros((2, 3)), np.zeros(2, np.bool_), np.zeros((1, 40, 40), np.uint8), np.array([np.nan])]
)
def test_statistics_as_they_are_written_have_the_form(values: Any) -> None:
    assert is_column(ColumnStatistics.of(values).as_json())


@pytest.mark.parametrize("key", column())
def test_a_value_that_the_schema_refuses_has_not_the_form(key: str) -> None:
    for value in VALUES:
        changed = {**column(), key: value}
        assert schema_takes(changed) or not is_column(changed), value


@pytest.mark.parametrize("key", column())
def test_statistics_that_lack_a_figure_have_not_the_form(key: str) -> None:
    assert not is_column({name: value for name, value in column().items() if name != key})


@pytest.mark.parametrize("changed", [{**column(), "more": 1}, [], None, "inf", 1])
def test_what_is_no_column_has_not_the_form(changed: Any) -> None:
    assert not is_column(changed)
