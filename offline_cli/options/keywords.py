"""The keywords of a public function, from a declaration: names, defaults, signature and text for `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ForwardRef, TypeVar

from offline_cli.options.option import Declared, declared_in, in_order

__all__ = ["takes"]

Function = TypeVar("Function", bound=Callable[..., Any])
WIDTH = 124  # letters in a line of documentation


def takes(options: type[Any]) -> Callable[[Function], Function]:
    """Decorator of a function with `**options: Unpack[options]`: it gets every option, with its default where it is not given.

    An option that a configuration file may hold is None where it is not given, if the function takes such a file (`config`).
    None for an option whose type has none stands for its default.
    The decorated function shows the options as keywords in its signature and documentation. It raises TypeError for a keyword
    that it does not have, naming the nearest, and for a required one that is missing, as Python does.
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

    def decorate(function: Function) -> Function:
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
            said = {name: value for name, value in given.items() if value is not None or name not in never_none}
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
