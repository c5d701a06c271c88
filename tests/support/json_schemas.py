"""Documents against the JSON Schemas of the repository, with references between these."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from referencing import Registry, Resource

from offline_cli.schema_files import schemas_folder


def load_schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((schemas_folder() / name).read_text(encoding="utf-8"))
    return schema


def mistakes(document: Any, name: str) -> list[str]:
    """Every mistake of `document` against the schema in file `name`, each with its place; of alternatives all."""
    schemas = [load_schema(path.name) for path in sorted(schemas_folder().glob("*.json"))]
    known = [(schema["$id"], Resource.from_contents(schema)) for schema in schemas if "$id" in schema]
    validator = jsonschema.Draft202012Validator(load_schema(name), registry=Registry().with_resources(known))
    return [text for error in validator.iter_errors(document) for text in _lines(error)]


def _lines(error: Any) -> list[str]:
    if error.context:
        return [text for inner in error.context for text in _lines(inner)]
    return [f"{'.'.join(map(str, error.absolute_path)) or 'the document'}: {error.message}"]
