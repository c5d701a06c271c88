"""Reads `.book` files: Box observations, Discrete actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.listing import Listing
from offline_cli.formats.reader import NO, SURE, OpenContext, Reader
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, SourceInfo, shares
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally

MARK, TOGETHER = b"LOGBOOK 1 ", 256  # episodes of one batch


@dataclass(slots=True)
class BookSource(FileSource):
    """Books in the order given."""

    format: ClassVar[str] = "log-book"

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes; a broken one is rejected with its lines."""
        self.done = 0
        for file in self.files:
            waiting: list[_Episode] = []
            with file.open() as stream:
                stream.readline()
                for episode in _episodes(stream):
                    tally.rows_in += len(episode.steps)
                    try:
                        waiting.append(episode.parsed(file.url))
                    except BadData as error:
                        rejects.add(error, raw=b"".join(episode.steps))
                        rejects.lose_episodes(Lost.UNREADABLE)
                    if len(waiting) == TOGETHER:
                        yield _batch(waiting, file.url)
                        waiting = []
            if waiting:
                yield _batch(waiting, file.url)
            self.done += file.size()

    def partitions(self, count: int) -> Sequence[BookSource]:
        """No episode lies in two books."""
        return [self.over(part) for part in shares(self.files, count)]


@dataclass(slots=True)
class _Episode:
    name: str
    line: int  # of its name, from 0
    steps: list[bytes]  # lines, the one with its end too
    values: Any = None

    def parsed(self, url: str) -> _Episode:
        """Itself with its values. Raises BadData."""
        try:
            *steps, (kind, *final) = [line.split() for line in self.steps]
            parts = [b" ".join(step).split(b">") for step in steps]
            obs = np.array([[float(x) for x in words] for words in (*(part[0].split() for part in parts), final[1:])])
            ended = {b"terminated": 0, b"truncated": 1}[final[0]]
            self.values = obs.astype(np.float32), [int(part[1]) for part in parts], [float(part[2]) for part in parts], ended
            assert kind == b"end"
        except (ValueError, IndexError, KeyError, AssertionError) as error:
            where = f"{url} line {self.line + 1}"
            raise BadData(f"episode {self.name} is broken: {error!r}", where=where, fix="write the book again") from error
        return self


def _episodes(stream: BinaryIO) -> Iterator[_Episode]:
    episode: _Episode | None = None
    for number, line in enumerate(stream, 1):
        if line.startswith(b"episode "):
            episode = _Episode(line[8:].strip().decode(), number, [])
        elif episode is not None:
            episode.steps.append(line)
            if line.startswith(b"end "):
                yield episode


def _batch(episodes: list[_Episode], url: str) -> Fragments:
    obs, actions, rewards, ends = zip(*(episode.values for episode in episodes), strict=True)
    starts, truncated = np.cumsum([0, *map(len, rewards)]), np.array(ends, np.bool_)
    names = tuple(episode.name for episode in episodes)
    flat = np.concatenate(obs), np.concatenate(actions), np.concatenate(rewards)
    origins = Origins((url,), np.zeros_like(starts[1:]), np.array([episode.line for episode in episodes]))
    return Fragments(EpisodeBatch(names, starts, *flat, ~truncated, truncated), origins)


def _books(files: Sequence[Location]) -> list[Location]:
    return [file for file in files if file.name.endswith(".book")]


def _opened(files: Sequence[Location], context: OpenContext) -> BookSource:
    files = _books(files)
    with files[0].open() as stream:
        said = {name: int(size) for name, size in (word.split(b"=") for word in stream.readline()[len(MARK) :].split())}
    observation, action = spaces.Box(-np.inf, np.inf, (said[b"obs"],), np.float32), spaces.Discrete(said[b"actions"])
    declared = SourceInfo(
        format="log-book", location=context.location, observation_space=observation, action_space=action, action_scale=ENV_SCALE
    )
    return BookSource(files, context.location, declared)


def _sniffed(listing: Listing) -> float:
    for file in _books(listing.files)[:1]:
        with file.open() as stream:
            return SURE if stream.read(len(MARK)) == MARK else NO
    return NO


READER = Reader("log-book", "log books", _opened, _sniffed)
