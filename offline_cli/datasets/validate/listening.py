"""A tally and rejects that keep what reading counts in silence, with its places; refuses to stop at a bad row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from offline_cli.datasets.validate.codes import CODES, Severity
from offline_cli.datasets.validate.findings import Findings
from offline_cli.errors import PROBLEM, BadData, UnsupportedSpace
from offline_cli.tally import DROPPED, OnError, Rejects, Tally

__all__ = ["ListeningRejects", "ListeningTally"]

SILENT: Final = frozenset({"null-as-nan", "unreadable-row"})
"""What other checks see by themselves."""


RENAMED: Final[dict[str, tuple[str, Severity]]] = {
    "gap-in-t": ("gap-in-episode", "warning"),  # in tables, where the gap is left open
    "duplicate-row": ("repeated-steps", "note"),
}
"""Assumptions that are problems of another name."""


class ListeningTally(Tally):
    """Hands on each assumption that has a code of its own, and keeps the rest by source."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings
        self._counted: dict[str, Counter[str]] = {}  # by source: what is told at the end
        self._dropped: dict[str, dict[str, str]] = {}  # by source: columns left out, and why

    def assume(self, kind: str, times: int = 1, *, places: Callable[[], Iterable[str]] | None = None) -> None:
        """Count and hand on."""
        super().assume(kind, times)
        if times <= 0:
            return
        if kind in RENAMED:
            code, severity = RENAMED[kind]
            self._findings.add(self.location, code, times, self._placed(places), severity=severity)
        elif kind in CODES:
            self._findings.add(self.location, kind, times, self._placed(places))
        elif kind not in SILENT:
            self._counted.setdefault(self.location, Counter())[kind] += times

    def _placed(self, places: Callable[[], Iterable[str]] | None) -> Iterator[str]:
        """The places, with that of the source before those that name an episode only."""
        for place in () if places is None else places():
            yield f"{self.location}, {place}" if place.startswith("episode ") else place

    def drop_column(self, name: str, reason: str) -> None:
        """Count, and keep the name by source."""
        known = name in self.dropped_columns
        super().drop_column(name, reason)
        if not known:
            self._dropped.setdefault(self.location, {})[name] = reason

    def drop_duplicate(self, place: Callable[[], str]) -> None:
        """Count and hand on."""
        super().drop_duplicate(place)
        self._findings.add(self.location, "duplicate-episode", 1, self._placed(lambda: [place()]))

    def tell_counted(self) -> None:
        """Hand on the other assumptions as one note for each source."""
        for source, counts in self._counted.items():
            self.tell_assumptions(source, counts)

    def tell_assumptions(self, source: str, counts: Counter[str]) -> None:
        """Hand on `counts`, by kind, as one note."""
        kinds = {kind: count for kind, count in sorted(counts.items()) if count > 0}
        if kinds:
            dropped = self._dropped.get(source, {}) if DROPPED in kinds else {}
            named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
            if dropped:
                named += f" ({', '.join(f'{name}: {reason}' for name, reason in dropped.items())})"
            details = {"kinds": kinds, **({"dropped_columns": dropped} if dropped else {})}
            self._findings.add(source, "assumption", sum(kinds.values()), example=named, details=details)


class ListeningRejects(Rejects):
    """Skips bad rows, and hands on each error: rows that cannot be read by row, episodes that cannot be put together once."""

    def __init__(self, findings: Findings, tally: Tally) -> None:
        super().__init__(OnError.SKIP)
        self._findings, self._tally = findings, tally
        self._last: BadData | UnsupportedSpace | None = None

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Count and hand on; several parts of one refused episode come with one error."""
        super().add(error, rows=rows)
        if error is not self._last:
            whole_thing = PROBLEM in error.details and error.details[PROBLEM] != "length-mismatch"
            self._findings.add_error(self._tally.location, error, "unreadable-row", 1 if whole_thing else rows)
        self._last = error
