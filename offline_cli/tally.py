"""Counts of everything a reading or conversion assumed, dropped, repaired or rejected, by kind; nothing is guessed silently.

Every reader gets one `Tally` and one `Rejects`. The tally goes into the command's result and the manifest. The rejects apply
`--on-error` to a bad row: fail, count it, or write it to `quarantine/` with reason and place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsupportedSpace

UNFINISHED: Final = "unfinished-episode"  # assumed: an interrupted episode was truncated there
MISSING_FINAL: Final = "missing-final-observation"  # assumed: the last observation equals the previous one
INCOMPLETE: Final = "incomplete-source"  # assumed: an incomplete dataset holds all episodes
CHANGED: Final = "changed-code"  # assumed: it is one recording although its code or an option changed
MISSING_REWARDS: Final = "missing-rewards"  # assumed: a step without a reward had the reward 0
DROPPED: Final = "dropped-column"  # assumed: the column belongs to no part of an episode
T_FALLS: Final = "t-falls-back"  # assumed: the rows of a table are in order although `t` decreases
FALLEN: Final = (
    "note: t decreases in %d row%s inside episodes that are split by end flags or by the chain of observations: if the rows are"
    " not in order, map eps_id, or split where t decreases (--episode-ends t); validate names the places"
)
DONES: Final = "dones-as-terminateds"  # assumed: a legacy end flag is a termination, and no time limit
AT_LIMIT: Final = (
    "note: %d of the episodes that `dones` end, read as terminated, have %d steps, the time limit of %s: if it ended them,"
    " record `truncateds`, or set `terminated` and `truncated` from Python (write_dataset)"
)
SHOWN: Final = 10  # rejects listed in a result
KEPT_ROWS: Final = 1000  # rejects buffered before `keep` is called
KEPT_BYTES: Final = 4 << 20  # likewise, in bytes
Places = Callable[[], Iterable[str]]  # descriptions of places, computed only on demand
NOT_COPIED: Final = "not copied; see its source"


class EpisodePlace(str):
    """The place of an episode, as text, with the episode's id."""

    __slots__ = ("episode",)
    episode: str

    def __new__(cls, words: str, episode: str) -> EpisodePlace:
        place = super().__new__(cls, words)
        place.episode = episode
        return place


class OnError(StrEnum):
    """How to handle a row that cannot be read (`--on-error`)."""

    FAIL = "fail"  # raise its error
    SKIP = "skip"  # count it
    QUARANTINE = "quarantine"  # count it and keep it, with reason and place


class Lost(StrEnum):
    """Why an episode of the source is missing from the result; kinds of assumptions, see docs/reference/assumptions.md."""

    BAD_ROW = "lost-episode-bad-row"  # one of its rows is unreadable, so the rest is no whole episode
    UNREADABLE = (
        "lost-episode-unreadable"  # an unreadable packed episode, line or file of episodes (one if their number is unknown)
    )
    CONFLICT = "lost-episode-conflict"  # another episode has its id, or its own rows contradict each other
    GAP = "lost-episode-gap"  # steps are missing
    STEPS_AFTER_END = "lost-episode-steps-after-end"  # it continues after an end flag
    MIXED_STRUCTURES = "lost-episode-mixed-structures"  # its fragments have different columns or shapes


GAP, LOST, CONFLICT = "gap-in-episode", "incomplete-episode", "conflicting-episode"
AFTER, MIXED = "steps-after-end", "mixed-structures"
ANOTHER_PART: Final = "another_part"  # key in an error's details: the episode was rejected before and is counted once
REASONS: Final = {
    GAP: Lost.GAP,
    LOST: Lost.BAD_ROW,
    CONFLICT: Lost.CONFLICT,
    AFTER: Lost.STEPS_AFTER_END,
    MIXED: Lost.MIXED_STRUCTURES,
}
"""`Lost` by problem code (`PROBLEM`), for episodes whose rows are readable."""


OF_THE_PAGE: Final = """
    actions-rescaled agent-not-kept alpha-left-out bad-row-of-unknown-episode broken-chain broken-shard-left-out
    changed-code clock-not-kept custom-data-not-kept datetime-to-text dones-as-terminateds dones-disagree dropped-column
    dtype-inferred dtype-widened duplicate-episode duplicate-row empty-batch end-flag-before-end eps-id-not-kept
    filled-number filled-previous final-observation-not-kept fps-assumed gap-in-t incomplete-source info-array-to-list
    info-not-a-dict irregular-timestamp jpeg-frames lossy-jpeg lost-episode-bad-row lost-episode-conflict lost-episode-gap
    lost-episode-mixed-structures lost-episode-steps-after-end lost-episode-unreadable meaning-assumed missing-end-flags
    missing-eps-id missing-final-observation missing-rewards missing-t missing-timeouts missing-type mixed-dtypes-widened
    mixed-environments multi-agent-id-not-kept non-string-key-to-text null-as-false null-as-nan numbers-as-text
    padding-removed repeated-steps reset-observation reset-row rows-brought-together set-to-list stitched-fragment
    t-falls-back tuple-to-list unfinished-episode unreadable-row unused-actions unused-observations zero-length-episode
"""
KINDS: Final = frozenset(OF_THE_PAGE.split())
"""Kinds of assumptions listed in docs/reference/assumptions.md; plug-ins may count others."""


@dataclass(slots=True)
class Tally:
    """Counts of one reading; the fields are keys of `convert`'s result."""

    rows_in: int = 0  # table rows, JSON lines, packed episodes
    duplicates_dropped: int = 0  # whole episodes equal to an earlier one, value for value
    fragments_stitched: int = 0  # joints: an episode stitched from k fragments counts k - 1
    assumptions: Counter[str] = field(default_factory=Counter)  # by kind, kebab case: "unfinished-episode": 1
    location: str = ""  # of the source that is being read
    dropped_columns: dict[str, str] = field(default_factory=dict)  # reasons by column name
    first_places: dict[str, str] = field(default_factory=dict)  # by kind of assumption, where the reader knows places

    def assume(self, kind: str, times: int = 1, *, places: Places | None = None) -> None:
        """Count `times` assumptions of `kind`; a negative number raises ValueError.

        `places`: only the first is kept here; `checking/validate` reports more.
        """
        if times < 0:
            raise ValueError(f"{times} assumptions of {kind}")
        if times:
            self.assumptions[kind] += times
            if places is not None and kind not in self.first_places:
                self.first_places[kind] = next(iter(places()), "")

    def add(self, other: Tally) -> None:
        """Add the assumptions and dropped columns of `other`."""
        for kind, times in other.assumptions.items():
            if kind != DROPPED:
                self.assume(kind, times)
        for name, reason in other.dropped_columns.items():
            self.drop_column(name, reason)
        self.first_places = other.first_places | self.first_places

    def merge(self, other: Tally) -> None:
        """Add all counts of `other`, the tally of a part of the same reading."""
        self.add(other)
        self.rows_in += other.rows_in
        self.duplicates_dropped += other.duplicates_dropped
        self.fragments_stitched += other.fragments_stitched

    def drop_column(self, name: str, reason: str) -> None:
        """Count a dropped column once, however many files, lines or sources have it."""
        if name not in self.dropped_columns:
            self.dropped_columns[name] = reason
            self.assume(DROPPED)

    def drop_duplicate(self, place: Callable[[], str]) -> None:
        """Count a duplicate episode; `place`: see `assume`."""
        self.duplicates_dropped += 1


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected row."""

    where: str  # file and row: "part-0.parquet row 17"
    code: str  # the error's code
    reason: str  # the error's text
    raw: bytes  # the row as in the source, or as JSON text; empty if it could not be read at all


@dataclass(slots=True)
class Rejects:
    """Applies `OnError` to every bad row of a reading."""

    on_error: OnError = OnError.FAIL
    count: int = 0  # rejected rows: unreadable ones, and all rows of lost episodes
    unreadable: int = 0  # only the unreadable ones
    problems: int = 0  # errors; one error may reject several rows
    first: list[Reject] = field(default_factory=list)  # the first 10 problems, without `raw`
    kept: list[Reject] = field(default_factory=list)  # under QUARANTINE: rows not yet passed to `keep`
    keep: Callable[[list[Reject]], None] | None = None  # called with `kept` whenever it is full; None: keep all in memory
    incomplete: dict[str, str] = field(default_factory=dict)  # by episode id: where it lost a row, or maybe its first row
    lost: Counter[str] = field(default_factory=Counter)  # episodes missing from the result, by reason (`Lost`)
    _kept_bytes: int = 0
    _last: BadData | UnsupportedSpace | None = field(
        default=None, compare=False
    )  # the parts of one rejected episode share an error

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Raise `error` under FAIL; otherwise count `rows`, and under QUARANTINE keep `raw` (bytes or text).

        UnsupportedSpace is accepted because a row may declare a space that cannot be stored.
        """
        if self.on_error is OnError.FAIL:
            raise error
        self.count += rows
        problem = error.details.get(PROBLEM)
        self.unreadable += rows if problem not in REASONS else 0
        is_new = problem != LOST and error is not self._last  # the rest of an incomplete episode is no new problem
        self.problems, self._last = self.problems + is_new, error
        if is_new and len(self.first) < SHOWN:
            self.first.append(Reject(where=error.where, code=error.code, reason=error.what_in_one_line, raw=b""))
        if self.on_error is OnError.QUARANTINE:
            data = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw)
            reason = error.what_in_one_line if data else f"{error.what_in_one_line} ({NOT_COPIED})"
            self.kept.append(Reject(where=error.where, code=error.code, reason=reason, raw=data))
            self._kept_bytes += len(data)
            if len(self.kept) >= KEPT_ROWS or self._kept_bytes >= KEPT_BYTES:
                self.hand_on()

    def hand_on(self) -> None:
        """Pass the buffered rows to `keep`. Raises what `keep` raises."""
        if self.keep is not None and self.kept:
            kept, self.kept, self._kept_bytes = self.kept, [], 0
            self.keep(kept)

    def lose(self, episode: str, where: str) -> None:
        """Mark `episode` as incomplete: it lost a row at `where`, so its other rows are rejected too.

        The stitcher counts it as lost; a reader calls `lose_episodes` only for episodes that never reach the stitcher.
        """
        self.incomplete.setdefault(episode, where)

    def lose_episodes(self, reason: Lost, times: int = 1) -> None:
        """Count lost episodes; call it after `add`, which raises under FAIL."""
        if times:
            self.lost[reason.value] += times


@dataclass(slots=True)
class RejectsAhead(Rejects):
    """Rejects of a reader that reads ahead: buffered in order, and reported when its turn comes."""

    told: list[tuple[BadData | UnsupportedSpace, Any, int]] = field(default_factory=list)

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Buffer the error; only `tell` raises it."""
        self.count += rows
        self.told.append((error, raw, rows))

    def pass_on(self, later: RejectsAhead) -> None:
        """Append everything to `later`, which will report it."""
        self._give(later.told.append, later)

    def tell(self, rejects: Rejects) -> None:
        """Report everything to `rejects` and clear the buffer. Raises under FAIL."""
        self._give(lambda one: rejects.add(one[0], raw=one[1], rows=one[2]), rejects)

    def _give(self, add: Callable[[tuple[BadData | UnsupportedSpace, Any, int]], None], to: Rejects) -> None:
        told, lost, incomplete = self.told, self.lost, self.incomplete
        self.told, self.lost, self.incomplete = [], Counter(), {}
        for one in told:
            add(one)
        to.lost.update(lost)
        for episode, where in incomplete.items():
            to.lose(episode, where)


def tell_falls(falls: int) -> None:
    """Log in how many rows `t` decreases inside an episode."""
    logging.getLogger(__name__).warning(FALLEN, falls, "s" * (falls != 1))


def tell_time_limit(episodes: int, steps: int, environment: str) -> None:
    """Log how many episodes that `dones` terminated are exactly as long as the environment's time limit."""
    logging.getLogger(__name__).warning(AT_LIMIT, episodes, steps, environment)
