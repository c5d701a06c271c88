"""JSON Schemas (files in schemas/, of pydantic models, of plug-ins' options), and JSON of other programs, parsed with care.

Python's parser follows any nesting until its stack ends, and accepts lone surrogates, which neither UTF-8 nor msgpack nor Arrow
can hold: both raise the ValueErrors that broken JSON raises anyway. NaN and Infinity are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

MAX_MISTAKES: Final = 50  # shown
MAX_LETTERS: Final = 120  # of one


@cache
def schemas_folder() -> Path:
    """The folder of the schemas and mapping presets: in the package, or beside it in a checkout or editable install."""
    package = Path(__file__).resolve().parent
    installed, checkout = package / "schemas", package.parent / "schemas"
    return installed if installed.is_dir() else checkout


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


def mistakes_by(document: Any, schema: Mapping[str, Any], *, within: str = "") -> list[str]:
    """Every mistake of `document`, which stands at the path `within` of another, with its place; empty when there is none."""
    import jsonschema

    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(document), key=lambda one: [*map(str, one.absolute_path)]
    )
    places = [".".join(map(str, [*filter(None, [within]), *one.absolute_path])) or "the document" for one in errors]
    found = [f"{place}: {one.message[:MAX_LETTERS]}" for place, one in zip(places, errors, strict=True)]
    return found[:MAX_MISTAKES] + ([f"... and {len(found) - MAX_MISTAKES} more"] if len(found) > MAX_MISTAKES else [])


# ---- JSON of other programs ----


SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")  # of an escape that may be half of a letter


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


def json_or_text(text: str) -> Any:
    """The JSON value that `text` is; the text where it is none."""
    try:
        return from_json(text)
    except ValueError:
        return text


def deeper_than(document: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than `depth`: a validator goes as deep as they do, and Python does not."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(depth):
        parts = (node.values() if isinstance(node, dict) else node for node in level)
        level = [part for part in chain.from_iterable(parts) if isinstance(part, (dict, list))]
    return bool(level)
