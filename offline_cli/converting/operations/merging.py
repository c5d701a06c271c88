"""`merge` and `repack`: all episodes of the sources, as one dataset.

`merge` reads its sources as `convert` does: exact duplicates are dropped, and another episode of an id that was there is
refused, or gets an id of its own (`unique_ids`). `repack` writes the same episodes in other files: other sizes of shards,
compression or row format, without some columns, under hashed ids.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from offline_cli.checked_keywords import checked
from offline_cli.choices import (
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
    RowFormat,
)
from offline_cli.columns import Columns
from offline_cli.converting.operations import Operation, OperationResult
from offline_cli.converting.operations.survey import by_rows
from offline_cli.converting.reading import EpisodeStream
from offline_cli.converting.stitching import Stitcher
from offline_cli.converting.whole_episodes import CHOSEN, ExtraOutputs, first_batch, stitched
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import PROBLEM, BadEpisode, UsageError
from offline_cli.formats.source import Fragments, ReadOptions, Source, SourceInfo
from offline_cli.progress import OnProgress, no_progress
from offline_cli.storage.locations import Location, Sources
from offline_cli.tally import CONFLICT, OnError, Rejects, Tally

__all__ = ["MergeResult", "RepackResult", "merge", "repack"]

OF_EVERY_EPISODE: Final = frozenset(
    {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.T}
    | {Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.LENGTH, Columns.RETURN}
    | {Columns.TERMINATED, Columns.TRUNCATED, Columns.ITEM}
)


@dataclass(frozen=True, slots=True)
class MergeResult(OperationResult):
    """What `merge` read and wrote; `dropped` are the duplicates."""

    ids_changed: int  # episodes with an id of their own now
    extras_left_out: Mapping[str, str]  # extra model outputs that only some sources have, or in other forms: which has which


@dataclass(frozen=True, slots=True)
class RepackResult(OperationResult):
    """What `repack` read and wrote; `dropped` are duplicates."""

    compression: str
    dropped_columns: tuple[str, ...]
    ids_hashed: bool


@checked
def merge(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    on_error: OnBadRow = "fail",
    unique_ids: bool = False,
    extras: Extras = "union",
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat | None = None,
    compression: Compression | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> MergeResult:
    """Write the episodes of all `sources`, in their order, as dataset `out`. `command`: for provenance.

    Raises BadEpisode for two different episodes of one id, without `unique_ids`; BadConfig for sources of different action
    scales, SpaceMismatch for other spaces, and what `convert` raises.
    """
    options = dict(locals())
    operation = Operation.begun("merge", sources, out, options=options, command=command, on_progress=on_progress)
    operation.check_target()
    kept: list[ExtraOutputs | None] = [None]

    def choose(opened: Sequence[Source]) -> ExtraOutputs | None:
        chosen = CHOSEN[options["extras"]]
        kept[0] = None if chosen is None else chosen(opened)
        return kept[0]

    by = {"unique_ids": options["unique_ids"], "extras": options["extras"]}
    as_it_is = options["extras"] == EXTRAS
    if as_it_is and (figures := _moved(operation, by)) is not None:
        return MergeResult(**figures, ids_changed=0, extras_left_out={})
    changes = _changes(operation.sources, OnError(options["on_error"])) if options["unique_ids"] else []
    read = [_Changed(one, _Renamed(new)) if new else one for one, new in zip(operation.sources, changes, strict=False)]
    try:
        stream = operation.stream(read or None, extras=choose)
        figures = _written(operation, stream, by)
    except BadEpisode as error:
        raise _with_own_ids(error) from error
    left_out = {} if kept[0] is None else dict(kept[0].left_out)
    return MergeResult(**figures, ids_changed=sum(map(len, changes)), extras_left_out=left_out)


@checked
def repack(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    action_scale: ActionScale | None = None,
    env: str | None = None,
    on_error: OnBadRow = "fail",
    drop: Sequence[str] = (),
    hash_ids: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    engine: EngineName = "local",
    engine_address: str | None = None,
    workers: Count = 4,
    storage_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    force_unlock: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    format: RowFormat | None = None,
    compression: Compression | None = None,
    max_rows_per_file: Count | None = None,
    max_bytes_per_file: Count = MAX_BYTES_PER_FILE,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RepackResult:
    """Write the episodes of `sources` as dataset `out`, in files of another kind. `command`: for provenance.

    Raises UsageError for a column of `drop` that every episode needs, or that none has, and what `convert` raises.
    """
    options = dict(locals())
    operation = Operation.begun("repack", sources, out, options=options, command=command, on_progress=on_progress)
    operation.check_target()
    drop = tuple(dict.fromkeys(options["drop"]))
    _check_columns(operation.sources, drop)
    by, changes = {"drop": list(drop), "hash_ids": options["hash_ids"]}, bool(drop or options["hash_ids"])
    figures = None if changes else _moved(operation, by)
    if figures is None:
        change = _Repacked(frozenset(drop), options["hash_ids"])
        read: list[Source] | None = [_Changed(one, change) for one in operation.sources] if changes else None
        figures = _written(operation, operation.stream(read), by)
    return RepackResult(**figures, compression=operation.compression, dropped_columns=drop, ids_hashed=options["hash_ids"])


def _moved(operation: Operation, by: Mapping[str, Any]) -> dict[str, Any] | None:
    """Move all rows; the fields of `OperationResult`. None where that cannot be: see `by_rows`."""
    survey = by_rows(operation)
    if survey is None:
        return None
    if operation.options["dry_run"]:
        stream, steps = operation.stream(), int(survey.column(Columns.LENGTH).sum())
        stream.close()
        return operation.figures(stream, [], episodes=len(survey), steps=steps)
    target = operation.target, operation.identity(**by), {"operation": {"name": operation.name, **by}}
    return operation.figures(*survey.write([target], np.zeros(len(survey), np.int64)))


def _written(operation: Operation, stream: EpisodeStream, by: Mapping[str, Any]) -> dict[str, Any]:
    """Write all episodes of `stream`; the fields of `OperationResult`."""
    if not operation.options["dry_run"]:
        told = {"operation": {"name": operation.name, **by}}
        writer = operation.writer(stream, operation.target, identity=operation.identity(**by), provenance=told)
        return operation.figures(stream, operation.copy(stream, [writer]))
    episodes = steps = 0
    with stream:
        stream.set_aside_to(lambda _: None)
        for batch in stream:
            episodes, steps = episodes + len(batch), steps + batch.num_steps
    return operation.figures(stream, [], episodes=episodes, steps=steps)


# ---- sources whose episodes are changed while they are read ----


@dataclass(slots=True)
class _Changed:
    """A source with `change` made of each batch, as a `Source`."""

    source: Source
    change: Callable[[EpisodeBatch], EpisodeBatch]

    @property
    def info(self) -> SourceInfo:
        return self.source.info

    @property
    def unit(self) -> str:
        return self.source.unit

    @property
    def size(self) -> int | None:
        return self.source.size

    @property
    def done(self) -> int:
        return self.source.done

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self.source.prepare(options)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`."""
        for fragments in self.source.fragments(tally, rejects):
            yield replace(fragments, batch=self.change(fragments.batch))

    def partitions(self, count: int) -> Sequence[_Changed]:
        """See `Source`."""
        return [replace(self, source=part) for part in self.source.partitions(count)]

    def close(self) -> None:
        """See `Source`."""
        self.source.close()


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Episodes with other ids."""

    new: Mapping[str, str]  # by the id before

    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        return replace(batch, ids=tuple(self.new.get(name, name) for name in batch.ids))


def _changes(sources: Sequence[Source], on_error: OnError) -> list[dict[str, str]]:
    """For each source the ids that its episodes do not keep, and the new ones: `<id>-<number of the source, from 1>`.

    Each source is read by itself: an episode keeps its id where it is the first one of it, or a copy of one that keeps it.
    Copies of one episode get one id, so that they are dropped. Raises what reading raises.
    """
    tables = []
    for number, source in enumerate(sources):
        rejects = Rejects(OnError.FAIL if on_error is OnError.FAIL else OnError.SKIP)
        for batch in stitched([source], Stitcher(Tally(), rejects), no_progress):
            ids = pl.Series([name.encode("utf-8", "surrogatepass") for name in batch.ids], dtype=pl.Binary)
            tables.append(pl.DataFrame({"id": ids, "print": fingerprints(batch), "source": np.full(len(batch), number)}))
        source.close()
    changes: list[dict[str, str]] = [{} for _ in sources]
    if not tables:
        return changes
    known = pl.concat(tables)
    taken = known.filter(pl.col("print").n_unique().over("id") > 1)
    firsts = taken.with_columns(
        like=pl.col("source").min().over("id", "print"), first=pl.col("source").min().over("id")
    ).filter(pl.col("like") > pl.col("first"))
    used = set(known.get_column("id").to_list()) if firsts.height else set[bytes]()
    given: dict[tuple[bytes, int], str] = {}
    for row in firsts.sort("source", maintain_order=True).iter_rows(named=True):  # conflicts alone
        name, like = row["id"], row["like"]
        if (name, like) not in given:
            new = name + f"-{like + 1}".encode()
            while new in used:
                new += f"-{like + 1}".encode()
            used.add(new)
            given[name, like] = new.decode("utf-8", "surrogatepass")
        changes[row["source"]][name.decode("utf-8", "surrogatepass")] = given[name, like]
    return changes


def _with_own_ids(error: BadEpisode) -> BadEpisode:
    if error.details.get(PROBLEM) != CONFLICT:
        return error
    fix = "--unique-ids gives the later one an id of its own; or --on-error skip leaves it out"
    return BadEpisode(error.what, where=error.where, fix=fix, details=error.details)


# ---- other files ----


@dataclass(frozen=True, slots=True)
class _Repacked:
    """Episodes without some columns, and under hashed ids."""

    drop: frozenset[str]
    hash_ids: bool

    def __call__(self, batch: EpisodeBatch) -> EpisodeBatch:
        extra = {name: tree for name, tree in batch.extra.items() if name not in self.drop}
        infos = None if Columns.INFOS in self.drop else batch.infos
        batch = replace(batch, extra=extra, infos=infos)
        if not self.hash_ids:
            return batch
        custom = batch.custom_data
        return replace(
            batch,
            ids=tuple(map(_hashed, batch.ids)),
            multi_agent_ids=None if batch.multi_agent_ids is None else tuple(map(_hashed, batch.multi_agent_ids)),
            custom_data=None if custom is None else tuple(map(_hashed_source_id, custom)),
        )


def _hashed(name: Any) -> Any:
    """SHA-256 of an id, as hex; None stays."""
    return None if name is None else hashlib.sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest()


def _hashed_source_id(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: _hashed(value) if name == Columns.SOURCE_ID else value for name, value in data.items()}


def _check_columns(sources: Sequence[Source], drop: Sequence[str]) -> None:
    """Raise UsageError, naming each, for columns that cannot be left out, or that no source has."""
    if not drop:
        return
    have = {Columns.INFOS}
    for source in sources:
        first = first_batch(source, OnError.SKIP)
        have |= set() if first is None else first.extra.keys()
    needed = [name for name in drop if name.partition(".")[0] in OF_EVERY_EPISODE]
    wrong = [f"{name} is part of every episode" for name in needed]
    wrong += [f"there is no column {name}" for name in drop if name not in have and name not in needed]
    if wrong:
        raise UsageError("; ".join(wrong), where="--drop", fix=f"what can be left out: {', '.join(sorted(have))}")
