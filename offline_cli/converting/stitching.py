"""Stitch fragments into whole episodes, across batches, files and sources; two different episodes with one id raise.

* A whole episode with a new id passes through immediately, and a batch of such episodes unchanged, without an object per
  episode. Only unfinished episodes are kept in memory.
* For every completed episode the id and a 64-bit fingerprint are kept. A second episode with its id is a duplicate if the
  fingerprints are equal (dropped and counted); otherwise an error names both places.
* Fragments with timesteps are ordered by them. Fragments without timesteps continue the open episode of their id if
  observations chain, and repeat it if their steps equal its first ones (recorders rewrite an episode from its start).
  Otherwise they are joined only if their rows are adjacent, and `broken-chain` is counted.
* Unfinished episodes at the end become truncated ones, counted as `unfinished-episode`; one with a gap is rejected.
* An episode that lost a row to `skip` or `quarantine` (`Rejects.incomplete`) is rejected as a whole: without its first or last
  row, the rest would look like an episode, but start or end in the wrong place.
* Every rejected id counts once as a lost episode, by reason (`Rejects.lost`), regardless of its number of parts and copies.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.converting.fitting import ExtraOutputs
from offline_cli.converting.open_episode import OpenEpisode, after_end, as_json, broken, chains, lacks_final, start_kind
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import EarlierEpisodes, fingerprints
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.source import BYTES, ROWS, Fragments, Origins, Source, StartKind
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import check
from offline_cli.tally import (
    ANOTHER_PART,
    CONFLICT,
    GAP,
    LOST,
    MISSING_FINAL,
    MIXED,
    REASONS,
    UNFINISHED,
    EpisodePlace,
    Lost,
    OnError,
    Rejects,
    Tally,
)


@dataclass(slots=True)
class Stitcher:
    """Stitches fragments into whole episodes with unique ids; one stitcher serves all sources of a reading."""

    tally: Tally
    rejects: Rejects
    limit: EpisodeLimit | None = None  # maximum size of one episode
    earlier: EarlierEpisodes | None = None  # of the dataset to append to
    _open: dict[str, OpenEpisode] = field(default_factory=dict)
    _passed: dict[str, int] = field(default_factory=dict)  # ids of completed episodes, numbered in order
    _prints: array[int] = field(default_factory=lambda: array("Q"))  # their fingerprints, in the same order, without `earlier`
    _places: list[tuple[Origins | None, str]] = field(default_factory=list)  # origins, or location, of each completed batch
    _ends: list[int] = field(default_factory=list)  # cumulative number of episodes after each of these batches
    _refused: set[str] = field(default_factory=set)  # rejected ids: their further fragments are rejected too

    def __post_init__(self) -> None:
        if self.earlier is not None:
            self._note(self.earlier.ids, None, self.earlier.location)

    def feed(self, fragments: Fragments, location: str) -> Iterator[EpisodeBatch]:
        """Yield the episodes completed by `fragments`, from the source `location`."""
        batch, origins = fragments.batch, fragments.origins
        self.tally.location = location
        if self.limit is not None:
            self.limit.check(batch, location)
        new, again = self._whole_ones(batch)
        entries = np.flatnonzero(new)
        if len(entries):
            chosen = batch if len(entries) == len(batch) else batch.select(entries)
            yield self._pass(chosen, origins and origins.taken(entries), location)
        if len(entries) == len(batch):
            return
        place: Any = [location] * len(batch) if origins is None else origins
        rest = ~new
        for entry, own in zip(again, fingerprints(batch.select(again)).tolist() if again else (), strict=True):
            if self._is_passed(batch, entry, own):
                self._drop_duplicate(batch, entry, place[entry])
                rest[entry] = False
        taken = (self._take(batch.select([entry]), place[entry]) for entry in np.flatnonzero(rest).tolist())
        yield from _gather([episode for completed in taken for episode in completed])

    def _whole_ones(self, batch: EpisodeBatch) -> tuple[NDArray[np.bool_], list[int]]:
        """(E,) mask of whole episodes with new ids, and the entries of whole ones with known ids. Ids with fragments, and
        rejected ids, are in neither.
        """
        whole = _whole(batch)
        names = set(batch.ids)
        fragments = {name for held in (self._open, self._refused, self.rejects.incomplete) for name in names if name in held}
        fragments |= {batch.ids[entry] for entry in np.flatnonzero(~whole).tolist()}
        known, again = self._passed.keys() & names, list[int]()
        if not known and not fragments and len(names) == len(batch):
            return whole, again
        for entry in np.flatnonzero(whole).tolist():
            name = batch.ids[entry]
            if name in fragments or name in known:
                whole[entry] = False
                again += [entry] if name not in fragments else []
            else:
                known.add(name)
        return whole, again

    def _is_passed(self, batch: EpisodeBatch, entry: int, own: int) -> bool:
        """Whether an episode of `batch`, with fingerprint `own`, equals the completed one with its id."""
        number, earlier = self._passed[batch.ids[entry]], 0 if self.earlier is None else len(self.earlier.ids)
        if self.earlier is not None and number < earlier:
            return self.earlier.is_same(number, batch.select([entry]))
        return self._prints[number - earlier] == own

    def finish(self, limit: int | None = None) -> Iterator[EpisodeBatch]:
        """After all sources were read, yield up to `limit` unfinished episodes as truncated ones."""
        done: list[EpisodeBatch] = []
        passed = 0
        for name, episode in list(self._open.items()):
            if passed == limit:
                break
            if episode.location != self.tally.location:
                yield from _gather(done)
                self.tally.location, done = episode.location, []
            if name in self.rejects.incomplete:
                self._refuse(episode, self._lost_a_row(name, episode.place))
            elif episode.waiting and name in self._passed:
                what = "it was complete before these steps, which repeat a part of it or continue after its end"
                self._refuse(episode, after_end(name, episode.place, what))
            elif episode.waiting:
                self._refuse(episode, episode.gap())
            elif name in self._passed and self._is_earlier(name, episode):
                self._drop_duplicate(episode.joined(), 0, episode.place)
            elif name in self._passed:
                self._refuse(episode, self._two_episodes(name, episode.place))
            else:
                self.tally.assume(UNFINISHED, places=_place(episode.place, name))
                done.append(self._close(name, truncated=True))
                passed += 1
        else:  # episodes that lost all their rows are known only by their ids
            unseen = [name for name in self.rejects.incomplete if name not in self._refused]
            self.rejects.lose_episodes(Lost.BAD_ROW, len(unseen) - len(self._passed.keys() & unseen))
        self._open.clear()
        yield from _gather(done)

    def _is_earlier(self, name: str, episode: OpenEpisode) -> bool:
        """Whether the dataset to append to has an unfinished episode as a truncated one."""
        number = self._passed[name]
        if self.earlier is None or number >= len(self.earlier.ids):
            return False
        return self.earlier.is_same(number, replace(episode.joined(), truncated=np.ones(1, np.bool_)))

    # ---- completed episodes and duplicates ----

    def _pass(self, batch: EpisodeBatch, origins: Origins | None, location: str) -> EpisodeBatch:
        self._note(batch.ids, origins, location)
        self._prints.frombytes(fingerprints(batch).tobytes())
        self._count_finals(batch, origins, location)
        return _as_whole(batch)

    def _note(self, names: Sequence[str], origins: Origins | None, location: str) -> None:
        """Record the ids and places of completed episodes."""
        self._passed.update(zip(names, count(len(self._passed)), strict=False))
        self._places.append((None if origins is None else origins.compact(), location))
        self._ends.append(len(self._passed))

    def place_of(self, name: str, step: int = 0) -> str:
        """The place of a step of the completed episode `name`."""
        number = self._passed[name]
        at = bisect_right(self._ends, number)
        origins, location = self._places[at]
        return location if origins is None else origins.of_step(number - (self._ends[at - 1] if at else 0), step)

    def _count_finals(self, batch: EpisodeBatch, origins: Origins | None, location: str) -> None:
        """Count missing final observations, at their `origins` or else at `location`."""
        missing = [] if batch.final_missing is None else np.flatnonzero(batch.final_missing).tolist()

        def places() -> Iterator[EpisodePlace]:
            last = (batch.lengths - 1).tolist()
            return (_at(location if origins is None else origins.of_step(e, last[e]), batch.ids[e]) for e in missing)

        self.tally.assume(MISSING_FINAL, len(missing), places=places)

    def _drop_duplicate(self, batch: EpisodeBatch, entry: int, place: str) -> None:
        """Drop and count a duplicate; its assumptions count too, as counts cover everything that was read."""
        if batch.final_missing is not None and batch.final_missing[entry]:
            self._count_finals(batch.select([entry]), None, place)
        self.tally.drop_duplicate(partial(_at, place, batch.ids[entry]))

    # ---- one fragment ----

    def _take(self, piece: EpisodeBatch, place: str) -> list[EpisodeBatch]:
        """Add a fragment; return the episode that it completes, if any."""
        name = piece.ids[0]
        if not piece.num_steps:
            self.tally.assume("zero-length-episode", places=_place(place, name))
            return []
        if name in self._refused:
            error = broken(name, "another part of it was rejected", place, LOST)
            error.details[ANOTHER_PART] = True
            self._set_aside(error, [piece])
            return []
        episode = self._open.setdefault(name, OpenEpisode(place, self.tally.location))
        episode.after_end |= start_kind(piece) == StartKind.AFTER_END
        if misfit := self._misfit(name, episode, piece, place):
            self._refuse(episode, misfit, piece)
            return []
        if self.limit is not None:
            self.limit.check_steps(episode.length, piece, name, episode.place)
        return self._completed(name, episode) if episode.is_done else []

    def _misfit(self, name: str, episode: OpenEpisode, piece: EpisodeBatch, place: str) -> BadData | None:
        """Add `piece` to `episode`; return an error if it does not belong to it."""
        if name in self.rejects.incomplete:
            return self._lost_a_row(name, place)
        if difference := episode.structure_difference(piece):
            return broken(name, f"its rows at {episode.place} have another structure: {difference}", place, MIXED)
        start = episode.start_of(piece)
        if start is None:
            return broken(name, f"its rows do not continue those at {episode.place}", place, GAP)
        return None if episode.add(piece, start, place) else self._two_episodes(name, place)

    def _completed(self, name: str, episode: OpenEpisode) -> list[EpisodeBatch]:
        if episode.waiting:
            self._refuse(episode, after_end(name, episode.place))
            return []
        if name not in self._passed:
            return [self._close(name)]
        whole = episode.joined()
        if not self._is_passed(whole, 0, int(fingerprints(whole)[0])):
            self._refuse(episode, self._two_episodes(name, episode.place))
        else:
            self._count_joints(episode)
            self._drop_duplicate(whole, 0, episode.place)
            del self._open[name]
        return []

    def _close(self, name: str, *, truncated: bool = False) -> EpisodeBatch:
        """Join the episode, count its joints, and complete it."""
        episode = self._open.pop(name)
        self._count_joints(episode)
        whole = episode.joined()
        if truncated:
            whole = replace(whole, truncated=np.ones(1, np.bool_))
        return self._pass(whole, None, episode.place)

    def _count_joints(self, episode: OpenEpisode) -> None:
        name = episode.pieces[0].ids[0]
        self.tally.fragments_stitched += len(episode.pieces) - 1
        self.tally.assume("repeated-steps", episode.refilled, places=_place(episode.place, name))
        for before, after in pairwise(episode.pieces):
            if not lacks_final(before) and not chains(before, after):
                start = 0 if before.t_started is None else int(before.t_started[0])
                step = f", step {start + before.num_steps}" if start_kind(before) == StartKind.AT_T else ""
                self.tally.assume("broken-chain", places=partial(list, [EpisodePlace(f"episode {name}{step}", name)]))

    # ---- rejected episodes ----

    def _refuse(self, episode: OpenEpisode, error: BadData, *more: EpisodeBatch) -> None:
        pieces = [*episode.all_pieces, *more]
        name = pieces[0].ids[0]
        self._refused.add(name)
        self._open.pop(name, None)
        self._set_aside(error, pieces)
        problem = error.details[PROBLEM]
        if problem != LOST or name not in self._passed:  # an incomplete copy of a completed episode is no loss
            self.rejects.lose_episodes(REASONS[problem])

    def _set_aside(self, error: BadData, pieces: Sequence[EpisodeBatch]) -> None:
        keep = self.rejects.on_error is OnError.QUARANTINE
        for piece in pieces:
            self.rejects.add(error, raw=as_json(piece) if keep else b"", rows=piece.num_steps)

    def _lost_a_row(self, name: str, place: str) -> BadData:
        what = f"a row that belongs, or may belong, to it was lost at {self.rejects.incomplete[name]}"
        return broken(name, what, place, LOST)

    def _two_episodes(self, name: str, place: str) -> BadData:
        if self._open[name].after_end:
            return after_end(name, place)
        first = self.place_of(name) if name in self._passed else self._open[name].place
        what, fix = f"two different episodes have the id {name}", "give each recording its own ids, or use --on-error skip"
        return BadEpisode(what, where=f"{first} and {place}", fix=fix, details={PROBLEM: CONFLICT})


def _whole(batch: EpisodeBatch) -> NDArray[np.bool_]:
    """(E,) true for fragments that have steps and, as declared, start and end an episode."""
    whole: NDArray[np.bool_] = (batch.terminated | batch.truncated) & (batch.lengths > 0)
    if batch.t_started is not None:
        whole &= batch.t_started == 0
    if batch.start_kind is not None:
        whole &= (batch.start_kind == StartKind.AT_T) | (batch.start_kind == StartKind.UNKNOWN)
    return whole


def _as_whole(batch: EpisodeBatch) -> EpisodeBatch:
    """`batch` without the fields of fragments; missing final observations are marked in custom data."""
    if batch.t_started is None and batch.start_kind is None and batch.final_missing is None:
        return batch
    whole = batch if batch.final_missing is None else batch.with_assumed_finals(batch.final_missing)
    return replace(whole, t_started=None, start_kind=None, final_missing=None)


def _at(place: str, name: str) -> EpisodePlace:
    return EpisodePlace(f"{place}, episode {name}", name)


def _place(place: str, name: str) -> Callable[[], Sequence[str]]:
    return lambda: [_at(place, name)]


def _gather(done: list[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Concatenate consecutive batches of equal structure."""
    first = 0
    for last in range(1, len(done) + 1):
        if last == len(done) or done[first].structure_difference(done[last]):
            yield EpisodeBatch.concat(done[first:last])
            first = last


# ---- all sources in order ----


def stitched(
    sources: Sequence[Source],
    stitcher: Stitcher,
    on_progress: OnProgress,
    extras: ExtraOutputs | None = None,
    limit: int | None = None,
) -> Iterator[EpisodeBatch]:
    """Yield the whole episodes of `sources`, in order; `tally.location` is the source of the current batch.

    `limit`: maximum number of episodes; further episodes that were read with the last one are not counted.
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
    """`stitcher.feed` for at most `limit` episodes: each fragment completes at most one, so feed as many as are left."""
    first, batch, origins = 0, fragments.batch, fragments.origins
    while limit and first < len(batch):
        part = slice(first, first + limit)
        for done in stitcher.feed(Fragments(batch.select(part), origins and origins.taken(part)), location):
            limit -= len(done)
            yield done
        first = part.stop


def _progress(sources: Sequence[Source], tally: Tally) -> Progress:
    """Progress of reading in the sources' unit (bytes in kB); in rows without a total if a size is unknown, or units differ."""
    sizes, units = [source.size for source in sources], {source.unit for source in sources}
    if None in sizes or len(units) > 1:
        return Progress("reading", tally.rows_in, None, ROWS)
    total, done = sum(filter(None, sizes)), sum(source.done for source in sources)
    (unit,) = units
    if unit == BYTES:
        return Progress("reading", -(-min(done, total) // 1000), -(-total // 1000), "kB", {ROWS: tally.rows_in})
    return Progress("reading", min(done, total), total, unit)
