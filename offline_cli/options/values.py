"""Values that options cannot have: no finite number, outside their limits, or none of their choices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from offline_cli.errors import UsageError
from offline_cli.options.option import Declared, declared_in, in_order

__all__ = ["check_values", "wrong_values"]


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
