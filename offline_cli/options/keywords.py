"""What follows from a declaration of options: the keywords of a public function, checks of values, and a JSON Schema.

* `takes`: the keywords of a public function: names, defaults, signature and text for `help()`.
* `wrong_values`, `check_values`: values that options cannot have: of another type than they declare, not finite, outside their
  limits, or none of their choices.
* `schema_of`: the JSON Schema of a configuration file, from the declarations of its keys.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from types import UnionType
from typing import Any, Final, ForwardRef, TypeVar, Union, get_args, get_origin

from offline_cli.errors import UsageError
from offline_cli.options.option import Declared, Form, Option, declared_in, in_order

__all__ = ["check_values", "schema_of", "spelled", "takes", "wrong_values"]

TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", tuple: "array"}

WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    os.PathLike: "a path",
    Mapping: "a mapping",
}

Function = TypeVar("Function", bound=Callable[..., Any])
WIDTH = 124  # letters in a line of documentation


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
    kind = {Form.SIZE: int, Form.FILE: str}.get(one.option.form) or get_origin(one.kind) or one.kind
    if one.option.form is Form.JSON:
        return {"type": "object"}
    if kind is Sequence:
        return {"type": "array", "items": {"type": TYPES[get_args(one.kind)[0]], **limits}}
    if kind is Mapping:
        return {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}}
    return {"type": TYPES[kind], **({"minLength": 1} if kind is str else {}), **limits}


def _limits(one: Declared) -> Mapping[str, float]:
    limits = {"minimum": one.option.minimum, "exclusiveMinimum": one.option.above}
    limits |= {"maximum": one.option.maximum, "exclusiveMaximum": one.option.below}
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


def wrong_values(options: type[Any], given: Mapping[str, Any]) -> list[str]:
    """Each value of `given` that its declaration in `options` does not allow, as text; None is always allowed."""
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
        return f"{value!r} is not one of {', '.join(one.choices)}"
    items = value if one.option.form is Form.NUMBERS else [value]
    return next(filter(None, (_beyond(one.option, item) for item in items)), "")


def _beyond(option: Option, value: Any) -> str:
    """Which limit a number breaks; empty: none, or it is no number."""
    if not isinstance(value, int | float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if option.minimum is not None and value < option.minimum:
        return f"{value} is less than {option.minimum}"
    if option.above is not None and value <= option.above:
        return f"{value:g} is not above {option.above:g}"
    if option.maximum is not None and value > option.maximum:
        return f"{value:g} is more than {option.maximum}"
    if option.below is not None and value >= option.below:
        return f"{value:g} is not below {option.below:g}"
    return ""


def _number(value: Any) -> Any:
    """Python's own for a scalar of numpy or torch, which JSON does not take."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _is_of(kind: Any, value: Any) -> bool:
    """Whether `value` is of a declared type; of one that is not known here, whatever it is."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(_is_of(part, value) for part in get_args(kind))
    if origin in (Sequence, list, tuple):
        items = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return items and all(_is_of(get_args(kind)[0], item) for item in value)
    value = _number(value)
    if origin in (int, float):
        return isinstance(value, Integral if origin is int else Real) and not isinstance(value, bool)
    return origin not in WORDS or isinstance(value, origin)


def _told(kind: Any) -> str:
    """A declared type as text."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return " or ".join(map(_told, get_args(kind)))
    if origin in (Sequence, list, tuple):
        return f"a list, each item {_told(get_args(kind)[0])}"
    return WORDS[origin]


def takes(options: type[Any], *, where: str | None = None, checks: bool = True) -> Callable[[Function], Function]:
    """Decorator of a function with `**options: Unpack[options]`: it gets every option, with its default where it is not given.

    An option that a configuration file may hold is None where it is not given, if the function takes such a file (`config`).
    None for an option whose type has none stands for its default.
    The decorated function shows the options as keywords in its signature and documentation. It raises TypeError for a keyword
    that it does not have, naming the nearest, and for a required one that is missing, as Python does; UsageError for
    `wrong_values`, but of what a configuration file may hold, whose schema checks it. `where`: in messages; None: the command
    of that name. `checks`: False where the function calls `wrong_values`, as it has more to say of them.
    """
    declared = declared_in(options)
    has_config = "config" in declared
    defaults = {
        name: None if has_config and one.option.in_config else one.option.default
        for name, one in declared.items()
        if not one.required
    }
    required = [name for name, one in declared.items() if one.required]
    never_none = {name for name, one in declared.items() if one.option.default is not None and not one.takes_none}

    checked = {name for name, one in declared.items() if checks and not (has_config and one.option.in_config)}

    def decorate(function: Function) -> Function:
        command = where or f"offline-cli {function.__name__.replace('_', '-')}"
        own = inspect.signature(function)
        named = [name for name, parameter in own.parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        known = {*named, *declared}

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if not given.keys() <= known:
                raise _unknown(function.__name__, [name for name in given if name not in known], known)
            missing = [name for name in required if name not in given]
            if missing:
                raise _missing(function.__name__, missing)
            check_values(options, {name: value for name, value in given.items() if name in checked}, command=command)
            said = {name: _number(value) for name, value in given.items() if value is not None or name not in never_none}
            return function(*args, **{**defaults, **said})

        call.__signature__ = _signature(own, declared, defaults)  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_documentation(declared)}"
        return call  # type: ignore[return-value]

    return decorate


def _unknown(function: str, names: list[str], known: Iterable[str]) -> TypeError:
    from difflib import get_close_matches

    near = [get_close_matches(name, known, n=1) for name in names]
    if len(names) == 1:
        guess = f". Did you mean '{near[0][0]}'?" if near[0] else ""
        return TypeError(f"{function}() got an unexpected keyword argument '{names[0]}'{guess}")
    told = [f"'{name}'" + (f" (did you mean '{found[0]}'?)" if found else "") for name, found in zip(names, near, strict=True)]
    return TypeError(f"{function}() got {len(names)} unexpected keyword arguments: {', '.join(told)}")


def _missing(function: str, names: list[str]) -> TypeError:
    several = "s" if len(names) > 1 else ""
    told = " and ".join(f"'{name}'" for name in names)
    return TypeError(f"{function}() missing {len(names)} required keyword-only argument{several}: {told}")


def _signature(own: inspect.Signature, declared: Mapping[str, Declared], defaults: Mapping[str, Any]) -> inspect.Signature:
    """Positional parameters, the options in the order of their groups, then what else is keyword-only."""
    by_kind: dict[Any, list[inspect.Parameter]] = {}
    for parameter in own.parameters.values():
        by_kind.setdefault(parameter.kind, []).append(parameter)
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, keyword, default=defaults.get(name, inspect.Parameter.empty), annotation=_annotation(one.type))
        for name, one in in_order(declared).items()
    ]
    positional = by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
    return own.replace(parameters=[*positional, *shown, *by_kind.get(keyword, [])])


def _annotation(type_: Any) -> Any:
    return type_.__forward_arg__ if isinstance(type_, ForwardRef) else type_


def _documentation(declared: Mapping[str, Declared]) -> str:
    from textwrap import fill

    entries = []
    for name, one in in_order(declared).items():
        default, limits = one.default(_quoted), one.limits()
        text = " ".join(
            [
                one.help(_quoted),
                *([f"{limits[0].upper()}{limits[1:]}."] if limits else ()),
                *([f"Default: {default}."] if default else ()),
            ]
        )
        entries.append(
            fill(f"{name}: {text}", WIDTH, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
        )
    return "Options:\n" + "\n".join(entries)


def _quoted(name: str) -> str:
    return f"`{name}`"
