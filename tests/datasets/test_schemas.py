"""The JSON Schemas themselves: valid, found, and saying what the code writes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from offline_cli import json_documents
from offline_cli.json_documents import load_schema, mistakes, schemas_folder
from offline_cli.spaces import Space, space_to_json

NAMES = ["manifest.v1.json", "manifest.v2.json", "manifest.v3.json", "manifest-part.v3.json", "spaces.v1.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_a_valid_schema_named_like_its_file(name: str) -> None:
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"offline-cli:{name}"


def test_the_schemas_lie_in_the_package_or_beside_it() -> None:
    assert {path.name for path in schemas_folder().glob("*.json")} >= set(NAMES)


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


def test_the_list_of_mistakes_has_an_end() -> None:
    found = mistakes({"type": "Tuple", "spaces": [{}] * 500}, "spaces.v1.json")
    assert len(found) == 51
    assert found[-1] == "... and 450 more"


def test_a_long_value_is_shown_shortened() -> None:
    assert max(map(len, mistakes({"type": "x" * 10_000}, "spaces.v1.json"))) < 200


# ---- the check without jsonschema ----

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 3.0, 2.5, 2**63 - 1, 2**63, float("nan"), "", "x", "inf", "-inf", "nan", [], [1], {}),
    *({"type": "Box"}, {"type": "Discrete", "n": 2}, {"type": "Tuple", "spaces": [{"type": "MultiBinary", "n": [2, 3]}]}),
    *({"type": "Dict", "spaces": [["a", {"type": "Discrete", "n": 1}]]}, {"type": "Dict", "spaces": [["a"]]}),
    *(
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, "-inf"], "high": 1},
        {"type": "MultiDiscrete", "nvec": [[1]]},
    ),
]


@cache
def stored_manifests() -> list[tuple[str, dict[str, Any]]]:
    """Names of schemas, and manifests of every version that was ever written."""
    files = sorted((Path(__file__).resolve().parents[1] / "testdata").rglob("manifest.json"))
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [(f"manifest.v{document['version']}.json", document) for document in documents]


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container below `node`, with each of its keys."""
    for key, part in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(part, (dict, list)):
            yield from places(part)


@given(st.data())
def test_a_document_is_found_valid_without_jsonschema_exactly_where_jsonschema_finds_it_so(data: st.DataObject) -> None:
    name, document = copy.deepcopy(data.draw(st.sampled_from(stored_manifests())))
    for _ in range(data.draw(st.integers(0, 2))):
        holder, key = data.draw(st.sampled_from(list(places(document))))
        change = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            holder[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder["another"] = 1
        else:
            holder.append(copy.deepcopy(data.draw(st.sampled_from(ODD))))
    schema = load_schema(name)
    assert json_documents._fits(document, schema, schema) == json_documents._validator(name).is_valid(document)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_space_is_found_valid_without_jsonschema_exactly_where_jsonschema_finds_it_so(value: Any) -> None:
    schema = load_schema("spaces.v1.json")
    assert json_documents._fits(value, schema, schema) == json_documents._validator("spaces.v1.json").is_valid(value)


def test_what_is_valid_is_checked_without_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str) -> Any:
        raise AssertionError(f"jsonschema is asked about {name}")

    monkeypatch.setattr(json_documents, "_validator", loaded)
    assert len(stored_manifests()) > 1
    assert not any(mistakes(document, name) for name, document in stored_manifests())
