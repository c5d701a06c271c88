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
from functools import partial
from typing import Any, Unpack

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

    Raises BadEpisode for two different episodes of one id, without `unique_ids`; BadConfig for sources of different action
    scales, SpaceMismatch for other spaces, and what `convert` raises.
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
        fix = "--unique-ids gives the later one an id of its own; or --on-error skip leaves it out"
        raise BadEpisode(error.what, where=error.where, fix=fix, details=error.details) from error


@with_options
def repack(
    sources: Sources,
    out: str | os.PathLike[str] | Location,
    *,
    drop: Sequence[str] = (),
    hash_ids: bool = False,
    **options: Unpack[OperationOptions],
) -> OperationResult:
    """Write the episodes of `sources` as dataset `out`, in files of another kind.

    Raises UsageError for a column of `drop` that every episode needs, or that none has, and what `convert` raises.
    """
    operation, drop = Operation.begun("repack", sources, out, options), tuple(dict.fromkeys(drop))
    operation.check_target()
    if drop:
        _check_columns(operation.sources, drop)
    stream = None
    if drop or hash_ids:
        change = partial(_repacked, frozenset(drop), hash_ids)
        stream = operation.stream([_Changed(one, change) for one in operation.sources])
    told = {"compression": operation.compression, "dropped_columns": drop, "ids_hashed": hash_ids}
    return operation.write_all({"drop": list(drop), "hash_ids": hash_ids}, stream, **told)


# ---- sources whose episodes are changed while they are read ----


@dataclass(slots=True)
class _Changed(WrappedSource):
    """A source with `change` made of each batch."""

    change: Callable[[EpisodeBatch], EpisodeBatch]

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`."""
        for fragments in self.source.fragments(tally, rejects):
            yield replace(fragments, batch=self.change(fragments.batch))


def _renamed(new: Mapping[str, str], batch: EpisodeBatch) -> EpisodeBatch:
    """Under other ids; `new`: by the id before."""
    return replace(batch, ids=tuple(new.get(name, name) for name in batch.ids))


def _repacked(drop: frozenset[str], hash_ids: bool, batch: EpisodeBatch) -> EpisodeBatch:
    """Without some columns, and under hashed ids."""
    extra = {name: tree for name, tree in batch.extra.items() if name not in drop}
    batch = replace(batch, extra=extra, infos=None if Columns.INFOS in drop else batch.infos)
    if not hash_ids:
        return batch
    games, custom = batch.multi_agent_ids, batch.custom_data
    return replace(
        batch,
        ids=tuple(map(_hashed, batch.ids)),
        multi_agent_ids=None if games is None else tuple(map(_hashed, games)),
        custom_data=None if custom is None else tuple(map(_hashed_source_id, custom)),
    )


def _hashed(name: Any) -> Any:
    """SHA-256 of an id, as hex; None stays."""
    return None if name is None else hashlib.sha256(str(name).encode("utf-8", "surrogatepass")).hexdigest()


def _hashed_source_id(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: _hashed(value) if name == Columns.SOURCE_ID else value for name, value in data.items()}


def _changes(sources: Sequence[Source], on_error: OnError) -> list[dict[str, str]]:
    """For each source the ids that its episodes do not keep, and the new ones: `<id>-<number of the source, from 1>`.

    Each source is read by itself: an episode keeps its id where it is the first one of it, or a copy of one that keeps it.
    Copies of one episode get one id, so that they are dropped. Raises what reading raises.
    """
    marks, conflicts = dict[str, int](), list[tuple[int, str, int]]()  # a fingerprint by id; source, id and fingerprint
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
    """Raise UsageError, naming each, for columns that cannot be left out: infos and extra model outputs alone can."""
    have = {Columns.INFOS}
    for source in sources:
        first = first_batch(source, OnError.SKIP)
        have |= set() if first is None else first.extra.keys()
    if wrong := [name for name in drop if name not in have]:
        what = f"not there, or part of every episode: {', '.join(wrong)}"
        raise UsageError(what, where="--drop", fix=f"what can be left out: {', '.join(sorted(have))}")
