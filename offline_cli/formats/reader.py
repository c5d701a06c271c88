"""The interface of a format's reader: its name, a check whether files have the format, and how to open them as a source."""

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
LIKELY: Final = 0.5  # for tables, which need a mapping
SURE: Final = 1.0  # no other format looks like this


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The context in which files are opened."""

    listing: Listing  # the files and their kind
    tables: TableOptions = field(default_factory=TableOptions)
    storage_options: Mapping[str, Any] | None = None
    drop: frozenset[str] = frozenset()  # leaves to drop, by dotted path; a reader may skip them if it cannot read them

    @property
    def location(self) -> str:
        """Path or URL of the source, for messages and provenance."""
        return self.listing.location


def never(listing: Listing) -> float:
    """The `sniff` of a reader that `--from auto` never selects."""
    return NO


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one format. Other packages register readers as entry points of `offline_cli.readers`; see docs/howto/extend.md."""

    name: str  # value of `--from`
    words: str  # the format, for messages: "RLlib episodes in Parquet"
    open: Callable[[Sequence[Location], OpenContext], Source]
    """Opens files, in their order; notes and images may be among them. Raises BadData, BadMapping."""
    sniff: Callable[[Listing], float] = never
    """Certainty, from `NO` to `SURE`, that files have this format; `--from auto` selects the highest, and ours among equals.
    Checks content and names, imports nothing that the files name. May raise BadData for damaged files of its format."""
    takes_mapping: bool = False  # whether it accepts `--mapping` and `--rows-as-episodes`
    keeps: str = ""  # which data it keeps and drops, one line for `convert --list-formats`


@dataclass(slots=True)
class PluginSource(WrappedSource):
    """A source of a plug-in's reader `name`, with checks that report its mistakes."""

    name: str

    def __post_init__(self) -> None:
        """Raises BadConfig for an object that is not a Source."""
        opened: Any = self.source
        if not isinstance(opened, Source):
            what = f"the reader {self.name!r} returned a {type(opened).__name__}, not a Source"
            raise BadConfig(what, where=f"reader {self.name}", fix="derive it from offline_cli.formats.source.FileSource")

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises BadData for invalid fragments."""
        for fragments in self.source.fragments(tally, rejects):
            batch: Any = getattr(fragments, "batch", None)
            if not isinstance(fragments, Fragments) or not isinstance(batch, EpisodeBatch):
                raise self._bad(f"{type(fragments).__name__} of {type(batch).__name__}, not Fragments of an EpisodeBatch")
            trees = {"obs": batch.obs, "actions": batch.actions, "rewards": batch.rewards, **batch.extra}
            for path, leaf in flatten(trees):
                kind = getattr(getattr(leaf, "dtype", None), "kind", "")
                if kind not in tuple("biuf") or (path == "rewards" and (kind, leaf.ndim) != ("f", 1)):
                    raise self._bad(f"{path} that is not an array of the expected numbers")
            yield fragments

    def _bad(self, what: str) -> BadData:
        fix = 'correct the reader; see "A reader" in the documentation'
        return BadData(f"the reader {self.name!r} yields {what}", where=self.source.info.location, fix=fix)
