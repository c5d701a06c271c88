"""Shared code of all operations: keywords, open sources, a survey of their episodes, and writing.

An operation first surveys its episodes (`Survey`) and then writes the chosen ones. Our datasets with equal format, spaces and
columns are moved by rows: their plain columns are read, then the rows of the chosen episodes, without decoding steps. Otherwise
(other formats, duplicate ids, fragments, agents of packed episodes, other read options) all episodes are read as in `convert`,
once for the survey and again for writing, because only stitching can tell what an episode is. Commits, `--resume`, memory
limits and errors are those of `convert` in both cases.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Final, NamedTuple, Self, TypedDict, TypeVar, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    COMPRESSION,
    MAX_BYTES_PER_FILE,
    ROW_FORMAT,
    SOURCE_FORMAT,
    TABLE_MEMORY_LIMIT,
    WORKERS,
    ActionScale,
    Compression,
    Count,
    EngineName,
    EpisodeEnds,
    OnBadRow,
    RowFormat,
)
from offline_cli.columns import Columns
from offline_cli.converting.convert import assumptions_of, listed, provenance_of, reporting_what_is_kept, write_episodes
from offline_cli.converting.fitting import Extras
from offline_cli.converting.open_episode import changed
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import EnvironmentRecord, Manifest
from offline_cli.datasets.row_format import OF_AGENTS, PLAIN_SCHEMA, Rows
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import EngineSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.opening import OwnSource, open_sources
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.import_path import content_hash_of
from offline_cli.parquet.reading import opened
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.spaces import same_space
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location, Sources, expand, open_location

NOWHERE: Final = -1  # target of an episode that is not written
KEYWORDS: Final = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
Function = TypeVar("Function", bound=Callable[..., Any])


# ---- keywords ----


class ReadingOptions(TypedDict, total=False):
    """Options for reading sources, as in `convert`."""

    from_: str
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None
    rows_as_episodes: bool
    episode_ends: EpisodeEnds | None
    action_scale: ActionScale | None
    env: str | None
    env_kwargs: Mapping[str, Any] | None
    wrappers: Sequence[str] | None
    temp_dir: str | os.PathLike[str] | None
    memory_limit: int | str
    workers: Count
    storage_options: Mapping[str, Any] | None
    on_progress: OnProgress


class OperationOptions(ReadingOptions, total=False):
    """Options for reading sources and writing datasets. `command`: for provenance."""

    on_error: OnBadRow
    engine: EngineName
    engine_address: str | None
    resume: bool
    force_unlock: bool
    overwrite: bool
    dry_run: bool
    format: RowFormat | None
    compression: Compression | None
    max_rows_per_file: Count | None
    max_bytes_per_file: Count
    command: Sequence[str]


DEFAULTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("rows_as_episodes", "resume", "force_unlock", "overwrite", "dry_run"), False),
    "from_": SOURCE_FORMAT,
    "memory_limit": TABLE_MEMORY_LIMIT,
    "workers": WORKERS,
    "on_progress": no_progress,
    "on_error": "fail",
    "engine": "local",
    "max_bytes_per_file": MAX_BYTES_PER_FILE,
    "command": (),
}
"""Defaults of these options; None for all others."""


def with_options(function: Function) -> Function:
    """Decorate a function: expand `**options` into keywords with defaults, and check all keywords."""
    parameters = signature(function).parameters
    written = {name: one.annotation for name, one in parameters.items() if one.kind in KEYWORDS}
    hints = get_type_hints(type("Keywords", (), {"__annotations__": written}), function.__globals__, include_extras=True)
    (shared,) = get_args(hints.pop("options"))
    kinds = get_type_hints(shared, include_extras=True)
    own = [one.replace(annotation=hints.get(name, one.annotation)) for name, one in parameters.items() if name != "options"]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=kinds[name]) for name in kinds]
    whole = Signature([*own, *options], return_annotation=signature(function).return_annotation)

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        bound = whole.bind(*args, **given)
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    call.__signature__ = whole  # type: ignore[attr-defined]
    return checked(call)  # type: ignore[return-value]


# ---- sources ----


@dataclass(slots=True)
class OpenedSources:
    """Opened sources, which can be read repeatedly, but not concurrently."""

    options: Mapping[str, Any]  # ReadingOptions, and possibly more
    places: list[Location]
    tables: TableOptions = field(init=False)
    sources: list[Source] = field(init=False)

    def __post_init__(self) -> None:
        self.tables, storage = TableOptions.of(self.options), self.options["storage_options"]
        self.sources = open_sources(self.places, from_=self.options["from_"], tables=self.tables, storage_options=storage)

    @property
    def where(self) -> str:
        """The sources, for messages."""
        return ", ".join(place.url for place in self.places)

    def stream(self, sources: Sequence[Source] | None = None, *, extras: Extras = None, unread: bool = False) -> EpisodeStream:
        """Stream whole episodes of `sources`, by default all; one stream at a time. Raises as `read_episodes` does."""
        options = self.options
        return read_episodes(
            opened=self.sources if sources is None else sources,
            on_error=options.get("on_error", "fail"),
            env=AskedEnvironment.of(options),
            action_scale=options["action_scale"],
            workers=options["workers"],
            tables=self.tables,
            episode_limit=EpisodeLimit.within(self.tables.memory_limit),
            extras=extras,
            engine=EngineSpec.of(options) if "engine" in options else None,
            unread=unread,
            on_progress=options["on_progress"],
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """All episodes of an operation's sources, in reading order."""

    table: Any  # pa.Table, one row per episode: columns of PLAIN_SCHEMA, and requested custom data fields
    moves_rows: bool  # whether rows can be moved without decoding
    duplicates_dropped: int = 0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> NDArray[Any]:
        """(E,) values of a column: length, return, terminated or truncated."""
        values: NDArray[Any] = self.table.column(name).to_numpy()
        return values


# ---- an operation ----


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of an operation; for `split`, sums over the parts. None: not a field of this operation."""

    out: str
    format: str  # "episodes" | "columns"
    episodes: int
    steps: int
    dropped: int  # source episodes that were not chosen, or are duplicates
    shards: int
    duplicates_dropped: int
    episodes_lost: int | None  # source episodes that could not be read, as in `convert`; None: unknown for a source
    assumptions: Mapping[str, int]  # by kind
    action_scale: str
    dry_run: bool  # whether nothing was written
    seconds: float
    chosen_by: Mapping[str, Any] | None = None  # filter, sample, split: the selection options, with the seed
    undecided: int | None = None  # filter: episodes for which the condition is null, which are not chosen
    parts: Mapping[str, Mapping[str, Any]] | None = None  # split: out, episodes and steps by part
    ids_changed: int | None = None  # merge: episodes with a new id
    extras_left_out: Mapping[str, str] | None = None  # merge: extra model outputs that not all sources have, with their forms
    compression: str | None = None  # repack
    dropped_columns: tuple[str, ...] | None = None  # repack

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`."""
        plain = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {name: value for name, value in plain.items() if value is not None or name == "episodes_lost"}


class Target(NamedTuple):
    """A dataset that an operation writes."""

    place: Location
    by: Mapping[str, Any]  # the selection options, as plain values


@dataclass(slots=True)
class Operation(OpenedSources):
    """One call of an operation."""

    name: str  # of the command
    out: Location
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def begun(cls, name: str, sources: Sources, out: str | os.PathLike[str] | Location, options: Mapping[str, Any]) -> Self:
        """Open the sources. Raises UsageError for a target that is, or lies in, a source, and as `open_sources` does."""
        sources = sources if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
        target = open_location(out, options["storage_options"])
        places = expand(sources, options["storage_options"])
        if any(map(target.is_at, places)):
            raise UsageError("the output is one of the sources, or inside it", where=target.url, fix="give another --out")
        return cls(options, places, name, target)

    @property
    def datasets(self) -> list[Dataset]:
        """The sources that are our datasets."""
        return [source.dataset for source in self.sources if isinstance(source, OwnSource)]

    @property
    def format(self) -> str:
        """The row format to write: the requested one, else the common one of all sources, else `episodes`."""
        return self._as_sources("format", ROW_FORMAT)

    @property
    def compression(self) -> str:
        """The compression to write, chosen in the same way."""
        return self._as_sources("compression", COMPRESSION)

    def _as_sources(self, name: str, default: str) -> str:
        found = {getattr(one.manifest, name) for one in self.datasets}
        return self.options[name] or (found.pop() if len(self.datasets) == len(self.sources) and len(found) == 1 else default)

    def check_target(self, place: Location | None = None) -> None:
        """Check early, before reading, whether writing to `place` (default: `out`) may start; raises as `check_target`."""
        how = {name: self.options[name] for name in ("overwrite", "resume", "force_unlock")}
        check_target(self.out if place is None else place, **how)

    # ---- survey ----

    def survey(self, columns: Collection[str] = ()) -> Survey:
        """Survey all episodes; `columns`: the columns needed for the selection, plain ones or fields of custom data.

        Raises NoData, and as reading does.
        """
        fields = [name for name in columns if name not in PLAIN_SCHEMA.names]
        survey = None if fields else self.survey_of_rows(agents=not set(OF_AGENTS).isdisjoint(columns))
        if survey is not None:
            return survey
        with self.stream() as stream:
            table = pa.concat_tables([_plain(batch, fields) for batch in stream] or [PLAIN_SCHEMA.empty_table()])
            return Survey(table, False, stream.tally.duplicates_dropped)

    def survey_of_rows(self, *, agents: bool = False) -> Survey | None:
        """Survey by the plain columns of datasets; None if their rows cannot be moved unchanged."""
        options, datasets = self.options, self.datasets
        asked = any(options[name] is not None for name in ("env", "env_kwargs", "wrappers", "action_scale"))
        packed = self.format == "episodes"
        if asked or len(datasets) < len(self.sources) or (packed and agents) or not _are_alike(datasets, self.format):
            return None
        tables = [PLAIN_SCHEMA.empty_table()]
        for dataset in datasets:
            with dataset.plain(agents=agents, memory_limit=self.tables.memory_limit) as found:
                tables += found
        table = pa.concat_tables(tables).combine_chunks()
        if not table.num_rows:
            fix = "check that the recording contains steps"
            raise NoData("the source contains no episode", where=self.where, fix=fix)
        if pc.count_distinct(table.column(Columns.EPS_ID), mode="all").as_py() < table.num_rows:
            return None
        ends = pc.or_(table.column(Columns.TERMINATED), table.column(Columns.TRUNCATED))
        is_whole = pc.all(pc.and_(pc.greater(table.column(Columns.LENGTH), 0), ends)).as_py()
        return Survey(table, True) if is_whole else None

    # ---- writing ----

    def write_chosen(self, survey: Survey, chosen: NDArray[np.bool_], by: Mapping[str, Any], **more: Any) -> OperationResult:
        """Write the chosen (E,) episodes to `out`, except in a dry run. `more`: fields of the result."""
        stream, written = self.write([Target(self.out, by)], survey, np.where(chosen, 0, NOWHERE))
        lengths = survey.column(Columns.LENGTH)[chosen]
        counts = {"episodes": len(lengths), "steps": int(lengths.sum())} if self.options["dry_run"] else {}
        dropped = {"duplicates_dropped": survey.duplicates_dropped, "dropped": len(survey) - len(lengths)}
        return self.result(stream, written, **counts, **dropped, **more)

    def write_all(self, by: Mapping[str, Any], stream: EpisodeStream | None = None, **more: Any) -> OperationResult:
        """Write all episodes, or those of `stream`, to `out`, except in a dry run. `more`: fields of the result."""
        if stream is None and (survey := self.survey_of_rows()) is not None:
            return self.write_chosen(survey, np.ones(len(survey), np.bool_), by, **more)
        stream = stream or self.stream()
        if not self.options["dry_run"]:
            written = self._written(stream, [Target(self.out, by)], lambda writers: _copy(stream, writers))
            return self.result(stream, written, **more)
        with stream:
            sizes = [(len(batch), batch.num_steps) for batch in stream]
        return self.result(stream, [], episodes=sum(e for e, _ in sizes), steps=sum(n for _, n in sizes), **more)

    def write(
        self, targets: Sequence[Target], survey: Survey, goes_to: NDArray[np.int64]
    ) -> tuple[EpisodeStream, list[Manifest]]:
        """Write each episode to target number `goes_to` (E,), except in a dry run; return the stream, for its declarations, and
        the manifests, in order.
        """
        stream = self.stream(unread=survey.moves_rows and len(self.sources) == 1)  # several sources must agree in extra outputs
        if self.options["dry_run"] or not targets:
            stream.close()
            return stream, []
        if survey.moves_rows:
            return stream, self._written(stream, targets, lambda writers: self._move(survey, writers, goes_to))
        numbers = dict(zip(survey.table.column(Columns.EPS_ID).to_pylist(), goes_to.tolist(), strict=True))
        return stream, self._written(stream, targets, lambda writers: _copy(stream, writers, numbers))

    def _written(
        self, stream: EpisodeStream, targets: Sequence[Target], fill: Callable[[Sequence[DatasetWriter]], None]
    ) -> list[Manifest]:
        """Let `fill` write to the targets' writers, commit them in order, and return the manifests. Raises Interrupted."""
        writers = list[DatasetWriter]()
        with reporting_what_is_kept(self.out, writers), stream, ExitStack() as stack:
            writers += [self._writer(stream, target) for target in targets]
            stream.set_aside_to(writers[0].quarantine)
            for writer in writers:
                stack.enter_context(writer)
            fill(writers)
            counted, lost = assumptions_of(stream), stream.episodes_lost
            return [writer.commit(assumptions=counted, episodes_lost=lost) for writer in writers]

    def _writer(self, stream: EpisodeStream, target: Target) -> DatasetWriter:
        """The writer of a target, with the declarations of `stream`."""
        options, told = self.options, {"name": self.name, **target.by, "identity": self.identity_hash(target.by)}
        known = ("observation_space", "action_space", "action_scale", "meanings", "reference", "spaces_inferred", "tally")
        return DatasetWriter(
            target.place,
            format=self.format,  # type: ignore[arg-type]
            **{name: getattr(stream, name) for name in known},
            environment=EnvironmentRecord.of(stream.environment),
            provenance={**provenance_of(self.places, stream, options["command"]), "operation": told},
            compression=self.compression,
            **{name: options[name] for name in ("max_rows_per_file", "max_bytes_per_file", "overwrite", "resume")},
            identity=self._identity(target.by),
        )

    def _identity(self, by: Mapping[str, Any]) -> dict[str, str]:
        """Everything that determines the content of a target, by name: sources, read options and selection.

        It includes the hashes of the source datasets' shards, so that a resumed write cannot mix two versions of a source.
        """
        names = ("from_", "on_error", "env", "env_kwargs", "wrappers", "action_scale")
        known = {
            "the command": self.name,
            "a source": listed(self.places),
            "the content of a source": [(one.path, one.sha256) for found in self.datasets for one in found.manifest.shards],
            "an option of reading": [self.options[name] for name in names],
            "the mapping": self.tables.identity(self.options["storage_options"]),
            "the choice of episodes": by,
        }
        return {name: content_hash_of(json.dumps(value, sort_keys=True)) for name, value in known.items()}

    def identity_hash(self, by: Mapping[str, Any]) -> str:
        """Hash of a target's identity and write options, stored in its manifest."""
        limits = (self.options["max_rows_per_file"], self.options["max_bytes_per_file"])
        return content_hash_of(json.dumps([self._identity(by), self.format, self.compression, *limits]))

    def _move(self, survey: Survey, writers: Sequence[DatasetWriter], goes_to: NDArray[np.int64]) -> None:
        """Write the rows of each episode to writer number `goes_to` (E,)."""
        at = 0
        for dataset in self.datasets:
            with dataset.rows(memory_limit=self.tables.memory_limit) as found:
                for rows in found:
                    check()
                    plain = survey.table.slice(at, len(rows.starts) - 1)
                    for number, writer in enumerate(writers):
                        mine = goes_to[at : at + len(plain)] == number
                        if writer.ids_written:
                            mine &= [name not in writer.ids_written for name in plain.column(Columns.EPS_ID).to_pylist()]
                        if mine.any():
                            writer.write_rows(*((rows, plain) if mine.all() else (_chosen(rows, mine), plain.filter(mine))))
                    at += len(plain)
                    self.options["on_progress"](Progress("moving rows", at, len(survey), "episodes"))

    def result(self, stream: EpisodeStream, written: Sequence[Manifest], **known: Any) -> OperationResult:
        """The result, after `stream` was read; `known`: fields that replace the sums over `written`."""
        duplicates = stream.tally.duplicates_dropped
        found: dict[str, Any] = {
            "episodes": sum(manifest.counts.episodes for manifest in written),
            "steps": sum(manifest.counts.steps for manifest in written),
            "shards": sum(len(manifest.shards) for manifest in written),
            "dropped": duplicates,
            "duplicates_dropped": duplicates,
        }
        return OperationResult(
            out=self.out.url,
            format=self.format,
            episodes_lost=stream.episodes_lost,
            assumptions=dict(assumptions_of(stream) if written else stream.tally.assumptions),
            action_scale=stream.action_scale,
            dry_run=self.options["dry_run"],
            seconds=time.monotonic() - self.started,
            **{**found, **known},
        )


def _are_alike(datasets: Sequence[Dataset], row_format: str) -> bool:
    """Whether all datasets have this row format, equal declared spaces, and equal columns."""
    first, schemas = datasets[0].manifest, list[Any]()
    for dataset in datasets:
        known = dataset.manifest
        spaces = (known.observation_space, first.observation_space), (known.action_space, first.action_space)
        if known.format != row_format or not all(own is not None and same_space(own, other) for own, other in spaces):
            return False
        if known.shards:
            with opened(dataset.location.join(known.shards[0].path), size=known.shards[0].bytes) as file:
                schemas.append(file.schema_arrow)
    return all(schema.equals(schemas[0]) for schema in schemas)


def _plain(batch: EpisodeBatch, fields: Sequence[str]) -> Any:
    """The plain columns of a batch, and custom data fields as text."""
    nobody = (None,) * len(batch)
    ends = np.ascontiguousarray(batch.terminated), np.ascontiguousarray(batch.truncated)
    agents = [pa.array(names or nobody, pa.string()) for names in (batch.agent_ids, batch.module_ids)]
    table = pa.table([pa.array(batch.ids, pa.string()), batch.lengths, batch.returns, *ends, *agents], schema=PLAIN_SCHEMA)
    for name in fields:
        values = [data.get(name) for data in batch.custom_data or ({},) * len(batch)]
        texts = [None if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        table = table.append_column(name, pa.array(texts, pa.string()))
    return table


def _chosen(rows: Rows, mine: NDArray[np.bool_]) -> Rows:
    """The rows of the chosen (E,) episodes."""
    lengths = np.diff(rows.starts)
    return Rows(rows.table.filter(pa.array(np.repeat(mine, lengths))), np.concatenate([[0], np.cumsum(lengths[mine])]))


def _copy(stream: EpisodeStream, writers: Sequence[DatasetWriter], numbers: Mapping[str, int] | None = None) -> None:
    """Write each episode to the writer number of its id, by default the first.

    Raises BadData for an episode that did not exist during the survey.
    """
    for batch in stream:
        try:
            goes_to = np.array([0 if numbers is None else numbers[name] for name in batch.ids], np.int64)
        except KeyError as error:
            raise changed(f"episode {error.args[0]} did not exist when the sources were first read") from error
        for number, writer in enumerate(writers):
            write_episodes(writer, batch, goes_to == number)
