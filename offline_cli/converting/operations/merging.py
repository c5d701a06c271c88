"""`merge` and `repack`: write all episodes of the sources as one dataset.

`merge` reads its sources as `convert` does: exact duplicates are dropped, and a different episode with an existing id is
rejected, or gets a new id (`unique_ids`). `repack` rewrites the same episodes: with another shard size, compression or row
format, or without some columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Unpack

import numpy as np

from offline_cli.choices import EXTRAS, Extras
from offline_cli.columns import Columns
from offline_cli.converting.fitting import CHOSEN, first_batch
from offline_cli.converting.operations.operation import Operation, OperationOptions, OperationResult, with_options
from offline_cli.converting.stitching import Stitcher, stitched
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import PROBLEM, BadEpisode, UsageError
from offline_cli.formats.source import Fragments, Source, WrappedSource
from offline_cli.progress import no_progress
from offline_cli.storage.locations import Location, Sources
from offline_cli.tally import CONFLICT, OnError, Rejects, Tally


@with_options
def merge(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    unique_ids: bool = False,
    extras: Extras = EXTRAS,
    **options: Unpack[OperationOptions],
) -> OperationResult:
    """Write the episodes of all `sources`, in their order, as dataset `out`.

    Raises BadEpisode for two different episodes with one id, without `unique_ids`; BadConfig for different action scales,
    SpaceMismatch for different spaces, and as `convert` does.
    """
    operation, by = Operation.begun("merge", sources, out, options), {"unique_ids": unique_ids, "extras": extras}
    operation.check_target()
    if extras == EXTRAS and (survey := operation.survey_of_rows()) is not None:
        return operation.write_chosen(survey, np.ones(len(survey), np.bool_), by, ids_changed=0, extras_left_out={})
    choose = CHOSEN[extras]
    kept = None if choose is None else choose(operation.sources)
    changes = _changes(operation.sources, OnError(options["on_error"])) if unique_ids else [{} for _ in operation.sources]
    read = [_Changed(one, partial(_renamed, new)) if new else one for one, new in zip(operation.sources, changes, strict=True)]
    told = {"ids_changed": sum(map(len, changes)), "extras_left_out": {} if kept is None else dict(kept.left_out)}
    try:
        return operation.write_all(by, operation.stream(read, extras=lambda _: kept), **told)
    except BadEpisode as error:
        if error.details.get(PROBLEM) != CONFLICT:
            raise
        fix = "use --unique-ids to give the later one a new id, or --on-error skip to skip it"
        raise BadEpisode(error.what, where=error.where, fix=fix, details=error.details) from error


@with_options
def repack(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    drop: Sequence[str] = (),
    **options: Unpack[OperationOptions],
) -> OperationResult:
    """Rewrite the episodes of `sources` as dataset `out`.

    Raises UsageError for a column in `drop` that every episode needs, or none has, and as `convert` does.
    """
    operation, drop = Operation.begun("repack", sources, out, options), tuple(dict.fromkeys(drop))
    operation.check_target()
    if drop:
        _check_columns(operation.sources, drop)
    stream = None
    if drop:
        change = partial(_without, frozenset(drop))
        stream = operation.stream([_Changed(one, change) for one in operation.sources])
    told = {"compression": operation.compression, "dropped_columns": drop}
    return operation.write_all({"drop": list(drop)}, stream, **told)


# ---- sources with transformed batches ----


@dataclass(slots=True)
class _Changed(WrappedSource):
    """A source that applies `change` to each batch."""

    change: Callable[[EpisodeBatch], EpisodeBatch]

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`."""
        for fragments in self.source.fragments(tally, rejects):
            yield replace(fragments, batch=self.change(fragments.batch))


def _renamed(new: Mapping[str, str], batch: EpisodeBatch) -> EpisodeBatch:
    """Rename episodes; `new`: new ids by old ones."""
    return replace(batch, ids=tuple(new.get(name, name) for name in batch.ids))


def _without(drop: frozenset[str], batch: EpisodeBatch) -> EpisodeBatch:
    """Drop columns."""
    extra = {name: tree for name, tree in batch.extra.items() if name not in drop}
    return replace(batch, extra=extra, infos=None if Columns.INFOS in drop else batch.infos)


def _changes(sources: Sequence[Source], on_error: OnError) -> list[dict[str, str]]:
    """New ids by conflicting old ones, for each source: `<id>-<number of the source, from 1>`.

    Each source is read separately. The first episode with an id, and its copies, keep the id. Copies of one episode get the
    same new id, so that they are dropped as duplicates. Raises as reading does.
    """
    marks, conflicts = dict[str, int](), list[tuple[int, str, int]]()  # fingerprint by id; (source, id, fingerprint)
    for number, source in enumerate(sources):
        rejects = Rejects(OnError.FAIL if on_error is OnError.FAIL else OnError.SKIP)
        for batch in stitched([source], Stitcher(Tally(), rejects), no_progress):
            for name, mark in zip(batch.ids, fingerprints(batch).tolist(), strict=True):
                if marks.setdefault(name, mark) != mark:
                    conflicts.append((number, name, mark))
        source.close()
    changes: list[dict[str, str]] = [{} for _ in sources]
    given: dict[tuple[str, int], str] = {}
    for number, name, mark in conflicts:
        if (name, mark) not in given:
            new = f"{name}-{number + 1}"
            while new in marks:
                new += f"-{number + 1}"
            marks[new] = mark
            given[name, mark] = new
        changes[number][name] = given[name, mark]
    return changes


def _check_columns(sources: Sequence[Source], drop: Sequence[str]) -> None:
    """Raise UsageError, naming each, for columns that cannot be dropped: only infos and extra model outputs can."""
    have = {Columns.INFOS}
    for source in sources:
        first = first_batch(source, OnError.SKIP)
        have |= set() if first is None else first.extra.keys()
    if wrong := [name for name in drop if name not in have]:
        what = f"nonexistent, or part of every episode: {', '.join(wrong)}"
        raise UsageError(what, where="--drop", fix=f"droppable columns: {', '.join(sorted(have))}")
