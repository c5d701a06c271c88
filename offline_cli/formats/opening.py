"""Sources for places: our own datasets by their manifest, everything else by the reader that is most certain.

Hidden files, names with a leading underscore (`_SUCCESS`) and checksums (`.crc`) are not data.

Tables in memory (frames of Polars and pandas, tables of pyarrow) are sources too (`placed`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any, Final

import fsspec
import pyarrow as pa

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.datasets.file_names import BATCHES, RUN_POLICY
from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, NoData, StorageNotFound, UsageError
from offline_cli.formats.listing import Listing
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.reader import OpenContext, PluginSource, Reader
from offline_cli.formats.registry import AUTO, OURS, TABLE, reader_for, reader_named
from offline_cli.formats.source import ROWS, DroppedLeaves, Fragments, ReadOptions, Source, SourceInfo, shares
from offline_cli.formats.tables import TableOptions
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects, Tally

FOLDER: Final = "/offline-cli-frames"


def placed(sources: Any) -> Any:
    """`sources` with each table in memory as the URL of an Arrow file in memory, called by its content; others as they are."""
    if isinstance(sources, list | tuple):
        return [placed(one) for one in sources]
    if not hasattr(sources, "__arrow_c_stream__"):
        return sources
    reader = pa.RecordBatchReader.from_stream(sources)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)
    data = sink.getvalue()
    path = f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:16]}.arrow"
    fsspec.filesystem("memory").pipe_file(path, data.to_pybytes())
    return f"memory:/{path}"


OUTPUTS: Final = {
    BATCHES: ("a folder of train batches", "name the recordings that they were made from (provenance in batches.json)"),
    RUN_POLICY: ("a run of train-bc", "record with it (offline-cli record ENV --policy RUN --out D), or evaluate it"),
}
"""What our own commands write that is no recording, by a file of it; and what to do with it."""


def open_sources(
    sources: Sources,
    *,
    from_: str = SOURCE_FORMAT,
    tables: TableOptions | None = None,
    apart: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
) -> list[Source]:
    """A source for each folder, and one for each group of files that follow each other, in the order given.

    `apart`: each file is a source of its own. `tables`: how to read those that are tables. `drop`: leaves that are left out, by
    dotted path (`obs.mission`). Raises StorageNotFound for missing places, NoData where nothing is found or no reader
    recognises it, Uncommitted for a dataset whose writer has not finished, BadData for mixed or damaged files, UsageError for
    an unknown `from_`, and for a mapping where no source is a table; BadMapping for a table that no mapping explains.
    """
    reader = None if from_ == AUTO else reader_named(from_)
    opening = _Opening(from_, reader, tables or TableOptions(), storage_options, frozenset(drop))
    found: list[Source] = []
    numbers = count()
    places = expand(placed(sources), storage_options)
    for (is_folder, _), group in groupby(places, key=lambda one: (one.is_dir(), next(numbers) if apart else 0)):
        if is_folder:
            found += [opening.folder(location) for location in group]
        else:
            files = list(group)
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            found.append(opening.files(files, files[0].url + more))
    if not found:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    option = "--mapping" if opening.tables.mapping is not None else "--rows-as-episodes"
    if opening.is_mapped and not opening.takes_mapping:
        where = ", ".join(source.info.location for source in found)
        raise UsageError(f"{option} is for tables, and none is here", where=where, fix=f"leave out {option}")
    return [DroppedLeaves(source, opening.drop) for source in found] if opening.drop else found


@dataclass(slots=True)
class _Opening:
    """The caller's options for reading."""

    from_: str
    reader: Reader | None  # that the caller names; None: the most certain one
    tables: TableOptions
    storage_options: Mapping[str, Any] | None
    drop: frozenset[str]
    takes_mapping: bool = False  # whether one of the readers does

    @property
    def is_mapped(self) -> bool:
        return self.tables.mapping is not None or self.tables.rows_as_episodes

    def folder(self, location: Location) -> Source:
        """A dataset of ours, or what is in a folder."""
        if holds_dataset(location):
            own = OwnSource.open(location, memory_limit=self.tables.memory_limit)
            if self.from_ not in (AUTO, own.info.format):
                what = f"--from {self.from_} for a dataset of {own.info.format}"
                raise UsageError(what, where=location.url, fix="leave out --from")
            return own
        files = [file for file in location.files() if _is_data(file, location)]
        if not files:
            fix = "give a folder of Parquet, CSV or JSON recordings, or a dataset that convert wrote"
            raise NoData("the folder holds no data files", where=location.url, fix=fix)
        for name, (words, fix) in OUTPUTS.items():
            if any(file.path == location.join(name).path for file in files):
                raise NoData(f"this is {words}, not recordings", where=location.url, fix=fix)
        return self.files(files, location.url)

    def files(self, files: Sequence[Location], location: str) -> Source:
        """Files that are one source."""
        listing = Listing(files, location, as_tables=self.from_ == TABLE or self.is_mapped)
        reader = self.reader or reader_for(listing)
        self.takes_mapping |= reader.takes_mapping
        context = OpenContext(listing, self.tables, self.storage_options, self.drop)
        if reader not in OURS.values():  # what is not data to us may be data to another package
            return PluginSource(reader.open(files, context), reader.name)
        return reader.open(files if self.reader else listing.data, context)


def _is_data(file: Location, folder: Location) -> bool:
    below = file.path.removeprefix(folder.path.rstrip("/")).strip("/")
    return not any(part.startswith((".", "_")) for part in below.split("/")) and not below.endswith(".crc")


# ---- our own datasets ----


@dataclass(slots=True)
class OwnSource:
    """A committed dataset of ours; its manifest declares what foreign sources leave open."""

    dataset: Dataset
    info: SourceInfo
    size: int | None
    memory_limit: int = MEMORY_LIMIT
    unit: str = ROWS
    done: int = 0
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, location: Location, *, memory_limit: int = MEMORY_LIMIT) -> OwnSource:
        """The dataset at `location`; `memory_limit`: see `Dataset.batches`. Raises Uncommitted, BadData, StorageError."""
        dataset = Dataset.open(location)
        info, counts = info_of(dataset.manifest, location.url), dataset.manifest.counts
        return cls(dataset, info, counts.episodes if info.format == "episodes" else counts.steps, memory_limit)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """The episodes of its shards, whole; `rows_in` counts rows of their tables."""
        self.done = 0
        with self.scope.part() as held:
            for batch in held.enter(self.dataset.batches(memory_limit=self.memory_limit)):
                rows = len(batch) if self.info.format == "episodes" else batch.num_steps
                self.done += rows
                tally.rows_in += rows
                yield Fragments(batch)

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    def partitions(self, count: int) -> Sequence[OwnSource]:
        """See `Source`: no episode lies in two shards."""
        unit, dataset, parts = "episodes" if self.info.format == "episodes" else "steps", self.dataset, []
        for part in shares(dataset.shards, count):
            shards = tuple(part)
            manifest = replace(dataset.manifest, shards=shards)  # a part goes to a worker: not with all that it does not read
            own, size = replace(dataset, manifest=manifest, part=shards), sum(getattr(shard, unit) for shard in shards)
            parts.append(replace(self, dataset=own, info=replace(self.info, manifest=manifest), size=size, done=0))
        return parts


def infos_of_manifests(places: Iterable[Location]) -> Iterator[SourceInfo]:
    """What those of the places that are datasets of ours declare, before they are opened; broken ones are left to readers."""
    for place in places:
        if place.is_dir() and holds_dataset(place):
            with suppress(BadData, StorageNotFound):
                yield info_of(Manifest.read(place), place.url)


def info_of(manifest: Manifest, location: str) -> SourceInfo:
    """What a manifest declares of the dataset at `location`."""
    environment, longest = manifest.environment, manifest.statistics.get("length", {}).get("max")
    return SourceInfo(
        format=manifest.format,
        location=location,
        observation_space=manifest.observation_space,
        action_space=manifest.action_space,
        spaces_inferred=manifest.spaces_inferred,
        action_scale=manifest.action_scale,
        meanings=manifest.meanings,
        environment=EnvironmentSpec(environment.id, environment.kwargs, environment.wrappers) if environment else None,
        longest=None if longest is None else int(longest),
        commands=tuple(str(line) for line in manifest.provenance.get("commands", [])),
        declared=_documents(manifest.provenance.get("declared")),
        mappings=_documents(manifest.provenance.get("mappings")),
        manifest=manifest,
    )


def _documents(found: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()
