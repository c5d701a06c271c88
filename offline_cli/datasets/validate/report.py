"""What `validate` found, as values for programs and as rows of a table for people; refuses data with problems when asked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from offline_cli.datasets.validate.codes import SEVERITIES, Severity
from offline_cli.errors import InvalidData

__all__ = ["Problem", "Validation"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of problem in one source."""

    code: str  # docs/validate.md lists them
    severity: Severity
    where: str  # the first place
    what: str
    fix: str
    count: int  # of what: see the code
    source: str  # the folder, files or URL that was given
    details: Mapping[str, Any] = field(default_factory=dict)  # places: the first 10; of: how many there are in all

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Validation:
    """All problems of one or more sources, and what was looked at."""

    problems: tuple[Problem, ...]  # by source, worst first
    sources: tuple[str, ...]
    formats: tuple[str, ...]  # of the sources that could be opened
    episodes: int  # whole ones, duplicates left out
    steps: int
    rows: int  # of tables, lines of JSON, packed episodes
    deep: bool  # hashes of shards were compared
    strict: bool  # warnings count as failures
    hashes_unchecked: int  # shards whose sha256 was not compared
    seconds: float

    @property
    def counts(self) -> dict[Severity, int]:
        """Problems by severity."""
        found = Counter(problem.severity for problem in self.problems)
        return {severity: found[severity] for severity in SEVERITIES}

    @property
    def passed(self) -> bool:
        """Whether there is no error, and under `strict` no warning either."""
        return not self._failing()

    def _failing(self) -> list[Problem]:
        failing = SEVERITIES[: 2 if self.strict else 1]
        return [problem for problem in self.problems if problem.severity in failing]

    def check(self) -> None:
        """Raise InvalidData unless `passed`; it says what is worst, and its `result` is `as_dict()`."""
        failing = self._failing()
        if not failing:
            return
        worst, more = failing[0], len(failing) - 1
        raise InvalidData(
            f"{worst.code}: {worst.what}" + (f" (and {more} more problem{'s' * (more > 1)})" if more else ""),
            where=worst.where,
            fix=worst.fix,
            result=self.as_dict(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        return {
            "problems": [problem.as_dict() for problem in self.problems],
            **{f"{severity}s": count for severity, count in self.counts.items()},
            "passed": self.passed,
            "sources": list(self.sources),
            "formats": list(self.formats),
            "episodes": self.episodes,
            "steps": self.steps,
            "rows": self.rows,
            "deep": self.deep,
            "strict": self.strict,
            "hashes_unchecked": self.hashes_unchecked,
            "seconds": round(self.seconds, 3),
        }
