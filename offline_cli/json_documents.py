"""JSON documents: parsed so that every other program can read them, and checked against the JSON Schemas of the package.

Python's parser follows any nesting until its stack ends, and accepts lone surrogates, which neither UTF-8 nor msgpack nor Arrow
can hold: both raise the ValueErrors that broken JSON raises anyway. NaN and Infinity are read.

`Expectations` are what a caller wants values of a document to be.

The schemas lie in `offline_cli/schemas` of an installed package and in `schemas/` of a checkout. References between them are
resolved from the same folder, never from the network. A check lists all mistakes of a document.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

from offline_cli.errors import TargetNotMet, UsageError

__all__ = [
    "Expectations",
    "deeper_than",
    "fault_of_schema",
    "from_json",
    "load_schema",
    "mistakes",
    "mistakes_by",
    "schemas_folder",
]

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # of an escape that may be half of a letter
MAX_MISTAKES = 50  # shown; a document of another kind altogether has thousands
MAX_SHOWN = 120  # letters of one offending value

EXPECT: Final = "--expect"
EXPECTED: Final = re.compile(r"\s*([^<>=!~]*?)\s*([<>=!~]*)\s*")  # a name, and an order
ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {">=": operator.ge, "<=": operator.le}


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


def mistakes(document: Any, name: str) -> list[str]:
    """Every mistake of `document` against the schema in file `name`, each with its place; empty when there is none."""
    return _listed(_validator(name), document)


def mistakes_by(document: Any, schema: Mapping[str, Any]) -> list[str]:
    """The same, against a schema that has no references to ours."""
    import jsonschema

    return _listed(jsonschema.Draft202012Validator(schema), document)


def fault_of_schema(schema: Any) -> str:
    """Why `schema`, another package's, is not a JSON Schema of an object's properties; empty where nothing does."""
    import jsonschema

    if not isinstance(schema, Mapping):
        return f"it is {schema!r}, not a mapping"
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.SchemaError as err:
        return _describe(err)
    return ""


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


# ---- what values are expected to be ----


@dataclass(frozen=True, slots=True)
class Expectations:
    """What values of a document shall be: names, with dots for what is nested, orders ("=", ">=" or "<="), and values."""

    each: Sequence[tuple[str, str, Any]]
    counts: Collection[str] = ()  # keys of mappings of counts, in which what was not counted is 0
    kinds: Mapping[str, Collection[str]] = field(default_factory=dict)  # of such a mapping, all that is ever counted

    @staticmethod
    def of(
        expect: Mapping[str, Any],
        keys: Collection[str],
        *,
        counts: Collection[str] = (),
        kinds: Mapping[str, Collection[str]] | None = None,
    ) -> Expectations:
        """Those of `{"episodes": 100, "return.mean>=": 450}`; `keys`: that the document has; `counts`, `kinds`: see the fields.

        Raises UsageError naming all that cannot be: unknown keys and orders, bounds that are no numbers.
        """
        found, wrong = [], []
        for key, want in expect.items():
            parsed = EXPECTED.fullmatch(key)
            name, order = parsed.groups() if parsed else (key, "")
            if order not in ("", "=", "==", *ORDERS):
                wrong.append(f"{name!r} is compared by {order!r}, which is not one of =, >= and <=")
            if name.partition(".")[0] not in keys:
                wrong.append(f"nothing is called {name!r}")
            if order in ORDERS and _number(want) is None:
                wrong.append(f"{name} {order} {want!r} is no comparison of numbers")
            found.append((name, order if order in ORDERS else "=", want))
        if wrong:
            fix = f"write KEY=VALUE, KEY>=NUMBER or KEY<=NUMBER; there is {', '.join(keys)}"
            raise UsageError("; ".join(wrong), where=EXPECT, fix=fix)
        return Expectations(found, counts, kinds or {})

    def check(self, document: Mapping[str, Any], *, where: str) -> None:
        """Raise TargetNotMet, naming all values that differ; UsageError for nested names that are not there."""
        wrong, unknown, differences, unmet = [], [], {}, []
        for name, order, want in self.each:
            try:
                top, _, kind = name.partition(".")
                counted = document.get(top) if top in self.counts and kind else None
                known = self.kinds.get(top)  # some kinds have a column behind a colon
                if known and isinstance(counted, Mapping) and kind not in counted and kind.partition(":")[0] not in known:
                    near = get_close_matches(kind, known, n=1)
                    raise KeyError(f"no kind of {top} is called {kind!r}" + (f", did you mean {near[0]!r}?" if near else ""))
                value = counted.get(kind, 0) if isinstance(counted, Mapping) else _value_at(document, name)
                if not _holds(value, order, want):
                    wrong.append(f"{name} is {value}, expected {'' if order == '=' else f'{order} '}{want}")
                    differences[name if order == "=" else f"{name}{order}"] = {"is": value, "expected": want}
                    unmet.append({"key": name, "is": value, "order": order, "value": _as_value(want)})
            except KeyError as error:
                unknown.append(str(error.args[0]))
        if unknown:
            raise UsageError("; ".join(unknown), where=EXPECT, fix="--json shows all keys with their values")
        if wrong:
            fix = "check the data with inspect, or correct the expectation"
            raise TargetNotMet("; ".join(wrong), where=where, fix=fix, details={"differences": differences, "unmet": unmet})


def _as_value(want: Any) -> Any:
    """What a text on the command line says as JSON; other text itself."""
    try:
        return from_json(want) if isinstance(want, str) else want
    except ValueError:
        return want


def _value_at(document: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name, a number in it that of an element. Raises KeyError, with a sentence, where there is none."""
    value: Any = document
    for part in name.split("."):
        if isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
            continue
        if not isinstance(value, Mapping) or part not in value:
            below = f"{len(value)} elements" if isinstance(value, list | tuple) else "nothing below it"
            keys = ", ".join(value) if isinstance(value, Mapping) else below
            raise KeyError(f"nothing is called {name!r}: there is {keys}")
        value = value[part]
    return value


def _holds(value: Any, order: str, want: Any) -> bool:
    """Numbers may come as text, as from a command line, and agree to 9 digits; a list holds where all its elements do. Raises
    KeyError for a bound of no number.
    """
    if isinstance(value, list | tuple) and value and value != want and not isinstance(want, list | tuple):
        return all(_holds(element, order, want) for element in value)
    have, wanted = _number(value), _number(want)
    if order in ORDERS and have is None and value is not None:
        raise KeyError(f"{value!r} has no order: use = in place of {order}")
    if have is not None and not isinstance(value, str):
        if wanted is None:
            return False
        return math.isclose(wanted, have, rel_tol=1e-9) or (order in ORDERS and ORDERS[order](have, wanted))
    return order == "=" and bool(value == want or str(value).lower() == str(want).lower())


def _number(value: Any) -> float | None:
    """A number, or text of one; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
