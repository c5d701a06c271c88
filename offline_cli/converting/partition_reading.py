"""Read the partitions of a source on an engine's workers, as a `Source` that yields the same fragments in the same order.

Workers decode; this process stitches, fits spaces, checks ids and writes files, and gets fragments, counts and rejected rows as
if it had read them. Partitions depend only on the source, never on the number of workers. A source that cannot be split is read
in this process.
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

PART_BYTES: Final = 16 << 20  # file bytes per partition
FEWEST: Final = 32  # minimum number of partitions
MOST: Final = 4096  # maximum number of partitions


def on_workers(opened: Sequence[Source], spec: EngineSpec, options: ReadOptions, scope: Scope) -> Sequence[Source]:
    """Wrap prepared sources so that an engine's workers read them; `scope` owns the engine."""
    engine = scope.enter(spec.engine())
    if engine.is_local:
        return opened
    return [scope.enter(closing(_divided(source, engine, options))) for source in opened]


def _divided(source: Source, engine: Engine, options: ReadOptions) -> Source:
    """The source split for the engine, or itself if it cannot be split."""
    size = source.size
    count = MOST if size is None or source.unit != BYTES else max(FEWEST, min(size // PART_BYTES, MOST))
    parts = source.partitions(count)
    for part in parts:
        part.prepare(replace(options, workers=1, on_progress=no_progress))
    return source if len(parts) < 2 else _PartitionedSource(source, parts, engine)


@dataclass(slots=True)
class _PartitionedSource(WrappedSource):
    """A `Source` whose partitions are read by an engine's workers."""

    parts: Sequence[Source]
    engine: Engine
    done: int = 0
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)

    def prepare(self, options: ReadOptions) -> None:
        """Does nothing: the partitions are prepared."""

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
    """Read a partition: yield fragments with the counts, rejects and amount read since the last ones; None instead of fragments
    at the end.
    """
    tally, ahead, done = Tally(), RejectsAhead(on_error), 0
    with closing(source):
        for fragments in source.fragments(tally, ahead):
            yield fragments, _taken(tally), _told(ahead), source.done - done
            done = source.done
    yield None, _taken(tally), _told(ahead), source.done - done


def _taken(tally: Tally) -> Tally:
    """Take the counts since the last call; the reader continues to count in `tally`."""
    found = replace(tally, assumptions=tally.assumptions.copy(), dropped_columns=dict(tally.dropped_columns))
    tally.rows_in = tally.duplicates_dropped = tally.fragments_stitched = 0
    tally.assumptions.clear()
    return found


def _told(ahead: RejectsAhead) -> RejectsAhead:
    """Take the rejects since the last call; raw rows are sent only under quarantine."""
    found, keeps = RejectsAhead(ahead.on_error), ahead.on_error is OnError.QUARANTINE
    ahead.pass_on(found)
    texts = ((error, raw if isinstance(raw, str) else bytes(raw), rows) for error, raw, rows in found.told)
    found.told = [(error, raw if keeps else b"", rows) for error, raw, rows in texts]
    return found
