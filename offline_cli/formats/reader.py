"""A reader of a format: its name, whether files look like its own, and how it opens them as a source.

The fragments of another package's reader are checked on their way (`PluginSource`), so that its mistakes are reported as its
own. Our own sources are trusted: few places make their fragments. A wrong array of a plug-in would be found much later, in a
place unrelated to its cause, or be written into a dataset that no command reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.formats.listing import Listing
from offline_cli.formats.source import Fragments, Source, WrappedSource
from offline_cli.formats.tables.source import TableOptions
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import flatten

__all__ = ["LIKELY", "NO", "SURE", "OpenContext", "PluginSource", "Reader", "never"]

NO: Final = 0.0
LIKELY: Final = 0.5  # of tables: rows of something, which need a mapping
SURE: Final = 1.0  # nothing else looks like this

MEMBERS: Final = ("fragments", "info", "unit", "done", "size", "prepare", "partitions", "close")
FIX: Final = "correct the reader: docs/extending.md has an example, and episodes/batch.py the form of each array"
PER_EPISODE: Final = {"terminated": "b", "truncated": "b", "t_started": "i", "start_kind": "u", "final_missing": "b"}
ARRAYS: Final = {"starts": "i", "rewards": "f", **PER_EPISODE}
"""Those of a batch, by kind of their dtype."""
WORDS: Final = {"b": "booleans", "i": "integers", "f": "decimals", "u": "uint8"}


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
    """`source`, of another package's reader `name`."""

    name: str

    def __post_init__(self) -> None:
        """Raises BadConfig for an object that is not a Source."""
        kind, missing = type(self.source).__name__, [member for member in MEMBERS if not hasattr(self.source, member)]
        if missing:
            what = f"the reader {self.name!r} opens a {kind}, which is not a Source: it lacks {', '.join(missing)}"
            raise BadConfig(what, where=f"reader {self.name}", fix="derive it from offline_cli.formats.source.FileSource")

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Raises BadData for invalid fragments."""
        for fragments in self.source.fragments(tally, rejects):
            fault = _fault(fragments)
            if fault:
                raise BadData(f"the reader {self.name!r} yields {fault}", where=self.source.info.location, fix=FIX)
            yield fragments


def _fault(fragments: Any) -> str:
    """What is wrong with an item, as text; empty where nothing is."""
    batch: Any = getattr(fragments, "batch", None)
    if not isinstance(fragments, Fragments):
        return f"{type(fragments).__name__}, not Fragments(batch)"
    if not isinstance(batch, EpisodeBatch):
        return f"Fragments of {type(batch).__name__}, not of an EpisodeBatch"
    if not (isinstance(batch.ids, tuple) and all(isinstance(name, str) for name in batch.ids)):
        return f"ids that are no tuple of texts: {str(batch.ids)[:80]!r}"
    for name, kind in ARRAYS.items():
        value = getattr(batch, name)
        if (value is not None or name in ("starts", "rewards")) and _form(value) != (kind, 1):
            return f"{name} that are no array (N,) of {WORDS[kind]}: {_in_words(value)}"
    trees = (("obs", batch.obs), ("actions", batch.actions), *batch.extra.items())
    for path, leaf in (pair for name, tree in trees for pair in flatten(tree, name)):
        if _form(leaf)[0] not in "biuf":
            return f"{path} that hold no numbers: {_in_words(leaf)}"
    return ""


def _form(value: Any) -> tuple[str, int]:
    return (value.dtype.kind, value.ndim) if isinstance(value, np.ndarray) else ("", 0)


def _in_words(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
