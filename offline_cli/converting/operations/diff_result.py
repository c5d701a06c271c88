"""What `diff` found, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offline_cli.errors import TargetNotMet

__all__ = ["DiffResult"]


@dataclass(frozen=True, slots=True)
class DiffResult:
    """What differs."""

    a: str
    b: str
    equal: bool
    missing: int  # episodes that only one of the two has
    missing_in_a: int
    missing_in_b: int
    changed: int  # episodes of one id that differ
    first: Mapping[str, Any] | None  # episode, step, column, index within the value, and both values; None: equal
    facts: tuple[Mapping[str, Any], ...]  # what is declared of all episodes, and differs: column, a, b
    notes: tuple[str, ...]  # what may differ
    ids: Mapping[str, tuple[str, ...]]  # the first 10 of missing_in_a, missing_in_b and changed
    episodes_a: int
    episodes_b: int
    steps_a: int
    steps_b: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def check(self) -> None:
        """Raise TargetNotMet unless the two are equal; its `result` is `as_dict()`."""
        if self.equal:
            return
        fix = "--json has all counts; the same episodes in another order or row format would be equal"
        if self.episodes_a and self.episodes_b and self.missing == self.episodes_a + self.episodes_b:
            fix = "if they are the same ones: episodes are compared by their ids, which files without ids, such as npz, lack"
        what, where = f"{self._counts()}; {self._first()}", f"{self.a} and {self.b}"
        raise TargetNotMet(what, where=where, fix=fix, result=self.as_dict())

    def _counts(self) -> str:
        """How many episodes differ, in words."""
        alone = (self.missing_in_b, self.a), (self.missing_in_a, self.b)
        apart = [f"{count:,} are in {url} only" for count, url in alone if count]
        unlike = [f"{self.changed:,} of the episodes in both differ"] if self.changed else []
        if not (unlike or apart):
            return "the episodes are the same, and what is declared of them differs"
        return ", and ".join([*unlike, *apart])

    def _first(self) -> str:
        """The first difference, in words."""
        first = self.first or {}
        place = ", ".join(f"{name} {first[name]}" for name in ("episode", "step", "column") if first.get(name) is not None)
        return f"first: {place}: {first.get('a')} and {first.get('b')}"
