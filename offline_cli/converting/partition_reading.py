"""Reads the partitions of a source on an engine's workers, as a `Source` that gives the same fragments in the same order.

Workers decode; stitching, spaces, ids and the dataset's files stay with this process, which sees fragments, counts and rejected
rows as if it had read them. Partitions follow from the source alone, never from the number of workers. A source that cannot be
divided is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

from offline_cli.engines.engine import Engine, EngineSpec
from offline_cli.formats.source import BYTES, Fragments, ReadOptions, Source, WrappedSource
from offline_cli.progress import no_progress
from offline_cli.scopes import Scope
from offline_cli.tally import OnError, Rejects, RejectsAhead, Tally

PART_BYTES: Final = 16 << 20  # of files, in a partition
FEWEST: Final = 32  # partitions of small files
MOST: Final = 4096  # partitions


def on_workers(opened: Sequence[Source], spec: EngineSpec, options: ReadOptions, scope: Scope) -> Sequence[Source]:
    """Prepared sources, read by an engine's workers; `scope` owns what is made for that."""
    engine = scope.enter(spec.engine())
    if engine.is_local:
        return opened
    return [scope.enter(closing(_divided(source, engine, options))) for source in opened]


def _divided(source: Source, engine: Engine, options: ReadOptions) -> Source:
    """Itself where it cannot be divided."""
    size = source.size
    count = MOST if size is None or source.unit != BYTES else max(FEWEST, min(size // PART_BYTES, MOST))
    parts = source.partitions(count)
    for part in parts:
        part.prepare(replace(options, workers=1, on_progress=no_progress))
    return source if len(parts) < 2 else _PartitionedSource(source, parts, engine)


@dataclass(slots=True)
class _PartitionedSource(WrappedSource):
    """See `Source`."""

    parts: Sequence[Source]
    engine: Engine
    done: int = 0
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`; it has been done."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`."""
        self.done = 0
        with self.scope.part() as held:
            for fragments, counted, rejected, done in held.enter(
                self.engine.streamed(partial(_read, rejects.on_error), self.parts)
            ):
                tally.merge(counted)
                rejected.tell(rejects)
                self.done += done
                if fragments is not None:
                    yield fragments

    def partitions(self, count: int) -> Sequence[Self]:
        """See `Source`."""
        return [self]

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()
        self.source.close()


# ---- on a worker ----


def _read(on_error: OnError, source: Source) -> Iterator[tuple[Fragments | None, Tally, RejectsAhead, int]]:
    """One partition, piece by piece: fragments, and what was counted, rejected and read since the last; without fragments the
    end of the partition.
    """
    tally, ahead, done = Tally(), RejectsAhead(on_error), 0
    with closing(source):
        for fragments in source.fragments(tally, ahead):
            yield fragments, _taken(tally), _told(ahead), source.done - done
            done = source.done
    yield None, _taken(tally), _told(ahead), source.done - done


def _taken(tally: Tally) -> Tally:
    """What was counted since it was last taken; the reader goes on counting in `tally`."""
    found = replace(tally, assumptions=tally.assumptions.copy(), dropped_columns=dict(tally.dropped_columns))
    tally.rows_in = tally.duplicates_dropped = tally.fragments_stitched = 0
    tally.assumptions.clear()
    return found


def _told(ahead: RejectsAhead) -> RejectsAhead:
    """What was rejected since it was last taken; raw rows travel only where they are kept."""
    found, keeps = RejectsAhead(ahead.on_error), ahead.on_error is OnError.QUARANTINE
    ahead.pass_on(found)
    texts = ((error, raw if isinstance(raw, str) else bytes(raw), rows) for error, raw, rows in found.told)
    found.told = [(error, raw if keeps else b"", rows) for error, raw, rows in texts]
    return found
