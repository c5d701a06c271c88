"""What every reader of a foreign format offers; refuses to know any format itself.

A reader knows its bytes and nothing of ids seen elsewhere: it yields batches whose entries are fragments of episodes, and
`converting/stitching.py` alone puts them together. A fragment is an episode of an `EpisodeBatch` where

* `t_started` is the timestep of its first step (None in the batch: all 0). A source without timesteps says `UNKNOWN_START`
  where rows of another episode, or none, stand before the fragment, and `CONTINUES` where the row before it in the source is
  of the same unfinished episode (a file ended between them), and `AFTER_END` where that row has an end flag although the
  observations chain;
* `terminated` and `truncated` are set only where its own last step had the flag;
* the final observation is the last row's next observation where the source has one. Where it has none, the last observation
  is repeated in its place and `final_missing` is set. Stitching takes the next fragment's first observation instead, where
  there is one; it counts `missing-final-observation` where an episode is whole and still lacks its own. Readers do not count.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.spaces import Space
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import Tree

__all__ = [
    "AFTER_END",
    "BYTES",
    "CONTINUES",
    "ENV_SCALE",
    "NORMALIZED_SCALE",
    "ROWS",
    "UNKNOWN_SCALE",
    "UNKNOWN_START",
    "Measured",
    "Placed",
    "Places",
    "Scannable",
    "Source",
]

ROWS: Final = "rows"
BYTES: Final = "bytes"

ENV_SCALE: Final = "env"
NORMALIZED_SCALE: Final = "normalized"
UNKNOWN_SCALE: Final = "unknown"

UNKNOWN_START: Final = -1  # in `t_started`: the fragment begins an episode, or goes on with the open one of its id
CONTINUES: Final = -2  # in `t_started`: the fragment goes on with the row right before it
AFTER_END: Final = -3  # as UNKNOWN_START, but its first observation is the one that the row before, an end of this id, led to


@dataclass(frozen=True, slots=True)
class Places:
    """Where the fragments of one batch stand, cheap to make for many and turned into words only for a message."""

    files: tuple[str, ...]  # URLs
    file: NDArray[np.integer[Any]]  # (E,) index into `files`
    row: NDArray[np.integer[Any]]  # (E,) first row in that file, from 0

    def taken(self, entries: NDArray[np.int64]) -> Places:
        """Those of some fragments, in as few bytes as they can be: a reading keeps one for every episode."""
        file, row = (part[entries].astype(np.min_scalar_type(part.max(initial=0))) for part in (self.file, self.row))
        return Places(self.files, file, row)

    def __getitem__(self, entry: int) -> str:
        return f"{self.files[int(self.file[entry])]} row {int(self.row[entry])}"


class Source(Protocol):
    """One place with recordings of one format, opened but not yet read; readers are made as `XSource(files, location)`."""

    @property
    def format(self) -> str:
        """`episodes`, `columns`, `rllib-episodes`, `rllib-columns`, `sample-batch`."""

    @property
    def location(self) -> str:
        """Path or URL, for messages and provenance."""

    @property
    def observation_space(self) -> Space | None:
        """Space of one observation as the source declares it; None: not known until read."""

    @property
    def action_space(self) -> Space | None:
        """Space of one action as the source declares it; None: not known until read."""

    @property
    def action_scale(self) -> str:
        """`env`, `normalized` or `unknown`: what scale Box actions have."""

    @property
    def environment_id(self) -> str | None:
        """The gymnasium id that the source declares."""

    @property
    def unit(self) -> str:
        """What `size` and `done` count, for progress: `ROWS` or `BYTES`."""

    @property
    def size(self) -> int | None:
        """How much there is to read; None: it would take long to find out."""

    @property
    def done(self) -> int:
        """How much of it has been read."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[EpisodeBatch]:
        """Batches of fragments or whole episodes, in source order.

        Counts rows and assumptions in `tally`, hands every bad row to `rejects`. Raises BadData, UnsafeData, StorageError.
        """

    def close(self) -> None:
        """Close what readings that were left half read hold open, in the thread that calls this; it can be read again after.

        A reading that comes to its end, or to an error, closes its own. One that is dropped closes nothing: see `scopes`.
        """


@runtime_checkable
class Placed(Protocol):
    """A source that also knows the file and row of each fragment."""

    @property
    def places(self) -> Places | None:
        """Of the batch yielded last; None: not known for this one."""


@runtime_checkable
class Measured(Protocol):
    """A source that knows the length of its longest episode before one is read, and declares both spaces."""

    @property
    def longest(self) -> int | None:
        """Steps; None: not known."""


@runtime_checkable
class Scannable(Protocol):
    """A source of which it costs much more to put episodes together than to look at their values; each leaf has one dtype."""

    def values(self) -> Generator[tuple[Tree, Tree], None, None]:
        """All observations and actions, in any order, in the structure of its batches; counts nothing and refuses nothing."""

    def extra_dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Of the extra model outputs, by dotted path of the leaf."""
