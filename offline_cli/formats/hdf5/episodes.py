"""Episodes that a file keeps each by itself, in a group or a folder: the one loop over them.

A layout (`EpisodeLayout`) names the episodes of an open file, reads the arrays of one, and makes a batch of the joined arrays
of many. Episodes of one form are joined before they are looked at; a batch that is bad is made anew one by one, so that the bad
episodes alone are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.action_shapes import choices
from offline_cli.formats.hdf5.safe import Hdf5File, Values
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.stored_arrays import StoredArray
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["EpisodeLayout", "Hdf5Source", "JoinedEpisodes", "StoredEpisode", "episodes_of", "numbered"]

TOGETHER: Final = 16 << 20  # bytes of arrays in one batch
MOST: Final = 4096  # episodes in one batch
FIX: Final = "write the episode again, or leave it out with --on-error skip"


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """One episode as its file has it."""

    number: int  # in the file
    where: str  # for messages
    values: Mapping[str, Values]  # by path; an array of one number counts as one row
    attributes: Mapping[str, Any]

    @property
    def form(self) -> dict[str, Any]:
        """What episodes that are joined have in common."""
        return {path: (one.dtype, one.shape[1:]) if isinstance(one, np.ndarray) else str for path, one in self.values.items()}


class JoinedEpisodes:
    """E episodes of one form, with their arrays one after the other."""

    def __init__(self, episodes: Sequence[StoredEpisode]) -> None:
        self.episodes = episodes
        self.where = episodes[0].where
        self.values: dict[str, Values] = {}
        self.rows: dict[str, NDArray[np.int64]] = {}  # (E,) of each array
        for path, first in episodes[0].values.items():
            parts: list[Any] = [one.values[path] for one in episodes]
            self.rows[path] = np.array([len(part) for part in parts], np.int64)
            self.values[path] = np.concatenate(parts) if isinstance(first, np.ndarray) else [*chain(*parts)]

    def __len__(self) -> int:
        return len(self.episodes)

    def has_rows(self, path: str, rows: NDArray[np.int64]) -> bool:
        """Whether an array is of numbers, and each episode has so many rows of it."""
        return isinstance(self.values[path], np.ndarray) and bool((self.rows[path] == rows).all())

    def check_rows(self, paths: Iterable[str], rows: NDArray[np.int64]) -> None:
        """Raise BadEpisode for an array with other rows than `rows` (E,)."""
        for path in paths:
            if not self.has_rows(path, rows):
                raise BadEpisode(f"{path} is {self.why_left_out(path, rows)}", where=self.where, fix=FIX)

    def why_left_out(self, path: str, rows: NDArray[np.int64]) -> str:
        """Why an array is none of so many rows of numbers, said of the first episode."""
        one, count = self.values[path], int(self.rows[path][0])
        shape, said = (one.shape[1:], str(one.dtype)) if isinstance(one, np.ndarray) else ((), "text")
        return StoredArray(path, None, (count, *shape), said).why_no_column(int(rows[0]))

    @staticmethod
    def starts(steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """(E+1,) from the steps (E,) of each episode."""
        return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)


class EpisodeLayout(Protocol):
    """The episodes of one open file."""

    def names(self) -> Sequence[Any]:
        """Of the episodes, in their order. Raises BadData."""

    def stored(self, name: Any) -> StoredEpisode:
        """One episode, read. Raises BadData."""

    def batch(self, joined: JoinedEpisodes) -> EpisodeBatch:
        """The episodes. Raises BadData, before anything is counted, where one is not as the layout wants it."""


@dataclass(slots=True)
class Hdf5Source(FileSource):
    """Files of one layout, in the order given; `layout` is given an open file, and how the ids of its episodes begin."""

    layout: Callable[[Hdf5File, str, Tally], EpisodeLayout] = field(kw_only=True)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, many at a time."""
        self.done, start = 0, source_hash(self.files)
        for number, file in enumerate(self.files):
            with self.scope.part() as held:
                opened = held.enter(Hdf5File(file, self.read_options.memory_limit))
                prefix = f"{start}-" if len(self.files) == 1 else f"{start}-{number}-"
                yield from episodes_of(self, self.layout(opened, prefix, tally), file.url, tally, rejects)
        self.done = self.size or self.done


def episodes_of(source: FileSource, layout: EpisodeLayout, url: str, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
    """The episodes of a layout in their order, those of one form together; bad ones go to `rejects`."""
    held, nbytes, form = list[StoredEpisode](), 0, dict[str, Any]()
    for name in layout.names():
        tally.rows_in += 1
        try:
            one = layout.stored(name)
        except BadData as error:
            _reject(error, rejects)
            continue
        mine, size = one.form, sum(values.nbytes for values in one.values.values() if isinstance(values, np.ndarray))
        if held and (mine != form or nbytes + size > TOGETHER or len(held) == MOST):
            yield from _made(held, source, layout, url, rejects)
            held, nbytes = [], 0
        form = mine
        held.append(one)
        nbytes += size
    if held:
        yield from _made(held, source, layout, url, rejects)


def _made(
    held: list[StoredEpisode], source: FileSource, layout: EpisodeLayout, url: str, rejects: Rejects
) -> Iterator[Fragments]:
    try:
        batch = layout.batch(JoinedEpisodes(held))
    except BadData as error:
        if len(held) == 1:
            _reject(error, rejects)
        for one in held if len(held) > 1 else ():
            yield from _made([one], source, layout, url, rejects)
        return
    if source.info.action_space is None:
        batch = replace(batch, actions=choices(batch.actions))
    source.done += batch.nbytes
    numbers = np.array([one.number for one in held])
    yield Fragments(batch, Origins((url,), np.zeros(len(held), np.int64), numbers))


def _reject(error: BadData, rejects: Rejects) -> None:
    rejects.add(error)
    rejects.lose_episodes(Lost.UNREADABLE)


def numbered(names: Iterable[str], prefix: str) -> list[str]:
    """Those of the names that are `prefix` and a number, by that number."""
    parts = ((name.removeprefix(prefix), name) for name in names if name.startswith(prefix))
    found = [(int(rest), name) for rest, name in parts if rest.isascii() and rest.isdecimal() and len(rest) < 18]
    return [name for _, name in sorted(found)]
