"""Counting under a limit of episodes: what was read ahead of the last one, in blocks, is not counted.

Readers read blocks of rows, and report what is wrong with a block before its first episode. Under a limit the rejected rows
wait here until an episode after them is used. Under `fail` none waits: a row that was read can end the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from offline_cli.converting.stitching import Stitcher
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UnsupportedSpace
from offline_cli.formats.source import Fragments
from offline_cli.tally import Lost, OnError, Rejects

__all__ = ["RejectsInTurn", "fed"]

NUMBERED: Final = re.compile(r",? (line|row) (\d+)(?=$|[ ,])")  # what follows the file in a place
MOST: Final = 10_000  # rows that wait
MOST_BYTES: Final = 4 << 20  # of them

Place = tuple[str, int, int]  # file, line, row
Position = tuple[int, int, int]  # the same with the number of the file


@dataclass(slots=True)
class _Waiting:
    place: Place
    error: BadData | UnsupportedSpace
    raw: Any
    rows: int
    lost: list[tuple[Lost, int]] = field(default_factory=list)


@dataclass(slots=True)
class RejectsInTurn(Rejects):
    """The rejects that readers see; `real` counts them when their turn comes, or at the end."""

    real: Rejects = field(default_factory=Rejects)
    _waiting: list[_Waiting] = field(default_factory=list)
    _least: Position = (0, 0, 0)  # none of them is before this
    _files: dict[str, int] = field(default_factory=dict)  # their numbers, in the order in which they are read

    @classmethod
    def of(cls, real: Rejects) -> RejectsInTurn:
        """Whose episodes that lost a row are those of `real`."""
        return cls(real.on_error, incomplete=real.incomplete, real=real)

    def add(self, error: BadData | UnsupportedSpace, *, raw: Any = b"", rows: int = 1) -> None:
        """See Rejects."""
        self.count += rows
        if self.on_error is OnError.FAIL:
            self.real.add(error, raw=raw, rows=rows)
        self._waiting.append(_Waiting(_parts(error.where), error, raw, rows))
        self._least = (0, 0, 0)
        self._kept_bytes += len(raw)
        if len(self._waiting) >= MOST or self._kept_bytes >= MOST_BYTES:
            self.tell()

    def lose_episodes(self, reason: Lost, times: int = 1) -> None:
        """See Rejects; in the turn of the row before it."""
        if self._waiting:
            self._waiting[-1].lost.append((reason, times))
        else:
            self.real.lose_episodes(reason, times)

    def read_in_order(self, files: Iterable[str]) -> None:
        """Set the order in which files are read."""
        for file in files:
            self._files.setdefault(_parts(file)[0], len(self._files))

    def tell(self, place: str | None = None) -> None:
        """Count everything before `place`; None: all of it."""
        upto = None if place is None else self._position(_parts(place))
        if upto is not None and upto < self._least:
            return
        later: list[_Waiting] = []
        positions: list[Position] = []
        for one in self._waiting:
            position = self._position(one.place)
            if upto is not None and position > upto:
                later.append(one)
                positions.append(position)
                continue
            self.real.add(one.error, raw=one.raw, rows=one.rows)
            for reason, times in one.lost:
                self.real.lose_episodes(reason, times)
        self._waiting, self._least = later, min(positions, default=(0, 0, 0))
        self._kept_bytes = sum(len(one.raw) for one in later)

    def _position(self, place: Place) -> Position:
        return self._files.setdefault(place[0], len(self._files)), place[1], place[2]


def _parts(place: str) -> Place:
    numbers = list(NUMBERED.finditer(place))[-2:]
    said = {number[1]: int(number[2]) for number in numbers}
    return place[: numbers[0].start()] if numbers else place, said.get("line", 0), said.get("row", 0)


def fed(stitcher: Stitcher, fragments: Fragments, location: str, waiting: RejectsInTurn, left: int) -> Iterator[EpisodeBatch]:
    """As `stitcher.feed`, until `left` episodes are whole: no entry after the last one is processed.

    An entry completes one episode at most, so that as many entries as episodes are left cannot complete too many.
    """
    batch, origins = fragments.batch, fragments.origins
    waiting.read_in_order(() if origins is None else origins.files)
    first = 0
    while left and first < len(batch):
        stop = min(len(batch), first + left)
        waiting.tell(None if origins is None else origins[stop - 1])
        entries = slice(first, stop)
        part = Fragments(batch.select(entries), None if origins is None else origins.taken(entries))
        for done in stitcher.feed(part, location):
            left -= len(done)
            yield done
        first = stop
