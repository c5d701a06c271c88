"""The whole episodes of opened sources: `stitched` reads them, `WholeEpisodes` reads ahead as far as spaces are unknown.

`ExtraOutputs` says which extra model outputs of several sources are kept, before structures are compared: outputs that an
algorithm does not use must not decide whether sources can be combined for training.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, cast

import numpy as np

from offline_cli.converting.fitting import Extremes, check_same_extra, check_same_shapes, extra_dtypes, in_words
from offline_cli.converting.reset_rows import Resets
from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import EarlierEpisodes
from offline_cli.errors import PROBLEM, BadEpisode, NoData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, give_back_near, one_heap_near, room_for_data
from offline_cli.formats.source import ROWS, Fragments, Source, SourceInfo
from offline_cli.progress import OnProgress, Progress
from offline_cli.spaces import Space
from offline_cli.stop_signals import check
from offline_cli.tally import INCOMPLETE, OnError, Reject, Rejects, Tally

KEEP = 256 << 20  # bytes of episodes held while spaces are inferred, or an eighth of the memory for data


@dataclass(slots=True, eq=False)
class ExtraOutputs:
    """The names that are kept; for one reading, or several of the same sources."""

    names: Collection[str]
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: which source has which form of it
    _first: tuple[str, frozenset[str]] | None = None  # the first source, and what it has of `names`

    @classmethod
    def shared(cls, sources: Sequence[Source]) -> ExtraOutputs:
        """Those that all `sources` have in one form. Reads the first batch of each source. Raises what reading raises."""
        firsts = {source.info.location: first_batch(source) for source in sources}
        forms = {
            place: {} if batch is None else {name: in_words(tree) for name, tree in batch.extra.items()}
            for place, batch in firsts.items()
        }
        names = dict.fromkeys(name for known in forms.values() for name in known)
        left_out = {
            name: ", ".join(f"{known.get(name, 'none')} in {place}" for place, known in forms.items())
            for name in names
            if len({known.get(name) for known in forms.values()}) > 1
        }
        return cls([name for name in names if name not in left_out], left_out)

    def of(self, batch: EpisodeBatch, location: str) -> EpisodeBatch:
        """`batch`, from the source `location`, with the outputs that are kept. Raises BadEpisode where it lacks one."""
        kept = {name: tree for name, tree in batch.extra.items() if name in self.names}
        first, known = self._first = self._first or (location, frozenset(kept))
        if location != first and known != kept.keys():
            name = min(known ^ kept.keys())
            has, lacks = (first, location) if name in known else (location, first)
            what = f"the extra model output {name!r} is used, and only some of the sources have it: {has} has, {lacks} does not"
            fix = "leave the source out, or train through pieces that do not use this output"
            raise BadEpisode(what, where=lacks, fix=fix, details={PROBLEM: "mixed-structures"})
        return batch if len(kept) == len(batch.extra) else replace(batch, extra=kept)


Extras = Callable[[Sequence[Source]], ExtraOutputs | None] | None
CHOSEN: Final[Mapping[str, Extras]] = {"union": None, "common": ExtraOutputs.shared, "drop": lambda _: ExtraOutputs(())}
"""What chooses the outputs to keep, by what an option calls it; None: all are kept, and have to be the same ones."""


def first_batch(source: Source, on_error: OnError = OnError.FAIL) -> EpisodeBatch | None:
    """The first batch of a source; None: there is none. Raises what reading raises."""
    with closing(source), closing(cast(Any, source.fragments(Tally(), Rejects(on_error)))) as fragments:
        first: Fragments | None = next(fragments, None)
    return None if first is None else first.batch


# ---- reading and stitching ----


def stitched(
    sources: Sequence[Source],
    stitcher: Stitcher,
    on_progress: OnProgress,
    extras: ExtraOutputs | None = None,
    limit: int | None = None,
) -> Iterator[EpisodeBatch]:
    """The whole episodes of `sources`, in their order; while a batch is passed on, `tally.location` is that of its source.

    `limit`: only the first so many; of what was read with the last of them, no further episode is counted.
    """
    for source in sources:
        location = source.info.location
        for fragments in source.fragments(stitcher.tally, stitcher.rejects):
            check()
            if extras is not None:
                fragments = replace(fragments, batch=extras.of(fragments.batch, location))
            if limit is None:
                yield from stitcher.feed(fragments, location)
            else:
                for done in _fed(stitcher, fragments, location, limit):
                    limit -= len(done)
                    yield done
                if not limit:
                    return
            on_progress(_progress(sources, stitcher.tally))
    yield from stitcher.finish(limit)


def _fed(stitcher: Stitcher, fragments: Fragments, location: str, limit: int) -> Iterator[EpisodeBatch]:
    """As `stitcher.feed`, up to `limit` episodes. As many entries as are left cannot complete too many: each completes one."""
    first, batch, origins = 0, fragments.batch, fragments.origins
    while limit and first < len(batch):
        part = slice(first, first + limit)
        for done in stitcher.feed(Fragments(batch.select(part), origins and origins.taken(part)), location):
            limit -= len(done)
            yield done
        first = part.stop


def _progress(sources: Sequence[Source], tally: Tally) -> Progress:
    """How far the sources have been read: in rows, or in kB where all count bytes, as far as their sizes are known."""
    sizes, units = [source.size for source in sources], {source.unit for source in sources}
    if None in sizes or len(units) > 1:
        return Progress("reading", tally.rows_in, None, ROWS)
    total, done = sum(filter(None, sizes)), sum(source.done for source in sources)
    if units == {ROWS}:
        return Progress("reading", min(done, total), total, ROWS)
    return Progress("reading", -(-min(done, total) // 1000), -(-total // 1000), "kB", {ROWS: tally.rows_in})


# ---- one reading, read ahead ----


@dataclass(frozen=True, slots=True)
class AddedTo:
    """The dataset that episodes are added to: as a source that all others must agree with, and that is not read."""

    info: SourceInfo
    episodes: EarlierEpisodes
    first: EpisodeBatch | None  # of them, one or more; None: it has none


@dataclass(slots=True)
class WholeEpisodes:
    """One reading of `sources`; `tally` and `rejects` are complete when the episodes have been drawn.

    Sources without an episode raise. Rows that `quarantine` sets aside are only counted before `set_aside_to` is called.
    """

    sources: Sequence[Source]
    on_error: OnError
    on_progress: OnProgress
    limit: int | None = None  # episodes; nothing is read, counted or inferred beyond them
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole conversion may take
    episode_limit: EpisodeLimit | None = None  # None: episodes are of any size
    extras: ExtraOutputs | None = None  # None: all extra model outputs are kept
    added_to: AddedTo | None = None  # the dataset that the episodes are added to
    drop_reset_rows: bool = False  # all is read once more, to find them
    tally: Tally = field(default_factory=Tally)
    rejects: Rejects = field(default_factory=Rejects)
    extra_dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)  # that hold all values, once spaces are inferred
    extremes: Extremes = field(default_factory=Extremes)  # that they are inferred from
    location: str = ""  # the source of the batch that was passed on last
    _assumed: Counter[str] = field(default_factory=Counter)  # by the caller, of all the sources
    _ahead: deque[tuple[str, EpisodeBatch]] = field(default_factory=deque)  # drawn already, with their sources
    _rest: Iterator[tuple[str, EpisodeBatch]] = field(default_factory=lambda: iter(()))
    stitcher: Stitcher = field(init=False)
    _resets: dict[str, Resets] = field(default_factory=dict)  # by location; what is left out of each batch that is drawn

    def __post_init__(self) -> None:
        if self.episode_limit is not None:
            one_heap_near(self.memory_limit)
            for source in self.sources if self.limit is None else ():
                self.episode_limit.check_longest(source.info.longest, source.info.spaces, source.info.location)
        self._begin()
        if self.drop_reset_rows:
            found: dict[str, Resets] = {}
            for batch in self:
                found.setdefault(self.location, Resets()).see(batch)
            self._resets = found
            self._begin()

    def _begin(self, keep: Callable[[list[Reject]], None] | None = None) -> None:
        """Read from the start, in place of a reading that may have stopped in the middle. `keep`: gets the rows set aside."""
        for source in self.sources:
            source.close()
        on_error = OnError.SKIP if keep is None and self.on_error is OnError.QUARANTINE else self.on_error
        self.rejects, self._ahead = Rejects(on_error, keep=keep), deque()
        self.tally.rows_in = self.tally.duplicates_dropped = self.tally.fragments_stitched = 0
        self.tally.dropped_columns.clear()
        self.tally.assumptions = self._assumed.copy()
        for source in self.sources:
            self.tally.assumptions += source.info.inherited
            if source.info.manifest is not None and not source.info.manifest.complete:
                self.tally.assume(INCOMPLETE)
        earlier = None if self.added_to is None else self.added_to.episodes
        self.stitcher = Stitcher(self.tally, self.rejects, self.episode_limit, earlier)
        for resets in self._resets.values():
            resets.look()
        self._rest = self._drawn(stitched(self.sources, self.stitcher, self.on_progress, self.extras, self.limit))

    def _drawn(self, batches: Iterator[EpisodeBatch]) -> Iterator[tuple[str, EpisodeBatch]]:
        for batch in batches:
            location = self.tally.location
            resets = self._resets.get(location)
            drawn = batch if resets is None else resets.without(batch, self.tally)
            if len(drawn):
                yield location, drawn
            del batch, drawn  # nothing is held while the next is read

    def __iter__(self) -> Iterator[EpisodeBatch]:
        while (one := self._ahead.popleft() if self._ahead else next(self._rest, None)) is not None:
            self.location, batch = one
            yield batch
            del one, batch  # nothing is held while the next is read
        self.rejects.hand_on()

    def set_aside_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """Under QUARANTINE, read from the start, and pass the rows set aside to `keep`, in groups."""
        if self.on_error is OnError.QUARANTINE:
            self._begin(keep)

    def assume(self, kind: str, times: int) -> None:
        """Count assumptions on all the sources, whichever reading of them is the last."""
        self.tally.assume(kind, times)
        self._assumed[kind] += times

    def give_back(self) -> None:
        """Return free memory to the system, where the process is near a limit that somebody keeps to."""
        if self.episode_limit is not None:
            give_back_near(self.memory_limit)

    def first(self) -> EpisodeBatch:
        """The first batch, which stays to be read; where all repeat the dataset that they are added to, the first of that.

        Raises NoData where there is none.
        """
        if not self._ahead:
            self._ahead.extend([one] if (one := next(self._rest, None)) is not None else [])
        if self._ahead:
            return self._ahead[0][1]
        if self.tally.duplicates_dropped and self.added_to is not None and self.added_to.first is not None:
            return self.added_to.first
        lost = f": {self.rejects.count:,} rows could not be read, or are of such episodes" if self.rejects.count else ""
        fix = "--on-error fail shows the first bad row" if lost else "check that the recording wrote any steps"
        where = ", ".join(source.info.location for source in self.sources)
        raise NoData(f"no episode is in the source{lost}", where=where, fix=fix)

    def inferred_spaces(self) -> tuple[Space, Space]:
        """Observation and action space that all episodes fit. Raises BadEpisode where no space has the shapes of all.

        Episodes are held until their spaces are known, as far as memory allows; where it does not, all are read again.
        """
        first, size = self.first(), 0
        held, keep = deque[tuple[str, EpisodeBatch]](), min(KEEP, room_for_data(self.memory_limit) // 8)
        for location, batch in chain(self._ahead, self._rest):
            check_same_shapes(first, batch)
            self.extremes.see(batch)
            size += batch.nbytes
            held.append((location, batch))
            if size > keep:
                held.clear()
        self._ahead, self.extra_dtypes = held, self.extremes.extra_dtypes
        if size > keep:
            self._begin()
        return self.extremes.spaces()

    def agree_on_extras(self, check_spaces: Callable[[EpisodeBatch], None]) -> None:
        """Find dtypes that hold the extra model outputs of all sources, by their first batches: spaces do not cover these.

        `check_spaces` may raise for the spaces that a batch declares. Raises BadEpisode where the sources have different
        outputs, before any of them is passed on.
        """
        first = self.first()
        if self.limit is not None or len(self.sources) == 1 or not first.num_steps:
            return
        self.extremes.see_extra(first)
        for source in self.sources[1:]:
            batch = first_batch(source, OnError.SKIP)
            if batch is not None and batch.num_steps:
                check_spaces(batch)
                batch = batch if self.extras is None else self.extras.of(batch, source.info.location)
                check_same_extra(first, batch)
                self.extremes.see_extra(batch)
        self.extra_dtypes = self.extremes.extra_dtypes

    def fit_into(self, dataset: EpisodeBatch) -> None:
        """Give extra model outputs the dtypes of the dataset that they are added to. Raises BadEpisode where it has others."""
        check_same_extra(dataset, self.first())
        self.extra_dtypes = extra_dtypes(dataset)
