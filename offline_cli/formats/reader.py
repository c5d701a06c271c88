"""A reader of a format: its name, whether files look like its own, and how it opens them as a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offline_cli.files.locations import Location
from offline_cli.formats.listing import Listing
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import TableOptions

__all__ = ["LIKELY", "NO", "SURE", "OpenContext", "Reader", "never"]

NO: Final = 0.0
LIKELY: Final = 0.5  # of tables: rows of something, which need a mapping
SURE: Final = 1.0  # nothing else looks like this


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The context in which files are opened."""

    listing: Listing  # of the files, which answers what they are
    tables: TableOptions = field(default_factory=TableOptions)  # how tables are to be read
    storage_options: Mapping[str, Any] | None = None

    @property
    def location(self) -> str:
        """Path or URL of the source, for messages and provenance."""
        return self.listing.location


def never(listing: Listing) -> float:
    """The `sniff` of a reader that has to be named."""
    return NO


@dataclass(frozen=True, slots=True)
class Reader:
    """One format. Other packages register theirs as entry points of `offline_cli.readers`; docs/extending.md has an example."""

    name: str  # as `--from` takes it
    words: str  # what it reads, for messages: "RLlib episodes in Parquet"
    open: Callable[[Sequence[Location], OpenContext], Source]
    """Opens files, in their order; notes and pictures may be among them. Raises BadData, BadMapping."""
    sniff: Callable[[Listing], float] = never
    """From `NO` to `SURE`, how certainly files are of this format; `--from auto` takes the most certain, and of equals ours.
    Checks content and names, imports nothing that the files name. May raise BadData for files that it knows to be damaged."""
    takes_mapping: bool = False  # whether `--mapping` and `--rows-as-episodes` are for it
