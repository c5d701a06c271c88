"""The JSON Schema of a configuration file, from the declarations of its keys.

Values that options cannot have: of another type than they declare, no finite number, outside their limits, or none of their
choices.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from offline_cli.errors import UsageError
from offline_cli.options.option import Declared, Form, declared_in, in_order

__all__ = ["check_values", "schema_of", "spelled", "wrong_values"]

TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", tuple: "array"}


def schema_of(keys: type[Any]) -> dict[str, Any]:
    """The properties of an object with the options of TypedDict `keys`, none of which is required."""
    return {name: _property(one) for name, one in declared_in(keys).items()}


def _property(one: Declared) -> dict[str, Any]:
    default = {} if one.option.default is None else {"default": _plain(one.option.default)}
    return {"description": _description(one), **_values(one), **default}


def _values(one: Declared) -> dict[str, Any]:
    """What a value may be."""
    if one.choices:
        return {"enum": list(one.choices)}
    limits = _limits(one)
    kind = int if one.option.form is Form.SIZE else get_origin(one.kind) or one.kind
    if kind is tuple:
        return {"type": "array", "items": {"type": TYPES[get_args(one.kind)[0]], **limits}}
    if kind is Mapping:
        return {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
    return {"type": TYPES[kind], **({"minLength": 1} if kind is str else {}), **limits}


def _limits(one: Declared) -> Mapping[str, float]:
    limits = {"minimum": one.option.minimum, "exclusiveMinimum": one.option.above, "exclusiveMaximum": one.option.below}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _description(one: Declared) -> str:
    default = one.default(spelled) if one.option.default is None else ""
    unit = "In bytes." if one.option.form is Form.SIZE else ""
    return " ".join(filter(None, (one.help(spelled), unit, default and f"Default: {default}.")))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def spelled(name: str) -> str:
    """A key as a text refers to it."""
    return f"`{name}`"


WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    os.PathLike: "a path",
    Mapping: "a mapping",
}


def wrong_values(options: type[Any], given: Mapping[str, Any]) -> list[str]:
    """Each value of `given` that its declaration in `options` does not allow, in words; None is always allowed."""
    return [
        f"{one.flag} {wrong}"
        for name, one in in_order(declared_in(options)).items()
        if (value := given.get(name)) is not None and (wrong := _wrong(one, value))
    ]


def check_values(options: type[Any], given: Mapping[str, Any], *, command: str) -> None:
    """Raise UsageError naming all of `wrong_values`; `command`: `offline-cli convert`."""
    wrong = wrong_values(options, given)
    if wrong:
        raise UsageError("; ".join(wrong), where=command, fix=f"{command} --help")


def _wrong(one: Declared, value: Any) -> str:
    if not one.choices and not _is_of(one.kind, value):
        return f"must be {_told(one.kind)}, not {value!r}"
    if one.choices and value not in one.choices:
        return f"{value!r} is none of {', '.join(one.choices)}"
    if not isinstance(value, int | float):
        return ""
    option = one.option
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if option.minimum is not None and value < option.minimum:
        return f"{value} is less than {option.minimum}"
    if option.above is not None and value <= option.above:
        return f"{value:g} is not above {option.above:g}"
    if option.below is not None and value >= option.below:
        return f"{value:g} is not below {option.below:g}"
    return ""


def _is_of(kind: Any, value: Any) -> bool:
    """Whether `value` is of a declared type; of one that is not known here, whatever it is."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(_is_of(part, value) for part in get_args(kind))
    if origin in (Sequence, list, tuple):
        items = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return items and all(_is_of(get_args(kind)[0], item) for item in value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of numpy or torch
        value = value.item()
    if origin in (int, float):
        return isinstance(value, Integral if origin is int else Real) and not isinstance(value, bool)
    return origin not in WORDS or isinstance(value, origin)


def _told(kind: Any) -> str:
    """A declared type in words."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return " or ".join(map(_told, get_args(kind)))
    if origin in (Sequence, list, tuple):
        return f"a list, each item {_told(get_args(kind)[0])}"
    return WORDS[origin]
