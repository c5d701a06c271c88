"""Values of options against their declarations: types, limits, choices."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_cli
from offline_cli.errors import UsageError
from offline_cli.options.data_commands import ApplyOptions
from offline_cli.options.keywords import wrong_values
from offline_cli.options.playing import EvaluateOptions, RecordOptions
from offline_cli.options.training import TrainBCOptions


@pytest.mark.parametrize(
    ("options", "name", "value", "told"),
    [
        (RecordOptions, "policy", print, "--policy must be text or a list, each item text, not <built-in function print>"),
        (RecordOptions, "wrappers", "Flatten", "--wrapper must be a list, each item text, not 'Flatten'"),
        (RecordOptions, "wrappers", [1], "--wrapper must be a list, each item text, not [1]"),
        (RecordOptions, "episodes", 2.5, "--episodes must be a whole number, not 2.5"),
        (RecordOptions, "episodes", True, "--episodes must be a whole number, not True"),
        (EvaluateOptions, "min_return", "soon", "--min-return must be a number, not 'soon'"),
        (RecordOptions, "explore", "yes", "--explore must be True or False, not 'yes'"),
        (RecordOptions, "env_kwargs", [1], "--env-kwargs must be a mapping, not [1]"),
        (ApplyOptions, "memory_limit", 2.5, "--memory-limit must be a whole number or text, not 2.5"),
        (ApplyOptions, "temp_dir", 3, "--temp-dir must be text or a path, not 3"),
        (TrainBCOptions, "plugins", "mine", "--plugin must be a list, each item text, not 'mine'"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_its_declaration_says(
    options: type[Any], name: str, value: Any, told: str
) -> None:
    assert wrong_values(options, {name: value}) == [told]


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (RecordOptions, "episodes", np.int64(3)),
        (EvaluateOptions, "min_return", 3),
        (EvaluateOptions, "min_return", np.float32(0.5)),
        (EvaluateOptions, "min_return", Fraction(1, 2)),
        (RecordOptions, "explore", np.bool_(True)),
        (RecordOptions, "wrappers", ("FlattenObservation",)),
        (RecordOptions, "env_to_module", lambda env: []),
        (RecordOptions, "storage_options", None),
        (ApplyOptions, "temp_dir", Path("place")),
        (ApplyOptions, "memory_limit", "512MiB"),
    ],
)
def test_a_value_that_says_the_same_in_another_type_is_taken(options: type[Any], name: str, value: Any) -> None:
    assert wrong_values(options, {name: value}) == []


@pytest.mark.parametrize("call", ["apply", "convert", "train_bc", "validate", "inspect", "repair", "evaluate", "record"])
def test_every_command_refuses_storage_options_that_are_no_mapping(call: str, tmp_path: Path) -> None:
    required = {"apply": {"pipeline": "p"}, "record": {"policy": "random", "episodes": 1}, "evaluate": {"env": "CartPole-v1"}}
    places = (
        [str(tmp_path / "a")]
        if call in ("inspect", "validate", "repair", "evaluate")
        else [str(tmp_path / "a"), str(tmp_path / "b")]
    )
    with pytest.raises(UsageError, match="--storage-option must be a mapping"):
        getattr(offline_cli, call)(*places, **required.get(call, {}), storage_options="anon=true")


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        ("filter", {"top_fraction": "0.1"}, "--top-fraction must be a number, not '0.1'"),
        ("filter", {"where": 5}, "--where must be text, not 5"),
        ("filter", {"ids_file": ["a"]}, "--ids-file must be text or a path, not ['a']"),
        ("filter", {"top_fraction": 1.5}, "--top-fraction 1.5 is more than 1"),
        ("sample", {"fraction": "0.1"}, "--fraction must be a number, not '0.1'"),
        ("sample", {"episodes": 2.5, "seed": "x"}, "--episodes must be a whole number, not 2.5; --seed must be"),
        ("evaluate", {"episodes": "3"}, "--episodes must be a whole number, not '3'"),
        ("write_dataset", {"max_rows_per_file": "3"}, "--max-rows-per-file must be a whole number, not '3'"),
    ],
)
def test_a_public_function_tells_wrong_values_before_anything_else(function: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(offline_cli, function)("no such place", "nowhere", **options)
    assert told in str(caught.value)


def test_a_source_that_is_no_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a place is a path or a URL, not 5"):
        offline_cli.merge([tmp_path, 5], tmp_path / "D")  # type: ignore[list-item]
