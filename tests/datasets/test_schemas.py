"""The JSON Schemas themselves: valid, found, and saying what the code writes."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from json_schemas import load_schema, mistakes

from offline_cli.spaces import Space, space_to_json

NAMES = ["manifest.v1.json", "spaces.v1.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_valid_schema_named_like_its_file(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"offline-cli:{name}"


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (4,), np.float32),
        spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 1.0]), dtype=np.float64),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Box(0, 1, (0,), np.float32),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([[1, 2], [3, 4]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.MultiBinary(1)])}),
        spaces.Dict({}),
        spaces.Tuple([]),
    ],
)
def test_every_space_as_we_write_it_fits_the_schema(space: Space) -> None:
    assert mistakes(json.loads(json.dumps(space_to_json(space))), "spaces.v1.json") == []


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({}, "'type' is a required property"),
        ({"type": "Discrete"}, "'n' is a required property"),
        ({"type": "Discrete", "n": 0}, "n: 0 is less than the minimum"),
        ({"type": "MultiBinary", "n": "3"}, "n: '3' is not"),
        ({"type": "Box", "shape": [1], "dtype": "object", "low": 0, "high": 1}, "dtype: 'object' is not one of"),
        ({"type": "Box", "shape": [1], "dtype": "float32", "low": "low", "high": 1}, "low: 'low' is not"),
        ({"type": "Dict", "spaces": [["a"]]}, "spaces.0"),
        ({"type": "Discrete", "n": 2, "run": "code"}, "Additional properties"),
    ],
)
def test_a_space_with_a_mistake_is_told_where(document: object, what: str) -> None:
    assert any(what in text for text in mistakes(document, "spaces.v1.json"))


# ---- the check without jsonschema ----
