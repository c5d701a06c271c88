"""What a reading or conversion had to assume, drop, repair or set aside, counted by kind; no silent guesses.

Every reader gets one `Tally` and one `Rejects`. The tally ends up in the command's result and in the manifest; the
rejects decide what a bad row does: stop everything, be counted, or be written to `quarantine/` with reason and place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from offline_cli.errors import PROBLEM, BadData, UnsupportedSpace

UNFINISHED: Final = "unfinished-episode"  # the assumption that an episode whose recording was interrupted was truncated there
MISSING_FINAL: Final = "missing-final-observation"  # the assumption that an episode ended with the observation before
INCOMPLETE: Final = "incomplete-source"  # the assumption that what an incomplete dataset holds is all there is
CHANGED: Final = "changed-code"  # the assumption that a recording is one although its code or an option of it changed
MISSING_REWARDS: Final = "missing-rewards"  # the assumption that a step recorded without reward had the reward 0
DROPPED: Final = "dropped-column"  # the assumption that a column is needed for no part of an episode
T_FALLS: Final = "t-falls-back"  # the assumption that rows of a table are in order, although their `t` says otherwise
FALLEN: Final = (
    "note: t falls back in %d row%s inside episodes that only end flags, or the chain of observations, divide: if the rows are"
    " not in order, map eps_id, or divide where t falls (--episode-ends t); validate names the places"
)
SHOWN: Final = 10  # rejects that a result lists
KEPT_ROWS: Final = 1000  # rejects that are held before they are handed on
KEPT_BYTES: Final = 4 << 20  # of them
Places = Callable[[], Iterable[str]]  # where something was seen, put into words only for those who ask
NOT_COPIED: Final = "not copied: it is still where it was found"


class EpisodePlace(str):
    """The place of an episode in words, and its id."""

    __slots__ = ("episode",)
    episode: str

    def __new__(cls, words: str, episode: str) -> EpisodePlace:
        place = super().__new__(cls, words)
        place.episode = episode
        return place


class OnError(StrEnum):
    """What a row that cannot be read does (`--on-error`)."""

    FAIL = "fail"  # end with its error
    SKIP = "skip"  # be counted
    QUARANTINE = "quarantine"  # be counted and kept, with reason and place


class Lost(StrEnum):
    """Why an episode of the source is not in the result, as kinds of assumptions; docs/assumptions.md explains them."""

    BAD_ROW = "lost-episode-bad-row"  # a row of it could not be read, so that what is left of it is no whole episode
    UNREADABLE = "lost-episode-unreadable"  # a packed episode, or a line or file of episodes, which counts as one
    CONFLICT = "lost-episode-conflict"  # another one has its id, or its own rows contradict each other
    GAP = "lost-episode-gap"  # steps of it are missing
    STEPS_AFTER_END = "lost-episode-steps-after-end"  # it continues after an end flag
    MIXED_STRUCTURES = "lost-episode-mixed-structures"  # its parts have other columns or shapes


GAP, LOST, CONFLICT = "gap-in-episode", "incomplete-episode", "conflicting-episode"
AFTER, MIXED = "steps-after-end", "mixed-structures"
ANOTHER_PART: Final = "another_part"  # among an error's details: its episode was refused before, and is counted once
REASONS: Final = {
    GAP: Lost.GAP,
    LOST: Lost.BAD_ROW,
    CONFLICT: Lost.CONFLICT,
    AFTER: Lost.STEPS_AFTER_END,
    MIXED: Lost.MIXED_STRUCTURES,
}
"""By the problem (`PROBLEM`) of an episode whose rows can be read."""


OF_THE_PAGE: Final = """
    actions-rescaled agent-not-kept alpha-left-out bad-row-of-unknown-episode broken-chain broken-shard-left-out
    changed-code clock-not-kept custom-data-not-kept datetime-to-text dones-as-terminateds dones-disagree dropped-column
    dtype-inferred dtype-widened duplicate-episode duplicate-row empty-batch end-flag-before-end eps-id-not-kept
    filled-number filled-previous final-observation-not-kept fps-assumed gap-in-t incomplete-source
    infinite-in-actions infinite-in-extras infinite-in-observations infinite-in-rewards info-array-to-list info-not-a-dict
    irregular-timestamp jpeg-frames lossy-jpeg lost-episode-bad-row lost-episode-conflict
    lost-episode-gap lost-episode-mixed-structures lost-episode-steps-after-end lost-episode-unreadable meaning-assumed
    missing-end-flags missing-eps-id missing-final-observation missing-rewards missing-t missing-timeouts missing-type
    mixed-dtypes-widened mixed-environments multi-agent-id-not-kept nan-in-actions nan-in-extras nan-in-observations
    nan-in-rewards non-string-key-to-text null-as-false null-as-nan numbers-as-text padding-removed
    repeated-steps reset-observation reset-row rows-brought-together set-to-list
    stitched-fragment t-falls-back tuple-to-list unfinished-episode unreadable-row unused-actions unused-observations
    zero-length-episode
"""
KINDS: Final = frozenset(OF_THE_PAGE.split())
"""Of assumptions, those of docs/assumptions.md; packages may count others."""


@dataclass(slots=True)
class Tally:
    """Counts of one reading; the fields are the keys that `convert` reports."""

    rows_in: int = 0  # rows of tables, lines of JSON, packed episodes
    duplicates_dropped: int = 0  # whole episodes that were there before, value for value
    fragments_stitched: int = 0  # joints: an episode put together from k fragments counts k - 1
    assumptions: Counter[str] = field(default_factory=Counter)  # by kind, kebab case: "unfinished-episode": 1
    location: str = ""  # of the source that what is counted now belongs to
    dropped_columns: dict[str, str] = field(default_factory=dict)  # columns that were left out, by name, and why

    def assume(self, kind: str, times: int = 1, *, places: Places | None = None) -> None:
        """Count `times` assumptions of `kind`, never fewer than none: what may still change is counted when it is known.

        `places` is for tallies that keep more than counts (`checking/validate`).
        """
        if times < 0:
            raise ValueError(f"{times} assumptions of {kind}")
        if times:
            self.assumptions[kind] += times

    def add(self, other: Tally) -> None:
        """Count the assumptions that `other` counted, and the columns that it left out."""
        for kind, times in other.assumptions.items():
            if kind != DROPPED:
                self.assume(kind, times)
        for name, reason in other.dropped_columns.items():
            self.drop_column(name, reason)

    def merge(self, other: Tally) -> None:
        """Add all that `other` counted, of a part of the same reading."""
        self.add(other)
        self.rows_in += other.rows_in
        self.duplicates_dropped += other.duplicates_dropped
        self.fragments_stitched += other.fragments_stitched

    def drop_column(self, name: str, reason: str) -> None:
        """Count a column that becomes no part of an episode: once, however many files, lines or sources have it."""
        if name not in self.dropped_columns:
            self.dropped_columns[name] = reason
            self.assume(DROPPED)

    def drop_duplicate(self, place: Callable[[], str]) -> None:
        """Count an episode that was there before; `place` as in `assume`."""
        self.duplicates_dropped += 1


@dataclass(frozen=True, slots=True)
class Reject:
    """One row set aside."""

    where: str  # file and row: "part-0.parquet row 17"
    code: str  # the error's code
    reason: str  # the error's text
    raw: bytes  # the row as it stood in the source, or as JSON text; may be empty when it could not be read at all


@dataclass(slots=True)
class Rejects:
    """Applies one `OnError` choice to every bad row of a reading."""

    on_error: OnError = OnError.FAIL
    count: int = 0  # rows set aside: those that cannot be read, and those of episodes that are left out
    unreadable: int = 0  # the first of these alone
    problems: int = 0  # errors for which rows were set aside: one may cost several
    first: list[Reject] = field(default_factory=list)  # the first 10 of these, without `raw`, to be shown
    kept: list[Reject] = field(default_factory=list)  # only under QUARANTINE: those that `keep` has not been given yet
    keep: Callable[[list[Reject]], None] | None = None  # is given `kept` whenever that is full; None: all are held
    incomplete: dict[str, str] = field(default_factory=dict)  # by id: where an episode lost a row, or may have lost its first
    lost: Counter[str] = field(default_factory=Counter)  # episodes that are not in the result, by reason (`Lost`)
    _kept_bytes: int = 0
    _last: BadData | UnsupportedSpace | None = field(
        default=None, compare=False
    )  # several parts of one refused episode come with one error

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """Raise `error` under FAIL; otherwise count `rows`, and under QUARANTINE keep `raw` (bytes or text).

        A row whose own space cannot be stored is a bad row, although UnsupportedSpace is also what a config may raise.
        """
        if self.on_error is OnError.FAIL:
            raise error
        self.count += rows
        problem = error.details.get(PROBLEM)
        self.unreadable += rows if problem not in REASONS else 0
        is_new = problem != LOST and error is not self._last  # the rest of an episode that lost a row is no problem of its own
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
        """Give `keep` what is held. Raises what that raises."""
        if self.keep is not None and self.kept:
            kept, self.kept, self._kept_bytes = self.kept, [], 0
            self.keep(kept)

    def lose(self, episode: str, where: str) -> None:
        """Say that `episode` lost a row at `where`, so that the rest of it is no whole episode and is set aside too.

        Stitching counts it among the lost ones; a reader counts (`lose_episodes`) only those that stitching never hears of.
        """
        self.incomplete.setdefault(episode, where)

    def lose_episodes(self, reason: Lost, times: int = 1) -> None:
        """Count episodes of which nothing is passed on; after `add`, which raises under FAIL."""
        if times:
            self.lost[reason.value] += times


@dataclass(slots=True)
class RejectsAhead(Rejects):
    """What a reader that is ahead of its turn would have added: kept, in order, to be reported when its turn comes."""

    told: list[tuple[BadData | UnsupportedSpace, Any, int]] = field(default_factory=list)

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """See Rejects; nothing is raised before `tell`."""
        self.count += rows
        self.told.append((error, raw, rows))

    def pass_on(self, later: RejectsAhead) -> None:
        """Leave it to `later` to tell all of it, after what that has."""
        self._give(later.told.append, later)

    def tell(self, rejects: Rejects) -> None:
        """Add all of it to `rejects`, and forget it. Raises under FAIL."""
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
    """Log that `t` was seen to fall inside so many episodes."""
    logging.getLogger(__name__).warning(FALLEN, falls, "s" * (falls != 1))
