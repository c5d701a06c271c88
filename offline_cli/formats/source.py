"""The interface of every reader: a `Source` of episode fragments, and the metadata it declares.

A reader knows only its own bytes, not the ids in other sources. It yields `Fragments`: whole episodes or parts of them, which
only `converting/stitching.py` joins. For each fragment a reader sets

* its start: `t_started` of the batch, or, without timesteps, what precedes it in the source (`StartKind`);
* `terminated` and `truncated`, only if its own last step had the flag;
* its final observation: the last row's next observation. If the source has none, the last observation is repeated and
  `final_missing` is set; the stitcher uses the first observation of the next fragment, or counts `missing-final-observation`;
* its origin, if known: file and row, for messages.

`FileSource` is the base of sources that are lists of files. docs/howto/extend.md shows a reader in another package.

`DroppedLeaves` removes the leaves named by `--drop` from a source.
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
THE_POLICY: Final = "the policy"

HASHED_BYTES: Final = 64 << 10  # bytes hashed at each end of a file
ASKED: Final = 64  # maximum number of remote files whose size is requested


class StartKind(IntEnum):
    """Where a fragment starts (`EpisodeBatch.start_kind`)."""

    AT_T = 0  # at timestep `t_started`
    UNKNOWN = 1  # it starts an episode or continues the open one of its id; the previous row, if any, has another id
    CONTINUES = 2  # it continues the previous row of the same unfinished episode, across a file boundary
    AFTER_END = 3  # like UNKNOWN, but the previous row ends an episode of its id, with a next observation equal to its first


def place_of_row(url: str, row: int, first_line: int = 0) -> str:
    """A row of a file, numbered from 0; or its line, if that of row 0 is known."""
    return f"{url} line {row + first_line}" if first_line else f"{url} row {row}"


@dataclass(frozen=True, slots=True)
class Origins:
    """File and row of each fragment of a batch; formatted only for messages."""

    files: tuple[str, ...]  # URLs
    file: NDArray[np.integer[Any]]  # (E,) index into `files`
    row: NDArray[np.integer[Any]]  # (E,) first row in that file, from 0
    in_order: NDArray[np.bool_] | None = None  # (E,) whether its steps are consecutive rows; None: rows are not steps
    lines: tuple[int, ...] = ()  # by file, the line of row 0, counted from 1; 0 or missing: unknown

    @classmethod
    def of_rows(
        cls,
        files: tuple[str, ...],
        file: NDArray[Any],
        row: NDArray[Any],
        first: NDArray[np.int64],
        lines: tuple[int, ...] = (),
    ) -> Origins:
        """Origins of runs of step rows; `file`, `row` (N,): of each step; `first` (E,): first step of each run."""
        breaks = (np.diff(row, prepend=row[:1]) != 1) | (np.diff(file, prepend=file[:1]) != 0)
        breaks[first] = False
        return cls(files, file[first], row[first], np.add.reduceat(breaks, first) == 0, lines)

    def taken(self, entries: NDArray[np.int64] | slice) -> Origins:
        """The origins of some fragments."""
        in_order = None if self.in_order is None else self.in_order[entries]
        return Origins(self.files, self.file[entries], self.row[entries], in_order, self.lines)

    def compact(self) -> Origins:
        """Use the smallest integer types: a reading keeps one entry per episode."""
        file, row = (part.astype(np.min_scalar_type(part.max(initial=0))) for part in (self.file, self.row))
        return Origins(self.files, file, row, self.in_order, self.lines)

    def __getitem__(self, entry: int) -> str:
        return self._place(entry, 0)

    def _place(self, entry: int, step: int) -> str:
        file = int(self.file[entry])
        return place_of_row(self.files[file], int(self.row[entry]) + step, self.lines[file] if self.lines else 0)

    def of_step(self, entry: int, step: int) -> str:
        """The place of a step of a fragment: file and row, or only the file if the row is unknown."""
        if not step or self.in_order is None:
            return self[entry]
        return self._place(entry, step) if self.in_order[entry] else self.files[int(self.file[entry])]


@dataclass(frozen=True, slots=True)
class Fragments:
    """Whole episodes, or parts of them, in the order of a source."""

    batch: EpisodeBatch  # (E,) fragments, described by `t_started`, `start_kind` and `final_missing`
    origins: Origins | None = None  # (E,); None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Metadata that a source declares before it is read. Spaces are of one step; None: unknown until read."""

    format: str  # `episodes`, `columns`, `rllib-episodes`, `rllib-columns`, `sample-batch`, `table`, or a plug-in's name
    location: str  # path or URL, for messages and provenance
    observation_space: Space | None = None
    action_space: Space | None = None
    spaces_inferred: bool = False  # inferred by the source's writer; an environment's spaces take precedence
    action_scale: str = UNKNOWN_SCALE  # of Box actions: `env`, `normalized` or `unknown`
    meanings: Meanings = NO_MEANINGS  # of columns: names of elements, categories, units
    environment: EnvironmentSpec | None = None  # of its episodes; None: unknown
    said_by: str = THE_SOURCE  # origin of these declarations, for messages
    commands: tuple[str, ...] = ()  # the commands that made it, in order
    columns: Mapping[str, str] | None = None  # of a mapped table: source columns by our names, for a preview
    declared: tuple[Mapping[str, Any], ...] = ()  # further metadata of its files, JSON values with their `format`
    mappings: tuple[Mapping[str, Any], ...] = ()  # mapping documents: of a table, or of the sources of a dataset
    manifest: Manifest | None = None  # of our own datasets

    @property
    def spaces(self) -> tuple[Space | None, Space | None]:
        """Observation and action space."""
        return self.observation_space, self.action_space

    @property
    def inherited(self) -> Counter[str]:
        """Assumptions made when our dataset was written, by kind, for all its episodes, without lost episodes."""
        counted = {} if self.manifest is None else self.manifest.assumptions
        return Counter({kind: times for kind, times in counted.items() if kind not in set(Lost)})

    def check_scale(self, said: str | None) -> None:
        """Raise UsageError if the caller's action scale `said` contradicts the declared one."""
        if said is not None and self.action_scale not in (UNKNOWN_SCALE, said):
            what = f"--action-scale {said}, but {self.said_by} declares {self.action_scale}"
            raise UsageError(what, where=self.location, fix="remove --action-scale")

    def with_default_spaces(self, spaces: tuple[Space, Space] | None) -> SourceInfo:
        """Use `spaces` for spaces that it does not declare."""
        if spaces is None:
            return self
        return replace(self, observation_space=self.observation_space or spaces[0], action_space=self.action_space or spaces[1])


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a source; a reader may ignore them."""

    spaces: tuple[Space, Space] | None = None  # of the caller's environment, for sources without tuples or dtypes
    workers: int = choices.WORKERS  # files read in parallel
    limit: int | None = None  # maximum number of episodes that the caller needs
    on_progress: OnProgress = no_progress  # callback for work before the first episode
    memory_limit: int = MEMORY_LIMIT  # bytes for the whole process


@runtime_checkable
class Source(Protocol):
    """Recordings of one format in one place, opened but not yet read. It can be read repeatedly."""

    @property
    def info(self) -> SourceInfo:
        """Declared metadata; after `prepare` with the given spaces."""

    @property
    def unit(self) -> str:
        """Unit of `size` and `done`, for progress: `ROWS`, `BYTES`, "episodes" or "steps"."""

    @property
    def size(self) -> int | None:
        """Total size; None if unknown."""

    @property
    def done(self) -> int:
        """Amount read so far."""

    def prepare(self, options: ReadOptions) -> None:
        """Set the read options, before the first reading."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """Iterate over fragments in source order.

        Counts rows and assumptions in `tally`, and passes every bad row to `rejects`, which raises under `--on-error fail`.
        Assumptions about whole episodes are counted elsewhere. Raises BadData, UnsafeData, StorageError.
        """

    def partitions(self, count: int) -> Sequence[Self]:
        """Split into at most `count` picklable sources, readable in any process; together they yield the same fragments and
        counts. A source that cannot be split returns itself.
        """

    def close(self) -> None:
        """Close the files of unfinished readings, in the calling thread; the source can be read again.

        A finished or failed reading closes its files; an abandoned iterator leaves them open (see `scopes`).
        """


def shares(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Split `items` into at most `count` consecutive, non-empty parts whose sizes differ by at most one."""
    count = min(count, len(items))
    edges = [len(items) * part // count for part in range(count + 1)] if count else []
    return [items[first:stop] for first, stop in pairwise(edges)]


def source_hash(files: Sequence[Openable]) -> str:
    """Hash of a source's files, in the order of their names: 8 hex digits."""
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
    """Base of a `Source` that transforms another one's fragments; subclasses define `fragments`."""

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
    """Base of a `Source` over files in the given order; subclasses define `fragments`."""

    format: ClassVar[str] = "files"  # each subclass has its own

    files: Sequence[Any]  # Location or any Openable
    location: InitVar[str]
    declared: InitVar[SourceInfo | None] = None  # None: declare only format and location
    info: SourceInfo = field(init=False)
    read_options: ReadOptions = field(default=ReadOptions(), init=False)
    unit: str = field(default=BYTES, init=False)
    done: int = field(default=0, init=False)
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)  # owns open files
    _size: int | None = field(default=None, init=False, repr=False, compare=False)  # None: not yet requested

    def __post_init__(self, location: str, declared: SourceInfo | None) -> None:
        self.info = declared or SourceInfo(format=self.format, location=location)

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""
        self.read_options = options

    def partitions(self, count: int) -> Sequence[Self]:
        """See `Source`."""
        return [self]

    def over(self, files: Sequence[Any]) -> Self:
        """A picklable copy of this source with other files."""
        other = type(self)(files, self.info.location, self.info)
        other.read_options = replace(self.read_options, on_progress=no_progress)
        return other

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    @property
    def size(self) -> int | None:
        """Size of all files in bytes; None if it would take many requests."""
        if len(self.files) > ASKED and not self.files[0].is_local:
            return None
        if self._size is None:  # progress reads it for each batch
            self._size = sum(file.size() for file in self.files)
        return self._size


# ---- dropped leaves ----


LEFT_OUT: Final = "dropped by --drop"
WHOLE: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


@dataclass(slots=True)
class DroppedLeaves(WrappedSource):
    """A `Source` without the leaves at some dotted paths, such as `obs.mission`."""

    names: frozenset[str]

    def __post_init__(self) -> None:
        """Raises UsageError for columns that every episode needs."""
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
        """See `Source`. Removes the leaves from the environment's spaces too."""
        pair = options.spaces
        if pair is not None:
            pair = _space(pair[0], Columns.OBS, self.names), _space(pair[1], Columns.ACTIONS, self.names)
        self.source.prepare(replace(options, spaces=pair))

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises UsageError at the first fragments for a leaf that does not exist."""
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
                raise UsageError(what, where="--drop", fix=f"droppable names: {', '.join(there)[:1000]}")
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
    """The parts that are not dropped. Raises UsageError if nothing is left."""
    kept = {key: part for key, part in parts.items() if f"{path}.{key}" not in names}
    if parts and not kept:
        raise UsageError(f"nothing of {path} would be left", where="--drop", fix="keep at least one part")
    return kept
