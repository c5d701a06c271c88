"""The shards that a writer has finished and the current one, including those of an interrupted write.

A shard counts once it has its final name. Complete shards of an earlier writer are read again (`adopt`): their episodes pass
through the same row groups as when they were written, so that statistics are equal to the last bit. A shard that cannot be read
is an error.

`Base`, `check_base`: the shards of a dataset that a write adds to, and whether it may. They stay as they are; of their bytes
only ids, lengths and returns are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from offline_cli.columns import Columns
from offline_cli.datasets.episode_tables import PLAIN_SCHEMA
from offline_cli.datasets.file_names import DATA, DATASET, MANIFEST, WRITING, FolderKind, generation_of, shard_name
from offline_cli.datasets.finished_shards import FinishedShards, joined
from offline_cli.datasets.lease_record import APPENDS_TO, UNFINISHED_WRITING, WritingNote, refuse_if_at_work
from offline_cli.datasets.manifest import CHANGES, IDENTITY, Manifest, Shard, content_hash
from offline_cli.datasets.ownership import refuse_foreign_data, refuse_links
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import RowFormat
from offline_cli.datasets.row_groups import BlockCutter
from offline_cli.datasets.shard_list import parts_of
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, OutputExists, StorageNotFound, Uncommitted
from offline_cli.parquet.bounds import MEMORY_LIMIT
from offline_cli.parquet.shard_writing import ShardWriter
from offline_cli.parquet.shards import fingerprint, opened, read_row_groups
from offline_cli.scopes import Scope
from offline_cli.source_code import allowed_changes
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location

__all__ = [
    "Adopted",
    "Base",
    "ShardSequence",
    "adopt",
    "check_base",
    "dataset_to_append_to",
    "note_in",
    "refuse_note_of_others",
]

BEGIN_FIX: Final = "leave out --append to begin a dataset here, or name the one to add to"
PLAIN_NUMBERS: Final = (Columns.LENGTH, Columns.RETURN, Columns.TERMINATED, Columns.TRUNCATED)
IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # of a provenance, what is joined


class ShardSequence:
    """Shards of one generation in order of their numbers; at most one is open. Raises StorageError."""

    def __init__(
        self,
        folder: Location,
        generation: str,
        *,
        compression: str,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`folder`: the dataset's. `guard`: around each moment in which a shard gets its name; may raise."""
        self._folder = folder
        self._generation = generation
        self._compression = compression
        self._guard = guard
        self._open: ShardWriter | None = None
        self._episodes = self._steps = 0  # in the open shard
        self.finished = FinishedShards(folder, guard)
        self._schemas: list[Any] = []  # pa.Schema of each finished one; neighbours that are equal are one object
        self._schema: Any = None

    @property
    def next_path(self) -> str:
        """Path, below the dataset's folder, of the shard that is open or would be opened next."""
        return shard_name(self._generation, len(self.finished))

    def adopt(self, shard: Shard, schema: Any) -> None:
        """Count a shard that an earlier writer finished."""
        self.finished.append(shard)
        same = self._schemas and self._schemas[-1].equals(schema, check_metadata=True)
        self._schemas.append(self._schemas[-1] if same else schema)

    def write(self, batch: EpisodeBatch, table: Any) -> None:
        """Append the pa.Table of `batch` to the open shard, or to a new one where none is open."""
        if self._open is None:
            self._schema = table.schema
            self._open = self._writer(self.next_path, table.schema)
        self._open.write(table)
        self._episodes += len(batch)
        self._steps += batch.num_steps

    def close(self) -> None:
        """Finish the open shard, if one is."""
        if self._open is None:
            return
        self._open.settle()
        with self._guard():
            size, digest = self._open.commit()
        shard = Shard(self.next_path, self._episodes, self._open.rows, self._steps, size, digest)
        self.adopt(shard, self._schema)
        self._open = None
        self._episodes = self._steps = 0

    def discard(self) -> None:
        """Discard the open shard."""
        if self._open is not None:
            self._open.discard()
            self._open = None

    def complete(self, rows: RowFormat) -> None:
        """Write those finished shards again that lack columns which later ones have."""
        if any(map(rows.lacks, self._schemas)):
            self.finished.change(
                lambda number, shard: self.rewrite(shard, rows) if rows.lacks(self._schemas[number]) else shard
            )

    def rewrite(self, shard: Shard, rows: RowFormat) -> Shard:
        """Write a finished shard again, with all columns."""
        place = self._folder.join(shard.path)
        writer: ShardWriter | None = None
        try:
            with opened(place, size=shard.bytes) as file:
                for table in map(rows.completed, read_row_groups(file, place)):
                    writer = writer or self._writer(shard.path, table.schema)
                    writer.write(table)
            assert writer is not None, "a finished shard has rows"
            writer.settle()
            with self._guard():
                size, digest = writer.commit()
        except BaseException:
            if writer is not None:
                writer.discard()
            raise
        return replace(shard, bytes=size, sha256=digest)

    def _writer(self, path: str, schema: Any) -> ShardWriter:
        return ShardWriter(self._folder.join(path), schema, folder=self._folder, compression=self._compression)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A shard that an earlier write finished."""

    shard: Shard
    schema: Any  # pa.Schema
    ids: tuple[str, ...]  # of its episodes, in order


def adopt(
    place: Location,
    reader: ShardReader,
    rows: RowFormat,
    statistics: StatisticsBuilder,
    *,
    known: tuple[int, str] | None = None,
) -> Adopted:
    """Read the shard at `place`, add its episodes to `statistics`, its columns to `rows`.

    `known`: its bytes and sha256, if they have been read. Raises BadData,
    StorageError, and as `check_bound` does.
    """
    cutter = BlockCutter(rows.rows_of, max_rows=None, max_bytes=None)
    ids: list[str] = []
    steps = 0
    size, digest = known or fingerprint(place)
    with opened(place, size=size) as file:
        schema, row_count = file.schema_arrow, file.metadata.num_rows
        rows.adopt(schema)
        for batch in reader.read(place, opening=nullcontext(file)):
            ids += batch.ids
            steps += batch.num_steps
            for block in cutter.push(batch):
                statistics.add(block.batch)
    for block in cutter.flush():
        statistics.add(block.batch)
    return Adopted(Shard(f"{DATA}/{place.name}", len(ids), row_count, steps, size, digest), schema, tuple(ids))


# ---- of a dataset that is added to ----


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The dataset that a write adds to."""

    manifest: Manifest
    shards: Sequence[Shard]  # of the dataset without what the write adds

    @staticmethod
    def of(manifest: Manifest, added: str | None) -> Base:
        """`added`: the generation of shards that the write has added, if it was interrupted."""
        count = len(manifest.shards) if added is None else sum(generation_of(one.path) != added for one in manifest.shards)
        return Base(manifest, manifest.shards[:count])  # the added ones are the last

    @property
    def is_past(self) -> bool:
        """Whether the manifest lists what the write has added: it was killed between its commit and its end."""
        return len(self.shards) < len(self.manifest.shards)

    @property
    def paths(self) -> frozenset[str]:
        """Of its shards and the parts that list them, below the dataset folder."""
        return frozenset([*(shard.path for shard in self.shards), *(part.path for part in parts_of(self.shards))])

    @property
    def generations(self) -> frozenset[str]:
        """In the names of its shards."""
        return frozenset(generation_of(shard.path) for shard in self.shards)

    @property
    def identity(self) -> str:
        """A hash that no other content has: what `resume` compares, and what the names of the new shards depend on."""
        return content_hash(self.shards)

    def refuse_other(
        self, folder: Location, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless what is to be added is written as this dataset is."""
        known = self.manifest
        said = (("format", known.format, row_format), ("compression", known.compression, compression))
        wrong = [f"{name} is {ours}, not {theirs}" for name, ours, theirs in said if ours != theirs]
        for name, own, new in zip(
            ("observation", "action"), (known.observation_space, known.action_space), spaces, strict=True
        ):
            if not same_space(own, new):
                wrong.append(f"the {name} space is {describe(own)}, not {describe(new)}")
        if known.action_scale != scale:
            wrong.append(f"actions are of the scale {known.action_scale}, not {scale}")
        if wrong:
            fix = "write into a dataset of its own"
            raise BadConfig.of([f"in the dataset {one}" for one in wrong], where=folder.url, fix=fix)

    def changes_to(self, identity: Mapping[str, Any], folder: Location, allow_changes: bool) -> list[str]:
        """How `identity` differs from what this dataset was recorded with. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write into a dataset of its own"
        return allowed_changes(known if isinstance(known, dict) else {}, identity, allow_changes, where=folder.url, fix=fix)

    def with_added(self, added: Manifest, folder: Location, guard: Callable[[], AbstractContextManager[None]]) -> Manifest:
        """The manifest of both; of `added`, shards, assumptions, losses and provenance are those of the write alone.

        `folder`, `guard`: for parts that are written, see `joined`.
        """
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if self.is_past:
            return before
        lists = ((name, before.provenance.get(name), added.provenance.get(name)) for name in IN_ORDER)
        lines = {name: [*one, *other] for name, one, other in lists if isinstance(one, list) and isinstance(other, list)}
        return replace(
            added,
            complete=added.complete and before.complete,
            shards=joined(folder, self.shards, added.shards, guard),
            assumptions=Counter(before.assumptions) + Counter(added.assumptions),
            episodes_lost=None if None in lost else sum(filter(None, lost)),
            provenance={**before.provenance, **added.provenance, **lines},
        )

    @property
    def _reader(self) -> ShardReader:
        return ShardReader(self.manifest.format, self.manifest.observation_space, self.manifest.action_space)

    def ids(self, folder: Location) -> Iterator[Sequence[str]]:
        """Ids of the episodes, shard by shard. Raises BadData, StorageError."""
        for shard in self.shards:
            table = self._plain(folder, shard)
            if table is not None:
                yield table.column(Columns.EPS_ID).to_pylist()
                continue
            place = folder.join(shard.path)
            yield [name for batch in self._reader.read(place) for name in batch.ids]

    def adopt(self, folder: Location, rows: RowFormat) -> StatisticsBuilder:
        """The statistics of its episodes, to be added to, and the columns of its shards for `rows`.

        Columns come from the manifest; where that would lose digits, or shards lack plain columns, all episodes are read.
        Raises BadData, StorageError.
        """
        known = StatisticsBuilder.of_json(self.manifest.statistics["columns"])
        tables = [] if known is None else [self._plain(folder, shard, rows) for shard in self.shards]
        if known is None or any(table is None for table in tables):
            known, reader, tables = StatisticsBuilder(), self._reader, []
            for shard in self.shards:
                adopt(folder.join(shard.path), reader, rows, known)
            known.not_finite.clear()  # the manifest has them
        for table in tables:
            known.add_plain(*(table.column(name).to_numpy() for name in PLAIN_NUMBERS))
        known.unfinished = self.manifest.counts.unfinished
        return known

    def _plain(self, folder: Location, shard: Shard, rows: RowFormat | None = None) -> Any:
        """The plain columns of a shard's episodes, a pa.Table; None where it lacks them."""
        place = folder.join(shard.path)
        with opened(place, size=shard.bytes) as file, Scope() as scope:
            if rows is not None:
                rows.adopt(file.schema_arrow)
            wanted = {"returns": rows is not None, "agents": False}
            tables = self._reader.plain(file, place, MEMORY_LIMIT, **wanted, scope=scope)
            table = None if tables is None else pa.concat_tables([PLAIN_SCHEMA.empty_table(), *tables])
        if table is not None and table.num_rows != shard.episodes:
            what = f"the shard holds {table.num_rows} episodes, its manifest says {shard.episodes}"
            raise BadData(what, where=place.url, fix="offline-cli validate shows what is wrong; then offline-cli repair")
        return table


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


def check_base(folder: Location, *, resume: bool = False) -> WritingNote | None:
    """As `check_target`, for a committed dataset that is to be added to.

    Raises Locked, StorageNotFound, NoData; Uncommitted for a writer's note, unless `resume` continues what it began here;
    OutputExists for files in it that are nobody's of ours.
    """
    if not folder.exists():
        raise StorageNotFound("no dataset is here to append to", where=folder.url, fix=BEGIN_FIX)
    refuse_links(folder, DATASET)
    note = note_in(folder, needed=resume)
    if note is not None:
        refuse_note_of_others(note, folder, DATASET)
        if not resume or APPENDS_TO not in note.options:
            fix = f"finish it first ({note.command}, with --resume), or make a dataset of what is whole with offline-cli repair"
            raise Uncommitted("a writer has not finished this dataset", where=folder.url, fix=fix)
    if not folder.join(MANIFEST).exists():
        raise NoData("no dataset is here to append to: there is no manifest.json", where=folder.url, fix=BEGIN_FIX)
    refuse_foreign_data(folder, DATASET)
    folder.check_writable()
    return note


def dataset_to_append_to(folder: Location, *, resume: bool = False) -> Base:
    """That in `folder`, as it was before an interrupted write that `resume` continues.

    Raises as `check_base` does, and OutputExists for a dataset whose own writer can still be resumed.
    """
    note, found = check_base(folder, resume=resume), Manifest.read(folder)
    if not found.complete and UNFINISHED_WRITING in found.provenance:
        what = "the dataset here was committed before it was complete, and its own writer can continue it"
        fix = "finish it first, with --resume of the command that wrote it; or offline-cli merge it into a new dataset"
        raise OutputExists(what, where=folder.url, fix=fix)
    return Base.of(found, None if note is None else note.generation)
