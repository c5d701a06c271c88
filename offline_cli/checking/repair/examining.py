"""Shards read to the last episode: which are whole, and what they hold; a broken one is reported with the reason."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from offline_cli.checking.repair.known import Known
from offline_cli.checking.repair.survey import Choice, Gap, Said, Survey
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import RowFormat, row_format
from offline_cli.datasets.shard_sequence import Adopted, adopt
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.episodes.known_episodes import KnownIds
from offline_cli.errors import BadData
from offline_cli.files.locations import Location
from offline_cli.files.timeouts import reading_pool
from offline_cli.parquet.shard_prefetch import ShardsAhead
from offline_cli.parquet.shards import OpenShard
from offline_cli.parquet.trust import fingerprint
from offline_cli.progress import OnProgress, Progress
from offline_cli.scopes import Reading, Scope
from offline_cli.tally import Tally

__all__ = ["Broken", "Examined", "examine"]

AT_ONCE: Final = 8  # shards that are hashed before their turn


@dataclass(frozen=True, slots=True)
class Broken:
    """A shard that cannot be part of the dataset, or several in a row that are missing."""

    place: Location  # of the first
    why: str
    is_there: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Ready:
    """The shard whose turn it is."""

    fingerprint: tuple[int, str]
    opening: AbstractContextManager[OpenShard] | None  # None: not begun


@dataclass(slots=True)
class Examined:
    """What the shards hold."""

    rows: RowFormat
    sound: list[Adopted] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    statistics: StatisticsBuilder = field(default_factory=StatisticsBuilder)

    @property
    def left_out(self) -> int:
        """How many shards are broken."""
        return sum(one.count for one in self.broken)


def examine(choice: Choice, folder: Survey, known: Known, on_progress: OnProgress) -> Examined:
    """Read the shards in their order. Raises StorageError."""
    found = Examined(row_format(known.format, known.observation_space, known.action_space, Tally()))
    found.broken += map(_missing, choice.gaps)
    reader, ids = ShardReader(known.format, known.observation_space, known.action_space), KnownIds()
    there = folder.paths
    places = [place for place in choice.shards if place.path in there]
    with Reading(lambda scope: _hashed_and_opened(places, folder.sizes, reader, scope)) as coming:
        for number, place in enumerate(choice.shards):
            if place.path not in there:
                found.broken.append(_missing(Gap(place, 1)))
            else:
                _examine_one(found, place, reader, next(coming), choice.expected.get(place.path), ids)
            on_progress(Progress("reading shards", number + 1, len(choice.shards), "shards"))
    return found


def _hashed_and_opened(
    places: Sequence[Location], sizes: Mapping[str, int], reader: ShardReader, scope: Scope
) -> Iterator[_Ready]:
    """Each of them in turn; ones in a bucket, a few at once, before it."""
    remote = [place for place in places if place.is_in_bucket]
    if len(remote) < len(places):
        yield from (_Ready(fingerprint(place), None) for place in places)
        return
    with scope.part() as held:
        pool = held.enter(reading_pool(AT_ONCE))
        ahead = held.enter(ShardsAhead([(place, sizes[place.path]) for place in remote], reader.columns_of))
        hashing = deque(pool.submit(fingerprint, place) for place in remote[:AT_ONCE])
        for number in range(len(remote)):
            opening = ahead.turn()
            ahead.advance()
            known = hashing.popleft().result()
            hashing.extend(pool.submit(fingerprint, place) for place in remote[number + AT_ONCE : number + AT_ONCE + 1])
            yield _Ready(known, opening)


def _examine_one(
    found: Examined, place: Location, reader: ShardReader, ready: _Ready, said: Said | None, ids: KnownIds
) -> None:
    statistics = found.statistics.copy()
    try:
        adopted = _adopted(place, reader, found.rows, statistics, ready, said, ids)
    except BadData as error:
        found.broken.append(Broken(place, error.what, is_there=True))
    else:
        found.sound.append(adopted)
        found.statistics = statistics
        ids.add(adopted.ids)


def _missing(gap: Gap) -> Broken:
    others = f", and so are the {gap.count - 1:,} after it" if gap.count > 1 else ""
    return Broken(gap.first, f"it is missing{others}", is_there=False, count=gap.count)


def _adopted(
    place: Location,
    reader: ShardReader,
    rows: RowFormat,
    statistics: StatisticsBuilder,
    ready: _Ready,
    said: Said | None,
    ids: KnownIds,
) -> Adopted:
    """Raises BadData where the shard cannot be read, differs from its manifest entry, or repeats an episode."""
    sha256 = None if said is None else said.sha256
    adopted = adopt(place, reader, rows, statistics, known=ready.fingerprint, said=sha256, opening=ready.opening)
    if said is not None and (refusal := said.refusal(adopted.shard.bytes, adopted.shard.sha256)):
        raise BadData(refusal, where=place.url, fix="")
    again = ids.met(adopted.ids) or {name for name, times in Counter(adopted.ids).items() if times > 1}
    if again:
        raise BadData(f"episode {min(again)!r} is in it, and was before", where=place.url, fix="")
    return adopted
