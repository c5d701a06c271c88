"""The entries of shards on their way into a manifest: in memory while they are few, then in parts that are written at once.

`FinishedShards` holds at most `LISTED` entries, so that a writer of a million shards needs no more memory than one of ten
thousand. `joined`: those of a dataset that is added to, and new ones; full parts stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from offline_cli.datasets import shard_list
from offline_cli.datasets.file_names import MANIFEST, MANIFEST_PARTS
from offline_cli.datasets.shard_list import Part, Shard, ShardParts, part_bytes, parts_of, read_part
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["FinishedShards", "joined"]

Guard = Callable[[], AbstractContextManager[None]]


class FinishedShards:
    """The shards that a write has finished, in order. Raises StorageError."""

    def __init__(self, folder: Location, guard: Guard = nullcontext) -> None:
        """`folder`: the dataset's. `guard`: around each moment in which a part gets its name; may raise."""
        self._folder, self._guard = folder, guard
        self._parts: list[Part] = []
        self._pending: list[Shard] = []  # after those of the parts
        self._count = 0
        self.episodes = 0  # of all

    def __len__(self) -> int:
        return self._count

    def append(self, shard: Shard) -> None:
        """One more; where many are waiting, they become parts."""
        self._pending.append(shard)
        self._count += 1
        self.episodes += shard.episodes
        if len(self._pending) > (0 if self._parts else shard_list.LISTED):
            while len(self._pending) >= shard_list.PER_PART:
                self._spill()

    def _spill(self) -> None:
        self._parts.append(_written(self._folder, self._pending[: shard_list.PER_PART], self._guard))
        del self._pending[: shard_list.PER_PART]

    def change(self, changed: Callable[[int, Shard], Shard]) -> None:
        """Replace each shard by what `changed` gives for its number and entry; parts that differ are written again."""
        number = 0
        for at, entries in enumerate(map(self._sealed().entries, range(len(self._parts)))):
            new = [changed(number + index, shard) for index, shard in enumerate(entries)]
            if new != [*entries]:
                before = self._parts[at]
                self._parts[at] = _written(self._folder, new, self._guard)
                with self._guard():
                    self._folder.join(before.path).remove()
            number += len(entries)
        self._pending = [changed(number + index, shard) for index, shard in enumerate(self._pending)]

    def sealed(self) -> Sequence[Shard]:
        """All of them, as a manifest has them: a tuple, or parts, without figures."""
        if not self._parts:
            return tuple(self._pending)
        while self._pending:
            self._spill()
        return self._sealed()

    def _sealed(self) -> ShardParts:
        return _parts(self._folder, self._parts)


def joined(folder: Location, there: Sequence[Shard], new: Sequence[Shard], guard: Guard = nullcontext) -> Sequence[Shard]:
    """The shards of dataset `folder` and new ones. A last part that is not full is written again with the new ones, so that
    many small appends make no small parts. Raises BadData for a broken part, StorageError.
    """
    parts, more = [*parts_of(there)], parts_of(new)
    if not parts and not more and len(there) + len(new) <= shard_list.LISTED:
        return (*there, *new)
    rest: list[Shard] = [] if parts else [*there]
    if parts and not more and parts[-1].shards < shard_list.PER_PART:
        rest += ShardParts(parts, partial(read_part, folder), where=folder.join(MANIFEST).url).entries(len(parts) - 1)
        parts.pop()
    rest += () if more else new
    pieces = (rest[first : first + shard_list.PER_PART] for first in range(0, len(rest), shard_list.PER_PART))
    return _parts(folder, [*parts, *(_written(folder, piece, guard) for piece in pieces), *more])


def _parts(folder: Location, parts: Sequence[Part]) -> ShardParts:
    return ShardParts(parts, partial(read_part, folder), where=folder.join(MANIFEST).url)


def _written(folder: Location, shards: Sequence[Shard], guard: Guard) -> Part:
    part, data = part_bytes(shards)
    folder.join(MANIFEST_PARTS).make_folder()
    with guard():
        write_whole(folder.join(part.path), data, folder=folder)
    return part
