"""The whole episodes of opened sources, read ahead as far as their spaces are unknown, with the extra outputs to keep.

* `ExtraOutputs`: which extra model outputs of several sources are kept, decided before structures are compared. Outputs that an
  algorithm does not use must not decide whether sources can be combined for training. So a reader names the outputs that it
  needs, and only these reach `EpisodeBatch`; or it takes those that all sources share (same names, dtypes and shapes), where it
  is unknown which of them pieces of a pipeline use. `left_out` reports why the others are missing.
* `WholeEpisodes`: the stream. Sources without an episode raise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, cast

import msgpack
import numpy as np

from offline_cli.converting.fitting import (
    Extremes,
    check_same_extra,
    check_same_extra_names,
    check_same_shapes,
    check_same_values,
    extra_dtypes,
)
from offline_cli.converting.limiting import RejectsInTurn, fed
from offline_cli.converting.reset_rows import Resets
from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import EarlierEpisodes
from offline_cli.errors import PROBLEM, BadEpisode, NoData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, give_back_near, one_heap_near, room_for_data
from offline_cli.formats.source import ROWS, Fragments, Scannable, Source, SourceInfo
from offline_cli.progress import OnProgress, Progress
from offline_cli.spaces import Space
from offline_cli.stop_signals import check
from offline_cli.storage.temp_files import TempFile
from offline_cli.tally import INCOMPLETE, OnError, Reject, Rejects, Tally
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["CHOSEN", "AddedTo", "ExtraOutputs", "WaitingRejects", "WholeEpisodes", "first_batch", "stitched"]

FIX = "leave the source out, or train through pieces that do not use this output"

KB = 1000
HALVES = "surrogatepass"  # a place or an id may hold half a surrogate pair
KEEP = 256 << 20  # bytes of episodes held while spaces are inferred, or an eighth of the memory for data


@dataclass(slots=True, eq=False)
class ExtraOutputs:
    """The names that are kept; for one reading, or several of the same sources."""

    names: Collection[str]
    left_out: Mapping[str, str] = field(default_factory=dict)  # by name: which source has which form of it
    _first: tuple[str, frozenset[str]] | None = None  # the first source, and what it has of `names`

    @classmethod
    def shared(cls, sources: Sequence[Source], *, needed: Collection[str] = ()) -> ExtraOutputs:
        """Those that are `needed`, and those that all `sources` have in one form.

        Reads the first batch of each source. Raises what reading raises.
        """
        forms = {source.info.location: _forms(source) for source in sources}
        names = dict.fromkeys(name for known in forms.values() for name in known)
        differing = {
            name: ", ".join(f"{known.get(name, 'none')} in {place}" for place, known in forms.items())
            for name in names
            if name not in needed and len({known.get(name) for known in forms.values()}) > 1
        }
        return cls((*needed, *(name for name in names if name not in differing)), differing)

    def of(self, batch: EpisodeBatch, location: str) -> EpisodeBatch:
        """`batch`, from the source `location`, with the outputs that are kept. Raises BadEpisode where it lacks one."""
        kept = {name: tree for name, tree in batch.extra.items() if name in self.names}
        first, known = self._first = self._first or (location, frozenset(kept))
        if location != first and known != kept.keys():
            name = min(known ^ kept.keys())
            has, lacks = (first, location) if name in known else (location, first)
            what = f"the extra model output {name!r} is used, and only some of the sources have it: {has} has, {lacks} does not"
            raise BadEpisode(what, where=lacks, fix=FIX, details={PROBLEM: "mixed-structures"})
        return batch if len(kept) == len(batch.extra) else replace(batch, extra=kept)

    def of_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Mapping[str, np.dtype[Any]]:
        """Those, by dotted path of the leaf, of the outputs that are kept."""
        return {path: dtype for path, dtype in dtypes.items() if path.partition(".")[0] in self.names}


CHOSEN: Final[Mapping[str, Callable[[Sequence[Source]], ExtraOutputs | None] | None]] = {
    "union": None,
    "common": ExtraOutputs.shared,
    "drop": lambda _: ExtraOutputs(()),
}
"""What chooses the outputs to keep, by what an option calls it; None: all are kept, and have to be the same ones."""


def _forms(source: Source) -> dict[str, str]:
    """The form of each extra model output in the first batch of a source, as text."""
    first = first_batch(source)
    return {} if first is None else {name: _form(tree) for name, tree in first.extra.items()}


def first_batch(source: Source, on_error: OnError = OnError.FAIL) -> EpisodeBatch | None:
    """The first batch of a source; None: there is none. Raises what reading raises."""
    with closing(source), closing(cast(Any, source.fragments(Tally(), Rejects(on_error)))) as fragments:
        first: Fragments | None = next(fragments, None)
    return None if first is None else first.batch


def _form(tree: Tree) -> str:
    parts = [(path, f"{leaf.dtype} {leaf.shape[1:]}" if leaf.shape[1:] else f"{leaf.dtype}") for path, leaf in flatten(tree)]
    return ", ".join(f"{path}: {form}" if path else form for path, form in parts)


@dataclass(frozen=True, slots=True)
class AddedTo:
    """The dataset that episodes are added to: as a source that all others must agree with, and that is not read."""

    info: SourceInfo
    episodes: EarlierEpisodes
    first: EpisodeBatch | None  # of them, one or more; None: it has none


@dataclass(slots=True)
class WholeEpisodes:
    """One reading of `sources`; `tally` and `rejects` are complete when the episodes have been drawn."""

    sources: Sequence[Source]
    on_error: OnError
    on_progress: OnProgress
    limit: int | None = None  # episodes; nothing is read, counted or inferred beyond them
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole conversion may take
    episode_limit: EpisodeLimit | None = None  # None: episodes are of any size
    extras: ExtraOutputs | None = None  # None: all extra model outputs are kept
    added_to: AddedTo | None = None  # the dataset that the episodes are added to
    distinct: bool = False  # see `Stitcher`
    drop_reset_rows: bool = False  # all is read once more, to find them
    temp_dir: str | None = None  # where rows that were set aside wait
    tally: Tally = field(default_factory=Tally)
    rejects: Rejects = field(default_factory=Rejects)
    extra_dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)  # that hold all values, once spaces are inferred
    extremes: Extremes | None = None  # that they are inferred from
    waiting: WaitingRejects = field(init=False)  # what `rejects` has passed on so far
    location: str = ""  # the source of the batch that was passed on last
    _ahead: deque[EpisodeBatch] = field(default_factory=deque)  # drawn already
    _locations: deque[str] = field(default_factory=deque)  # sources of the batches that are drawn, and not passed on yet
    _rest: Iterator[EpisodeBatch] = field(default_factory=lambda: iter(()))
    _stitcher: Stitcher = field(init=False)
    _resets: dict[str, Resets] = field(default_factory=dict)  # by location; what is left out of each batch that is drawn

    def __post_init__(self) -> None:
        self.waiting = WaitingRejects(self.temp_dir)
        if self.episode_limit is not None:
            one_heap_near(self.memory_limit)
        if self.episode_limit is not None and self.limit is None:
            for source in self.sources:
                self.episode_limit.check_longest(source.info.longest, source.info.spaces, source.info.location)
        self._begin()
        if self.drop_reset_rows:
            found: dict[str, Resets] = {}
            for batch in self:
                found.setdefault(self.location, Resets()).see(batch)
            self._resets = found
            self._begin_again()

    def _begin_again(self) -> None:
        for source in self.sources:
            source.close()  # the reading before this one may have stopped in the middle
        self._begin()

    def _begin(self) -> None:
        self.tally, self.rejects, self._ahead = Tally(), Rejects(self.on_error, keep=self.waiting.add), deque()
        for source in self.sources:
            self.tally.assumptions += source.info.inherited
            if source.info.manifest is not None and not source.info.manifest.complete:
                self.tally.assume(INCOMPLETE)
        self.waiting.close()
        earlier = None if self.added_to is None else self.added_to.episodes
        self._stitcher = Stitcher(self.tally, self.rejects, self.episode_limit, earlier, self.distinct)
        self._locations.clear()
        for resets in self._resets.values():
            resets.look()
        self._rest = self._drawn(stitched(self.sources, self._stitcher, self.on_progress, self.extras, self.limit))

    def __iter__(self) -> Iterator[EpisodeBatch]:
        while self._ahead:
            yield self._passed_on(self._ahead.popleft())  # release each as it is passed on
        yield from map(self._passed_on, self._rest)

    def _drawn(self, batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        for batch in batches:
            resets = self._resets.get(self.tally.location)
            drawn = batch if resets is None else resets.without(batch, self.tally)
            if len(drawn):
                self._locations.append(self.tally.location)
                yield drawn
            del batch, drawn  # nothing is held while the next is read

    def _passed_on(self, batch: EpisodeBatch) -> EpisodeBatch:
        self.location = self._locations.popleft()
        return batch

    def give_back(self) -> None:
        """Return free memory to the system, where the process is near a limit that somebody keeps to."""
        if self.episode_limit is not None:
            give_back_near(self.memory_limit)

    def first(self) -> EpisodeBatch:
        """The first batch, which stays to be read; where all repeat the dataset that they are added to, the first of that.

        Raises NoData where there is none.
        """
        if not self._ahead:
            batch = next(self._rest, None)
            if batch is None:
                if self.tally.duplicates_dropped and self.added_to is not None and self.added_to.first is not None:
                    return self.added_to.first
                raise self._nothing()
            self._ahead.append(batch)
        return self._ahead[0]

    def place_of(self, episode: str, step: int) -> str:
        """File and row, or the source alone where rows are not known, of a step of an episode that was drawn."""
        return self._stitcher.place_of(episode, step)

    def _nothing(self) -> NoData:
        bad, aside = self.rejects.unreadable, self.rejects.count - self.rejects.unreadable
        said = [f"{bad:,} rows could not be read"] * bool(bad) + [f"{aside:,} were left out with their episodes"] * bool(aside)
        set_aside = f"; {', and '.join(said)}" if said else ""
        fix = "--on-error fail shows the first bad row" if self.rejects.count else "check that the recording wrote any steps"
        where = ", ".join(source.info.location for source in self.sources)
        return NoData(f"no episode is in the source{set_aside}", where=where, fix=fix)

    def inferred_spaces(self) -> tuple[Space, Space]:
        """Observation and action space that all episodes fit. Raises BadEpisode where no space has the shapes of all.

        Episodes are held until their spaces are known, as far as memory allows; where it does not, the rest is scanned and
        read again: by itself where the sources offer that (`Scannable`), else as episodes.
        """
        first, size, holding = self.first(), 0, True
        extremes, held, keep = Extremes(), deque[EpisodeBatch](), min(KEEP, room_for_data(self.memory_limit) // 8)
        self.extra_dtypes = extremes.extra_dtypes
        self.extremes = extremes
        for batch in chain(self._ahead, self._rest):
            check_same_shapes(first, batch)
            extremes.see(batch)
            size += batch.nbytes
            if size <= keep:
                held.append(batch)
            elif holding and self._scanned(first, extremes):
                self._rest, self._ahead = chain([batch], self._rest), held
                return extremes.spaces()
            else:
                holding = False
                held.clear()
        self._ahead = held
        if not holding:
            self._begin_again()
        return extremes.spaces()

    def compare_later_sources(self, check_spaces: Callable[[EpisodeBatch], None]) -> None:
        """Find dtypes that hold the extra model outputs of all sources, by their first batches: spaces do not cover these.

        `check_spaces` may raise for the spaces that a batch declares. Raises BadEpisode where the sources have different
        outputs, before any of them is passed on.
        """
        first, extremes = self.first(), Extremes()
        if self.limit is not None or len(self.sources) == 1 or not first.num_steps:
            return
        extremes.see_extra(extra_dtypes(first))
        for source in self.sources[1:]:
            location = source.info.location
            if isinstance(source, Scannable):
                self._see_extra(source, location, first, extremes)
                continue
            batch = first_batch(source, OnError.SKIP)
            if batch is not None and batch.num_steps:
                check_spaces(batch)
                batch = batch if self.extras is None else self.extras.of(batch, location)
                check_same_extra(first, batch)
                extremes.see_extra(extra_dtypes(batch))
        self.extra_dtypes = extremes.extra_dtypes

    def fit_into(self, dataset: EpisodeBatch) -> None:
        """Give extra model outputs the dtypes of the dataset that they are added to. Raises BadEpisode where it has others."""
        check_same_extra(dataset, self.first())
        self.extra_dtypes = extra_dtypes(dataset)

    def _see_extra(self, source: Scannable, location: str, first: EpisodeBatch, extremes: Extremes) -> None:
        extra = source.extra_dtypes()
        extra = extra if self.extras is None else self.extras.of_dtypes(extra)
        check_same_extra_names(first, extra, where=f"episode {first.ids[0]} and {location}")
        extremes.see_extra(extra)

    def _scanned(self, first: EpisodeBatch, extremes: Extremes) -> bool:
        """Whether all sources offer their values without assembling episodes; then `extremes` have seen them."""
        sources = [(source, source.info.location) for source in self.sources if isinstance(source, Scannable)]
        if len(sources) < len(self.sources) or self.limit is not None:
            return False
        for source, location in sources:
            self._see_extra(source, location, first, extremes)
            where = f"episode {first.ids[0]} and {location}"
            with closing(source.values()) as values:
                for obs, actions in values:
                    check_same_values(first, obs, actions, where=where)
                    extremes.see_values(obs, actions)
                    if not _values_matter(obs, actions):
                        break
        return True


def _values_matter(obs: Tree, actions: Tree) -> bool:
    """Whether a space of this data follows from its values: integers are categories, whose number is the largest one's."""
    counted = [*(leaf for leaf in leaves(obs) if leaf.ndim == 1), *(leaf for leaf in leaves(actions) if leaf.ndim <= 2)]
    return any(leaf.dtype.kind in "iu" for leaf in counted)


def stitched(
    sources: Sequence[Source],
    stitcher: Stitcher,
    on_progress: OnProgress,
    extras: ExtraOutputs | None = None,
    limit: int | None = None,
) -> Iterator[EpisodeBatch]:
    """The whole episodes of `sources`, in their order; while a batch is passed on, `tally.location` is that of its source.

    `limit`: only the first so many.
    """
    tally, rejects = stitcher.tally, stitcher.rejects
    waiting, left = None if limit is None else RejectsInTurn.of(rejects), limit
    progress = _SourcesRead(sources, tally)
    for source in sources:
        location = source.info.location
        for fragments in source.fragments(tally, rejects if waiting is None else waiting):
            check()
            if extras is not None:
                fragments = replace(fragments, batch=extras.of(fragments.batch, location))
            if waiting is None or left is None:
                yield from stitcher.feed(fragments, location)
            else:
                for done in fed(stitcher, fragments, location, waiting, left):
                    left -= len(done)
                    yield done
                if not left:
                    return
            on_progress(progress.now())
    if waiting is not None:
        waiting.tell()
    yield from stitcher.finish(left)
    if (last := progress.left_over()) is not None:
        on_progress(last)


class _SourcesRead:
    """How much of several sources has been read, in a unit that all of them share."""

    def __init__(self, sources: Sequence[Source], tally: Tally) -> None:
        self._sources, self._tally = sources, tally
        self._unit = next(iter(units)) if len(units := {source.unit for source in sources}) == 1 else None
        sizes = [source.size for source in sources] if self._unit else [None]
        self._total = None if None in sizes else sum(size for size in sizes if size is not None)
        self._told = 0  # as the last report had it

    def left_over(self) -> Progress | None:
        """The last report, unless all was reported: no reader has to read the ends of its files, or to count its last batch."""
        told, last = self._told, self.now()
        return replace(last, done=last.total) if last.total is not None and told < last.total else None

    def now(self) -> Progress:
        """How far the sources have been read."""
        if self._total is None:
            return Progress("reading", self._tally.rows_in, None, ROWS)
        each, unit, figures = (1, ROWS, {}) if self._unit == ROWS else (KB, "kB", {ROWS: self._tally.rows_in})
        self._told = -(-min(self._total, sum(source.done for source in self._sources)) // each)
        return Progress("reading", self._told, -(-self._total // each), unit, figures)


class WaitingRejects:
    """Rows set aside before there is a dataset to write them into, on disk: they may be as many as there are rows."""

    def __init__(self, temp_dir: str | None) -> None:
        """`temp_dir`: where the file is made; None: the system's place for temporary files. Nothing is made before `add`."""
        self._temp_dir = temp_dir
        self._file: TempFile | None = None
        self._sizes: list[int] = []

    def add(self, rejects: list[Reject]) -> None:
        """Raises StorageError."""
        if self._file is None:
            self._file = TempFile(self._temp_dir, holding="rows set aside").__enter__()
        rows = [(reject.where, reject.code, reject.reason, reject.raw) for reject in rejects]
        data = msgpack.packb(rows, unicode_errors=HALVES)
        self._file.append(data)
        self._sizes.append(len(data))

    def hand_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """All of them, in their order, as many at a time as were added together; none is left."""
        offset = 0
        try:
            for size in self._sizes:
                assert self._file is not None
                rows = msgpack.unpackb(self._file.read(offset, size), unicode_errors=HALVES)
                keep([Reject(*row) for row in rows])
                offset += size
        finally:
            self.close()

    def close(self) -> None:
        """Drop all; more can be added afterwards."""
        if self._file is not None:
            self._file.__exit__(None, None, None)
        self._file, self._sizes = None, []
