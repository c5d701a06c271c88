"""The interface of every sink: a `Sink` of whole episodes, which `convert --to NAME` writes into, and its `SinkKind`.

A foreign format has its sink beside its reader, derived from `ForeignSink`; `converting/sink.py` lists all sinks by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self

from offline_cli.choices import MAX_BYTES_PER_FILE
from offline_cli.datasets.manifest import Environment, Manifest
from offline_cli.datasets.target_folder import Base
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OutputExists, UsageError
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Reject, Tally

OPTIONS: Final[Mapping[str, Any]] = {
    "append": False,
    "compression": None,
    "max_bytes_per_file": MAX_BYTES_PER_FILE,
    "max_rows_per_file": None,
    "overwrite": False,
    "resume": False,
}
"""Of `convert`, those that a sink takes or does not, with their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What is known of the episodes, and required of their files, before the first is written."""

    observation_space: Space
    action_space: Space
    action_scale: str  # "env" | "normalized" | "unknown"
    spaces_inferred: bool
    environment: Environment | None
    provenance: Mapping[str, Any]  # sources, their formats, commands
    compression: str
    max_rows_per_file: int | None
    tally: Tally  # for what the sink has to assume or drop
    identity: Mapping[str, Any]  # the same for the same content: what `resume` compares, by name
    overwrite: bool
    resume: bool
    max_bytes_per_file: int = MAX_BYTES_PER_FILE  # before compression
    meanings: Meanings = NO_MEANINGS  # of columns
    temp_dir: str | None = None  # where bytes wait that do not fit into memory; None: the system's
    base: Base | None = None  # the dataset that is added to; only our own sinks get one


@dataclass(frozen=True, slots=True)
class Written:
    """What a sink has committed."""

    episodes: int
    steps: int
    files: int
    bytes: int


class Sink(Protocol):
    """Whole episodes on their way to one place; what it opens is closed by the end of its `with`.

    Entering begins: it raises for what must not be touched. Leaving without `commit` aborts: then nothing looks complete.
    Raises OutputExists, StorageError, BadData, UnsupportedSpace.
    """

    @property
    def ids_written(self) -> frozenset[str]:
        """Ids of the episodes that `resume` found whole, which are not written again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def write(self, batch: EpisodeBatch) -> None:
        """Take one or more whole episodes with new ids; their arrays may wait here, and must not change afterwards."""

    def rehearse(self, batch: EpisodeBatch) -> None:
        """For a dry run: raise and count as `write` would, as far as that shows without a file, and write nothing."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """Keep rows that were set aside beside the episodes, and empty the list."""

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written | Manifest:
        """Make what was written whole and durable. `assumptions`: counts by kind; `episodes_lost`: None: not known."""


class ForeignSink:
    """What sinks of foreign formats share: nothing is resumed, and rows that were set aside have no place."""

    ids_written: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, target: Location, context: SinkContext, name: str) -> None:
        self.target, self.context, self.name = target, context, name
        self.episodes = self.steps = 0  # written

    def said_by_source(self) -> Mapping[str, Any]:
        """What a source of the same format said of the whole (`SourceInfo.declared`); empty without one."""
        declared = self.context.provenance.get("declared", ())
        return next((one for one in declared if isinstance(one, Mapping) and one.get("format") == self.name), {})

    def count(self, batch: EpisodeBatch) -> None:
        """Count what was written."""
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """See `Sink`. Raises BadData."""
        if rejects:
            what = f"rows were set aside, and {self.name} has no place for them"
            raise BadData(what, where=f"--to {self.name}", fix="--on-error skip, or --to episodes")


def refuse_existing(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`, unless it is to be replaced or resumed."""
    if not (overwrite or resume) and target.exists():
        raise OutputExists("something is here already", where=target.url, fix="give another --out, or --overwrite")


def refuse_folder(target: Location, *, overwrite: bool, resume: bool) -> None:
    """The `check` of a sink of a folder: raise OutputExists where something is, for it may hold files of others."""
    if target.exists():
        raise OutputExists("something is here already", where=target.url, fix="remove it, or give another --out")


def file_check(magic: bytes, words: str) -> Callable[..., object]:
    """The `check` of a sink of one file: with `overwrite` a file is replaced that begins with `magic`, and no other."""

    def check(target: Location, *, overwrite: bool, resume: bool) -> None:
        """Raise OutputExists."""
        if overwrite and target.exists() and (target.is_dir() or target.start(len(magic))[0] != magic):
            raise OutputExists(f"this is not {words}", where=target.url, fix="give another --out, or remove it yourself")
        refuse_existing(target, overwrite=overwrite, resume=False)

    return check


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One format to write. Other packages register theirs as entry points of `offline_cli.sinks`; see docs/extending.md."""

    name: str  # as `--to` takes it
    words: str  # what it writes, for messages
    open: Callable[[Location, SinkContext], Sink]  # nothing is touched before its `with`
    check: Callable[..., object] = refuse_existing  # (target, *, overwrite, resume): raises what entering would raise
    takes: Collection[str] = ()  # those of `OPTIONS` that it regards; others are refused
    keeps: str = ""  # what of an episode its files hold and what not, in a line of `convert --list-formats`

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError for an option that is not at its default, and that the sink does not take."""
        for name, default in OPTIONS.items():
            if options[name] != default and name not in self.takes:
                option = f"--{name.replace('_', '-')}"
                what = f"{option} with the sink {self.name!r}, which does not take it"
                raise UsageError(what, where=f"--to {self.name}", fix=f"leave out {option}")
