"""The JSON Schema of a configuration file, from the declarations of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

from offline_cli.options.option import Declared, Form, declared_in

__all__ = ["schema_of", "spelled"]

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
