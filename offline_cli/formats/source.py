"""The interface of every reader: a `Source` of fragments of episodes, and what it declares about them.

A reader knows its bytes and nothing of ids seen elsewhere. It yields `Fragments`, whose entries are whole episodes or pieces of
them; `converting/stitching.py` alone joins pieces. For each entry a reader states

* where it starts: at `t_started` of the batch, or, without timesteps, what precedes it in the source (`StartKind`);
* `terminated` and `truncated`, only where its own last step had the flag;
* its final observation: the last row's next observation. Where the source has none, the last observation is repeated and
  `final_missing` is set; stitching takes the first observation of the next piece, or counts `missing-final-observation`;
* its origin, where it is known: file and row, for messages.

`FileSource` has what all sources that are lists of files share. docs/extending.md has a reader of another package as an
example.

`DroppedLeaves` is a source without the leaves that `--drop` names.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli import choices
from offline_cli.columns import Columns
from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UsageError
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, paths

T = TypeVar("T")
Openable: TypeAlias = Location  # a file of a source

ROWS: Final = "rows"
BYTES: Final = "bytes"

ENV_SCALE: Final = "env"
NORMALIZED_SCALE: Final = "normalized"
UNKNOWN_SCALE: Final = "unknown"
THE_SOURCE: Final = "the source"

HASHED_BYTES: Final = 64 << 10  # at each end of a file
ASKED: Final = 64  # files elsewhere whose size is asked for, one request each


class StartKind(IntEnum):
    """Where a fragment starts (`EpisodeBatch.start_kind`)."""

    AT_T = 0  # at timestep `t_started`
    UNKNOWN = 1  # it begins an episode, or continues the open one of its id: rows of another one, or none, precede it
    CONTINUES = 2  # it continues the row right before it, of the same unfinished episode: a file ended between them
    AFTER_END = 3  # as UNKNOWN, but the row before it is an end of its id, whose next observation is its first one


@dataclass(frozen=True, slots=True)
class Origins:
    """The places of the fragments of one batch, cheap to make for many and turned into text only for a message."""

    files: tuple[str, ...]  # URLs
    file: NDArray[np.integer[Any]]  # (E,) index into `files`
    row: NDArray[np.integer[Any]]  # (E,) first row in that file, from 0
    in_order: NDArray[np.bool_] | None = None  # (E,) whether the rows after it are its next steps; None: rows are no steps

    @classmethod
    def of_rows(cls, files: tuple[str, ...], file: NDArray[Any], row: NDArray[Any], first: NDArray[np.int64]) -> Origins:
        """Those of runs of rows that are steps; `file`, `row` (N,): of each step, `first` (E,): of each run."""
        breaks = (np.diff(row, prepend=row[:1]) != 1) | (np.diff(file, prepend=file[:1]) != 0)
        breaks[first] = False
        return cls(files, file[first], row[first], np.add.reduceat(breaks, first) == 0)

    def taken(self, entries: NDArray[np.int64] | slice) -> Origins:
        """Those of some fragments."""
        in_order = None if self.in_order is None else self.in_order[entries]
        return Origins(self.files, self.file[entries], self.row[entries], in_order)

    def compact(self) -> Origins:
        """As compact as possible: a reading keeps one for every episode."""
        file, row = (part.astype(np.min_scalar_type(part.max(initial=0))) for part in (self.file, self.row))
        return Origins(self.files, file, row, self.in_order)

    def __getitem__(self, entry: int) -> str:
        return f"{self.files[int(self.file[entry])]} row {int(self.row[entry])}"

    def of_step(self, entry: int, step: int) -> str:
        """The row of one step of a fragment; the file alone, where that is not known."""
        if not step or self.in_order is None:
            return self[entry]
        file = self.files[int(self.file[entry])]
        return f"{file} row {int(self.row[entry]) + step}" if self.in_order[entry] else file


@dataclass(frozen=True, slots=True)
class Fragments:
    """Whole episodes, or pieces of them, in the order of a source."""

    batch: EpisodeBatch  # (E,) entries; `t_started`, `start_kind` and `final_missing` say what pieces they are
    origins: Origins | None = None  # (E,); None: not known for these


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """What a source declares before it is read. Spaces are of one step; None: not known until read."""

    format: str  # `episodes`, `columns`, `rllib-episodes`, `rllib-columns`, `sample-batch`, `table`, or a plug-in's name
    location: str  # path or URL, for messages and provenance
    observation_space: Space | None = None
    action_space: Space | None = None
    spaces_inferred: bool = False  # they were inferred by the source's writer, and give way to those of an environment
    action_scale: str = UNKNOWN_SCALE  # of Box actions: `env`, `normalized` or `unknown`
    meanings: Meanings = NO_MEANINGS  # of columns: names of elements, categories, units
    environment: EnvironmentSpec | None = None  # what its episodes were played in; None: not known
    said_by: str = THE_SOURCE  # who declares this, as text
    longest: int | None = None  # steps of the longest episode; None: not known
    commands: tuple[str, ...] = ()  # that made it, first to last
    columns: Mapping[str, str] | None = None  # of a mapped table: its columns by ours, for a preview
    declared: tuple[Mapping[str, Any], ...] = ()  # what else its files say of the whole, JSON values with their `format`
    mappings: tuple[Mapping[str, Any], ...] = ()  # as documents: its own, of a dataset those that its sources were read by
    manifest: Manifest | None = None  # of a dataset of ours

    @property
    def spaces(self) -> tuple[Space | None, Space | None]:
        """Of observations and of actions."""
        return self.observation_space, self.action_space

    @property
    def inherited(self) -> Counter[str]:
        """What was assumed when a dataset of ours was written, by kind, for all its episodes; lost ones are counted apart."""
        counted = {} if self.manifest is None else self.manifest.assumptions
        return Counter({kind: times for kind, times in counted.items() if kind not in set(Lost)})

    def check_scale(self, said: str | None) -> None:
        """Raise UsageError where the caller says another scale of actions than this declares."""
        if said is not None and self.action_scale not in (UNKNOWN_SCALE, said):
            what = f"--action-scale {said}, but {self.said_by} says {self.action_scale}"
            raise UsageError(what, where=self.location, fix="leave out --action-scale")

    def with_default_spaces(self, spaces: tuple[Space, Space] | None) -> SourceInfo:
        """With `spaces` where it declares none."""
        if spaces is None:
            return self
        return replace(self, observation_space=self.observation_space or spaces[0], action_space=self.action_space or spaces[1])


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a source is going to be read, as far as the caller knows; a reader uses what it can."""

    spaces: tuple[Space, Space] | None = None  # of the environment that the caller named: for sources without tuples or dtypes
    workers: int = choices.WORKERS  # files read at a time
    limit: int | None = None  # episodes that the caller will take at most
    on_progress: OnProgress = no_progress  # is called about work before the first episode
    memory_limit: int = MEMORY_LIMIT  # bytes that the whole process may take


@runtime_checkable
class Source(Protocol):
    """One place with recordings of one format, opened but not yet read. It can be read again and again."""

    @property
    def info(self) -> SourceInfo:
        """What it declares; after `prepare`, with the spaces that it was given."""

    @property
    def unit(self) -> str:
        """What `size` and `done` count, for progress: `ROWS` or `BYTES`."""

    @property
    def size(self) -> int | None:
        """How much there is to read; None: finding out would take long."""

    @property
    def done(self) -> int:
        """How much of it has been read."""

    def prepare(self, options: ReadOptions) -> None:
        """Receive the options of reading, before the first reading."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Fragments in the order of the source.

        Counts rows and assumptions in `tally`, and passes every bad row to `rejects`, which raises where bad rows are errors.
        A reader does not count what depends on whole episodes. Raises BadData, UnsafeData, StorageError.
        """

    def partitions(self, count: int) -> Sequence[Self]:
        """At most `count` sources that can be pickled, read by themselves, in any process, and that one after the other give
        the same fragments, with the same counts in sum; one, itself, where it cannot be divided.
        """

    def close(self) -> None:
        """Close what unfinished readings hold open, in the calling thread; the source can be read again after.

        A reading that ends, or fails, closes its own files. One that is dropped closes nothing: see `scopes`.
        """


def shares(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """At most `count` parts of `items`, one after the other, of sizes that differ by one at most; none is empty."""
    count = min(count, len(items))
    edges = [len(items) * part // count for part in range(count + 1)] if count else []
    return [items[first:stop] for first, stop in pairwise(edges)]


def source_hash(files: Sequence[Openable]) -> str:
    """8 hex digits, of the files in order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.url):
        with storage_failures(file.url, "reading it"), file.open() as stored:
            size = stored.seek(0, io.SEEK_END)
            stored.seek(0)
            digest.update(size.to_bytes(8, "little"))
            digest.update(stored.read(HASHED_BYTES))
            stored.seek(max(0, size - HASHED_BYTES))
            digest.update(stored.read(HASHED_BYTES))
    return digest.hexdigest()[:8]


@dataclass(slots=True)
class WrappedSource:
    """A source whose fragments are changed on their way: a `Source` without its `fragments`, all else as `source` has it."""

    source: Source
    info = property(attrgetter("source.info"))
    unit = property(attrgetter("source.unit"))
    size = property(attrgetter("source.size"))
    done = property(attrgetter("source.done"))

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self.source.prepare(options)

    def partitions(self, count: int) -> Sequence[Self]:
        """See `Source`."""
        return [replace(self, source=part) for part in self.source.partitions(count)]

    def close(self) -> None:
        """See `Source`."""
        self.source.close()


@dataclass(slots=True)
class FileSource:
    """Files in the order given, as a `Source` without its `fragments`."""

    format: ClassVar[str] = "files"  # its name; each class has its own

    files: Sequence[Any]  # Location or any Openable
    location: InitVar[str]
    declared: InitVar[SourceInfo | None] = None  # None: only format and location are known
    info: SourceInfo = field(init=False)
    read_options: ReadOptions = field(default=ReadOptions(), init=False)
    unit: str = field(default=BYTES, init=False)
    done: int = field(default=0, init=False)
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)  # owns what its readings hold open

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        self.info = declared or SourceInfo(format=self.format, location=location)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self.read_options = options

    def partitions(self, count: int) -> Sequence[Self]:
        """See `Source`."""
        return [self]

    def over(self, files: Sequence[Any]) -> Self:
        """The same source with other files, which can be pickled."""
        other = type(self)(files, self.info.location, self.info)
        other.read_options = replace(self.read_options, on_progress=no_progress)
        return other

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where finding out would take many requests."""
        if len(self.files) > ASKED and not self.files[0].is_local:
            return None
        total: int = sum(file.size() for file in self.files)
        return total


# ---- dropped leaves ----


LEFT_OUT: Final = "left out by --drop"
WHOLE: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


@dataclass(slots=True)
class DroppedLeaves(WrappedSource):
    """`source` without the leaves at some dotted paths, such as `obs.mission`; a `Source`."""

    names: frozenset[str]

    def __post_init__(self) -> None:
        """Raises UsageError for what every episode needs."""
        needed = sorted(self.names.intersection(WHOLE))
        if needed:
            fix = "name a part of it: --drop obs.PART"
            raise UsageError(f"{needed[0]} is part of every episode", where="--drop", fix=fix)

    @property
    def info(self) -> SourceInfo:
        """See `Source`."""
        info = self.source.info
        return replace(
            info,
            observation_space=_space(info.observation_space, Columns.OBS, self.names),
            action_space=_space(info.action_space, Columns.ACTIONS, self.names),
        )

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Spaces of an environment have the leaves, and are not for a reader of the others."""
        pair = options.spaces
        if pair is not None:
            pair = _space(pair[0], Columns.OBS, self.names), _space(pair[1], Columns.ACTIONS, self.names)
        self.source.prepare(replace(options, spaces=pair))

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises UsageError, once the first fragments are read, for a leaf that is not there."""
        is_known = False
        for fragments in self.source.fragments(tally, rejects):
            batch = fragments.batch
            there = [*paths(batch.obs, Columns.OBS), *paths(batch.actions, Columns.ACTIONS), *batch.extra]
            there += [Columns.INFOS] * (batch.infos is not None)
            found = [name for name in sorted(self.names) if any(f"{one}.".startswith(f"{name}.") for one in there)]
            for name in found:
                tally.drop_column(name, LEFT_OUT)
            unknown = self.names.difference(found, tally.dropped_columns)
            if unknown and not is_known:
                what = f"there is no {' and no '.join(sorted(unknown))}"
                raise UsageError(what, where="--drop", fix=f"what can be left out: {', '.join(there)[:1000]}")
            is_known = True
            kept = replace(
                batch,
                obs=_tree(batch.obs, Columns.OBS, self.names),
                actions=_tree(batch.actions, Columns.ACTIONS, self.names),
                extra={name: tree for name, tree in batch.extra.items() if name not in self.names},
                infos=None if Columns.INFOS in self.names else batch.infos,
                observation_space=_space(batch.observation_space, Columns.OBS, self.names),
                action_space=_space(batch.action_space, Columns.ACTIONS, self.names),
            )
            yield Fragments(kept, fragments.origins)


def _tree(tree: Tree, path: str, names: frozenset[str]) -> Tree:
    if not isinstance(tree, dict):
        return tree
    return {key: _tree(part, f"{path}.{key}", names) for key, part in _kept(tree, path, names).items()}


def _space(space: Space | None, path: str, names: frozenset[str]) -> Any:
    if not isinstance(space, spaces.Dict):
        return space
    return spaces.Dict([(key, _space(part, f"{path}.{key}", names)) for key, part in _kept(space.spaces, path, names).items()])


def _kept(parts: Mapping[str, Any], path: str, names: frozenset[str]) -> Mapping[str, Any]:
    """Raises UsageError where nothing is left."""
    kept = {key: part for key, part in parts.items() if f"{path}.{key}" not in names}
    if parts and not kept:
        raise UsageError(f"nothing of {path} would be left", where="--drop", fix="leave one of them in")
    return kept
