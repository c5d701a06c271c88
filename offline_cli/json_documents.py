"""JSON documents: parsed so that every other program can read them, and checked against the JSON Schemas of the package.

Python's parser follows any nesting until its stack ends, and accepts lone surrogates, which neither UTF-8 nor msgpack nor Arrow
can hold: both raise the ValueErrors that broken JSON raises anyway. NaN and Infinity are read.

The schemas lie in `offline_cli/schemas` of an installed package and in `schemas/` of a checkout. References between them are
resolved from the same folder, never from the network. A check lists all mistakes of a document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # of an escape that may be half of a letter
MAX_MISTAKES = 50  # shown; a document of another kind altogether has thousands
MAX_SHOWN = 120  # letters of one offending value


def from_json(text: str | bytes) -> Any:
    """The value of `text` (bytes: UTF-8). Raises ValueError where it is not JSON, nests too deeply, or holds half letters."""
    plain = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        value = json.loads(plain)
        if SURROGATE.search(plain):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    return value


def deeper_than(document: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than `depth`: a validator goes as deep as they do, and Python does not."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(depth):
        parts = (node.values() if isinstance(node, dict) else node for node in level)
        level = [part for part in chain.from_iterable(parts) if isinstance(part, (dict, list))]
        if not level:
            return False
    return bool(level)


# ---- schemas ----


@cache
def schemas_folder() -> Path:
    """The folder of the schemas: in the package, or beside it in a checkout or editable install."""
    package = Path(__file__).resolve().parent
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


def toml_schema(model: Any, name: str, **head: str) -> dict[str, Any]:
    """The JSON Schema of the TOML files whose form is a pydantic `model`: TOML has no null, so an optional key is left out."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        def nullable_schema(self, schema: Any) -> dict[str, Any]:
            return self.generate_inner(schema["schema"])

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    found = model.model_json_schema(schema_generator=Generate)
    for form in (found, *found.get("$defs", {}).values()):
        for key in form.get("properties", {}).values():
            if key.get("default", ...) is None:
                del key["default"]
    return {"$schema": GenerateJsonSchema.schema_dialect, "$id": name, **found, **head}


def mistakes(document: Any, name: str) -> list[str]:
    """Every mistake of `document` against the schema in file `name`, each with its place; empty when there is none."""
    return _listed(_validator(name), document)


def mistakes_by(document: Any, schema: Mapping[str, Any], *, within: str = "") -> list[str]:
    """The same, against a schema that has no references to ours, of what stands at the path `within` of a document."""
    import jsonschema

    return _listed(jsonschema.Draft202012Validator(schema), document, within)


def _listed(validator: Any, document: Any, within: str = "") -> list[str]:
    found = sorted(validator.iter_errors(document), key=lambda error: [str(part) for part in error.absolute_path])
    texts = [_describe(error, within) for error in found[:MAX_MISTAKES]]
    return texts + ([f"... and {len(found) - MAX_MISTAKES} more"] if len(found) > MAX_MISTAKES else [])


def _describe(error: Any, within: str) -> str:
    """One mistake in a line; of alternatives, the mistakes in the one that comes nearest."""
    while error.context:
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator != "type"))
    place = ".".join(map(str, [*filter(None, [within]), *error.absolute_path])) or "the document"
    message = error.message if len(error.message) <= MAX_SHOWN else f"{error.message[:MAX_SHOWN]}..."
    return f"{place}: {message}"
