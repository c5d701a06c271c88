"""What the values of a result are expected to be: `inspect --expect episodes=100 --expect 'return.mean>=450'`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from offline_cli.errors import TargetNotMet, UsageError
from offline_cli.safe_json import json_or_text
from offline_cli.tally import KINDS

OPTION: Final = "--expect"
KEY: Final = re.compile(r"\s*([^<>=!~]*?)\s*([<>=!~]*)\s*")  # a name, and an order
ORDERS: Final = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}
COUNTS: Final = ("assumptions", "modules", "agents")  # in which what is not listed was counted 0 times


class Expected(NamedTuple):
    """One value: its name, with dots for what is nested, and what it shall be."""

    name: str
    order: str  # "=", ">=" or "<="
    want: Any


def parsed_expectations(expect: Mapping[str, Any], keys: Collection[str]) -> list[Expected]:
    """Those of `{"episodes": 100, "return.mean>=": 450}`; `keys`: that the document has.

    Raises UsageError naming all that cannot be: unknown keys and orders, bounds that are no numbers.
    """
    found, wrong = [], []
    for key, want in expect.items():
        parsed = KEY.fullmatch(key)
        name, order = parsed.groups() if parsed else (key, "")
        order = "=" if order in ("", "==") else order
        if order not in ORDERS:
            wrong.append(f"{name!r} is compared by {order!r}, which is not one of =, >= and <=")
        if name.partition(".")[0] not in keys:
            wrong.append(f"nothing is called {name!r}")
        if order in (">=", "<=") and _number(want) is None:
            wrong.append(f"{name} {order} {want!r} is no comparison of numbers")
        found.append(Expected(name, order, want))
    if wrong:
        fix = f"write KEY=VALUE, KEY>=NUMBER or KEY<=NUMBER; there is {', '.join(keys)}"
        raise UsageError("; ".join(wrong), where=OPTION, fix=fix)
    return found


def check_expected(expected: Sequence[Expected], document: Mapping[str, Any], *, where: str) -> None:
    """Raise TargetNotMet, naming all values that differ; UsageError for nested names that are not there."""
    wrong, unknown, unmet = [], [], []
    for name, order, want in expected:
        try:
            value = _value_at(document, name)
        except KeyError:
            unknown.append(f"nothing is called {name!r}")
            continue
        if not _holds(value, order, want):
            wrong.append(f"{name} is {value}, expected {'' if order == '=' else f'{order} '}{want}")
            typed = json_or_text(want) if isinstance(want, str) else want
            unmet.append({"key": name, "is": value, "order": order, "value": typed})
    if unknown:
        raise UsageError("; ".join(unknown), where=OPTION, fix="--json shows all keys with their values")
    if wrong:
        fix = "check the data with inspect, or correct the expectation"
        raise TargetNotMet("; ".join(wrong), where=where, fix=fix, details={"unmet": unmet})


def _value_at(document: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name, a number in it that of an element; of counts, 0 where none was counted. Raises KeyError."""
    top, _, kind = name.partition(".")
    counted = document.get(top)
    if top in COUNTS and kind and isinstance(counted, Mapping):
        if top == "assumptions" and kind not in counted and kind.partition(":")[0] not in KINDS:  # some name a column behind
            raise KeyError(kind)
        return counted.get(kind, 0)
    value: Any = document
    for part in name.split("."):
        if isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping):
            value = value[part]
        else:
            raise KeyError(part)
    return value


def _holds(value: Any, order: str, want: Any) -> bool:
    """Numbers may come as text, as from a command line, and agree to 9 digits; a list holds where all its elements do."""
    if isinstance(value, list | tuple) and value and value != want and not isinstance(want, list | tuple):
        return all(_holds(element, order, want) for element in value)
    have, wanted = None if isinstance(value, str) else _number(value), _number(want)
    if have is not None and wanted is not None:
        return math.isclose(wanted, have, rel_tol=1e-9) or bool(ORDERS[order](have, wanted))
    return order == "=" and bool(value == want or str(value).lower() == str(want).lower())


def _number(value: Any) -> float | None:
    """A number, or text of one; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
