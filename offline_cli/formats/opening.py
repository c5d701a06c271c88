"""Sources for places: our own datasets by their manifest, everything else by the reader that is most certain; and which
environment a command plays in, as far as these say it.

Hidden files, names with a leading underscore (`_SUCCESS`) and checksums (`.crc`) are not data.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, groupby, islice
from typing import Any, Final

import gymnasium as gym
import gymnasium.wrappers

from offline_cli.columns import mappings_in
from offline_cli.datasets.dataset import Dataset, holds_dataset
from offline_cli.datasets.file_names import BATCHES, RUN_CONFIG, RUN_MODULES, RUN_POLICY
from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import EnvironmentSpec, check_registered
from offline_cli.errors import BadConfig, BadData, NoData, StorageNotFound, UsageError
from offline_cli.files.blanking import BLANK, blanked_keys
from offline_cli.files.locations import Location, Sources, expand
from offline_cli.formats.listing import KINDS, Listing
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.reader import OpenContext, PluginSource, Reader
from offline_cli.formats.registry import AUTO, OURS, ReaderChoice, reader_named
from offline_cli.formats.source import ROWS, Fragments, ReadOptions, Source, SourceInfo, shares
from offline_cli.formats.tables import TableOptions
from offline_cli.import_path import call_of
from offline_cli.options.shared import SOURCE_FORMAT
from offline_cli.scopes import Scope
from offline_cli.tally import Rejects, Tally

__all__ = ["AskedEnvironment", "OwnSource", "info_of", "infos_of_manifests", "open_source", "open_sources", "refused"]

TABLE: Final = "table"
UNSAID: Final = TableOptions()
WITHOUT: Final = "none"  # in place of wrappers
NOT_FROM_DATA: Final = {"RecordVideo": "writes files", "HumanRendering": "opens a window"}
PLAIN_TEXT: Final = re.compile(r"[\w +,=()-]*")
CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
OF_A_PLACE: Final = re.compile(r"(?:^|_)(?:paths?|files?|filename|folders?|dirs?|directory|urls?|uri)(?:_|$)", re.IGNORECASE)
LARGEST: Final = 4096  # number that data may give an environment, but for limits of steps: stacks and sizes take memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedEnvironment:
    """An environment as a caller names it; what he leaves out, data may say."""

    id: str
    kwargs: Mapping[str, Any] | None = None  # None: not given
    wrappers: Sequence[str] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], *, known: bool = True) -> AskedEnvironment | None:
        """From the options `env`, `env_kwargs` and `wrappers`; None: none is named. `known`: look it up at once.

        Raises UsageError for the others without `env`, UnknownEnvironment, and BadConfig for arguments that are no JSON values,
        or were blanked out.
        """
        env, kwargs, wrappers = options.get("env"), options.get("env_kwargs"), options.get("wrappers")
        if env is None:
            alone = [flag for flag, given in (("--env-kwargs", kwargs), ("--wrapper", wrappers)) if given is not None]
            if alone:
                raise UsageError(f"{' and '.join(alone)} without --env", where=alone[0], fix="name the environment: --env ENV")
            return None
        if wrappers is not None and WITHOUT in wrappers:
            if list(wrappers) != [WITHOUT]:
                raise UsageError(f"{WITHOUT} and other wrappers", where="--wrapper", fix=f"leave out --wrapper {WITHOUT}")
            wrappers = ()
        if known:
            check_registered(env)
        return cls(env, None if kwargs is None else _plain(kwargs), wrappers if wrappers is None else tuple(wrappers))

    def chosen(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> tuple[EnvironmentSpec, list[str]]:
        """The environment, with what is not given from the one that data of the same id `declared`, by the data's place; and
        notes on what came from there, or that the data is of another environment.

        Raises BadConfig, with the flags to give, where data says something that only a user may say, or not one thing.
        """
        known = [(place, spec) for place, spec in declared if spec is not None]
        same = [(place, spec) for place, spec in known if spec.id == self.id]
        others = {self._apart(spec, alone=not same): place for place, spec in known if spec.id != self.id}
        notes = [f"{place} is of {apart}" for apart, place in others.items()]
        kwargs, wrappers = self.kwargs, self.wrappers
        if not same or (kwargs is not None and wrappers is not None):
            return EnvironmentSpec(self.id, kwargs or {}, tuple(wrappers or ())), notes
        place, said = same[0]
        asks = {"kwargs": kwargs is None, "wrappers": wrappers is None}
        for other, spec in same:
            apart = {name: wanted and getattr(spec, name) != getattr(said, name) for name, wanted in asks.items()}
            if any(apart.values()):
                what = f"the data is of {self.id} made in two ways"
                raise BadConfig(what, where=f"{place} and {other}", fix=f"say in which, for example {said.flags(**apart)}")
        wrong = dict(zip(asks, refused(said), strict=True))
        needed = {name: wanted and bool(wrong[name]) for name, wanted in asks.items()}
        if any(needed.values()):
            reasons = [f"{reason}: not taken from data" for name in asks if needed[name] for reason in wrong[name]]
            raise BadConfig.of(reasons, where=place, fix=f"if you trust it, give it yourself: {said.flags(**needed)}")
        taken = {name: wanted and bool(getattr(said, name)) for name, wanted in asks.items()}
        if any(taken.values()):
            notes.append(f"--env {self.id} is made as {place} says: {said.flags(**taken)}")
        kwargs = said.kwargs if kwargs is None else kwargs
        return EnvironmentSpec(self.id, kwargs, tuple(said.wrappers if wrappers is None else wrappers)), notes

    def _apart(self, spec: EnvironmentSpec, *, alone: bool) -> str:
        """Of which other environment data is, and, where nothing else says how this one is made (`alone`), what is left out."""
        told = f"{spec.id}, and --env is {self.id}"
        left = {"kwargs": self.kwargs is None and bool(spec.kwargs), "wrappers": self.wrappers is None and bool(spec.wrappers)}
        if not alone or not any(left.values()):
            return told
        words = " and ".join(word for word, is_left in zip(("arguments", "wrappers"), left.values(), strict=True) if is_left)
        return f"{told}: the data's {words} are not taken; if they belong here, add {spec.flags(**left)}"

    def among(self, declared: Iterable[tuple[str, EnvironmentSpec | None]]) -> EnvironmentSpec:
        """`chosen`, with the notes logged."""
        found, notes = self.chosen(declared)
        for note in notes:
            _log.warning("note: %s", note)
        return found


def refused(spec: EnvironmentSpec) -> tuple[list[str], list[str]]:
    """Why arguments, and why wrappers of a record that comes from data are not used; both empty: nothing speaks against them.

    Wrappers have to be gymnasium's own by bare name, without those that write files or open windows; arguments numbers, plain
    texts, and lists and objects of these, nothing that could name a file, a URL or a module.
    """
    wrong = []
    for text in spec.wrappers:
        name, arguments, mistakes = call_of(text)
        found = vars(gymnasium.wrappers).get(name)  # what is loaded on demand would be imported by `getattr`
        if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
            wrong.append(f"{text!r} is no wrapper of gymnasium by its bare name")
        elif name in NOT_FROM_DATA:
            wrong.append(f"{text!r} {NOT_FROM_DATA[name]}")
        else:
            wrong += [f"{text!r}: {mistake}" for mistake in (*mistakes, *_not_plain(arguments))]
    return list(_not_plain(spec.kwargs)), wrong


def _not_plain(value: Any, name: str = "") -> Iterator[str]:
    """What in arguments could name a place or code."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not PLAIN_TEXT.fullmatch(str(key)):
                yield f"{key!r} is no plain name"
            yield from _not_plain(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for part in value:
            yield from _not_plain(part, name)
    elif value == BLANK:
        yield f"the value of {name} was blanked out"
    elif name == "render_mode" and value == "human":
        yield "render_mode = 'human' opens windows"
    elif isinstance(value, int | float) and not name.endswith("_steps") and abs(value) > LARGEST:
        yield f"{name} = {value} is beyond {LARGEST}, and may cost memory or time"
    elif isinstance(value, str) and OF_A_PLACE.search(CAMEL.sub("_", name.replace(".", "_"))):
        yield f"{name} = {value!r} names a place"
    elif isinstance(value, str) and not PLAIN_TEXT.fullmatch(value):
        yield f"{name} = {value!r} could be a path, a URL or a module"


def _plain(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """`kwargs` as a manifest will hold them."""
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(dict(kwargs), allow_nan=False))
    except (TypeError, ValueError) as err:
        fix = "numbers, texts, lists and objects; for anything else write a function and name it python:module:make_env"
        raise BadConfig(f"no JSON values: {err}", where="--env-kwargs", fix=fix) from err
    unknown = blanked_keys(plain)
    if unknown:
        asked = json.dumps({**plain, **{name.partition(".")[0]: "..." for name in unknown}})
        what = f"the values of {', '.join(unknown)} were blanked out where they are from, and are not known"
        raise BadConfig(what, where="--env-kwargs", fix=f"give them again: --env-kwargs {shlex.quote(asked)}")
    return plain


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
    choice: ReaderChoice = field(default_factory=ReaderChoice)
    takes_mapping: list[bool] = field(default_factory=list)  # of each source that was opened

    @property
    def is_mapped(self) -> bool:
        """Whether a mapping says that the sources are tables."""
        return self.tables.mapping is not None or self.tables.rows_as_episodes


def open_sources(
    sources: Sources,
    *,
    from_: str = SOURCE_FORMAT.default,
    tables: TableOptions | None = None,
    apart: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Source]:
    """A source for each folder, and one for each group of files that follow each other, in the order given.

    `apart`: each file is a source of its own. `tables`: how to read those that are tables. Raises StorageNotFound for missing
    places, NoData where nothing is found or no reader recognises it, Uncommitted for a dataset whose writer has not finished,
    BadData for mixed or damaged files, UsageError for an unknown `from_`, and for a mapping where no source is a table;
    BadMapping for a table that no mapping explains.
    """
    asked = _Asked(from_, None if from_ == AUTO else reader_named(from_), tables or UNSAID, storage_options)
    found: list[Source] = []
    numbers = count()
    places = expand(sources, storage_options)
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
    return found


def open_source(url: str, *, from_: str = SOURCE_FORMAT.default, storage_options: Mapping[str, Any] | None = None) -> Source:
    """The one source at `url`. Raises as `open_sources` does, and UsageError where `url` is a glob over several folders."""
    found = open_sources(url, from_=from_, storage_options=storage_options)
    if len(found) > 1:
        raise UsageError(f"{len(found)} sources where one is wanted", where=url, fix="name one folder or file")
    return found[0]


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
    of_several = [path.removesuffix(RUN_MODULES) for path in paths if path.endswith(f"/{RUN_MODULES}")]
    runs += [folder for folder in of_several if any(run.startswith(folder) for run in runs)]
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
    passes_over = asked.reader is None and is_ours  # what is not data to us may be data to another package
    source = reader.open(listing.data if passes_over else files, OpenContext(listing, asked.tables, asked.storage_options))
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
        self.dataset.refuse_unexplained()
        with self.scope.part() as held:
            for batch in held.enter(self.dataset.batches(memory_limit=self.memory_limit)):
                rows = len(batch) if self.info.format == "episodes" else batch.num_steps
                self.done += rows
                tally.rows_in += rows
                yield Fragments(batch)

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    def not_ahead(self) -> OwnSource:
        """See `ReadingAhead`."""
        return replace(self, dataset=replace(self.dataset, ahead=False, kept=None))

    def partitions(self, count: int) -> Sequence[OwnSource]:
        """See `Source`: no episode lies in two shards."""
        unit, dataset = "episodes" if self.info.format == "episodes" else "steps", self.dataset
        sizes, parts = (getattr(shard, unit) for shard in dataset.shards), []
        for numbers in shares(range(len(dataset.shards)), count):
            mine, size = slice(numbers[0], numbers[-1] + 1), sum(islice(sizes, len(numbers)))
            shards, chosen = dataset.shards[mine], None if dataset.chosen is None else dataset.chosen[mine]
            manifest = replace(dataset.manifest, shards=shards)  # a part goes to a worker: not with all that it does not read
            own = replace(dataset, manifest=manifest, part=shards, chosen=chosen)
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
        environment=EnvironmentSpec(environment.id, environment.kwargs, environment.wrappers) if environment else None,
        longest=None if longest is None else int(longest),
        commands=tuple(str(line) for line in manifest.provenance.get("commands", [])),
        declared=_declared(manifest.provenance.get("declared")),
        mappings=mappings_in(manifest.provenance) if "mappings" in manifest.provenance else (),
        manifest=manifest,
    )


def _declared(found: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()
