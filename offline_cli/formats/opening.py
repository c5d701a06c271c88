"""Sources for places: our own datasets by their manifest, everything else by the reader that is most certain.

Hidden files, names with a leading underscore (`_SUCCESS`) and checksums (`.crc`) are not data.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, groupby, islice
from typing import Any, Final

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.datasets.file_names import BATCHES, RUN_CONFIG, RUN_POLICY
from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import EnvironmentSpec
from offline_cli.errors import BadData, NoData, StorageNotFound, UsageError
from offline_cli.formats.dropped_leaves import DroppedLeaves
from offline_cli.formats.frames import placed
from offline_cli.formats.listing import KINDS, Listing
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.reader import OpenContext, PluginSource, Reader
from offline_cli.formats.registry import AUTO, OURS, ReaderChoice, reader_named
from offline_cli.formats.source import ROWS, Fragments, ReadOptions, Source, SourceInfo, shares
from offline_cli.formats.tables import TableOptions
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects, Tally

__all__ = ["OwnSource", "info_of", "infos_of_manifests", "open_sources"]

TABLE: Final = "table"
UNSAID: Final = TableOptions()


def infos_of_manifests(places: Iterable[Location]) -> Iterator[SourceInfo]:
    """What those of the places that are datasets of ours declare, before they are opened; broken ones are left to readers."""
    for place in places:
        if place.is_dir() and holds_dataset(place):
            with suppress(BadData, StorageNotFound):
                yield info_of(Manifest.read(place), place.url)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The caller's options for reading."""

    from_: str
    reader: Reader | None  # that it names; None: the most certain one
    tables: TableOptions
    storage_options: Mapping[str, Any] | None
    drop: frozenset[str]
    choice: ReaderChoice = field(default_factory=ReaderChoice)
    takes_mapping: list[bool] = field(default_factory=list)  # of each source that was opened

    @property
    def is_mapped(self) -> bool:
        """Whether a mapping says that the sources are tables."""
        return self.tables.mapping is not None or self.tables.rows_as_episodes


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
    asked = _Asked(from_, None if from_ == AUTO else reader_named(from_), tables or UNSAID, storage_options, frozenset(drop))
    found: list[Source] = []
    numbers = count()
    places = expand(placed(sources), storage_options)
    for (is_folder, _), group in groupby(places, key=lambda one: (one.is_dir(), next(numbers) if apart else 0)):
        if is_folder:
            found += [_of_folder(location, asked) for location in group]
        else:
            files = list(group)
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            found.append(_of_files(files, files[0].url + more, asked))
    if not found:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    _refuse_mapping(asked, found)
    return [DroppedLeaves(source, asked.drop) for source in found] if asked.drop else found


def _of_folder(location: Location, asked: _Asked) -> Source:
    if holds_dataset(location):
        own = OwnSource.open(location, memory_limit=asked.tables.memory_limit)
        if asked.from_ not in (AUTO, own.info.format):
            raise UsageError(
                f"--from {asked.from_} for a dataset of {own.info.format}", where=location.url, fix="leave out --from"
            )
        asked.takes_mapping.append(False)
        return own
    files = [file for file in location.files() if _is_data(file, location)]
    if not files:
        fix = "give a folder of Parquet, CSV or JSON recordings, or a dataset that convert wrote"
        raise NoData("the folder holds no data files", where=location.url, fix=fix)
    if any(file.path == location.join(BATCHES).path for file in files):
        fix = "name the recordings that they were made from (provenance in batches.json)"
        raise NoData("train batches are here, not recordings", where=location.url, fix=fix)
    _refuse_runs(files)
    return _of_files(files, location.url, asked)


def _refuse_runs(files: Sequence[Location]) -> None:
    """Raise NoData where all files are those of training runs, whose metrics look like a table."""
    paths = {file.path: file for file in files}
    runs = [path.removesuffix(RUN_POLICY) for path in paths if path.endswith(f"/{RUN_POLICY}")]
    runs = [run for run in runs if f"{run}{RUN_CONFIG}" in paths]
    if runs and all(path.startswith(tuple(runs)) for path in paths):
        run = paths[f"{runs[0]}{RUN_POLICY}"].url.removesuffix(f"/{RUN_POLICY}")
        run = shlex.quote(run)
        fix = (
            f"play it with offline-cli evaluate {run} --env ENV, record with it: offline-cli record ENV --policy {run} --out D,"
            f" or train on: offline-cli train-bc D --out {run} --resume"
        )
        raise NoData("this is a run of train-bc, not recordings", where=run, fix=fix)


def _is_data(file: Location, folder: Location) -> bool:
    below = file.path.removeprefix(folder.path.rstrip("/")).strip("/")
    return not any(part.startswith((".", "_")) for part in below.split("/")) and not below.endswith(".crc")


def _of_files(files: Sequence[Location], location: str, asked: _Asked) -> Source:
    listing = Listing(files, location, as_tables=asked.from_ == TABLE or asked.is_mapped)
    reader = asked.reader or asked.choice.reader_for(listing)
    is_ours = reader in OURS.values()
    asked.takes_mapping.append(reader.takes_mapping)
    context = OpenContext(listing, asked.tables, asked.storage_options, asked.drop)
    passes_over = asked.reader is None and is_ours  # what is not data to us may be data to another package
    source = reader.open(listing.data if passes_over else files, context)
    return source if is_ours else PluginSource(source, reader.name)


def _refuse_mapping(asked: _Asked, sources: Sequence[Source]) -> None:
    """Raise UsageError for a mapping where none of the sources is a table: it is for those among them that are."""
    if asked.is_mapped and not any(asked.takes_mapping):
        option = "--mapping" if asked.tables.mapping is not None else "--rows-as-episodes"
        kinds = dict.fromkeys(
            "a dataset of offline-cli" if isinstance(source, OwnSource) else KINDS.get(source.info.format, source.info.format)
            for source in sources
        )
        where = ", ".join(source.info.location for source in sources)
        raise UsageError(f"{option} is for tables, and this is {' and '.join(kinds)}", where=where, fix=f"leave out {option}")


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
        manifest = dataset.manifest
        return cls(
            dataset=dataset,
            info=info_of(manifest, location.url),
            size=manifest.counts.episodes if manifest.format == "episodes" else manifest.counts.steps,
            memory_limit=memory_limit,
        )

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
        unit, dataset = "episodes" if self.info.format == "episodes" else "steps", self.dataset
        sizes, parts = (getattr(shard, unit) for shard in dataset.shards), []
        for numbers in shares(range(len(dataset.shards)), count):
            mine, size = slice(numbers[0], numbers[-1] + 1), sum(islice(sizes, len(numbers)))
            shards = tuple(dataset.shards[mine])
            manifest = replace(dataset.manifest, shards=shards)  # a part goes to a worker: not with all that it does not read
            own = replace(dataset, manifest=manifest, part=shards)
            parts.append(replace(self, dataset=own, info=replace(self.info, manifest=manifest), size=size, done=0))
        return parts


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
