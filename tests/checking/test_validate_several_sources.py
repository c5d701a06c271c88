"""What `convert A B` refuses of two sources, each of them clean, is a problem of `validate A B`, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.checking.validate import Validation, validate
from offline_cli.converting.convert import convert
from offline_cli.errors import OfflineCliError
from offline_cli.meanings import Element, Meanings

Make = Any  # the fixture's class, which lives in conftest.py


def other(make: Make, **fields: Any) -> Any:
    """Episodes of ids that the first source has not."""
    return make.batch(ids=("x0", "x1", "x2"), **fields)


def an_output_more(make: Make) -> tuple[Path, Path]:
    return make.dataset(), make.dataset(replace(other(make), extra={"values": np.zeros(12, np.float32)}))


def rows_of_another_shape_than_a_dataset(make: Make) -> tuple[Path, Path]:
    return make.dataset(), make.rows(make.columns(other(make, obs=np.zeros((15, 2), np.float32))))


def inferred_numbers_of_choices(make: Make) -> tuple[Path, Path]:
    return make.dataset(), make.dataset(other(make, action_space=spaces.Discrete(4)), spaces_inferred=True)


def other_scales(make: Make) -> tuple[Path, Path]:
    boxes = other(make, boxes=True)
    return make.dataset(make.batch(boxes=True)), make.dataset(boxes, action_scale="normalized")


def other_meanings(make: Make) -> tuple[Path, Path]:
    one, two = (Meanings({"obs": tuple(map(Element, names))}) for names in ("xyz", "xzy"))
    return make.dataset(meanings=one), make.dataset(other(make), meanings=two)


MIXED = {
    an_output_more: "mixed-structures",
    rows_of_another_shape_than_a_dataset: "mixed-structures",
    inferred_numbers_of_choices: "mixed-spaces",
    other_scales: "mixed-action-scales",
    other_meanings: "mixed-meanings",
}


def errors(found: Validation) -> list[str]:
    return [problem.code for problem in found.problems if problem.severity == "error"]


@pytest.mark.parametrize("made", MIXED)
def test_two_sources_that_cannot_be_one_dataset_are_an_error_of_the_second(made: Any, make: Make, tmp_path: Path) -> None:
    one, two = made(make)
    assert errors(validate(one)) == errors(validate(two)) == []
    with pytest.raises(OfflineCliError):
        convert([one, two], tmp_path / "out")
    found = validate([one, two])
    assert errors(found) == [MIXED[made]]
    (problem,) = (problem for problem in found.problems if problem.severity == "error")
    assert two.as_posix() in problem.source
    assert one.as_posix() in problem.what  # what differs is said of both


def rows_without_spaces_beside_a_dataset(make: Make) -> tuple[Path, Path]:
    return make.dataset(), make.rows(make.columns(other(make)))


def unfinished_pieces_of_one_episode(make: Make) -> tuple[Path, Path]:
    columns = make.columns(make.batch((6,), ids=("long",)))
    return tuple(make.rows({name: values[part] for name, values in columns.items()}) for part in (slice(3), slice(3, 6)))


@pytest.mark.parametrize("made", [rows_without_spaces_beside_a_dataset, unfinished_pieces_of_one_episode])
def test_two_sources_that_can_be_one_dataset_are_none(made: Any, make: Make, tmp_path: Path) -> None:
    one, two = made(make)
    convert([one, two], tmp_path / "out")
    assert errors(validate([one, two])) == []
