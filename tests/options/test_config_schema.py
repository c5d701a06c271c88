"""The schema that the declarations give, against the one that is published."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from offline_cli.json_documents import load_schema
from offline_cli.options import declared_in
from offline_cli.options.keywords import schema_of
from offline_cli.options.training import ConfigKeys
from offline_cli.training.config import BCConfig


def without_words(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: {word: value for word, value in key.items() if word != "description"} for name, key in properties.items()}


def test_the_declared_keys_are_those_of_the_published_schema() -> None:
    assert without_words(schema_of(ConfigKeys)) == without_words(load_schema("config.v1.json")["properties"])


def test_every_key_explains_itself() -> None:
    assert all(key["description"].endswith(".") for key in schema_of(ConfigKeys).values())


def test_a_resolved_configuration_has_the_declared_keys() -> None:
    assert {field.name for field in fields(BCConfig)} == declared_in(ConfigKeys).keys()


def test_a_configuration_without_any_key_has_the_declared_defaults() -> None:
    declared = {name: key["default"] for name, key in schema_of(ConfigKeys).items() if "default" in key}
    assert {name: value for name, value in BCConfig().as_dict().items() if name in declared} == declared
