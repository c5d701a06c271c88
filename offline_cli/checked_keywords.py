"""Validate the keyword arguments of public functions against their annotations: types, choices and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Any, Final, TypeVar, get_type_hints

from offline_cli.errors import UsageError
from offline_cli.progress import NotebookBars, in_notebook

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS: Final = {"from_": "--from", "wrappers": "--wrapper", "plugins": "--plugin", "storage_options": "--storage-option"}
MAX_SHOWN: Final = 80  # characters of a value in a message
UNCHECKED: Final = (
    "policy",
    "pipeline",
    "env_to_module",
    "module_to_env",
    "on_progress",
    "command",
    "like",
)  # these accept many types


def as_option(keyword: str) -> str:
    """The command-line spelling of a keyword, which all messages use."""
    return OPTIONS.get(keyword) or f"--{keyword.replace('_', '-')}"


def checked(function: Function) -> Function:
    """Decorate a public function: raise one UsageError that names every keyword whose value its annotation forbids.

    Numpy and torch scalars become Python numbers. In a notebook, progress bars appear unless the caller passes `on_progress`.
    """
    reports = "on_progress" in signature(function).parameters

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        _check_known(function, given)
        given = _valid(function, given)
        if not reports or "on_progress" in given or not in_notebook():
            return function(*args, **given)
        bars = NotebookBars()
        try:
            return function(*args, **given, on_progress=bars)
        finally:
            bars.draw()

    return call  # type: ignore[return-value]


def _check_known(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise TypeError, with the closest keyword, for one that `function` does not have."""
    known, own = signature(function).parameters, function.__qualname__.removesuffix(".__init__")
    for name in given.keys() - known.keys() if not any(one.kind is Parameter.VAR_KEYWORD for one in known.values()) else ():
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"help(offline_cli.{own}) lists all"
        if "set" in known and not close:
            hint = f"an option of the algorithm is given as set={{{name!r}: {given[name]!r}}}; {hint}"
        raise TypeError(f"{own}() got an unexpected keyword argument {name!r}: {hint}")


def _valid(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    from pydantic import ValidationError

    given = {name: value.item() if _is_scalar(value) else value for name, value in given.items()}
    try:
        found = _keywords(function).model_validate(given)
    except ValidationError as err:
        wrong = {str(one["loc"][0]): worded(one, given[str(one["loc"][0])]) for one in err.errors()}
        what = "; ".join(f"{as_option(name)} {text}" for name, text in wrong.items())
        name = function.__qualname__.removesuffix(".__init__")
        raise UsageError(what, where=name, fix=f"help(offline_cli.{name}) lists all keywords with their types") from err
    parsed = {name: getattr(found, name) for name in found.model_fields_set}
    return {
        **given,
        **{name: value for name, value in parsed.items() if isinstance(value, int | float)},
    }  # the rest stays as given


def _is_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == () and hasattr(value, "item")


def worded(error: Any, value: Any) -> str:
    """Pydantic's error message for `value`, or an item of it: `should be greater than or equal to 1, not 0`."""
    return f"{error['msg'].removeprefix('Value error, ').removeprefix('Input ')}, not {repr(value)[:MAX_SHOWN]}"


@cache
def _keywords(function: Callable[..., Any]) -> Any:
    """The pydantic model of the keywords, built on the first call of the function."""
    from pydantic import ConfigDict, create_model

    keywords = {name: one for name, one in signature(function).parameters.items() if one.kind is Parameter.KEYWORD_ONLY}
    written = {name: one.annotation for name, one in keywords.items() if name not in UNCHECKED}
    named = type("Keywords", (), {"__annotations__": written})
    hints = get_type_hints(named, {**function.__globals__}, include_extras=True)
    fields: dict[str, Any] = {name: (hint, None) for name, hint in hints.items()}
    return create_model(function.__name__, __config__=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False), **fields)
