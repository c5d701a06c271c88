"""The dataset that a write adds to: its shards stay as they are; of their bytes only ids, lengths and returns are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import (
    DATASET,
    MANIFEST,
    UNFINISHED_WRITING,
    WRITING,
    FolderKind,
    generation_of,
)
from offline_cli.datasets.lock import APPENDS_TO, WritingNote, refuse_if_at_work, unlock
from offline_cli.datasets.manifest import CHANGES, IDENTITY, Manifest, Shard
from offline_cli.datasets.ownership import refuse_foreign, refuse_links
from offline_cli.datasets.row_formats import RowFormat
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.errors import BadConfig, BadData, NoData, OutputExists, StorageNotFound, Uncommitted
from offline_cli.parquet.shards import opened
from offline_cli.source_code import allowed_changes, content_hash_of
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location

__all__ = ["Base", "check_base", "dataset_to_append_to", "note_in", "refuse_note_of_others"]

BEGIN_FIX: Final = "leave out --append to begin a dataset here, or name the one to add to"
IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # of a provenance, what is joined


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The dataset that a write adds to."""

    manifest: Manifest
    shards: Sequence[Shard]  # of the dataset without what the write adds

    @staticmethod
    def of(manifest: Manifest, added: str | None) -> Base:
        """`added`: the generation of shards that the write has added, if it was interrupted."""
        return Base(manifest, [shard for shard in manifest.shards if generation_of(shard.path) != added])

    @property
    def is_past(self) -> bool:
        """Whether the manifest lists what the write has added: it was killed between its commit and its end."""
        return len(self.shards) < len(self.manifest.shards)

    @property
    def paths(self) -> frozenset[str]:
        """Of its shards, below the dataset folder."""
        return frozenset(shard.path for shard in self.shards)

    @property
    def generations(self) -> frozenset[str]:
        """In the names of its shards."""
        return frozenset(map(generation_of, self.paths))

    @property
    def identity(self) -> str:
        """A hash that no other content has: what `resume` compares, and what the names of the new shards depend on."""
        return content_hash_of([(shard.path, shard.sha256) for shard in self.shards])

    def refuse_other(
        self, folder: Location, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless what is to be added is written as this dataset is."""
        known = self.manifest
        said = (("format", known.format, row_format), ("compression", known.compression, compression))
        wrong = [f"{name} is {ours}, not {theirs}" for name, ours, theirs in said if ours != theirs]
        own = known.observation_space, known.action_space
        for name, space, new in zip(("observation", "action"), own, spaces, strict=True):
            if not same_space(space, new):
                wrong.append(f"the {name} space is {describe(space)}, not {describe(new)}")
        if known.action_scale != scale:
            wrong.append(f"actions are of the scale {known.action_scale}, not {scale}")
        if wrong:
            fix = "write into a dataset of its own"
            raise BadConfig.of([f"in the dataset {one}" for one in wrong], where=folder.url, fix=fix)

    def changes_to(self, identity: Mapping[str, Any], folder: Location, allow_changes: bool) -> list[str]:
        """How `identity` differs from what this dataset was recorded with. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write into a dataset of its own"
        return allowed_changes(known if isinstance(known, dict) else {}, identity, allow_changes, where=folder.url, fix=fix)

    def with_added(self, added: Manifest) -> Manifest:
        """The manifest of both; of `added`, shards, assumptions, losses and provenance are those of the write alone."""
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if self.is_past:
            return before
        lists = ((name, before.provenance.get(name), added.provenance.get(name)) for name in IN_ORDER)
        lines = {name: [*one, *other] for name, one, other in lists if isinstance(one, list) and isinstance(other, list)}
        return replace(
            added,
            complete=added.complete and before.complete,
            shards=(*self.shards, *added.shards),
            assumptions=dict(Counter(before.assumptions) + Counter(added.assumptions)),
            episodes_lost=None if None in lost else sum(filter(None, lost)),
            provenance={**before.provenance, **added.provenance, **lines},
        )

    def ids(self, folder: Location) -> Iterator[Sequence[str]]:
        """Ids of the episodes, shard by shard. Raises BadData, StorageError."""
        with Dataset(folder, self.manifest, tuple(self.shards)).plain(returns=False, agents=False) as tables:
            yield from (table.column(Columns.EPS_ID).to_pylist() for table in tables)

    def adopt(self, folder: Location, rows: RowFormat) -> StatisticsBuilder:
        """The statistics of its episodes, to be added to, and the columns of its shards for `rows`.

        Figures of columns are those of its manifest; where that has none, or too few digits, they are left out. Raises BadData,
        StorageError.
        """
        known = StatisticsBuilder.of_json(self.manifest.statistics["columns"])
        if self.shards:
            with opened(folder.join(self.shards[0].path), size=self.shards[0].bytes) as file:
                rows.adopt(file.schema_arrow)
        with Dataset(folder, self.manifest, tuple(self.shards)).plain(agents=False) as tables:
            for table in tables:
                known.add_plain(table)
        known.unfinished = self.manifest.counts.unfinished
        return known


# ---- whether a dataset may be added to ----


def note_in(folder: Location, *, needed: bool) -> WritingNote | None:
    """The writer's note in `folder`; None also for a broken one that is not `needed`. Raises BadData."""
    try:
        return WritingNote.read(folder)
    except BadData:
        if needed:
            raise
        return None


def refuse_note_of_others(note: WritingNote, folder: Location, kind: FolderKind) -> None:
    """Raise Locked where the writer of the note is at work, OutputExists where it writes something else."""
    refuse_if_at_work(note, folder.join(WRITING))
    if note.writes != kind.noun:
        what = f"an unfinished {note.writes} is here, not a {kind.noun}"
        raise OutputExists(what, where=folder.url, fix=f"give another --out, or finish it: {note.command}")


def check_base(folder: Location, *, resume: bool = False, force_unlock: bool = False) -> WritingNote | None:
    """As `check_target`, for a committed dataset that is to be added to.

    Raises Locked, StorageNotFound, NoData; Uncommitted for a writer's note, unless `resume` continues what it began here;
    OutputExists for files in it that are nobody's of ours.
    """
    if not folder.exists():
        raise StorageNotFound("no dataset is here to append to", where=folder.url, fix=BEGIN_FIX)
    refuse_links(folder, DATASET)
    if force_unlock:
        unlock(folder)
    note = note_in(folder, needed=resume)
    if note is not None:
        refuse_note_of_others(note, folder, DATASET)
        if not resume or APPENDS_TO not in note.options:
            fix = f"finish it first ({note.command}, with --resume), or make a dataset of what is whole with offline-cli repair"
            raise Uncommitted("a writer has not finished this dataset", where=folder.url, fix=fix)
    if not folder.join(MANIFEST).exists():
        raise NoData("no dataset is here to append to: there is no manifest.json", where=folder.url, fix=BEGIN_FIX)
    refuse_foreign(folder, DATASET, has_note=note is not None)
    folder.check_writable()
    return note


def dataset_to_append_to(folder: Location, *, resume: bool = False, force_unlock: bool = False) -> Base:
    """That in `folder`, as it was before an interrupted write that `resume` continues.

    Raises as `check_base` does, and OutputExists for a dataset whose own writer can still be resumed.
    """
    note, found = check_base(folder, resume=resume, force_unlock=force_unlock), Manifest.read(folder)
    if not found.complete and UNFINISHED_WRITING in found.provenance:
        what = "the dataset here was committed before it was complete, and its own writer can continue it"
        fix = "finish it first, with --resume of the command that wrote it; or offline-cli merge it into a new dataset"
        raise OutputExists(what, where=folder.url, fix=fix)
    return Base.of(found, None if note is None else note.generation)
