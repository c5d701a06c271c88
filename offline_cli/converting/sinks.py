"""All sinks by name: our dataset in both row formats, those of other packages, and those of a user's own Python file.

`convert --list-formats` lists what `--from` and `--to` take. It imports no plug-in: one that is not imported shows its name
alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

from offline_cli.converting.sink import OPTIONS, Sink, SinkContext, SinkKind, Written, output_writer
from offline_cli.datasets.target_folder import check_target
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.files.locations import Location
from offline_cli.formats import readers
from offline_cli.formats.reader import Reader
from offline_cli.options.shared import RowFormat
from offline_cli.plugins import READERS, SINKS, named_plugin, plugins
from offline_cli.tally import Reject

__all__ = ["OURS", "DatasetSink", "Format", "FormatList", "known_formats", "sink_named"]

MEMBERS: Final = ("__enter__", "__exit__", "write", "rehearse", "quarantine", "commit", "ids_written")

PACKAGE: Final = "offline-cli"


class DatasetSink:
    """A dataset of ours."""

    def __init__(self, target: Location, context: SinkContext, row_format: RowFormat) -> None:
        self._writer = DatasetWriter(
            target,
            format=row_format,
            observation_space=context.observation_space,
            action_space=context.action_space,
            action_scale=context.action_scale,
            environment=context.environment,
            spaces_inferred=context.spaces_inferred,
            provenance=context.provenance,
            compression=context.compression,
            max_rows_per_file=context.max_rows_per_file,
            tally=context.tally,
            identity=context.identity,
            check_ids=False,  # reading has done so
            overwrite=context.overwrite,
            resume=context.resume,
        )

    @property
    def ids_written(self) -> frozenset[str]:
        """See `Sink`."""
        return self._writer.ids_written

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        self._writer.write(batch)

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        self._writer.rehearse(batch)

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`."""
        self._writer.quarantine(rejects)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        manifest = self._writer.commit(assumptions=assumptions, episodes_lost=episodes_lost)
        nbytes = sum(shard.bytes for shard in manifest.shards)
        return Written(manifest.counts.episodes, manifest.counts.steps, len(manifest.shards), nbytes)


def _check_folder(target: Location, *, overwrite: bool, resume: bool) -> None:
    check_target(target, overwrite=overwrite, resume=resume)


OURS: Final = {
    kind.name: kind
    for kind in (
        SinkKind(
            "episodes",
            "our dataset, a row an episode, as RLlib reads it",
            lambda target, context: DatasetSink(target, context, "episodes"),
            _check_folder,
            OPTIONS,
        ),
        SinkKind(
            "columns",
            "our dataset, a row a step, for any Parquet tool",
            lambda target, context: DatasetSink(target, context, "columns"),
            _check_folder,
            OPTIONS,
        ),
    )
}


def sink_named(name: str) -> SinkKind:
    """The sink that `--to` names. Raises as `named_plugin` does."""
    return named_plugin(SINKS, name, OURS, SinkKind, option="--to", made=output_writer)


def opened_sink(kind: SinkKind, target: Location, context: SinkContext) -> Sink:
    """The sink that `kind` opens. Raises BadConfig where it is not a Sink, and what opening raises."""
    sink: Any = kind.open(target, context)
    missing = [name for name in MEMBERS if not hasattr(type(sink), name)]
    if missing:
        what = f"the sink {kind.name!r} opens a {type(sink).__name__}, which is not a Sink: it lacks {', '.join(missing)}"
        raise BadConfig(what, where=f"--to {kind.name}", fix="define what offline_cli.converting.sink.Sink lists")
    try:
        inspect.signature(sink.commit).bind(assumptions={}, episodes_lost=None)
    except TypeError as error:
        fix = "def commit(self, *, assumptions, episodes_lost)"
        raise BadConfig(f"commit() of the sink {kind.name!r}: {error}", where=f"--to {kind.name}", fix=fix) from error
    opened: Sink = sink
    return opened


def check_written(written: Any, sink: Sink) -> Written:
    """`written`, what a sink's `commit` gave. Raises BadConfig where it is not a `Written`."""
    if not isinstance(written, Written):
        what = f"commit() of the sink {type(sink).__name__} returned {type(written).__name__}, not a Written"
        raise BadConfig(what, where=type(sink).__module__, fix="return Written(episodes, steps, files, bytes)")
    return written


@dataclass(frozen=True, slots=True)
class Format:
    """One name."""

    name: str
    words: str  # of a plug-in, the package to look in: its own words would have to be imported
    package: str  # the distribution that has it


@dataclass(frozen=True, slots=True)
class FormatList:
    """All names, ours first."""

    readers: tuple[Format, ...]
    sinks: tuple[Format, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def known_formats() -> FormatList:
    """Those of this package, and of all that are installed."""
    return FormatList(_formats(readers.OURS, READERS), _formats(OURS, SINKS))


def _formats(ours: Mapping[str, Reader] | Mapping[str, SinkKind], group: str) -> tuple[Format, ...]:
    return (
        *(Format(name, one.words, PACKAGE) for name, one in ours.items()),
        *(Format(one.name, f"not imported here: see {one.distribution}", one.package) for one in plugins(group)),
    )
