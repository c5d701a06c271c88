"""What `convert --to NAME` writes into: a `Sink` of whole episodes, and the record by which it is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import OutputExists
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Environment
from offline_cli.tally import Reject, Tally

__all__ = ["Sink", "SinkContext", "SinkKind", "Written", "refuse_existing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What is known of the episodes, and asked of their files, before the first is written."""

    observation_space: Space
    action_space: Space
    action_scale: str  # "env" | "normalized" | "unknown"
    spaces_inferred: bool
    environment: Environment | None
    provenance: Mapping[str, Any]  # sources, their formats, commands
    compression: str
    max_rows_per_file: int | None
    tally: Tally  # for what the sink has to assume or drop
    identity: str  # the same for the same content: what `resume` compares
    overwrite: bool
    resume: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What a sink has committed."""

    episodes: int
    steps: int
    files: int
    bytes: int


class Sink(Protocol):
    """Whole episodes on their way to one place; what it opens is closed by the end of its `with`.

    Entering begins: it refuses what must not be touched. Leaving without `commit` aborts: nothing passes for whole then.
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
        """Take one or more whole episodes with new ids; their arrays may wait here, and are not to be changed afterwards."""

    def rehearse(self, batch: EpisodeBatch) -> None:
        """Refuse and count what `write` would, and write nothing: of a dry run, which writes the first episodes alone."""

    def quarantine(self, rejects: list[Reject]) -> None:
        """Keep rows that were set aside beside the episodes, and empty the list."""

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """Make what was written whole and durable. `assumptions`: counts by kind; `episodes_lost`: None: not known."""


def refuse_existing(target: Location, *, overwrite: bool, resume: bool) -> None:
    """Raise OutputExists where something is at `target`, unless it is to be replaced or resumed."""
    if not (overwrite or resume) and target.exists():
        raise OutputExists("something is here already", where=target.url, fix="give another --out, or --overwrite")


class Check(Protocol):
    """See `refuse_existing`."""

    def __call__(self, target: Location, *, overwrite: bool, resume: bool) -> object: ...


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One format to write. Other packages register theirs as entry points of `offline_cli.sinks`; see docs/extending.md."""

    name: str  # as `--to` takes it
    words: str  # what it writes, for messages
    open: Callable[[Location, SinkContext], Sink]  # nothing is touched before its `with`
    check: Check = refuse_existing  # raises, before anything is read, what entering would raise
