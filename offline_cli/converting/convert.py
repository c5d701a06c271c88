"""Converts any source to a dataset of ours: reads, stitches and writes, and reports every assumption it had to make.

The output does not depend on `workers`: files are read ahead by threads, much JSON by processes, and episodes are written in
the order in which they become whole. An existing output is not touched without `overwrite` or `resume`. An error before the
first shard is complete leaves nothing behind; later, complete shards stay for `resume`, which reads the sources again and
writes the episodes that are not in those shards.

A dry run measures the size on disk: the first episodes are written in a temporary folder, with the same options, and the bytes
of their shards are extrapolated to the rest in proportion.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
    COMPRESSION,
    EXTRAS,
    MAX_BYTES_PER_FILE,
    TABLE_MEMORY_LIMIT,
    ActionScale,
    Compression,
    Count,
    EngineName,
    EpisodeEnds,
    Extras,
    OnBadRow,
)
from offline_cli.converting.appending import added_to, base_of, environment_of_all
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.converting.sink import OURS, Sink, SinkContext, Written, committed, opened_sink, sink_named
from offline_cli.converting.whole_episodes import CHOSEN
from offline_cli.datasets.appending import Base
from offline_cli.datasets.lock import unlock
from offline_cli.datasets.target_folder import check_apart, exclusive
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.engines.engine import EngineSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import Interrupted
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.frames import placed
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.registry import AUTO, reader_named
from offline_cli.formats.tables.source import TableOptions
from offline_cli.progress import OnProgress, no_progress
from offline_cli.source_code import content_hash_of
from offline_cli.spaces import describe
from offline_cli.storage.locations import Location, Sources, expand, open_location
from offline_cli.storage.temp_files import checked_folder
from offline_cli.trees import flatten

__all__ = ["ConvertResult", "Preview", "assumptions_of", "convert", "interrupted", "listed", "not_written", "provenance_of"]

SAMPLE = 16 << 20  # bytes of arrays that are written to extrapolate the rest from
SHOWN_STEPS = 3
SHOWN_NUMBERS = 8  # of one value


@dataclass(frozen=True, slots=True)
class Preview:
    """What is in the episodes that would be written."""

    episodes: int
    steps: int
    estimated_bytes: int  # of all shards
    observation_space: str
    action_space: str
    mappings: Sequence[Mapping[str, str]]  # of each table: its columns by ours
    first_episode: Mapping[str, Any]  # id, length, return, flags and the first steps, as JSON values

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, without the counts, which the result of the conversion has too."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("episodes", "steps")}


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """What a conversion read and wrote."""

    out: str
    format: str  # "episodes" | "columns", or the name of another sink
    episodes: int  # in `out`, like steps and shards: with `append`, those that were there too
    episodes_appended: int | None  # with `append`: the new ones among them
    steps: int
    shards: int  # files, as far as the sink reports them
    rows_in: int  # rows of tables, lines of JSON
    duplicates_dropped: int
    fragments_stitched: int
    rows_quarantined: int  # rows skipped, or set aside: those that could not be read, and the others of their episodes
    episodes_lost: int | None  # of the sources, and not written, but for duplicates and `limit`; None: unknown for a source
    rejected: tuple[Mapping[str, str], ...]  # the first 10 problems among them: where, code, what
    rejected_in_all: int  # problems, each of which cost a row or more
    assumptions: Mapping[str, int]  # by kind
    dropped_columns: tuple[str, ...]  # columns left out, by name
    dropped_reasons: Mapping[str, str]  # by the same names
    action_scale: str
    spaces_inferred: bool
    on_error: str  # the treatment of rows that could not be read: "fail" | "skip" | "quarantine"
    dry_run: bool  # nothing was written
    preview: Preview | None  # only of a dry run
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {
            **plain,
            "rejected": [dict(reject) for reject in self.rejected],
            "assumptions": dict(sorted(self.assumptions.items())),
            "preview": self.preview and self.preview.as_dict(),
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
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> ConvertResult:
    """Write the episodes of `sources` as dataset `out`.

    With `limit`, no other episode and no bad row after these is counted (docs/assumptions.md). With `dry_run`, what would
    raise raises, and `preview` of the result shows what would be written. `command`: for provenance.

    Raises OutputExists, UsageError, whatever `read_episodes` raises, and Interrupted, which reports what was kept and how
    to resume.
    """
    options = dict(locals())
    started = time.monotonic()
    sources = placed(sources)
    sources = sources if isinstance(sources, (str, os.PathLike, Location)) else list(sources)
    tables, to = TableOptions.of(options), options["to"] or "episodes"
    engine_spec = EngineSpec.of(options)
    sink = sink_named(to)
    if options["from_"] != AUTO:
        reader_named(options["from_"])
    storage_options, limit = options["storage_options"], options["limit"]
    asked_env = AskedEnvironment.of(options)
    read_as: tuple[Any, ...] = options["from_"], options["on_error"], options["env"], options["action_scale"], limit
    read_as += () if options["extras"] == EXTRAS else (options["extras"],)
    read_as += ("drop_reset_rows",) if options["drop_reset_rows"] else ()
    read_as += tuple(sorted(options["drop"]))
    said_of_tables = tables.identity(storage_options)  # and an unreadable mapping is reported at once
    target = open_location(out, storage_options, beside=sources)
    if options["resume"] and options["overwrite"]:
        raise exclusive(target.url, "dataset")
    places = expand(sources, storage_options, beside=out)
    check_apart(places, target)
    base = base_of(target, options)
    if base is None:
        if options["force_unlock"]:
            unlock(target)
        sink.check(target, overwrite=options["overwrite"], resume=options["resume"])
    elif options["to"] is None:
        to = base.manifest.format
        sink = OURS[to]
    sink.check_options(options)
    with read_episodes(
        places,
        from_=options["from_"],
        on_error=options["on_error"],
        env=asked_env,
        action_scale=options["action_scale"],
        limit=limit,
        workers=options["workers"],
        tables=tables,
        episode_limit=EpisodeLimit.within(tables.memory_limit),
        extras=CHOSEN[options["extras"]],
        added_to=None if base is None else added_to(target, base, drop_reset_rows=options["drop_reset_rows"]),
        drop_reset_rows=options["drop_reset_rows"],
        drop=options["drop"],
        engine=engine_spec,
        storage_options=storage_options,
        on_progress=on_progress,
    ) as stream:
        asked = {"a source": listed(places), "an option of reading": read_as, "the mapping": said_of_tables}
        wrappers = () if env is None or stream.environment is None else stream.environment.wrappers
        identity = {name: content_hash_of(value) for name, value in {**asked, "--wrapper": wrappers}.items()}
        context = _context(stream, options, base, provenance_of(places, stream, command), identity)
        if options["dry_run"]:
            stream.set_aside_to(lambda _: None)
            alone = replace(context, overwrite=False, resume=False, base=None)
            if base is not None:
                opened_sink(sink, target, context)  # raises for another format, spaces or scale
            shown = _preview(stream, lambda place: opened_sink(sink, place, alone))
            return _result(stream, target, to, (shown.episodes, shown.steps, 0), started, shown, base)
        written = _written(opened_sink(sink, target, context), stream, target)
        counts = written.episodes, written.steps, written.files
        return _result(stream, target, to, counts, started, None, base)


def _context(
    stream: EpisodeStream,
    options: Mapping[str, Any],
    base: Base | None,
    provenance: Mapping[str, Any],
    identity: Mapping[str, Any],
) -> SinkContext:
    known = None if base is None else base.manifest
    return SinkContext(
        observation_space=stream.observation_space,
        action_space=stream.action_space,
        action_scale=stream.action_scale,
        environment=environment_of_all(stream, base, options["env"]),
        meanings=stream.meanings,
        spaces_inferred=stream.spaces_inferred if known is None else known.spaces_inferred,
        provenance=provenance,
        compression=options["compression"] or (COMPRESSION if known is None else known.compression),
        max_rows_per_file=options["max_rows_per_file"],
        max_bytes_per_file=options["max_bytes_per_file"],
        temp_dir=checked_folder(options["temp_dir"]),
        base=base,
        tally=stream.tally,
        identity=identity,
        overwrite=options["overwrite"],
        resume=options["resume"],
    )


def _written(writer: Sink, stream: EpisodeStream, target: Location) -> Written:
    try:
        with writer:
            stream.set_aside_to(writer.quarantine)
            for batch in stream:
                left = not_written(batch, writer)
                if left.all():
                    writer.write(batch)
                elif left.any():
                    writer.write(batch.select(np.flatnonzero(left)))
            stream.rejects.hand_on()
            return committed(writer, assumptions=assumptions_of(stream), episodes_lost=stream.episodes_lost)
    except KeyboardInterrupt as interrupt:
        raise interrupted(target, is_ours=isinstance(writer, DatasetWriter)) from interrupt


def not_written(batch: EpisodeBatch, writer: Sink) -> NDArray[np.bool_]:
    """(E,) the episodes that are in no shard of the write that is resumed."""
    known = writer.ids_written
    if not known or known.isdisjoint(batch.ids):
        return np.ones(len(batch), np.bool_)
    return np.fromiter((name not in known for name in batch.ids), np.bool_, len(batch))


def assumptions_of(stream: EpisodeStream) -> Mapping[str, int]:
    """What was assumed and left out, by kind, once all of `stream` is read; a writer may still add to its tally."""
    before, counts = stream.tally.assumptions, Counter[str]()
    for kind, count in (
        ("duplicate-episode", stream.tally.duplicates_dropped),
        ("stitched-fragment", stream.tally.fragments_stitched),
        ("unreadable-row", stream.rejects.unreadable),
    ):
        counts[kind] = before[kind] + count
    return ChainMap(+counts | dict(stream.lost_by_reason), before)


def interrupted(target: Location, *, is_ours: bool) -> Interrupted:
    """The error of a command that was interrupted while it wrote: what was kept, and how to resume."""
    if not is_ours:
        what = "interrupted; what was written is incomplete"
        return Interrupted(what, where=target.url, fix="remove it, and run the command again")
    if target.exists() and target.join("_writing.json").exists():
        return Interrupted(
            "interrupted; the shards that were complete are kept",
            where=target.url,
            fix="run the same command again with --resume, or with --overwrite to begin again",
        )
    return Interrupted(
        "interrupted before a shard was complete; nothing was kept", where=target.url, fix="run the command again"
    )


def listed(places: Sequence[Location]) -> list[Any]:
    """The sources, with the sizes of their files where these are on this machine: what `resume` compares."""
    return [[place.url, [[file.url, file.size()] for file in place.files()] if place.is_local else []] for place in places]


def provenance_of(places: Sequence[Location], stream: EpisodeStream, command: Sequence[str]) -> dict[str, Any]:
    """The commands that made the sources, where they are datasets of ours, and then this one; the mappings of tables."""
    known: dict[str, Any] = {"sources": [place.url for place in places], "source_formats": stream.formats}
    if stream.declared:
        known["declared"] = list(stream.declared)
    if stream.mapping_documents:
        known["mappings"] = list(stream.mapping_documents)
    if command:
        known["commands"] = [*stream.commands, shlex.join(command)]
    return known


def _result(
    stream: EpisodeStream,
    target: Location,
    to: str,
    counts: tuple[int, int, int],
    started: float,
    shown: Preview | None,
    base: Base | None = None,
) -> ConvertResult:
    there = () if base is None else base.shards
    before = sum(shard.episodes for shard in there)
    if shown is not None:
        counts = counts[0] + before, counts[1] + sum(shard.steps for shard in there), len(there)
    return ConvertResult(
        out=target.url,
        format=to,
        episodes=counts[0],
        episodes_appended=None if base is None else counts[0] - before,
        steps=counts[1],
        shards=counts[2],
        rows_in=stream.tally.rows_in,
        duplicates_dropped=stream.tally.duplicates_dropped,
        fragments_stitched=stream.tally.fragments_stitched,
        rows_quarantined=stream.rejects.count,
        episodes_lost=stream.episodes_lost,
        rejected=tuple({"where": one.where, "code": one.code, "what": one.reason} for one in stream.rejects.first),
        rejected_in_all=stream.rejects.problems,
        assumptions={**stream.tally.assumptions, **stream.lost_by_reason},
        dropped_columns=tuple(stream.tally.dropped_columns),
        dropped_reasons=dict(stream.tally.dropped_columns),
        action_scale=stream.action_scale,
        spaces_inferred=stream.spaces_inferred,
        on_error=str(stream.rejects.on_error),
        dry_run=shown is not None,
        preview=shown,
        seconds=time.monotonic() - started,
    )


# ---- what a dry run shows ----


def _preview(stream: EpisodeStream, writer: Callable[[Location], Sink]) -> Preview:
    """Read all of `stream`; `writer` makes the writer that would write it, at another place.

    Raises what reading and writing would raise. Without any episode its figures are 0.
    """
    first: Mapping[str, Any] = {}
    found = steps = size = sampled = written = 0
    with tempfile.TemporaryDirectory(prefix="offline-cli-") as folder, writer(open_location(folder).join("sample")) as sample:
        for batch in stream:
            first = first or _described(batch)
            found, steps, size = found + len(batch), steps + batch.num_steps, size + batch.nbytes
            if sampled < SAMPLE:
                part = _within(batch, SAMPLE - sampled)
                sample.write(part)
                sampled += part.nbytes
                batch = batch.select(slice(len(part), len(batch)))
            if len(batch):
                sample.rehearse(batch)
        if sampled:
            written = committed(sample, assumptions={}, episodes_lost=None).bytes
    return Preview(
        episodes=found,
        steps=steps,
        estimated_bytes=round(written * size / sampled) if sampled else 0,
        observation_space=describe(stream.observation_space),
        action_space=describe(stream.action_space),
        mappings=tuple(stream.mappings),
        first_episode=first,
    )


def _within(batch: EpisodeBatch, limit: int) -> EpisodeBatch:
    """The first episodes, of about `limit` bytes and at least one."""
    if batch.nbytes <= limit:
        return batch
    share = np.searchsorted(batch.starts, batch.num_steps * limit / batch.nbytes)
    return batch.select(slice(0, max(1, int(share))))


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
