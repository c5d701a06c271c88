"""What `validate` found: collected from checks and from reading, one entry for each code and source.

`ListeningTally` and `ListeningRejects` report what reading otherwise counts silently, with its places, and never stop at a bad
row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Final

from offline_cli.checking.validate.problem_codes import CODES, SEVERITIES, Severity
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, InvalidData, OfflineCliError, UnsupportedSpace, as_convert_would, short_place
from offline_cli.parquet.reading import OTHER_SHARD
from offline_cli.tally import ANOTHER_PART, DROPPED, T_FALLS, UNFINISHED, EpisodePlace, OnError, Rejects, Tally

PLACES: Final = 10  # shown of each problem
SILENT: Final = frozenset({"null-as-nan", "unreadable-row"})
"""Assumptions that other checks report themselves."""
LASTING: Final = frozenset(
    {"broken-chain", "dones-disagree", "gap-in-t", "missing-final-observation", "missing-rewards", T_FALLS, UNFINISHED}
)
"""Assumptions that are problems of the dataset, too, that was written by them."""
RENAMED: Final[dict[str, tuple[str, Severity]]] = {
    "gap-in-t": ("gap-in-episode", "warning"),  # in tables, where the gap is left open
    "duplicate-row": ("repeated-steps", "note"),
}
"""Assumptions that are problems of another name."""
KEYS: Final = ("code", "severity", "where", "what", "fix", "count", "source", "details")


@dataclass(slots=True)
class Found:
    """Occurrences of one kind of problem, as a check finds them."""

    code: str  # of CODES
    times: int = 1
    places: Iterable[str] = ()  # in words; as many are drawn as are shown
    episodes: Iterable[str] = ()  # ids of all that are concerned
    severity: Severity | None = None  # None: the usual one
    example: str = ""  # describes the first one
    fix: str = ""  # empty: that of the code
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_all(cls, code: str, batch: EpisodeBatch, example: str, severity: Severity | None = None) -> Found:
        """A problem that all episodes of `batch` have."""
        return cls(code, len(batch), (f"episode {name}" for name in batch.ids), batch.ids, severity, example)


@dataclass(slots=True)
class Problem:
    """One kind of problem in one source."""

    source: str  # the folder, files or URL that was given
    code: str  # docs/validate.md lists them
    severity: Severity
    count: int = 0  # of what: see the code
    places: list[str] = field(default_factory=list)  # the first 10
    episodes: dict[str, None] = field(default_factory=dict)  # ids of those concerned, as far as they are known
    example: str = ""  # the first one, as text
    remedy: str = ""  # in place of that of the code
    more: dict[str, Any] = field(default_factory=dict)  # `inherited`: how many a dataset has from what it was made from

    @property
    def where(self) -> str:
        """The first place."""
        return self.places[0] if self.places else self.source

    @property
    def what(self) -> str:
        """Count and meaning."""
        known = CODES[self.code]
        what = f"{self.count:,} {known.unit}{'s' * (self.count != 1)}: {known.meaning}"
        return f"{what}: {self.example}" if self.example else what

    @property
    def fix(self) -> str:
        """What to do."""
        return self.remedy or CODES[self.code].fix

    @property
    def details(self) -> dict[str, Any]:
        """Places, ids of episodes where they are known, and more."""
        episodes = {"episodes": list(self.episodes)} if self.episodes else {}
        return {"places": self.places, **episodes, **self.more}

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in KEYS}


@dataclass(frozen=True, slots=True)
class Validation:
    """All problems of one or more sources, and what was checked."""

    problems: tuple[Problem, ...]  # by source, worst first
    sources: tuple[str, ...]
    formats: tuple[str, ...]  # of the sources that could be opened
    episodes: int  # whole ones, duplicates left out
    steps: int
    rows: int  # of tables, lines of JSON, packed episodes
    deep: bool  # the rows set aside were read too
    strict: bool  # warnings count as failures
    seconds: float
    agents: Mapping[str, int] = field(default_factory=dict)  # episodes by agent id, where they have one
    modules: Mapping[str, int] = field(default_factory=dict)  # and by module id

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
        """Raise InvalidData unless `passed`; it names the worst, and its `result` is `as_dict()`."""
        if failing := self._failing():
            worst, more = failing[0], len(failing) - 1
            what = f"{worst.code}: {worst.what}" + (f" (and {more} more problem{'s' * (more > 1)})" if more else "")
            raise InvalidData(what, where=worst.where, fix=worst.fix, result=self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        agents = {name: dict(found) for name in ("agents", "modules") if (found := known.pop(name))}
        lists = {name: list(known[name]) for name in ("sources", "formats")}
        problems = [problem.as_dict() for problem in self.problems]
        severities = {f"{severity}s": count for severity, count in self.counts.items()}
        return {**known, **agents, **lists, **severities, "problems": problems, "passed": self.passed}


class Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}  # by source and code

    def add(self, source: str, found: Found) -> None:
        """Count what was found in `source`; of two severities of one code the worse stays."""
        severity = found.severity or CODES[found.code].severity
        entry = self._problems.setdefault((source, found.code), Problem(source, found.code, severity))
        entry.severity = min(entry.severity, severity, key=SEVERITIES.index)
        entry.count += found.times
        entry.places += map(short_place, islice(found.places, PLACES - len(entry.places)))
        entry.example, entry.remedy = entry.example or found.example, entry.remedy or as_convert_would(found.fix)
        entry.more.update(found.details)
        entry.episodes.update(dict.fromkeys(found.episodes))

    def add_error(self, source: str, error: OfflineCliError, code: str, count: int = 1) -> None:
        """Count an error that reading raised, or passed on, by its own code, else by `code`."""
        named = str(error.details.get(PROBLEM, error.code))
        code = named if named in CODES else code
        found = Found(code, count, [error.where], example=error.what_in_one_line, fix=error.fix)
        self.add(source, replace(found, example="", fix="") if code == OTHER_SHARD else found)  # whose text advises to validate

    def has(self, source: str, *codes: str) -> bool:
        """Whether any of these was found in `source`; without codes, whether any error was."""
        found = [one for one in self._problems.values() if one.source == source]
        return any(one.code in codes if codes else one.severity == "error" for one in found)

    def problems(self, sources: Iterable[str]) -> tuple[Problem, ...]:
        """All of them, by source in that order, the worst first."""
        order, codes = {source: i for i, source in enumerate(sources)}, list(CODES)

        def rank(one: Problem) -> tuple[int, int, int]:
            return order.get(one.source, len(order)), SEVERITIES.index(one.severity), codes.index(one.code)

        return tuple(sorted(self._problems.values(), key=rank))


class ListeningTally(Tally):
    """Reports each assumption that has a code of its own, and keeps the rest by source."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings
        self._counted: dict[str, Counter[str]] = {}  # by source: what is reported at the end
        self._dropped: dict[str, dict[str, str]] = {}  # by source: columns that were left out, and why

    def assume(self, kind: str, times: int = 1, *, places: Callable[[], Iterable[str]] | None = None) -> None:
        """Count and report."""
        super().assume(kind, times)
        code, severity = RENAMED.get(kind, (kind, None))
        if times and code in CODES:
            known = list(places()) if places is not None and CODES[code].unit in ("episode", "gap") else []
            episodes = [place.episode for place in known if isinstance(place, EpisodePlace)]
            self._findings.add(self.location, Found(code, times, self._placed(places), episodes, severity))
        elif times and kind not in SILENT:
            self._counted.setdefault(self.location, Counter())[kind] += times

    def inherit(self, source: str, counts: Mapping[str, int]) -> None:
        """Report what dataset `source` was written by, as its manifest counts it, as it was reported of its own source."""
        for kind in LASTING & counts.keys():
            code, severity = RENAMED.get(kind, (kind, None))
            more: dict[str, Any] = {"example": "counted when it was written", "details": {"inherited": counts[kind]}}
            self._findings.add(source, Found(code, counts[kind], [source], severity=severity, **more))
        self._counted.setdefault(source, Counter()).update({kind: counts[kind] for kind in counts.keys() - LASTING})

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
        """Count and report."""
        super().drop_duplicate(place)
        self._findings.add(self.location, Found("duplicate-episode", 1, self._placed(lambda: [place()])))

    def tell_counted(self) -> None:
        """Report the other assumptions as one note for each source; columns that were left out by name."""
        for source, counts in self._counted.items():
            if kinds := {kind: count for kind, count in sorted(counts.items()) if count > 0}:
                dropped = self._dropped.get(source, {}) if DROPPED in kinds else {}
                named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
                named += f" ({', '.join(f'{name}: {reason}' for name, reason in dropped.items())})" if dropped else ""
                details = {"kinds": kinds, **({"dropped_columns": dropped} if dropped else {})}
                self._findings.add(source, Found("assumption", sum(kinds.values()), example=named, details=details))


class ListeningRejects(Rejects):
    """Skips bad rows, and reports each error: rows that cannot be read by row, episodes that cannot be put together once."""

    def __init__(self, findings: Findings, tally: Tally) -> None:
        super().__init__(OnError.SKIP)
        self._findings, self._tally = findings, tally

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Count and report; several parts of one refused episode come with one error."""
        is_new = error is not self._last and ANOTHER_PART not in error.details
        super().add(error, rows=rows)
        if is_new:
            whole_thing = PROBLEM in error.details and error.details[PROBLEM] != "length-mismatch"
            self._findings.add_error(self._tally.location, error, "unreadable-row", 1 if whole_thing else rows)
