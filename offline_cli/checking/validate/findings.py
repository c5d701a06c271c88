"""The problems that `validate` can report, and its findings: one entry for each code and source.

`ListeningTally` and `ListeningRejects` report, with places, the assumptions and bad rows that reading otherwise only counts,
and never stop at a bad row.

A problem has a code, a meaning, a remedy and a severity:

* `error`: a command would reject the data, or would learn from invalid numbers.
* `warning`: reading repairs or tolerates it, and the result may not be what the user expects.
* `note`: worth knowing, but harmless.

docs/reference/checks.md is generated from this table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, InvalidData, OfflineCliError, UnsupportedSpace, as_convert_would, short_place
from offline_cli.parquet.reading import OTHER_SHARD
from offline_cli.tally import ANOTHER_PART, DROPPED, T_FALLS, UNFINISHED, EpisodePlace, OnError, Rejects, Tally

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""Worst first."""

AGAIN: Final = "write it again from its source"
LEAVE_OUT: Final = "restore it from a copy, or leave it out: {}"
DROP: Final = LEAVE_OUT.format("offline-cli repair D --drop-broken")
REFUSED: Final = "correct it, or convert with --on-error quarantine"
NAN: Final = "fill it in, or leave the episode out"
CLIP: Final = "clip it where it was made"
RESET: Final = "convert with --drop-reset-rows; or record with AutoresetMode.DISABLED"
ALLOWED: Final = "note with --allow-lost"
NO_CATEGORY: Final = "error for a category that does not exist"
RAW: Final = "raw outputs of a policy: --action-scale normalized; otherwise clip them, or correct the space"
HIDDEN: Final = "warning for names with a leading dot or underscore, which readers pass over"
OTHER_KIND: Final = "warning where the kind differs, such as floats for categories"
ALL_FILES: Final = "give all files of the recording at once, or leave the episode out (filter --drop-problems)"
GAPS: Final = "warning in tables, and datasets made of them, where such a gap is left open"


class Code(NamedTuple):
    """One kind of problem."""

    severity: Severity  # the default
    unit: str  # singular noun of the counted things
    meaning: str  # after a number and its unit: "3 episodes: ..."
    fix: str
    otherwise: str = ""  # when a check uses another severity


CODES: Final[dict[str, Code]] = {
    # ---- places and files ----
    "unreadable-source": Code("error", "source", "cannot be opened as recordings", "name one format with --from"),
    "no-episodes": Code("error", "source", "without an episode", "check that the recording wrote any steps"),
    "unreadable-file": Code("error", "file", "broken off or damaged", "copy or write the file again"),
    "unreadable-row": Code("error", "row", "cannot be read", REFUSED),
    "length-mismatch": Code("error", "row", "parts do not match (T actions and rewards need T+1 observations)", REFUSED),
    "unsafe-data": Code("error", "row", "bytes that would build objects, or are absurdly large", "ask who wrote it"),
    "unsupported-space": Code("error", "row", "a space that cannot be stored", "record with Box, Discrete, Dict, Tuple ..."),
    # ---- episodes ----
    "conflicting-episode": Code("error", "episode", "with the id of a different one", "give each recording its own ids"),
    "duplicate-episode": Code("warning", "episode", "written before, value for value", "convert it: duplicates are dropped"),
    "gap-in-episode": Code("error", "gap", "steps are missing", ALL_FILES, GAPS),
    "incomplete-episode": Code("note", "episode", "not checked: a row of it was refused", "see the unreadable rows"),
    "lost-episodes": Code("warning", "episode", "of the source, lost in writing", "convert again, or --allow-lost", ALLOWED),
    "steps-after-end": Code("error", "episode", "continuing after an end flag", "set end flags on last steps only"),
    "broken-chain": Code("warning", "joint", "new_obs is not the obs of the next step", "check the order of the rows"),
    "t-falls-back": Code("warning", "row", "`t` decreases inside an episode without an id", "--episode-ends t, or map eps_id"),
    "repeated-steps": Code("note", "step", "written more than once, and equal", "nothing: they are read once"),
    "unfinished-episode": Code("warning", "episode", "no end flag (reading marks it truncated)", "record where it ends"),
    "both-flags": Code("warning", "episode", "terminated and truncated (terminated wins)", "set the one that ended it"),
    "zero-length-episode": Code("warning", "episode", "without a step", "convert it: such episodes are left out"),
    "missing-final-observation": Code("warning", "episode", "no last observation (one is repeated)", "record new_obs too"),
    "reset-row": Code("warning", "episode", "beginning with a reset step (AutoresetMode.NEXT_STEP)", RESET),
    "reset-observation": Code("warning", "episode", "ending with the next reset's (AutoresetMode.SAME_STEP)", RESET),
    "missing-rewards": Code("warning", "step", "no reward (0 was used)", "record rewards too"),
    "dones-disagree": Code("warning", "step", "`dones` contradicts the newer flags, which are used", "keep one of them"),
    "mixed-structures": Code("error", "episode", "with other columns, parts or shapes", "convert each kind by itself"),
    "mixed-spaces": Code("error", "episode", "with other spaces than the first", "name the environment with --env"),
    "mixed-action-scales": Code("error", "source", "with another scale of actions", "convert it with its --action-scale"),
    "meaning-assumed": Code("note", "column", "whose names, categories or units only one source says", "check them"),
    "mixed-meanings": Code("error", "source", "with other names, categories or units", "convert it in the other's order"),
    # ---- values ----
    "space-mismatch": Code("error", "episode", "with other parts or shapes than the space", "name the environment: --env"),
    "dtype-differs": Code("note", "episode", "of another dtype than the space", "convert it: it gets that dtype", OTHER_KIND),
    "value-not-in-dtype": Code("error", "value", "that the dtype of the space cannot hold", "correct the dtype of the space"),
    "observation-outside-space": Code("warning", "observation", "outside the space", "check the space: --env", NO_CATEGORY),
    "action-outside-space": Code("warning", "action", "outside the space", RAW, f"{NO_CATEGORY}, and at the scale `env`"),
    "nan-in-observations": Code("error", "observation", "NaN", NAN),
    "infinite-in-observations": Code("error", "observation", "infinite", CLIP),
    "nan-in-actions": Code("error", "action", "NaN", NAN),
    "infinite-in-actions": Code("error", "action", "infinite", CLIP),
    "nan-in-rewards": Code("error", "reward", "NaN", NAN),
    "infinite-in-rewards": Code("error", "reward", "infinite", CLIP),
    "nan-in-extras": Code("warning", "step", "NaN in an extra model output", "leave the column out unless you need it"),
    "infinite-in-extras": Code("warning", "step", "infinite in an extra model output", "masked logits may be; else drop it"),
    "spaces-inferred": Code("note", "source", "without declared spaces, so that nothing lies outside them", "give --env"),
    "action-scale-unknown": Code("note", "source", "whose Box actions are of unknown scale", "give --action-scale"),
    "assumption": Code(
        "note", "assumption", "made in reading or writing it", 'check that they hold; see "Assumptions" in the documentation'
    ),
    # ---- dataset folders ----
    "uncommitted": Code("error", "dataset", "whose writer has not finished", "the same command with --resume, or repair"),
    "broken-manifest": Code("error", "mistake", "in manifest.json", "offline-cli convert D/data --out NEW"),
    "missing-shard": Code("error", "shard", "listed in the manifest, and not there", DROP),
    "shard-size": Code("error", "shard", "size differs from the manifest", DROP),
    "shard-hash": Code("error", "shard", "other content than the manifest's sha256 says, maybe another shard's", DROP),
    "shard-columns": Code("error", "shard", "other columns than the manifest's spaces ask for", AGAIN),
    "count-mismatch": Code("error", "count", "other than the manifest says", AGAIN),
    "unlisted-file": Code("error", "file", "in data/ and not in the manifest", "move it away", HIDDEN),
    "leftover-file": Code("warning", "file", "half-written, left by a writer that was killed", "offline-cli repair removes it"),
    "incomplete-dataset": Code("warning", "dataset", "incomplete, by its manifest", "the same command with --resume"),
    "damaged-quarantine": Code("warning", "file", "of rows set aside that cannot be read (--deep)", "remove it"),
    "quarantined-rows": Code("note", "file", "of rows that were set aside on writing", "see what is in quarantine/"),
}


PLACES: Final = 10  # places shown for each problem
SILENT: Final = frozenset({"null-as-nan", "unreadable-row"})
"""Assumptions that other checks report."""
LASTING: Final = frozenset(
    {"broken-chain", "dones-disagree", "gap-in-t", "missing-final-observation", "missing-rewards", T_FALLS, UNFINISHED}
)
"""Assumptions that remain problems of the dataset written with them."""
RENAMED: Final[dict[str, tuple[str, Severity]]] = {
    "gap-in-t": ("gap-in-episode", "warning"),  # in tables, which keep the gap
    "duplicate-row": ("repeated-steps", "note"),
}
"""Assumptions that are reported under another code."""
KEYS: Final = ("code", "severity", "where", "what", "fix", "count", "source", "details")


@dataclass(slots=True)
class Found:
    """Occurrences of one kind of problem, reported by a check."""

    code: str  # of CODES
    times: int = 1
    places: Iterable[str] = ()  # as text; consumed only as far as shown
    episodes: Iterable[str] = ()  # ids of all affected episodes
    severity: Severity | None = None  # None: the code's default
    example: str = ""  # describes the first occurrence
    fix: str = ""  # empty: the code's fix
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_all(cls, code: str, batch: EpisodeBatch, example: str, severity: Severity | None = None) -> Found:
        """A problem that all episodes of `batch` have."""
        return cls(code, len(batch), (f"episode {name}" for name in batch.ids), batch.ids, severity, example)


@dataclass(slots=True)
class Problem:
    """One kind of problem in one source."""

    source: str  # folder, files or URL
    code: str  # see docs/reference/checks.md
    severity: Severity
    count: int = 0  # in the code's unit
    places: list[str] = field(default_factory=list)  # the first 10
    episodes: dict[str, None] = field(default_factory=dict)  # ids of affected episodes, where known
    example: str = ""  # the first occurrence, as text
    remedy: str = ""  # replaces the code's fix
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The first place."""
        return self.places[0] if self.places else self.source

    @property
    def what(self) -> str:
        """Count and meaning."""
        known = CODES[self.code]
        unit = f"{self.count:,} {known.unit}{'s' * (self.count != 1)}"
        made = f"{unit} {'was' if self.count == 1 else 'were'} made"
        what = made if self.code == "assumption" else f"{unit}: {known.meaning}"
        return f"{what}: {self.example}" if self.example else what

    @property
    def fix(self) -> str:
        """The remedy."""
        return self.remedy or CODES[self.code].fix

    @property
    def details(self) -> dict[str, Any]:
        """Places, ids of episodes if known, and further details."""
        episodes = {"episodes": list(self.episodes)} if self.episodes else {}
        return {"places": self.places, **episodes, **self.more}

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in KEYS}


@dataclass(frozen=True, slots=True)
class Validation:
    """All problems of one or more sources, and the amount of checked data."""

    problems: tuple[Problem, ...]  # by source, worst first
    sources: tuple[str, ...]
    formats: tuple[str, ...]  # of the sources that could be opened
    episodes: int  # whole episodes, without duplicates
    steps: int
    rows: int  # table rows, JSON lines, packed episodes
    deep: bool  # whether quarantined rows were read too
    strict: bool  # whether warnings count as failures
    seconds: float
    agents: Mapping[str, int] = field(default_factory=dict)  # episodes by agent id, if any
    modules: Mapping[str, int] = field(default_factory=dict)  # episodes by module id, if any

    @property
    def counts(self) -> dict[Severity, int]:
        """Problems by severity."""
        found = Counter(problem.severity for problem in self.problems)
        return {severity: found[severity] for severity in SEVERITIES}

    @property
    def passed(self) -> bool:
        """Whether there are no errors, and under `strict` no warnings."""
        return not self._failing()

    def _failing(self) -> list[Problem]:
        failing = SEVERITIES[: 2 if self.strict else 1]
        return [problem for problem in self.problems if problem.severity in failing]

    def check(self) -> None:
        """Raise InvalidData unless `passed`; it names the worst problem, and its `result` is `as_dict()`."""
        if failing := self._failing():
            worst, more = failing[0], len(failing) - 1
            what = f"{worst.code}: {worst.what}" + (f" (and {more} more problem{'s' * (more > 1)})" if more else "")
            raise InvalidData(what, where=worst.where, fix=worst.fix, result=self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        agents = {name: dict(found) for name in ("agents", "modules") if (found := known.pop(name))}
        lists = {name: list(known[name]) for name in ("sources", "formats")}
        problems = [problem.as_dict() for problem in self.problems]
        severities = {f"{severity}s": count for severity, count in self.counts.items()}
        return {**known, **agents, **lists, **severities, "problems": problems, "passed": self.passed}


class Findings:
    """Collects problems by source and code."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}  # by source and code

    def add(self, source: str, found: Found) -> None:
        """Add occurrences in `source`; if severities differ, the worse one is kept."""
        severity = found.severity or CODES[found.code].severity
        entry = self._problems.setdefault((source, found.code), Problem(source, found.code, severity))
        entry.severity = min(entry.severity, severity, key=SEVERITIES.index)
        entry.count += found.times
        entry.places += map(short_place, islice(found.places, PLACES - len(entry.places)))
        entry.example, entry.remedy = entry.example or found.example, entry.remedy or as_convert_would(found.fix)
        entry.more.update(found.details)
        entry.episodes.update(dict.fromkeys(found.episodes))

    def add_error(self, source: str, error: OfflineCliError, code: str, count: int = 1) -> None:
        """Add an error of reading under its own problem code, or else under `code`."""
        named = str(error.details.get(PROBLEM, error.code))
        code = named if named in CODES else code
        found = Found(code, count, [error.where], example=error.what_in_one_line, fix=error.fix)
        self.add(
            source, replace(found, example="", fix="") if code == OTHER_SHARD else found
        )  # its text advises to run validate

    def has(self, source: str, *codes: str) -> bool:
        """Whether `source` has any of these problems; without codes, whether it has any error."""
        found = [one for one in self._problems.values() if one.source == source]
        return any(one.code in codes if codes else one.severity == "error" for one in found)

    def problems(self, sources: Iterable[str]) -> tuple[Problem, ...]:
        """All problems, in the order of `sources`, worst first."""
        order, codes = {source: i for i, source in enumerate(sources)}, list(CODES)

        def rank(one: Problem) -> tuple[int, int, int]:
            return order.get(one.source, len(order)), SEVERITIES.index(one.severity), codes.index(one.code)

        return tuple(sorted(self._problems.values(), key=rank))


class ListeningTally(Tally):
    """Reports each assumption that has its own code, and collects the rest by source."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings
        self._counted: dict[str, Counter[str]] = {}  # by source: assumptions to report at the end
        self._dropped: dict[str, dict[str, str]] = {}  # by source: reasons by dropped column

    def assume(self, kind: str, times: int = 1, *, places: Callable[[], Iterable[str]] | None = None) -> None:
        """Count and report."""
        super().assume(kind, times)
        code, severity = RENAMED.get(kind, (kind, None))
        if times and code in CODES:
            known = list(places()) if places is not None and CODES[code].unit in ("episode", "gap", "joint") else []
            episodes = [place.episode for place in known if isinstance(place, EpisodePlace)]
            self._findings.add(self.location, Found(code, times, self._placed(places), episodes, severity))
        elif times and kind not in SILENT:
            self._counted.setdefault(self.location, Counter())[kind] += times

    def inherit(self, source: str, counts: Mapping[str, int], *, were_dropped: bool) -> None:
        """Report the assumptions in the manifest of dataset `source` as if reading its source.

        `were_dropped`: episodes with problems have been left out since, so that these are notes.
        """
        for kind in LASTING & counts.keys():
            code, severity = RENAMED.get(kind, (kind, None))
            severity = "note" if were_dropped else severity
            more: dict[str, Any] = {"example": "counted when it was written", "details": {"inherited": counts[kind]}}
            self._findings.add(source, Found(code, counts[kind], [source], severity=severity, **more))

    def _placed(self, places: Callable[[], Iterable[str]] | None) -> Iterator[str]:
        """The places, prefixed by the source if they name only an episode."""
        for place in () if places is None else places():
            yield f"{self.location}, {place}" if place.startswith("episode ") else place

    def drop_column(self, name: str, reason: str) -> None:
        """Count the column, and keep its name by source."""
        known = name in self.dropped_columns
        super().drop_column(name, reason)
        if not known:
            self._dropped.setdefault(self.location, {})[name] = reason

    def drop_duplicate(self, place: Callable[[], str]) -> None:
        """Count and report."""
        super().drop_duplicate(place)
        self._findings.add(self.location, Found("duplicate-episode", 1, self._placed(lambda: [place()])))

    def tell_counted(self) -> None:
        """Report the other assumptions as one note for each source, with the names of dropped columns."""
        for source, counts in self._counted.items():
            if kinds := {kind: count for kind, count in sorted(counts.items()) if count > 0}:
                dropped = self._dropped.get(source, {}) if DROPPED in kinds else {}
                named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
                named += f" ({', '.join(f'{name}: {reason}' for name, reason in dropped.items())})" if dropped else ""
                details = {"kinds": kinds, **({"dropped_columns": dropped} if dropped else {})}
                self._findings.add(source, Found("assumption", sum(kinds.values()), example=named, details=details))


class ListeningRejects(Rejects):
    """Skips bad rows and reports each error: unreadable rows one by one, each broken episode once."""

    def __init__(self, findings: Findings, tally: Tally) -> None:
        super().__init__(OnError.SKIP)
        self._findings, self._tally = findings, tally

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Count and report; the parts of a rejected episode share one error."""
        is_new = error is not self._last and ANOTHER_PART not in error.details
        super().add(error, rows=rows)
        if is_new:
            whole_thing = PROBLEM in error.details and error.details[PROBLEM] != "length-mismatch"
            self._findings.add_error(self._tally.location, error, "unreadable-row", 1 if whole_thing else rows)
