"""Convert any source to our dataset format or a foreign format, and report every assumption.

The output does not depend on `workers`: threads read files ahead, processes parse large JSON, and episodes are written in the
order in which they are completed. An existing output is not changed without `overwrite` or `resume`. An error before the first
complete shard leaves nothing behind; later, complete shards stay for `resume`, which reads the sources again and writes the
missing episodes.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    COMPRESSION,
    MAX_BYTES_PER_FILE,
    TABLE_MEMORY_LIMIT,
    ActionScale,
    Compression,
    Count,
    EngineName,
    EpisodeEnds,
    Extras,
    OnBadRow,
    RowFormat,
)
from offline_cli.converting.fitting import CHOSEN, as_space, extra_dtypes
from offline_cli.converting.reading import AddedTo, EpisodeStream, read_episodes
from offline_cli.converting.reset_rows import ResetKind, without_reset
from offline_cli.converting.sink import OURS, Sink, SinkContext, committed, sink_named
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import WRITING
from offline_cli.datasets.lock import unlock
from offline_cli.datasets.manifest import EnvironmentRecord, reference_of
from offline_cli.datasets.target_folder import Base, check_apart, dataset_to_append_to, exclusive
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import EngineSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.fit import conform
from offline_cli.episodes.known_episodes import EarlierEpisodes
from offline_cli.errors import ClusterLost, Interrupted, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.opening import info_of, placed
from offline_cli.formats.registry import AUTO, reader_named
from offline_cli.formats.tables.source import TableOptions
from offline_cli.import_path import content_hash_of
from offline_cli.progress import OnProgress, no_progress
from offline_cli.spaces import describe
from offline_cli.storage.local_files import checked_folder
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.trees import flatten

CONTRADICTIONS = ("gap-in-t", "broken-chain")  # assumptions whose first place is reported
SHOWN_STEPS = 3
OURS_BY_ROWS = get_args(RowFormat)  # the sinks that write a manifest
SHOWN_NUMBERS = 8  # of a value

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """The result of a conversion."""

    out: str
    format: str  # "episodes" | "columns", or the name of another sink
    episodes: int  # in `out`, like steps and shards; with `append` including existing ones
    episodes_appended: int | None  # with `append`: the new episodes
    steps: int
    shards: int  # files, if the sink reports them
    rows_in: int  # table rows, JSON lines
    duplicates_dropped: int
    fragments_stitched: int
    rows_quarantined: int  # rows skipped or quarantined: unreadable ones, and the other rows of their episodes
    episodes_lost: int | None  # source episodes not written, except duplicates and beyond `limit`; None: unknown for a source
    rejected: tuple[Mapping[str, str], ...]  # the first 10 problems: where, code, what
    rejected_in_all: int  # number of problems, each of which rejected one or more rows
    assumptions: Mapping[str, int]  # by kind
    dropped_columns: tuple[str, ...]  # names
    dropped_reasons: Mapping[str, str]  # by name
    action_scale: str
    spaces_inferred: bool
    on_error: str  # treatment of unreadable rows: "fail" | "skip" | "quarantine"
    dry_run: bool  # whether nothing was written
    preview: Mapping[str, Any] | None  # of a dry run: both spaces as text, mappings of tables, the first episode
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {
            **plain,
            "rejected": [dict(reject) for reject in self.rejected],
            "assumptions": dict(sorted(self.assumptions.items())),
        }


@checked
def convert(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    extras: Extras = "union",
    drop: Sequence[str] = (),
    drop_reset_rows: bool = False,
    on_error: OnBadRow = "fail",
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    limit: Count | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    to: str | None = None,
    compression: Compression | None = None,
    append: bool = False,
    reference: Sequence[str] | None = None,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> ConvertResult:
    """Write the episodes of `sources` as dataset `out`.

    `reference`: mean returns of random play and of an expert, for the manifest: "random=22", "expert=500"; else that of the
    sources. With `limit`, further episodes are not counted (docs/reference/assumptions.md). `dry_run` writes nothing, raises
    the same errors, and sets `preview` of the result. `command`: for provenance.

    Raises OutputExists, UsageError, as `read_episodes` does, and Interrupted, which reports what was kept and how to resume.
    """
    options = dict(locals())
    started = time.monotonic()
    sources = placed(sources)
    sources = sources if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    tables, engine_spec, asked_env = TableOptions.of(options), EngineSpec.of(options), AskedEnvironment.of(options)
    sink, limit = sink_named(options["to"] or "episodes"), options["limit"]
    if options["from_"] != AUTO:
        reader_named(options["from_"])
    said_of_tables = tables.identity(storage_options)  # also reports an unreadable mapping early
    target = open_location(out, storage_options)
    if options["resume"] and options["overwrite"]:
        raise exclusive(target.url, "dataset")
    places = expand(sources, storage_options)
    check_apart(places, target)
    base = _base_of(target, options)
    if base is None:
        if options["force_unlock"]:
            unlock(target)
        sink.check(target, overwrite=options["overwrite"], resume=options["resume"])
    elif options["to"] is None:
        sink = OURS[base.manifest.format]
    sink.check_options(options)
    scale_of_scores = reference_of(reference) if reference else None
    if scale_of_scores and sink.name not in OURS_BY_ROWS:
        raise UsageError(f"--to {sink.name} keeps no reference", where="--reference", fix="leave it out")
    with read_episodes(
        places,
        **{name: options[name] for name in ("from_", "on_error", "action_scale", "workers", "drop_reset_rows", "drop")},
        env=asked_env,
        limit=limit,
        tables=tables,
        episode_limit=EpisodeLimit.within(tables.memory_limit),
        extras=CHOSEN[options["extras"]],
        added_to=None if base is None else _added_to(target, base, drop_reset_rows=options["drop_reset_rows"]),
        engine=engine_spec,
        storage_options=storage_options,
        on_progress=on_progress,
    ) as stream:
        names = ("from_", "on_error", "env", "action_scale", "limit", "extras", "drop_reset_rows", "drop")
        identity = {
            "a source": listed(places),
            "an option of reading": [options[name] for name in names],
            "the mapping": said_of_tables,
            "--wrapper": () if env is None or stream.environment is None else stream.environment.wrappers,
        }
        known = None if base is None else base.manifest
        context = SinkContext(
            **{
                name: getattr(stream, name)
                for name in ("observation_space", "action_space", "action_scale", "meanings", "tally")
            },
            **{name: options[name] for name in ("max_rows_per_file", "max_bytes_per_file", "overwrite", "resume")},
            reference=scale_of_scores or stream.reference,
            environment=_environment(stream, base, env),
            spaces_inferred=stream.spaces_inferred if known is None else known.spaces_inferred,
            provenance=provenance_of(places, stream, command),
            compression=options["compression"] or (COMPRESSION if known is None else known.compression),
            temp_dir=checked_folder(options["temp_dir"]),
            base=base,
            identity={name: content_hash_of(value) for name, value in identity.items()},
        )
        writer = sink.open(target, context)  # raises for a dataset of another format, spaces or scale
        shown, there = None, () if base is None else base.shards
        before = sum(shard.episodes for shard in there)
        if options["dry_run"]:
            sizes, shown = _preview(stream, writer)
            counts = sizes[0] + before, sizes[1] + sum(shard.steps for shard in there), len(there)
        else:
            counts = _write(stream, writer, target)
        tally, rejects = stream.tally, stream.rejects
        return ConvertResult(
            out=target.url,
            format=sink.name,
            episodes=counts[0],
            episodes_appended=None if base is None else counts[0] - before,
            steps=counts[1],
            shards=counts[2],
            rows_in=tally.rows_in,
            duplicates_dropped=tally.duplicates_dropped,
            fragments_stitched=tally.fragments_stitched,
            rows_quarantined=rejects.count,
            episodes_lost=stream.episodes_lost,
            rejected=tuple({"where": one.where, "code": one.code, "what": one.reason} for one in rejects.first),
            rejected_in_all=rejects.problems,
            assumptions={**tally.assumptions, **stream.lost_by_reason},
            dropped_columns=tuple(tally.dropped_columns),
            dropped_reasons=dict(tally.dropped_columns),
            action_scale=stream.action_scale,
            spaces_inferred=stream.spaces_inferred,
            on_error=options["on_error"],
            dry_run=options["dry_run"],
            preview=shown,
            seconds=time.monotonic() - started,
        )


def _write(stream: EpisodeStream, writer: Sink, target: Location) -> tuple[int, int, int]:
    """Write and commit all of `stream`; return the numbers of episodes, steps and files. Raises Interrupted for Ctrl-C."""
    with reporting_what_is_kept(target, [writer]):
        stream.set_aside_to(writer.quarantine)
        with writer:
            for batch in _noted(stream):
                write_episodes(writer, batch)
            written = committed(writer, assumptions=assumptions_of(stream), episodes_lost=stream.episodes_lost)
        return written.episodes, written.steps, written.files


def _noted(stream: EpisodeStream) -> Iterator[EpisodeBatch]:
    """The batches of `stream`; then log what contradicts itself in the sources, and rewards that nothing can learn from."""
    wrong, first = 0, ""
    for batch in stream:
        if len(broken := np.flatnonzero(~np.isfinite(batch.rewards))):
            wrong, first = wrong + len(broken), first or stream.place_of(batch, int(broken[0]))
        yield batch
    found = {f"{kind} {stream.tally.assumptions[kind]:,}": stream.tally.first_places.get(kind) for kind in CONTRADICTIONS}
    for what, place in {**found, f"non-finite rewards {wrong:,}": first}.items():
        if place:
            _log.warning("note: %s, first at %s; validate names the places", what, place)


def write_episodes(writer: Sink, batch: EpisodeBatch, chosen: NDArray[np.bool_] | None = None) -> None:
    """Write the episodes of `batch`, or those `chosen` (E,), except episodes in shards that `resume` found."""
    left = np.ones(len(batch), np.bool_) if chosen is None else chosen
    if not writer.ids_written.isdisjoint(batch.ids):
        left = left & [name not in writer.ids_written for name in batch.ids]
    if left.all():
        writer.write(batch)
    elif left.any():
        writer.write(batch.select(np.flatnonzero(left)))


def assumptions_of(stream: EpisodeStream) -> Mapping[str, int]:
    """Assumptions by kind after `stream` is exhausted; later additions of a writer to the tally show up too."""
    before, counts = stream.tally.assumptions, Counter[str]()
    for kind, count in (
        ("duplicate-episode", stream.tally.duplicates_dropped),
        ("stitched-fragment", stream.tally.fragments_stitched),
        ("unreadable-row", stream.rejects.unreadable),
    ):
        counts[kind] = before[kind] + count
    return ChainMap(+counts | dict(stream.lost_by_reason), before)


@contextmanager
def reporting_what_is_kept(out: Location, writers: Sequence[Sink]) -> Iterator[None]:
    """Errors of a signal and of lost workers in the block, which writes to `out`, report what is kept and how to resume."""
    try:
        yield
    except (KeyboardInterrupt, ClusterLost) as error:
        ours = [writer for writer in writers if isinstance(writer, DatasetWriter)]
        shards = [shard for writer in ours for shard in writer.complete_shards]
        counts = {name: sum(getattr(shard, name) for shard in shards) for name in ("episodes", "steps")}
        details: dict[str, Any] = {"out": out.url, "shards": len(shards), **counts}
        kept = f"{counts['episodes']} whole episodes ({counts['steps']} steps) are kept in complete shards"
        fix = "run the same command with --resume to continue"
        if not ours:
            details, kept, fix = {}, "the output is incomplete", "remove it, and run the command again"
        elif not any(writer.location.join(WRITING).exists() for writer in ours):
            kept, fix = "no shard was complete, so nothing is kept", "run the same command again"
        if isinstance(error, ClusterLost):
            what, fix = f"{error.what}; {kept}", f"{error.fix}; {fix}"
            raise type(error)(what, where=error.where, fix=fix, details=details) from error
        raise Interrupted(f"interrupted; {kept}", where=out.url, fix=fix, details=details) from error


def listed(places: Sequence[Location]) -> list[Any]:
    """The sources, with the sizes of local files, for `resume` to compare."""
    return [[place.url, [[file.url, file.size()] for file in place.files()] if place.is_local else []] for place in places]


def provenance_of(places: Sequence[Location], stream: EpisodeStream, command: Sequence[str]) -> dict[str, Any]:
    """Provenance: sources and their formats, mappings of tables, the commands that made our source datasets, and this one."""
    known = {
        "sources": [place.url for place in places],
        "source_formats": stream.formats,
        "declared": [document for one in stream.sources for document in one.declared],
        "mappings": stream.mapping_documents,
        "commands": [*stream.commands, shlex.join(command)] if command else [],
    }
    return {name: value for name, value in known.items() if value}


# ---- appending to a dataset ----


def _base_of(target: Location, options: Mapping[str, Any]) -> Base | None:
    """The dataset at `target` with `append`, otherwise None.

    Raises UsageError for incompatible options, and as `dataset_to_append_to` does.
    """
    if not options["append"]:
        return None
    if options["to"] not in (None, *OURS):
        fix = "remove --append, or --to"
        raise UsageError("--append works only for our own dataset formats", where=f"--to {options['to']}", fix=fix)
    if options["overwrite"]:
        fix = "use --append to add to the dataset, or --overwrite to replace it"
        raise UsageError("--append and --overwrite are mutually exclusive", where=target.url, fix=fix)
    return dataset_to_append_to(target, resume=options["resume"], force_unlock=options["force_unlock"])


def _added_to(target: Location, base: Base, *, drop_reset_rows: bool) -> AddedTo:
    """The dataset at `target` in the form that reading needs. Raises BadData, StorageError.

    `drop_reset_rows`: the dataset may have been written without resets that its sources contain.
    """
    manifest = base.manifest
    dataset = Dataset(target, manifest, base.shards)
    with dataset.batches() as batches:
        first = next(iter(batches), None)
    observation, action = manifest.observation_space, manifest.action_space
    dtypes = {} if first is None else extra_dtypes(first)

    def stored(batch: EpisodeBatch) -> EpisodeBatch:
        if drop_reset_rows:
            batch = EpisodeBatch.concat([batch, *(without_reset(batch, kind, np.ones(1, np.bool_)) for kind in ResetKind)])
        if observation is None or action is None:
            return batch
        shaped = replace(batch, obs=as_space(batch.obs, observation), actions=as_space(batch.actions, action))
        return conform(shaped, observation, action, dtypes)

    ids = tuple(name for names in base.ids() for name in names)
    info = replace(info_of(manifest, target.url), said_by="the dataset")
    return AddedTo(info, EarlierEpisodes(target.url, ids, dataset.batches, stored), first)


def _environment(stream: EpisodeStream, base: Base | None, env: str | None) -> EnvironmentRecord | None:
    """The environment of all episodes. With `append`, `env` describes the new ones: None if it differs from the dataset's."""
    said = EnvironmentRecord.of(stream.environment)
    if base is None or env is None:
        return said
    known = base.manifest.environment
    return known if known is not None and said is not None and known.id == said.id else None


# ---- preview of a dry run ----


def _preview(stream: EpisodeStream, sink: Sink) -> tuple[tuple[int, int], dict[str, Any]]:
    """Read all of `stream`; return the numbers of episodes and steps, and the preview. Raises as writing would."""
    first: dict[str, Any] = {}
    episodes = steps = 0
    for batch in _noted(stream):
        first = first or _described(batch)
        episodes, steps = episodes + len(batch), steps + batch.num_steps
        sink.rehearse(batch)
    spaces = {name: describe(getattr(stream, name)) for name in ("observation_space", "action_space")}
    mappings = [one.columns for one in stream.sources if one.columns is not None]
    return (episodes, steps), {**spaces, "mappings": mappings, "first_episode": first}


def _described(batch: EpisodeBatch) -> dict[str, Any]:
    shown = min(SHOWN_STEPS, int(batch.lengths[0]))
    trees = {"obs": batch.obs, "actions": batch.actions, "rewards": batch.rewards, **batch.extra}
    leaves = [(path, leaf) for name, tree in trees.items() for path, leaf in flatten(tree, name)]
    return {
        "eps_id": batch.ids[0],
        "length": int(batch.lengths[0]),
        "return": float(batch.returns[0]),
        "terminated": bool(batch.terminated[0]),
        "truncated": bool(batch.truncated[0]),
        "first_steps": [{path: shown_value(leaf[step]) for path, leaf in leaves} for step in range(shown)],
    }


def shown_value(value: Any) -> Any:
    """A number, a short list of numbers, or the shape and dtype of a larger value."""
    array = np.asarray(value)
    return array.tolist() if array.size <= SHOWN_NUMBERS else f"{array.dtype} {list(array.shape)}"
