"""The JSON Schemas that ship with the package, and checks against them; refuses a document by listing all its mistakes.

They lie in `offline_cli/schemas` of an installed package and in `schemas/` of a checkout. References between them are
resolved from the same folder, never from the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["load_schema", "mistakes", "mistakes_by", "schemas_folder"]

MAX_MISTAKES = 50  # shown; a document of another kind altogether has thousands
MAX_SHOWN = 120  # letters of one offending value


@cache
def schemas_folder() -> Path:
    """The folder of the schemas: in the package, or beside it in a checkout or editable install."""
    package = Path(__file__).resolve().parents[1]
    installed, checkout = package / "schemas", package.parent / "schemas"
    return installed if installed.is_dir() else checkout


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema in file `name`, such as `manifest.v1.json`."""
    schema: dict[str, Any] = json.loads((schemas_folder() / name).read_text(encoding="utf-8"))
    return schema


@cache
def _validator(name: str) -> Any:
    import jsonschema
    from referencing import Registry, Resource

    schemas = [load_schema(path.name) for path in sorted(schemas_folder().glob("*.json"))]
    known = [(schema["$id"], Resource.from_contents(schema)) for schema in schemas if "$id" in schema]
    return jsonschema.Draft202012Validator(load_schema(name), registry=Registry().with_resources(known))


def mistakes(document: Any, name: str) -> list[str]:
    """Every mistake of `document` against the schema in file `name`, each with its place; empty when there is none."""
    return _listed(_validator(name), document)


def mistakes_by(document: Any, schema: Mapping[str, Any]) -> list[str]:
    """The same, against a schema that has no references to ours."""
    import jsonschema

    return _listed(jsonschema.Draft202012Validator(schema), document)


def _listed(validator: Any, document: Any) -> list[str]:
    found = sorted(validator.iter_errors(document), key=lambda error: [str(part) for part in error.absolute_path])
    texts = [_describe(error) for error in found[:MAX_MISTAKES]]
    return texts + ([f"... and {len(found) - MAX_MISTAKES} more"] if len(found) > MAX_MISTAKES else [])


def _describe(error: Any) -> str:
    """One mistake in a line; of alternatives, the mistakes in the one that comes nearest."""
    while error.context:
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator != "type"))
    place = ".".join(str(part) for part in error.absolute_path) or "the document"
    message = error.message if len(error.message) <= MAX_SHOWN else f"{error.message[:MAX_SHOWN]}..."
    return f"{place}: {message}"
