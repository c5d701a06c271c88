"""Reading a committed dataset: exactly the shards that its manifest lists; refuses one that is not committed, or broken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, NoData, StorageNotFound, Uncommitted
from offline_cli.storage.layout import MANIFEST, WRITING
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.reading import ShardReader
from offline_cli.storage.writing_note import WritingNote

__all__ = ["TARGET_STEPS", "Dataset"]

TARGET_STEPS = 1 << 16


@dataclass(frozen=True, slots=True)
class Dataset:
    """One committed dataset."""

    location: Location  # its folder
    manifest: Manifest

    @staticmethod
    def open(location: str | os.PathLike[str] | Location, storage_options: Mapping[str, Any] | None = None) -> Dataset:
        """The dataset in a folder.

        Raises StorageNotFound where there is no folder, NoData where it holds no dataset, Uncommitted while a writer has not
        finished, BadData for a broken manifest.
        """
        folder = open_location(location, storage_options)
        place = folder.join(MANIFEST)
        if folder.join(WRITING).exists():
            raise _uncommitted(folder, has_manifest=place.exists())
        if not place.exists():
            if not folder.exists():
                raise StorageNotFound(f"{folder.url} does not exist", where=folder.url, fix="check the path")
            fix = "name the folder of a dataset, the one with manifest.json in it"
            raise NoData("no dataset is here: there is no manifest.json", where=folder.url, fix=fix)
        return Dataset(folder, Manifest.from_bytes(place.read_bytes(), where=place.url))

    def batches(self, columns: Sequence[str] | None = None, target_steps: int = TARGET_STEPS) -> Iterator[EpisodeBatch]:
        """All episodes in the manifest's order, streamed: one shard is open at a time, one row group or so in memory.

        `columns`: names of the extra model outputs to read, and "infos"; None: all there are. Observations, actions, rewards
        and flags always come. A batch has `target_steps` or more where a shard has them (`columns`), or is a row group
        (`episodes`). Arrays may be read-only. Raises BadData, naming the shard, for one that is missing, cut or changed.
        """
        found = self.manifest
        reader = ShardReader(found.format, found.observation_space, found.action_space, columns, target_steps)
        for shard in found.shards:
            place, episodes = self.location.join(shard.path), 0
            for batch in reader.read(place, size=shard.bytes, rows=shard.rows):
                episodes += len(batch)
                yield batch
            if episodes != shard.episodes:
                what = f"the shard holds {episodes} episodes, its manifest says {shard.episodes}"
                raise BadData(what, where=place.url, fix="write the dataset again from its source")


def _uncommitted(folder: Location, *, has_manifest: bool) -> Uncommitted:
    try:
        note = WritingNote.read(folder)
    except BadData:  # a broken note says no less that nobody has finished
        note = None
    began = f": {note.command}, since {note.started}, process {note.pid} on {note.host}" if note else ""
    fix = "run the same command again with --resume"
    if has_manifest:
        fix += f"; or remove {WRITING} to go back to the dataset that was being overwritten"
    return Uncommitted(f"a writer has not finished this dataset{began}", where=folder.url, fix=fix)
