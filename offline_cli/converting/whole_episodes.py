"""The whole episodes of opened sources, read ahead as far as their spaces are unknown; refuses sources without an episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from offline_cli.converting.fitting import Extremes, check_same_shapes
from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData
from offline_cli.formats.memory import MEMORY_LIMIT, room_for_data
from offline_cli.formats.source import ROWS, Placed, Scannable, Source
from offline_cli.progress import OnProgress, Progress
from offline_cli.spaces import Space
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import leaves

__all__ = ["WholeEpisodes", "stitched"]

KB = 1000
KEEP = 256 << 20  # bytes of episodes held while spaces are inferred, or an eighth of the room that there is for data


@dataclass(slots=True)
class WholeEpisodes:
    """One reading of `sources`; `tally` and `rejects` are complete when the episodes have been drawn."""

    sources: Sequence[Source]
    on_error: OnError
    on_progress: OnProgress
    limit: int | None = None  # episodes; nothing is read, counted or inferred beyond them
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole conversion may take
    tally: Tally = field(default_factory=Tally)
    rejects: Rejects = field(default_factory=Rejects)
    _ahead: deque[EpisodeBatch] = field(default_factory=deque)  # drawn already
    _rest: Iterator[EpisodeBatch] = field(default_factory=lambda: iter(()))

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.tally, self.rejects, self._ahead = Tally(), Rejects(self.on_error), deque()
        self._rest = _limited(stitched(self.sources, self.tally, self.rejects, self.on_progress), self.limit)

    def __iter__(self) -> Iterator[EpisodeBatch]:
        while self._ahead:
            yield self._ahead.popleft()  # let go of each as it is handed on
        yield from self._rest

    def first(self) -> EpisodeBatch:
        """The first batch, which stays to be read. Raises NoData where there is none."""
        if not self._ahead:
            batch = next(self._rest, None)
            if batch is None:
                raise self._nothing()
            self._ahead.append(batch)
        return self._ahead[0]

    def _nothing(self) -> NoData:
        set_aside = f"; {self.rejects.count} rows could not be read" if self.rejects.count else ""
        return NoData(
            f"no episode is in the source{set_aside}",
            where=", ".join(source.location for source in self.sources),
            fix="check that the recording wrote anything"
            if not self.rejects.count
            else "--on-error fail shows the first bad row",
        )

    def inferred_spaces(self) -> tuple[Space, Space]:
        """Observation and action space that all episodes fit. Raises BadEpisode where no space has the shapes of all.

        Episodes are held until their spaces are known, as far as memory allows; where it does not and every value matters, the
        rest is looked at and read again: by itself where the sources offer that (`Scannable`), else as episodes.
        """
        first, size, holding = self.first(), 0, True
        extremes, held, keep = Extremes(), deque[EpisodeBatch](), min(KEEP, room_for_data(self.memory_limit) // 8)
        for batch in chain(self._ahead, self._rest):
            check_same_shapes(first, batch)
            extremes.see(batch)
            size += batch.nbytes
            if size <= keep:
                held.append(batch)
            elif holding and (not _values_matter(batch) or self._scanned(extremes)):
                self._rest, self._ahead = chain([batch], self._rest), held
                return extremes.spaces()
            else:
                holding = False
                held.clear()
        self._ahead = held
        if not holding:
            self._begin()
        return extremes.spaces()

    def _scanned(self, extremes: Extremes) -> bool:
        """Whether all sources offer their values without putting episodes together; `extremes` have seen them then."""
        sources = [source for source in self.sources if isinstance(source, Scannable)]
        if len(sources) < len(self.sources) or self.limit is not None:
            return False
        for source in sources:
            for obs, actions in source.values():
                extremes.see_values(obs, actions)
        return True


def _values_matter(batch: EpisodeBatch) -> bool:
    """Whether a space of this data follows from its values: integers are categories, whose number is the largest one's."""
    counted = [
        *(leaf for leaf in leaves(batch.obs) if leaf.ndim == 1),
        *(leaf for leaf in leaves(batch.actions) if leaf.ndim <= 2),
    ]
    return any(leaf.dtype.kind in "iu" for leaf in counted)


def _limited(batches: Iterator[EpisodeBatch], limit: int | None) -> Iterator[EpisodeBatch]:
    """The first `limit` episodes."""
    left = limit
    for batch in batches:
        if left is None or len(batch) < left:
            yield batch
            left = None if left is None else left - len(batch)
        else:
            yield batch.select(slice(0, left))
            return


def stitched(sources: Sequence[Source], tally: Tally, rejects: Rejects, on_progress: OnProgress) -> Iterator[EpisodeBatch]:
    """The whole episodes of `sources`, in their order; while a batch is handed on, `tally.location` is that of its source."""
    stitcher, progress = Stitcher(tally, rejects), _SourcesRead(sources, tally)
    for source in sources:
        for batch in source.fragments(tally, rejects):
            places = source.places if isinstance(source, Placed) else None
            yield from stitcher.feed(batch, places, source.location)
            on_progress(progress.now())
    yield from stitcher.finish()
    if (last := progress.left_over()) is not None:
        on_progress(last)


class _SourcesRead:
    """How much of several sources has been read, in a unit that all of them know."""

    def __init__(self, sources: Sequence[Source], tally: Tally) -> None:
        self._sources, self._tally = sources, tally
        self._unit = next(iter(units)) if len(units := {source.unit for source in sources}) == 1 else None
        sizes = [source.size for source in sources] if self._unit else [None]
        self._total = None if None in sizes else sum(size for size in sizes if size is not None)

    def left_over(self) -> Progress | None:
        """The last report, where no reader had to look at the ends of its files."""
        last = self.now()
        return replace(last, done=last.total) if last.total is not None and last.done < last.total else None

    def now(self) -> Progress:
        """How far the sources are."""
        rows = self._tally.rows_in
        if self._total is None:
            return Progress("reading", rows, None, ROWS)
        done = min(self._total, sum(source.done for source in self._sources))
        if self._unit == ROWS:
            return Progress("reading", done, self._total, ROWS)
        return Progress("reading", -(-done // KB), -(-self._total // KB), "kB", {ROWS: rows})
