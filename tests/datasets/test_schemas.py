"""The JSON Schemas themselves: valid, found, and saying what the code writes."""

from __future__ import annotations

import jsonschema
import pytest
from json_schemas import load_schema

NAMES = ["manifest.v1.json", "spaces.v1.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_valid_schema_named_like_its_file(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"offline-cli:{name}"


# ---- the check without jsonschema ----
