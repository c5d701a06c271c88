"""`python -m benchmarks.compare OLD NEW`: what changed between two files of figures; refuses to call noise a change.

Rows are matched by question and rival, versions left out. What is compared is the ratio to the rival, which a busier or faster
machine leaves as it is; the figure itself where there is no rival. A change counts when it is beyond 5 % and the quartiles of
the pairs do not meet. Exit code 1 where a target was met before and is missed now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Change", "changes", "main"]

NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """One row in both files, or in one of them."""

    question: str
    old: float | None  # None: not there, or not measured
    new: float | None
    words: str  # "better", "worse", "same", "new", "gone"
    lost: bool  # the target was met, and is not

    @property
    def ratio(self) -> float | None:
        """New over old; above 1 is better."""
        return None if self.old is None or self.new is None else self.new / self.old


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Of all rows of both files, in the order of the new one."""
    before, after = dict(_rows(old)), dict(_rows(new))
    names = [*after, *(name for name in before if name not in after)]
    return [_change(name, before.get(name), after.get(name)) for name in names]


def _rows(known: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in known.values():
        for row in entry["rows"]:
            rival = row["rival_name"].partition(" (")[0].partition(":")[0]
            aim = row.get("target", {}).get("words", "")
            yield " | ".join(filter(None, (row["question"], rival, aim))), row


def _change(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Change:
    before, after = _value(old), _value(new)
    if before is None or after is None:
        return Change(name, before, after, "same" if before is after else "new" if before is None else "gone", lost=False)
    assert old is not None
    assert new is not None
    lost = old.get("met") is True and new.get("met") is False
    return Change(name, before, after, _words(old, new, after / before), lost)


def _value(row: Mapping[str, Any] | None) -> float | None:
    if row is None:
        return None
    value: float | None = row["ours"] if row["ratio"] is None else row["ratio"]
    return value


def _words(old: Mapping[str, Any], new: Mapping[str, Any], ratio: float) -> str:
    (low, high), (new_low, new_high) = _spread(old), _spread(new)
    if abs(ratio - 1) <= NOISE or (low <= new_high and new_low <= high):
        return "same"
    return "better" if ratio > 1 else "worse"


def _spread(row: Mapping[str, Any]) -> tuple[float, float]:
    value = _value(row)
    assert value is not None
    low, high = row.get("spread") or (value, value)
    return low, high


def lines(found: list[Change]) -> Iterator[str]:
    """A table: what changed first, then how many did not."""
    for change in found:
        if change.words != "same":
            moved = "" if change.ratio is None else f" ({change.ratio:.2f}x)"
            target = "  TARGET LOST" if change.lost else ""
            yield f"{change.words:>6}  {_number(change.old)} -> {_number(change.new)}{moved}  {change.question}{target}"
    yield f"{sum(change.words == 'same' for change in found)} of {len(found)} rows as before"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m benchmarks.compare OLD.json NEW.json", file=sys.stderr)
        return 2
    old, new = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
    found = changes(old, new)
    print("\n".join(lines(found)))
    return int(any(change.lost for change in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
