"""A reader of a format: its name, whether files look like its own, and how it opens them as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.formats.listing import Listing
from offline_cli.formats.source import Fragments, Source, WrappedSource
from offline_cli.formats.tables.source import TableOptions
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import flatten

NO: Final = 0.0
LIKELY: Final = 0.5  # of tables: rows of something, which need a mapping
SURE: Final = 1.0  # nothing else looks like this


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The context in which files are opened."""

    listing: Listing  # of the files, which answers what they are
    tables: TableOptions = field(default_factory=TableOptions)  # how tables are to be read
    storage_options: Mapping[str, Any] | None = None
    drop: frozenset[str] = frozenset()  # leaves that the caller leaves out, by dotted path: a reader may be unable to read them

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
    keeps: str = ""  # what becomes part of episodes and what does not, in a line of `convert --list-formats`


@dataclass(slots=True)
class PluginSource(WrappedSource):
    """`source`, of another package's reader `name`, whose mistakes are reported as its own."""

    name: str

    def __post_init__(self) -> None:
        """Raises BadConfig for an object that is not a Source."""
        opened: Any = self.source
        if not isinstance(opened, Source):
            what = f"the reader {self.name!r} opens a {type(opened).__name__}, which is not a Source"
            raise BadConfig(what, where=f"reader {self.name}", fix="derive it from offline_cli.formats.source.FileSource")

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises BadData for fragments of another form."""
        for fragments in self.source.fragments(tally, rejects):
            batch: Any = getattr(fragments, "batch", None)
            if not isinstance(fragments, Fragments) or not isinstance(batch, EpisodeBatch):
                raise self._bad(f"{type(fragments).__name__} of {type(batch).__name__}, not Fragments of an EpisodeBatch")
            trees = {"obs": batch.obs, "actions": batch.actions, "rewards": batch.rewards, **batch.extra}
            for path, leaf in flatten(trees):
                kind = getattr(getattr(leaf, "dtype", None), "kind", "")
                if kind not in tuple("biuf") or (path == "rewards" and (kind, leaf.ndim) != ("f", 1)):
                    raise self._bad(f"{path} that are no array of the numbers it has to hold")
            yield fragments

    def _bad(self, what: str) -> BadData:
        fix = "correct the reader: docs/howto/extend.md has an example, and episodes/batch.py the form of each array"
        return BadData(f"the reader {self.name!r} yields {what}", where=self.source.info.location, fix=fix)
