"""Open sources: our own datasets by their manifest, everything else by the reader with the highest certainty.

Hidden files, names with a leading underscore (`_SUCCESS`) and checksums (`.crc`) are not data.

In-memory tables (Polars and pandas frames, pyarrow tables) are sources too (`placed`).
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
from offline_cli.formats.source import DroppedLeaves, Fragments, ReadOptions, Source, SourceInfo, shares
from offline_cli.formats.tables import TableOptions
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects, Tally

FOLDER: Final = "/offline-cli-frames"


def placed(sources: Any) -> Any:
    """Replace each in-memory table in `sources` by the URL of a memory:// Arrow file, named by its content hash."""
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
"""Our own outputs that are not recordings, by a file in them: a description, and what to do instead."""


def open_sources(
    sources: Sources,
    *,
    from_: str = SOURCE_FORMAT,
    tables: TableOptions | None = None,
    apart: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
) -> list[Source]:
    """Open one source per folder, and one per group of consecutive files, in the given order.

    `apart`: each file is its own source. `tables`: options for reading tables. `drop`: leaves to drop, by dotted path
    (`obs.mission`). Raises StorageNotFound for missing places, NoData if nothing is found or no reader recognises it,
    Uncommitted for an unfinished dataset, BadData for mixed or damaged files, UsageError for an unknown `from_`, and for a
    mapping without tables; BadMapping for a table without a mapping that explains it.
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
        raise UsageError(f"{option} is for tables, but there is none", where=where, fix=f"remove {option}")
    return [DroppedLeaves(source, opening.drop) for source in found] if opening.drop else found


@dataclass(slots=True)
class _Opening:
    """Opens sources with the caller's options."""

    from_: str
    reader: Reader | None  # named by the caller; None: choose the most certain one
    tables: TableOptions
    storage_options: Mapping[str, Any] | None
    drop: frozenset[str]
    takes_mapping: bool = False  # whether a reader used so far accepts a mapping

    @property
    def is_mapped(self) -> bool:
        return self.tables.mapping is not None or self.tables.rows_as_episodes

    def folder(self, location: Location) -> Source:
        """Open one of our datasets, or the files in a folder."""
        if holds_dataset(location):
            own = OwnSource.open(location, memory_limit=self.tables.memory_limit)
            if self.from_ not in (AUTO, own.info.format):
                what = f"--from {self.from_}, but this is a dataset in the format {own.info.format}"
                raise UsageError(what, where=location.url, fix="remove --from")
            return own
        files = [file for file in location.files() if _is_data(file, location)]
        if not files:
            fix = "give a folder of Parquet, CSV or JSON recordings, or a dataset written by convert"
            raise NoData("the folder holds no data files", where=location.url, fix=fix)
        for name, (words, fix) in OUTPUTS.items():
            if any(file.path == location.join(name).path for file in files):
                raise NoData(f"this is {words}, not recordings", where=location.url, fix=fix)
        return self.files(files, location.url)

    def files(self, files: Sequence[Location], location: str) -> Source:
        """Open files as one source."""
        listing = Listing(files, location, as_tables=self.from_ == TABLE or self.is_mapped)
        reader = self.reader or reader_for(listing)
        self.takes_mapping |= reader.takes_mapping
        context = OpenContext(listing, self.tables, self.storage_options, self.drop)
        if reader not in OURS.values():  # plug-ins get all files: they may read what we ignore
            return PluginSource(reader.open(files, context), reader.name)
        return reader.open(files if self.reader else listing.data, context)


def _is_data(file: Location, folder: Location) -> bool:
    below = file.path.removeprefix(folder.path.rstrip("/")).strip("/")
    return not any(part.startswith((".", "_")) for part in below.split("/")) and not below.endswith(".crc")


# ---- our own datasets ----


@dataclass(slots=True)
class OwnSource:
    """One of our committed datasets; its manifest declares spaces, action scale and environment."""

    dataset: Dataset
    info: SourceInfo
    size: int | None
    unit: str  # of its rows: "episodes" | "steps"
    memory_limit: int = MEMORY_LIMIT
    done: int = 0
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, location: Location, *, memory_limit: int = MEMORY_LIMIT) -> OwnSource:
        """Open the dataset at `location`; `memory_limit`: see `Dataset.batches`. Raises Uncommitted, BadData, StorageError."""
        dataset = Dataset.open(location)
        info = info_of(dataset.manifest, location.url)
        unit = "episodes" if info.format == "episodes" else "steps"
        return cls(dataset, info, getattr(dataset.manifest.counts, unit), unit, memory_limit)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Whole episodes of the shards; `rows_in` counts table rows."""
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
        """See `Source`. Splits by shards: no episode spans two."""
        dataset, parts = self.dataset, []
        for part in shares(dataset.shards, count):
            shards = tuple(part)
            manifest = replace(dataset.manifest, shards=shards)  # workers get only the shards they read
            own, size = replace(dataset, manifest=manifest, part=shards), sum(getattr(shard, self.unit) for shard in shards)
            parts.append(replace(self, dataset=own, info=replace(self.info, manifest=manifest), size=size, done=0))
        return parts


def infos_of_manifests(places: Iterable[Location]) -> Iterator[SourceInfo]:
    """The manifests' declarations of those places that are our datasets; broken ones are skipped, readers report them."""
    for place in places:
        if place.is_dir() and holds_dataset(place):
            with suppress(BadData, StorageNotFound):
                yield info_of(Manifest.read(place), place.url)


def info_of(manifest: Manifest, location: str) -> SourceInfo:
    """The SourceInfo from the manifest of the dataset at `location`."""
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
