"""Collects what checks find, one entry per code and source, with counts and first places; refuses codes without an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from offline_cli.datasets.validate.codes import CODES, SEVERITIES, Severity
from offline_cli.datasets.validate.report import Problem
from offline_cli.errors import PROBLEM, OfflineCliError, as_convert_would, short_place

__all__ = ["PLACES", "Findings"]

PLACES: Final = 10  # shown of each problem


@dataclass(slots=True)
class _Entry:
    severity: Severity
    count: int = 0
    of: int | None = None  # how many there are in all
    places: list[str] = field(default_factory=list)
    example: str = ""  # what the first one is, in words
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}  # by source and code

    def add(
        self,
        source: str,
        code: str,
        count: int = 1,
        places: Iterable[str] = (),
        *,
        severity: Severity | None = None,
        example: str = "",
        fix: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Count `count` more of `code` in `source`; `severity` other than usual, which stays if it is the worse one.

        `places` is drawn from only as far as places are shown. `example` says what the first one is.
        """
        entry = self._entries.setdefault((source, code), _Entry(severity or CODES[code].severity))
        entry.severity = min(entry.severity, severity or CODES[code].severity, key=SEVERITIES.index)
        entry.count += count
        if len(entry.places) < PLACES:
            entry.places += map(short_place, islice(places, PLACES - len(entry.places)))
        entry.example, entry.fix = entry.example or example, entry.fix or as_convert_would(fix)
        entry.details.update(details or {})

    def add_error(self, source: str, error: OfflineCliError, code: str, count: int = 1) -> None:
        """Count an error that reading raised, or handed on, by the code that it asks for, else by `code`."""
        named = str(error.details.get(PROBLEM, error.code))
        code = named if named in CODES else code
        self.add(source, code, count, [error.where], example=error.what_in_one_line, fix=error.fix)

    def set_total(self, source: str, code: str, of: int) -> None:
        """Say of how many things the count is, where the code was found."""
        if (source, code) in self._entries:
            self._entries[source, code].of = of

    def has(self, source: str, *codes: str) -> bool:
        """Whether any of these was found in `source`; without codes, whether any error was."""
        found = {code: entry for (place, code), entry in self._entries.items() if place == source}
        return any(code in found for code in codes) if codes else any(entry.severity == "error" for entry in found.values())

    def problems(self, sources: Iterable[str]) -> tuple[Problem, ...]:
        """All of them, by source in that order, the worst first."""
        order, codes = {source: i for i, source in enumerate(sources)}, list(CODES)
        found = sorted(
            self._entries.items(),
            key=lambda item: (order.get(item[0][0], len(order)), SEVERITIES.index(item[1].severity), codes.index(item[0][1])),
        )
        return tuple(_problem(source, code, entry) for (source, code), entry in found)


def _problem(source: str, code: str, entry: _Entry) -> Problem:
    known = CODES[code]
    of = "" if entry.of is None else f" of {entry.of:,}"
    what = f"{entry.count:,}{of} {known.unit[(entry.of or entry.count) != 1]}: {known.meaning}"
    return Problem(
        code=code,
        severity=entry.severity,
        where=entry.places[0] if entry.places else source,
        what=f"{what}: {entry.example}" if entry.example else what,
        fix=entry.fix or known.fix,
        count=entry.count,
        source=source,
        details={"places": list(entry.places), **({} if entry.of is None else {"of": entry.of}), **entry.details},
    )
